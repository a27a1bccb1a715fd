"""Environments of other projects and of the user, from the command line."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium as gym
import pytest

from briee.agent.files import load
from briee.cli.main import main
from briee.cli.train import TrainArgs, parse_train
from briee.envs.adapters.rich import RichObservation
from briee.rollout.samplers import make_sampler
from briee.training import checkpoint
from briee.training.directory import read_metrics
from briee.training.spec import RunSpec, load_spec, with_instance

SMALL = shlex.split(
    "--preset paper --replearn.rounds 1 --replearn.feature-steps 1 --replearn.discriminator-steps 1"
    " --replearn.hidden-sizes 4 --collect.buffer-size 64 --collect.episodes-per-level 4"
)

CORRIDOR = """
import gymnasium as gym

class Corridor(gym.Env):
    observation_space = gym.spaces.Discrete(16)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, broken_at=None):
        self.broken_at = broken_at
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.room = 0
        return self.room, {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.broken_at:
            raise OSError("the door is stuck")
        self.room = max(0, self.room + (1 if action == 1 else -1))
        return self.room, float(self.room == 4), self.room == 4, False, {}

class NoEnvironment:
    pass
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corridor.py").write_text(CORRIDOR)


def describe(request: str) -> tuple[TrainArgs, RunSpec]:
    """Arguments and run of a request, with the seeds that draw the environment."""
    args, spec = parse_train(shlex.split(request))
    return args, with_instance(spec)


def sampler_of(spec: RunSpec) -> Any:
    return make_sampler(spec.env, spec.horizon, spec.env_arguments, spec.rich)


def refusal(capsys, request: str) -> str:
    """The sentence with which a request is refused."""
    assert main(shlex.split(request)) == 2
    error = capsys.readouterr().err
    assert error.startswith("briee: ")
    assert error.count("\n") == 1
    return error.removeprefix("briee: ").strip()


def test_a_rich_run_is_stored_evaluated_and_resumed_as_it_was(capsys):
    request = (
        "train FrozenLake-v1 --rich random --rich.noise 0.2 --horizon 3 --env.is_slippery False --seed 5"
    )
    assert main([*shlex.split(request), *SMALL, "--episodes", "12"]) == 0
    [run] = Path("runs").iterdir()
    assert run.name == "FrozenLake-v1-random-h3-briee-paper-episodes-per-level-4-buffer-size-64-rounds-1-s5"
    stored = json.loads((run / "config.json").read_text())
    assert stored["rich"] == {"instance_seed": 5, "noise": 0.2, "emission": "random"}
    assert stored["env_arguments"] == {"is_slippery": False}
    sampler = sampler_of(load_spec(run))
    assert sampler.optimal_return == 0.0  # the goal is six steps away
    wrapper = sampler.env.env.envs[0]
    assert isinstance(wrapper, RichObservation)
    again = RichObservation(gym.make("FrozenLake-v1"), "random", noise=0.2, instance_seed=5)
    assert eqx.tree_equal(wrapper.emission, again.emission)
    assert main(["evaluate", str(run), "--episodes", "4"]) == 0
    assert "over 4 episodes; optimal 0.0000" in capsys.readouterr().out
    assert main(["train", "FrozenLake-v1", "--resume", "--run-dir", str(run), "--episodes", "24"]) == 0
    assert json.loads((run / "summary.json").read_text())["episodes"] == 24
    other = f"train FrozenLake-v1 --resume --run-dir {run} --rich hadamard"
    assert "was started with rich.emission = 'random', not 'hadamard'" in refusal(capsys, other)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ("FrozenLake-v1 --horizon 12 --rich hadamard", True),
        ("FrozenLake-v1 --horizon 12 --rich hadamard --env.is_slippery False", False),
        ("FrozenLake-v1 --horizon 12 --rich hadamard --evaluation.tolerance 0.1", False),
        ("lock --horizon 2 --env.failure_probability 0.1", True),
        ("lock --horizon 2", False),
    ],
)
def test_what_no_policy_reaches_in_every_episode_is_told(capsys, monkeypatch, request_, told):
    monkeypatch.setattr("briee.training.session.run", lambda *args, **kwargs: {})
    assert main(["train", *shlex.split(request_), *SMALL]) == 0
    assert ("no policy reaches the optimal return" in capsys.readouterr().out) == told


def test_a_target_return_decides_where_no_optimum_is_known(capsys):
    request = "train corridor.py:Corridor --horizon 3 --rich hadamard --evaluation.target-return 0"
    assert main([*shlex.split(request), *SMALL, "--evaluation.streak", "1", "--run-dir", "run"]) == 0
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["solved"], summary["optimal_return"]) == (True, None)


def test_a_run_without_a_target_says_so_and_what_it_lacks(capsys):
    request = "train corridor.py:Corridor --horizon 3 --rich hadamard --run-dir run --episodes 120"
    assert main([*shlex.split(request), *SMALL]) == 0
    *_, target, why, command = capsys.readouterr().out.splitlines()
    assert target == "no target known: --evaluation.target-return R says which return counts as solved"
    assert why.startswith("why: ")
    assert command.startswith("try: briee train corridor.py:Corridor ")


def test_a_saved_agent_of_another_environment_is_continued_and_shown(capsys):
    lake = "FrozenLake-v1 --env.is_slippery False"
    assert main([*shlex.split(f"train {lake} --horizon 3 --run-dir run --episodes 40"), *SMALL]) == 0
    load("run").save("lake.briee")
    assert "give it again, load(path, env=...), or --env" in refusal(capsys, "evaluate lake.briee")
    assert "the environment has (horizon, actions, observation shape)" in refusal(
        capsys, "evaluate lake.briee --env CartPole-v1"
    )
    assert main(shlex.split("evaluate lake.briee --env FrozenLake-v1 --episodes 4")) == 0
    assert main(shlex.split("report lake.briee run --env FrozenLake-v1 --no-figures")) == 0
    assert "lake.briee" in Path("report.html").read_text()
    go_on = f"train {lake} --agent lake.briee"
    assert "begins a new run" in refusal(capsys, f"{go_on} --resume")
    assert main(shlex.split(f"{go_on} --episodes 60")) == 0
    assert main(shlex.split("train FrozenLake-v1 --run-dir run --resume --episodes 60")) == 0
    both = [
        [row["eval_return"] for row in read_metrics(Path(d, "metrics.csv"))] for d in ("run", "runs/lake")
    ]
    assert both[0] == both[1]
    assert len(both[0]) > 3
    assert "holds " in refusal(capsys, go_on)
    assert "the agent learned on FrozenLake-v1" in refusal(capsys, "train lock --agent lake.briee")


def test_the_checkpoint_is_intact_after_an_environment_failed(capsys):
    request = "train corridor.py:Corridor --rich hadamard --horizon 3 --env.broken_at 40 --run-dir run"
    sentence = refusal(capsys, shlex.join([*shlex.split(request), *SMALL]))
    blame = r"environment Corridor \(copy \d+ of \d+\) failed at step [123]: OSError: the door is stuck"
    assert re.fullmatch(blame, sentence)
    rows = Path("run/metrics.csv").read_text().splitlines()
    newest = max(checkpoint.Folder(Path("run/checkpoint")).numbers())
    assert newest == len(rows) - 1 >= 1
    assert main(["evaluate", "run", "--episodes", "2"]) == 0


@pytest.mark.parametrize(
    ("request_", "horizon"),
    [
        ("lock", 6),
        ("lock-dense", 30),
        ("briee/CombinationLockDense-v0", 30),
        ("random-block", 5),
        ("FrozenLake-v1", 100),
        ("CartPole-v1 --horizon 30", 30),
        ("bsuite/deep_sea-v0 --env.size 7", 7),
        ("MiniGrid-Empty-5x5-v0", 100),
    ],
)
def test_the_horizon_is_the_time_limit_unless_given(request_, horizon):
    if request_.startswith(("bsuite", "MiniGrid")):
        pytest.importorskip("bsuite" if request_.startswith("bsuite") else "minigrid")
    args, spec = parse_train(shlex.split(request_))
    assert (args.horizon, spec.horizon) == (horizon, horizon)
    assert f"-h{horizon}-" in str(args.directory)


def test_deep_sea_is_one_sea_in_all_copies():
    pytest.importorskip("bsuite")
    _, spec = describe("bsuite/deep_sea-v0 --env.size 6 --seed 3")
    assert spec.env_arguments == {"size": 6, "mapping_seed": 3}
    sampler = sampler_of(spec)
    assert (sampler.horizon, sampler.num_actions, sampler.optimal_return) == (6, 2, pytest.approx(0.99))
    first, *others = [env.unwrapped._action_mapping for env in sampler.env.env.envs]
    assert all((first == other).all() for other in others)
    assert (
        first != describe("bsuite/deep_sea-v0 --env.size 6 --seed 4")[1].env_arguments["mapping_seed"]
    ).any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_minigrid_is_fully_observed_and_keeps_its_layout():
    pytest.importorskip("minigrid")
    _, spec = describe("MiniGrid-DoorKey-5x5-v0 --horizon 12 --seed 3")
    assert spec.env_arguments == {"layout_seed": 3}
    sampler = sampler_of(spec)
    assert (sampler.observation_shape, sampler.num_actions) == ((5, 5, 11 + 6 + 4), 7)
    seen = [sampler.env.reset(seed=seed)[0] for seed in (0, 1)]
    assert (seen[0] == seen[1]).all()
    assert (seen[0] == seen[0][:1]).all()
    objects, colours, states = seen[0][..., :11], seen[0][..., 11:17], seen[0][..., 17:]
    assert all((code.sum(-1) == 1).all() for code in (objects, colours, states))  # of every cell
    assert (objects[..., 10].sum((1, 2)) == 1).all()  # one agent


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ("FrozenLke-v1", "unknown environment 'FrozenLke-v1': did you mean FrozenLake-v1"),
        ("corridor.py:Corridor", "horizon is missing: corridor.py:Corridor has no time limit, so add --hor"),
        ("corridor.py:Corridr --horizon 3", "corridor.py has no 'Corridr': did you mean Corridor?"),
        ("corridor.py:NoEnvironment --horizon 3", "is not a Gymnasium environment but a NoEnvironment"),
        ("nowhere.py:Corridor --horizon 3", "cannot make 'nowhere.py:Corridor': there is no file nowhere.py"),
        ("nomodule:Corridor-v0 --horizon 3", "unknown environment 'nomodule:Corridor-v0': "),
        (
            "FrozenLake-v1 --env.slippery 1",
            "cannot make 'FrozenLake-v1': FrozenLakeEnv.__init__() got",
        ),
        ("FrozenLake-v1 --env.map_name 5x5", "cannot make 'FrozenLake-v1': KeyError: '5x5'"),
        (
            "FrozenLake-v1 --rich hadamar",
            "--rich must be one of hadamard, random, image, noise, got 'hadamar'",
        ),
        ("FrozenLake-v1 --rich image --rich.nose 1", "no argument 'nose': did you mean noise?"),
        ("FrozenLake-v1 --rich image --rich.noise -1", "noise must be >= 0, got -1"),
        ("FrozenLake-v1 --rich image --rich.noise abc", "noise must be a finite number, got 'abc'"),
        ("CartPole-v1 --rich noise --rich.noise abc", "noise must be a finite number, got 'abc'"),
        ("lock --env.noise abc", "noise must be a finite number or None, got 'abc'"),
        ("lock --env.noise NaN", "noise must be a finite number or None, got nan"),
        ("lock --env.num_actions many", "num_actions must be a whole number, got 'many'"),
        ("lock --env.num_actions 2.5", "num_actions must be a whole number, got 2.5"),
        ("lock --env.instance_seed abc", "instance_seed must be a whole number, got 'abc'"),
        ("lock --env.distractors 1.5", "distractors must be a whole number, got 1.5"),
        ("lock --env.temperature x", "temperature must be a finite number or None, got 'x'"),
        ("lock --env.rotation 1", "rotation must be a word or None, got 1"),
        ("lock --env.horizon 3", "give --horizon H, not --env.horizon"),
        ("random-block --env.num_latents x", "num_latents must be a whole number, got 'x'"),
        ("finite-block --env.lock 1 --preset theory", "lock must be True or False, got 1"),
        ("FrozenLake-v1 --rich.noise 1", "--rich.noise needs --rich"),
        ("FrozenLake-v1 --rich image --rich.noise", "--rich.noise needs a value"),
        ("CartPole-v1 --rich hadamard", "need a Discrete observation space, CartPole-v1 has a Box"),
        ("lock --rich hadamard", "lock has rich observations already"),
        ("Pendulum-v1", "Pendulum-v1 has continuous actions"),
        ("CartPole-v1 --horizon 0", "horizon must be >= 1, got 0"),
    ],
)
def test_wrong_environments_get_one_sentence(capsys, request_, sentence):
    assert sentence in refusal(capsys, f"train {request_}")
    assert os.listdir() == ["corridor.py"] or sorted(os.listdir()) == ["__pycache__", "corridor.py"]


@pytest.mark.parametrize(
    ("env", "module", "package"),
    [
        ("MiniGrid-Empty-5x5-v0", "minigrid", "'briee[envs]'"),
        ("MiniHack-KeyRoom-Fixed-S5-v0", "minihack", "minihack"),
        ("RLToy-v0", "mdp_playground", "mdp-playground"),
    ],
)
def test_a_project_that_is_missing_is_named(capsys, monkeypatch, env, module, package):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    sentence = f"belongs to a project that is not installed: pip install {package}"
    assert sentence in refusal(capsys, f"train {env} --horizon 5")


def test_a_module_of_the_user_is_found_in_the_working_folder(tmp_path):
    register = "\ngym.register('Corridor-v0', entry_point=Corridor, max_episode_steps=9)\n"
    (tmp_path / "walk_module.py").write_text(CORRIDOR + register)
    args, _ = parse_train(["walk_module:Corridor-v0"])
    assert args.horizon == 9


OF_OTHERS = (
    "FrozenLake-v1 --horizon 12 --rich hadamard --env.is_slippery False",
    "FrozenLake-v1 --horizon 20",
    "CliffWalking-v1 --horizon 20",
    "Taxi-v4 --horizon 20",
    "CartPole-v1 --horizon 20",
    "bsuite/deep_sea-v0 --env.size 10 --rich noise",
    "MiniGrid-Empty-5x5-v0 --horizon 10",
    "MiniGrid-DoorKey-5x5-v0 --horizon 20",
    "corridor.py:Corridor --horizon 6",
)
"""Environments of other projects on the pages, with nothing else set."""


@pytest.mark.slow
@pytest.mark.parametrize("request_", OF_OTHERS)
def test_with_default_settings_it_is_solved_or_the_last_lines_say_what_to_try(capsys, request_):
    if request_.split()[0] not in gym.registry and "corridor" not in request_:
        pytest.importorskip("bsuite" if "bsuite" in request_ else "minigrid")
    assert main(["train", *shlex.split(request_), "--episodes", "600", "--run-dir", "run"]) == 0
    *_, why, command = capsys.readouterr().out.splitlines()
    solved = json.loads(Path("run/summary.json").read_text())["solved"]
    if solved or command.startswith("no target known: "):
        return
    assert why.startswith("why: ")
    assert command.startswith("try: briee train ")
    parse_train(shlex.split(command)[3:])
