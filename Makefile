# Each target is one command in a fresh clone: it creates .venv and installs what it needs first.
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,$(shell command -v $(p) 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
# One XLA thread per test worker, because two workers with two threads each would compete for two cores.
ONE_THREAD := XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1" OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
WORKERS ?= 2

.PHONY: help demo test test-all test-cluster mutants test-pythons test-oldest lint format tables docs bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python found: install Python 3.11 or newer, or set PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, $(PYTHON) is older: set PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed  ## open a combination lock and draw the latent states found
	$(BIN)/briee train lock --horizon 25 --seed 1 --run-dir runs/demo --overwrite
	@echo "The latent states it found: runs/demo/decoder.png"

test: $(VENV)/.installed-dev  ## the default tests, minutes on two cores
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov

test-all: $(VENV)/.installed-dev  ## the default tests and the slow ones
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov -m "slow or not slow"

test-cluster: $(VENV)/.installed-dev  ## a Ray cluster that loses a node, and SLURM's jobs: under a minute
	$(ONE_THREAD) $(BIN)/python -m pytest -m slow tests/training/test_launchers.py

mutants: $(VENV)/.installed-dev  ## change the core modules at random: do the tests notice? 20 minutes on two cores
	$(ONE_THREAD) $(BIN)/python tests/mutants.py --workers $(WORKERS)

test-pythons: $(VENV)/.installed-dev  ## install the wheel and run the smoke tests with every Python found
	$(ONE_THREAD) $(BIN)/python tests/installed.py

test-oldest: $(VENV)/.installed-dev  ## the same with the oldest dependencies that pyproject.toml allows
	$(ONE_THREAD) $(BIN)/python tests/installed.py --oldest

lint: $(VENV)/.installed-dev  ## ruff (rules and layout), import-linter (which package imports which), pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

format: $(VENV)/.installed-dev  ## let ruff lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tables: $(VENV)/.installed  ## write the numbers of results/ into README.md and docs/
	$(BIN)/python benchmarks/pages.py
	$(BIN)/briee leaderboard

docs: $(VENV)/.installed-dev  ## build the documentation site in build/site; a broken link is an error
	$(BIN)/python docs/site.py

bench: $(VENV)/.installed  ## speed against the machine's own limit
	$(BIN)/briee bench

clean:  ## remove the environment and caches; run directories stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
