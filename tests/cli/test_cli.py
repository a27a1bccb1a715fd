"""The command line: contract, exit codes, and one sentence for everything that is wrong."""

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from briee.agent.files import load
from briee.algorithms import registry as algorithms
from briee.cli.main import main
from briee.diagnose import speed as bench
from briee.training import session as runs
from briee.training.spec import build, load_spec

TINY = shlex.split(
    "train lock --preset paper --horizon 2 --env.num_actions 2 --replearn.rounds 2 --replearn.feature-steps 2"
    " --replearn.discriminator-steps=2 --replearn.hidden_sizes 4 3 --collect.buffer-size 100"
    " --collect.episodes_per_level 5"
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A tiny finished run; what it learned does not matter."""
    path = tmp_path_factory.mktemp("cli") / "run"
    assert main([*TINY, "--episodes", "30", "--seed", "7", "--run-dir", str(path)]) == 0
    return path


def refusal(capsys, *argv: str) -> str:
    """The sentence with which a request is refused."""
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("briee: ")
    assert error.count("\n") == 1
    return error.removeprefix("briee: ").strip()


def test_help_is_fast_and_needs_no_jax():
    program = (
        "import sys; from briee.cli.main import main; main(['--help']); main(['--version']);\n"
        "try: main(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('jax' in sys.modules)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "train an agent" in done.stdout
    assert "--num-latents" in done.stdout
    words = set(re.findall(r"[\w:-]+", done.stdout))
    assert set(algorithms.ALGORITHMS) <= words
    assert after.ru_utime - before.ru_utime < 1.0


def test_import_is_fast():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import briee"], check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before.ru_utime < 2.0


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ("", "usage: briee COMMAND"),
        ("trian lock", "no command 'trian': commands are train"),
        ("train", "Missing from briee train: ENV"),
        ("train lok", "unknown environment 'lok': did you mean lock?"),
        ("train lock --preset papr", "unknown preset of briee 'papr': did you mean paper?"),
        ("train lock --algo brie", "unknown algorithm 'brie': did you mean briee?"),
        ("train lock --algo PPO", "unknown algorithm 'PPO': did you mean ppo or "),
        ("train lock --seed -1", "seed must be a whole number from 0 to 4294967295, got -1"),
        ("train lock --explore.episodes 0", "--explore.episodes must be >= 1, got 0"),
        ("runs nowhere", "nowhere is not a directory"),
        ("train lock --hrizon 3", "unknown option --hrizon: did you mean --horizon"),
        (
            "train lock --preset paper --replearn.rouns 3",
            "unknown option --replearn.rouns: did you mean --replearn.rounds",
        ),
        ("train lock --replearn.rounds 3", "--replearn.rounds: it belongs to --algo briee or reward-free"),
        ("train lock extra", "unexpected argument 'extra'"),
        ("train lock --horizon six", "--horizon must be a whole number, got 'six'"),
        ("train lock --horizon", "--horizon needs a value"),
        ("train lock --horizon 5000", "of memory, and there are "),
        ("train lock --episodes 1.5", "--episodes must be a whole number, got '1.5'"),
        ("train lock --episodes inf", "--episodes must be a whole number, got 'inf'"),
        ("train lock --num-latents many", "--num-latents must be a whole number, got 'many'"),
        ("train lock --preset paper --num-latents 0", "num-latents must be >= 1, got 0"),
        ("train lock --algo ppo --num-latents 3", "unknown option --num-latents: it belongs to --algo"),
        ("runs --sort size", "--sort must be one of run, state, env, horizon, "),
        ("runs --jso", "unknown option --jso: did you mean --json"),
        ("train lock --algo efficient --fit.forward x", "--fit.forward must be a number, got 'x'"),
        ("train lock --resume=yes", "unexpected argument 'yes'"),
        (
            "train lock --preset paper --replearn.hidden-sizes 4 b",
            "hidden-sizes must be a whole number, got 'b'",
        ),
        ("plan nowhere", "Missing from briee plan: --reward"),
        ("train lock --horizon 0", "horizon must be >= 1, got 0"),
        ("train lock --episodes 0", "episodes must be >= 1, got 0"),
        ("train lock --env.noise -1", "noise must be >= 0, got -1"),
        ("train lock --env.num_actions 1", "num_actions must be >= 2, got 1"),
        ("train lock --env.switch_probability 1.5", "switch_probability"),
        ("train CartPol-v1", "unknown environment 'CartPol-v1': did you mean CartPole-v1"),
        ("train Pendulum-v1", "Pendulum-v1 has continuous actions"),
        ("train lock --explore.episodes 10", "episodes must be a multiple of rounds (4), got 10"),
        ("train lock --explore.tolerance 1.5", "tolerance must be <= 1, got 1.5"),
        ("train lock --algo stationary --explore.rounds 2", "explore.rounds has no effect on the stationary"),
        ("train lock --env.nose 1", "'lock' has no argument 'nose'"),
        ("train lock --env.noise", "--env.noise needs a value"),
        (
            "train lock --evaluation.policy best",
            "--evaluation.policy must be one of greedy, optimistic, mixture, got 'best'",
        ),
        ("train lock --resume --overwrite", "--resume and --overwrite exclude each other"),
        ("evaluate nowhere", "nowhere is not a run directory"),
        ("evaluate nowhere --seed -1", "seed must be a whole number"),
        ("evaluate nowhere --episodes 0", "episodes must be >= 1, got 0"),
    ],
)
def test_wrong_requests_get_one_sentence(capsys, request_, sentence):
    argv = shlex.split(request_)
    if argv:
        assert sentence in refusal(capsys, *argv)
    else:
        assert main(argv) == 2
        assert sentence in capsys.readouterr().err
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("request_", "meaning", "told"),
    [
        ("lock", ("general", "default", "lock-h6-general-s1"), ""),
        (
            "lock --preset efficient",
            ("efficient", "default", "lock-h6-efficient-s1"),
            "--preset efficient is an algorithm of its own now: --algo efficient\n",
        ),
        (
            "finite-lock --preset=theory",
            ("theory", "default", "finite-lock-h3-theory-s1"),
            "--preset theory is an algorithm of its own now: --algo theory\n",
        ),
        ("lock --preset paper", ("briee", "paper", "lock-h6-briee-paper-s1"), ""),
        ("lock --preset practical", ("briee", "practical", "lock-h6-briee-practical-s1"), ""),
        ("lock --num-latents 8", ("general", "default", "lock-h6-general-k8-s1"), ""),
        ("lock --preset paper --num-latents 8", ("briee", "paper", "lock-h6-briee-paper-k8-s1"), ""),
        ("lock --algo briee", ("briee", "practical", "lock-h6-briee-practical-s1"), ""),
        ("lock --reward-free", ("general", "default", "lock-h6-general-reward-free-s1"), ""),
        (
            "lock --reward-free --preset paper",
            ("reward-free", "paper", "lock-h6-reward-free-paper-s1"),
            "",
        ),
    ],
)
def test_an_algorithm_has_one_name(capsys, monkeypatch, request_, meaning, told):
    asked = []
    monkeypatch.setattr(
        runs, "run", lambda algorithm, spec, directory, **how: asked.append((spec, directory))
    )
    assert main(["train", *shlex.split(request_)]) == 0
    ((spec, directory),) = asked
    assert (spec.algorithm, spec.preset, directory.name) == meaning
    assert capsys.readouterr().out == told


def test_train_writes_the_run_directory(finished, capsys):
    names = {"config.json", "manifest.json", "metrics.csv", "summary.json", "checkpoint", "decoder.png"}
    assert set(os.listdir(finished)) == names
    config = json.loads((finished / "config.json").read_text())
    assert config["config"]["replearn"]["rounds"] == 2
    assert config["config"]["replearn"]["hidden_sizes"] == [4, 3]
    assert config["env_arguments"] == {"num_actions": 2, "instance_seed": 7}
    assert json.loads((finished / "summary.json").read_text())["episodes"] == 30
    manifest = json.loads((finished / "manifest.json").read_text())
    assert shlex.split(manifest["command"])[:3] == ["briee", "train", "lock"]
    assert (finished / "decoder.png").read_bytes().startswith(b"\x89PNG")
    assert load_spec(finished).to_json() == config
    assert "holds a finished run: add --resume" in refusal(capsys, *TINY, "--run-dir", str(finished))


def test_evaluate_is_repeatable_and_leaves_the_run_alone(finished, capsys):
    before = {file: file.read_bytes() for file in finished.rglob("*") if file.is_file()}
    outcomes = []
    for seed in ("0", "0", "1"):
        assert main(["evaluate", str(finished), "--episodes", "20", "--json", "--seed", seed]) == 0
        outcomes.append(json.loads(capsys.readouterr().out))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0]["episodes"] == 20
    assert outcomes[0]["minimum"] <= outcomes[0]["mean"] <= outcomes[0]["maximum"] <= 1
    assert {file: file.read_bytes() for file in finished.rglob("*") if file.is_file()} == before
    assert main(["evaluate", str(finished), "--episodes", "20"]) == 0
    assert "over 20 episodes; optimal 1.0000" in capsys.readouterr().out


def test_lists(finished, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["runs", str(finished.parent)]) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.split()[:3] == [str(finished), "finished", "lock"]
    assert main(["runs", str(finished.parent), "--json", "--sort", "return"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["run"], told["seed"], told["episodes"]) == (str(finished), 7, 30)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["runs", str(finished.parent)]) == 0
    name, *lines = capsys.readouterr().out.splitlines()
    assert name == str(finished)
    assert "".join(lines).startswith("  finished: env lock, horizon 2,")
    assert max(map(len, lines)) <= 40
    assert main(["runs"]) == 0
    assert "no runs in runs" in capsys.readouterr().out
    assert main(["envs"]) == 0
    listed = capsys.readouterr().out
    assert {"lock", "lock-dense", "lock-simplex"} <= set(re.findall(r"^([\w-]+)  \(", listed, re.MULTILINE))
    assert "instance_seed=0" in listed


def test_a_run_that_does_not_exist_is_begun_and_that_is_said(capsys):
    assert main([*TINY, "--episodes", "10", "--resume", "--run-dir", "nowhere"]) == 0
    assert "nothing to resume in nowhere: a new run begins\n" in capsys.readouterr().out
    assert main([*TINY, "--episodes", "20", "--resume", "--run-dir", "nowhere"]) == 0
    assert "nothing to resume" not in capsys.readouterr().out


def test_an_unsolved_run_says_why_and_what_to_try(capsys):
    assert main([*TINY, "--episodes", "1e1", "--run-dir", "short"]) == 0
    *_, why, command = capsys.readouterr().out.splitlines()
    assert why == "why: 10 episodes were not enough"
    assert command == "try: briee train lock --run-dir short --resume --episodes 20"
    assert main([*shlex.split(command)[2:]]) == 0
    assert json.loads(Path("short/summary.json").read_text())["episodes"] == 20


def test_a_saved_agent_can_be_evaluated(finished, capsys):
    load(finished).save("lock.briee")
    assert main(["evaluate", "lock.briee", "--episodes", "20", "--json"]) == 0
    from_file = json.loads(capsys.readouterr().out)
    assert main(["evaluate", str(finished), "--episodes", "20", "--json"]) == 0
    assert from_file | {"run_dir": ""} == json.loads(capsys.readouterr().out) | {"run_dir": ""}


def test_resume_takes_its_values_from_the_run(finished, capsys, tmp_path):
    path = str(tmp_path / "run")
    assert main([*TINY, "--episodes", "10", "--seed", "7", "--run-dir", path]) == 0
    assert main(["train", "lock", "--resume", "--run-dir", path, "--episodes", "30"]) == 0
    rows = lambda run: [line.split(",")[:9] for line in (Path(run) / "metrics.csv").read_text().splitlines()]  # noqa: E731
    assert rows(path) == rows(finished)
    capsys.readouterr()
    assert "was started with horizon = 2, not 3" in refusal(
        capsys, "train", "lock", "--resume", "--run-dir", path, "--horizon", "3"
    )
    (tmp_path / "run" / "config.json").write_text("{}")
    assert "config.json lacks" in refusal(capsys, "train", "lock", "--resume", "--run-dir", path)


def test_ctrl_c_exits_130_and_the_printed_command_continues(finished, tmp_path):
    run_dir = tmp_path / "run"
    program = [sys.executable, "-m", "briee"]
    command = [*TINY, "--seed", "7", "--episodes", "1000000", "--run-dir", str(run_dir)]
    with subprocess.Popen([*program, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("iteration"):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait() == 130
    again = shlex.split(rest[rest.index("briee train") :])
    assert again == ["briee", "train", "lock", "--run-dir", str(run_dir), "--resume"]
    done = len((run_dir / "metrics.csv").read_text().splitlines()) - 1
    assert json.loads((run_dir / "summary.json").read_text())["episodes"] == 10 * done
    assert main([*again[1:], "--episodes", str(10 * done + 10)]) == 0
    straight = (finished / "metrics.csv").read_text().splitlines()
    resumed = (run_dir / "metrics.csv").read_text().splitlines()
    assert len(resumed) == done + 2
    for ours, theirs in zip(resumed, straight, strict=False):
        assert ours.split(",")[:9] == theirs.split(",")[:9]


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far; a busy machine does not change it."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def children_cpu_seconds() -> float:
    """CPU time of all processes that were started here and have ended."""
    times = os.times()
    return times.children_user + times.children_system


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="the CPU time of a process is read from /proc"
)
def test_ctrl_c_does_not_wait_for_the_compiler(tmp_path):
    command = [sys.executable, "-m", "briee", "train", "lock", "--algo", "efficient", "--horizon", "25"]
    command += ["--run-dir", str(tmp_path / "run")]
    cold = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    before = children_cpu_seconds()
    with subprocess.Popen(command, env=cold, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("efficient on lock")
        time.sleep(2)  # the level fit alone compiles for longer than that
        used = before + cpu_seconds(process.pid)
        process.send_signal(signal.SIGINT)
        said, complaints = process.communicate()
        assert process.returncode == 130
    assert not complaints
    assert children_cpu_seconds() - used < 2, "it went on compiling"
    assert "stopped after 0 episodes" in said
    assert f"--run-dir {tmp_path / 'run'} --resume" in said
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["episodes"] == 0


def test_a_stopped_learner_continues_bit_by_bit(finished, tmp_path):
    spec = load_spec(finished)
    for stop in (1, 2, None):
        runs.run(
            build(spec),
            spec,
            tmp_path,
            resume=True,
            callbacks=[lambda row, n=stop: row["iteration"] == n],
        )
    newest = sorted((finished / "checkpoint").iterdir())[-1].name
    with (
        np.load(finished / "checkpoint" / newest) as straight,
        np.load(tmp_path / "checkpoint" / newest) as resumed,
    ):
        names = [name for name in straight.files if name != "checkpoint.json"]
        assert len(names) > 10
        for name in names:
            np.testing.assert_array_equal(straight[name], resumed[name], err_msg=name)


def test_bench_prints_and_writes_its_figures(capsys, tmp_path, monkeypatch):
    names = {
        "adversarial_step_over_sgemm": "adversarial_step",
        "replearn_seconds_per_level": "replearn_call",
        "scan_env_steps_per_second": "scan_sampler",
        "host_over_own_step_loop": "host_sampler",
    }
    for name, function in names.items():
        monkeypatch.setattr(bench, function, lambda name=name: {name: 0.75})
    assert main(["bench", "--json", str(tmp_path / "figures.json")]) == 0
    assert re.findall(r"^(\w+) +0\.75$", capsys.readouterr().out, re.MULTILINE) == list(names)
    written = json.loads((tmp_path / "figures.json").read_text())
    assert {name: written[name] for name in names} == dict.fromkeys(names, 0.75)
    assert written["manifest"]["cores"] >= 1
    assert "cannot write" in refusal_after_work(
        capsys, "bench", "--json", str(tmp_path / "no" / "figures.json")
    )


def refusal_after_work(capsys, *argv: str) -> str:
    """The last line on standard error of a request that fails at its end."""
    assert main(argv) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_bench_counts_the_products_of_a_discriminator_step():
    config = replace(bench.released(), discriminator_batch=5, hidden_sizes=(3, 4))
    flops = sum(2 * m * k * n for m, k, n in bench.step_products(config, 2))
    forward = 2 * 5 * (2 * 3 + 3 * 4 + 4 * 1)
    assert (
        flops == 3 * forward - 2 * 5 * 2 * 3
    )  # backward costs twice the forward pass, except for the first input


def test_a_background_job_that_ignores_ctrl_c_can_be_ended():
    """Jobs that a script starts with & ignore SIGINT; SIGTERM ends them all the same."""
    program = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); import briee.cli.main as cli; "
        "cli.importlib.import_module = lambda name: print('ready', flush=True) or time.sleep(60); "
        "import sys; sys.argv = ['briee', 'runs']; cli.entry()"
    )
    job = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert job.stdout is not None
    assert job.stdout.readline() == b"ready\n"
    job.terminate()
    _, error = job.communicate(timeout=30)
    assert (job.returncode, error) == (130, b"interrupted\n")
