"""`briee train`: train an agent in a run directory."""

import contextlib
import dataclasses
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from briee.algorithms.registry import ALGORITHMS, DEFAULT_ALGORITHM, Choice, choose, default_preset, preset
from briee.cli.main import Flag, options, parse, sentences, split_options
from briee.compute import memory_gigabytes, prepare_process
from briee.configuration import AlgorithmConfig, check_seed, flatten, with_value
from briee.envs.registry import registered
from briee.errors import RunError, UsageError
from briee.training.directory import read_json
from briee.training.spec import RunSpec

if TYPE_CHECKING:
    from briee.protocols import Algorithm

REWARD_FREE = "reward-free"
PROG = "briee train"
HORIZON = 6
"""Horizon of the presets whose values --help shows."""
MANY = 100
"""From this many latent states on a run warns that it will be slow."""
ALGO_HELP = (
    f"Algorithm: {', '.join(ALGORITHMS)}. Each has options of its own: `briee train lock --algo ppo --help`."
)


@dataclasses.dataclass(frozen=True)
class TrainArgs:
    """Train an agent. Every further option changes one value of the preset.

    Arguments of the environment are given as --env.NAME VALUE, for example --env.noise 0.2, and those of
    --rich as --rich.NAME VALUE: noise, instance_seed, image_size, templates.
    """

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """Short name of an environment that `briee envs` lists, any Gymnasium id, or FILE.py:Class."""
    algo: Annotated[str, tyro.conf.arg(help=ALGO_HELP)] = DEFAULT_ALGORITHM
    preset: str = default_preset(DEFAULT_ALGORITHM)
    """Preset of the algorithm: for briee practical, paper or released, which alone mean --algo briee."""
    agent: Path | None = None
    """Go on from an agent that `agent.save` wrote, with its algorithm, settings and seed."""
    reward_free: Flag = False
    """Explore without a reward, to plan for any reward later with `briee plan`; with --preset paper or
    released, Algorithm 4 does."""
    decoder: Literal["linear", "mlp", "cnn"] | None = None
    """Network of the decoders, if the preset offers a choice."""
    horizon: int | None = None
    """Steps per episode, H. By default the environment's own, which `briee envs` lists: 6 for the lock."""
    rich: Literal["hadamard", "random", "image", "noise"] | None = None
    """Show an environment with Discrete observations through noisy vectors, rotated by a Hadamard or a random
    matrix, or through small noisy images; or one with array observations through noise alone."""
    seed: int = 1
    """Seed of every random stream; it also draws the lock, unless --env.instance_seed is given."""
    seeds: tuple[int, ...] = ()
    """Several seeds, one run each, as many at a time as there are cores; --run-dir is then their folder."""
    episodes: int = 100_000
    """Budget: no iteration starts once this many training episodes were used."""
    env_workers: int = 0
    """Copies of the environment that run in processes of their own, five or more, if its steps are slow; 0:
    all in this process. It changes no number."""
    run_dir: Path | None = None
    """Directory of the run; by default runs/ENV-hHORIZON-ALGO-PRESET-sSEED, with up to three fields that
    differ from the preset, as in runs/lock-h6-efficient-k8-s1."""
    resume: Flag = False
    """Continue the run in the directory, whose own values are then the defaults; if there is none, a new run
    begins."""
    overwrite: Flag = False
    """Replace the run in the directory."""
    tensorboard: Flag = False
    """Short for --track tensorboard."""
    track: Literal["csv", "tensorboard", "wandb"] = "csv"
    """Where the metrics go: csv is metrics.csv, which is always written; tensorboard also writes
    DIR/tensorboard (needs briee[tensorboard]), wandb also logs to Weights & Biases (needs briee[wandb])."""

    @property
    def directory(self) -> Path:
        """Directory of the run, given or made up from the other arguments."""
        if self.run_dir is not None:
            return self.run_dir
        env = "-".join([re.sub(r"[^\w.-]+", "-", self.env), *([self.rich] if self.rich else [])])
        preset = [] if self.preset == "default" else [self.preset]
        name = "-".join([env, f"h{self.horizon}", self.algo, *preset, *self.changed, f"s{self.seed}"])
        return Path("runs") / name

    @property
    def changed(self) -> list[str]:
        """Fields that differ from the preset's, so that another K is another run; no more than three."""
        config = getattr(self, "config", None)
        if config is None:
            return []
        default = preset(self.algo, self.preset, self.horizon or HORIZON, self.env)
        now, usual = (flatten(dataclasses.asdict(one)) for one in (config, default))
        other = [name for name in now if now[name] != usual.get(name) and name not in config.free_fields]
        short = {"num_latents": "k"}
        parts = [(name.rpartition(".")[2], now[name]) for name in other]
        words = [
            name.replace("_", "-")
            if value is True
            else f"{short.get(name, name.replace('_', '-') + '-')}{value}"
            for name, value in parts
        ]
        return [re.sub(r"[^\w.-]+", "-", word) for word in words][:3]


def run(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    asked, argv = argv, _from_agent(argv)
    args, spec = parse_train(argv)
    if note := renamed(argv):
        print(note, flush=True)
    if args.seeds:
        from briee.cli.sweep import run_seeds

        return run_seeds(argv, args.seeds, spec, args.run_dir)
    prepare_process()
    from briee.envs.adapters.episodic import EnvironmentStepError
    from briee.training.progress import make_display
    from briee.training.session import RunInterrupted, run
    from briee.training.spec import build, with_instance
    from briee.training.tracking import TensorBoard, WeightsAndBiases

    folder, metrics = args.directory / "tensorboard", args.directory / "metrics.csv"
    with sentences():
        spec = with_instance(spec)
        callbacks: list[Any] = []
        if args.tensorboard or args.track == "tensorboard":
            callbacks.append(TensorBoard(folder, metrics))
        if args.track == "wandb":
            callbacks.append(WeightsAndBiases(args.directory, spec))
        algorithm = build(spec, args.env_workers)
    if args.resume and not (args.directory / "config.json").exists():
        print(f"nothing to resume in {args.directory}: a new run begins", flush=True)
    for note in (_never_sure(algorithm, spec), _ignored_seed(algorithm, spec), _large(algorithm)):
        if note:
            print(note, flush=True)
    command = shlex.join(["briee", "train", *asked])
    how = {"resume": args.resume, "overwrite": args.overwrite, "command": command}
    try:
        with make_display() as display, contextlib.ExitStack() as stack:
            for callback in callbacks:
                stack.enter_context(callback)
            summary = run(algorithm, spec, args.directory, display=display, callbacks=callbacks, **how)
    except EnvironmentStepError as error:
        raise RunError(str(error)) from error
    except RunInterrupted:
        again = shlex.join(["briee", "train", spec.env, "--run-dir", str(args.directory), "--resume"])
        print(f"interrupted, nothing is lost; to continue: {again}", flush=True)
        return 130
    if summary and summary["finished"] and not summary["solved"] and algorithm.capabilities.stops_when_solved:
        from briee.cli.doctor import say_what_next

        say_what_next(algorithm, spec, args.directory, argv)
    return 0


def _from_agent(argv: Sequence[str]) -> Sequence[str]:
    """The arguments; with --agent FILE, write its agent as a run, and the arguments that continue it."""
    file = _peek(argv, "--agent")
    if file is None:
        return argv
    prepare_process()
    from briee.agent.files import load, stored_horizon, write_run
    from briee.rollout.samplers import adapt

    rest, arguments = split_options(argv, "--env.")
    with sentences():
        kind = _train_kind(preset(*chosen(rest), HORIZON))
    args = parse(kind, rest, PROG, _algorithms_with)
    if args.resume or args.overwrite:
        raise UsageError("--agent begins a new run: leave out --resume and --overwrite, or --agent")
    run_dir = args.run_dir or Path("runs") / Path(file).stem
    with sentences():
        own = registered(args.env) and not arguments
        agent = load(file, None if own else adapt(args.env, stored_horizon(Path(file)), arguments))
        write_run(agent, run_dir, args.env, arguments, args.episodes)
    at = next(i for i, token in enumerate(argv) if token.partition("=")[0] == "--agent")
    kept = [*argv[:at], *argv[at + (1 if "=" in argv[at] else 2) :]]
    return [*kept, *([] if args.run_dir else ["--run-dir", str(run_dir)]), "--resume"]


def parse_train(argv: Sequence[str]) -> tuple[TrainArgs, RunSpec]:
    """The arguments of `briee train` and the run they describe.

    The arguments are read twice. The first pass finds environment, horizon and directory, which set the
    defaults of the second.
    """
    argv, env_arguments = split_options(_without_abbreviation(argv), "--env.")
    argv, rich_arguments = split_options(argv, "--rich.")
    with sentences():
        choice = chosen(argv)
        kind = _train_kind(preset(*choice, HORIZON))
    args = _with_names(parse(kind, argv, PROG, _algorithms_with), choice)
    if "horizon" in env_arguments and registered(args.env):
        raise UsageError(f"the horizon of {args.env} is no --env option: give --horizon H, not --env.horizon")
    if args.resume and args.overwrite:
        raise UsageError("--resume and --overwrite exclude each other")
    if args.horizon is None and not (args.resume and args.run_dir):
        args = dataclasses.replace(args, horizon=default_horizon(args.env, env_arguments))
    if (
        args.resume and args.run_dir is None
    ):  # the directory is named after fields that differ at this horizon
        with sentences():
            here = preset(*choice, args.horizon or HORIZON, args.env, env_arguments)
        kind = _train_kind(here, horizon=args.horizon)
        args = _with_names(parse(kind, argv, PROG, _algorithms_with), choice)
    stored = read_json(args.directory / "config.json") if args.resume else None
    with sentences():
        if stored is None:
            horizon = args.horizon or default_horizon(args.env, env_arguments)
            config = preset(args.algo, args.preset, horizon, args.env, env_arguments)
            kind = _train_kind(config, horizon=horizon)
        else:
            before = RunSpec.from_json(stored)
            choice = _stored_choice(argv, before)
            values = {"horizon": before.horizon, "seed": before.seed, "episodes": before.episodes}
            kind = _train_kind(before.config, rich=before.rich.get("emission"), **values)
            env_arguments = {**before.env_arguments, **env_arguments}
            rich_arguments = {**before.rich, **rich_arguments}
    args = _with_names(parse(kind, argv, PROG, _algorithms_with), choice)
    if args.agent is not None:
        raise UsageError("--agent continues one saved agent: it cannot be combined with several runs")
    if args.episodes < 1:
        raise UsageError(f"episodes must be >= 1, got {args.episodes}")
    if rich_arguments and args.rich is None:
        raise UsageError(f"--rich.{next(iter(rich_arguments))} needs --rich")
    rich = rich_arguments | {"emission": args.rich} if args.rich else {}
    config = args.config
    with sentences():
        check_seed(args.seed)
        if args.decoder is not None:
            config = with_value(config, "decoder", args.decoder, f"preset {args.preset!r} of {args.algo}")
    named = (args.env, args.algo, args.preset, args.horizon, args.seed, args.episodes, config)
    return args, RunSpec(*named, env_arguments=env_arguments, rich=rich)


def default_horizon(env: str, arguments: dict[str, Any]) -> int:
    """The environment's time limit, which is the horizon if none is given."""
    from briee.envs.adapters.third_party import make_one, own_horizon

    if own := registered(env):
        return own.horizon
    with sentences():
        horizon = own_horizon(make_one(env, arguments))
    if horizon is None:
        raise UsageError(f"horizon is missing: {env} has no time limit, so add --horizon H")
    return horizon


def chosen(argv: Sequence[str]) -> Choice:
    """The algorithm and preset that the arguments name."""
    return choose(_peek(argv, "--algo"), _peek(argv, "--preset"))


def renamed(argv: Sequence[str]) -> str:
    """One line on what an older name of a preset means now; empty if there is none."""
    name, choice = _peek(argv, "--preset"), chosen(argv)
    if name in (None, choice.preset):
        return ""
    return f"--preset {name} is an algorithm of its own now: --algo {choice.algorithm}"


def _train_kind(config: AlgorithmConfig, **defaults: Any) -> Any:
    """`TrainArgs` with other defaults, and with every field of `config` as an option."""
    if config.default_episodes is not None:
        defaults = {"episodes": config.default_episodes, **defaults}
    types = {field.name: field.type for field in dataclasses.fields(TrainArgs)}
    fields = [(name, types[name], dataclasses.field(default=value)) for name, value in defaults.items()]
    flat = ("config", Annotated[type(config), tyro.conf.arg(name="")], dataclasses.field(default=config))
    kind = dataclasses.make_dataclass("Train", [*fields, flat], bases=(TrainArgs,), frozen=True)
    kind.__doc__ = TrainArgs.__doc__
    return kind


def _with_names(args: Any, choice: Choice) -> Any:
    """The arguments with the algorithm and preset that were meant."""
    return dataclasses.replace(args, algo=choice.algorithm, preset=choice.preset)


def _stored_choice(argv: Sequence[str], spec: RunSpec) -> Choice:
    """The algorithm and preset that the arguments name, by default those of an earlier run."""
    algo, name = _peek(argv, "--algo"), _peek(argv, "--preset")
    if name is None:
        return Choice(algo or spec.algorithm, spec.preset)
    same = spec.algorithm if name in ALGORITHMS[spec.algorithm].presets else None
    return choose(algo or same, name)


def _without_abbreviation(argv: Sequence[str]) -> list[str]:
    """The arguments with --reward-free spelled out."""
    flags = [token for token in argv if token.replace("_", "-") == "--reward-free"]
    if not flags:
        return list(argv)
    algo, others = _peek(argv, "--algo"), [token for token in argv if token not in flags]
    if algo is None and _peek(argv, "--preset") in ALGORITHMS[REWARD_FREE].presets:
        algo, others = REWARD_FREE, [*others, "--algo", REWARD_FREE]
    if algo in (None, DEFAULT_ALGORITHM):
        return [*others, "--explore.reward-free"]
    if algo != REWARD_FREE:
        raise UsageError(f"--reward-free goes with --algo general alone, or without: leave out --algo {algo}")
    return others


def _peek(argv: Sequence[str], option: str) -> str | None:
    """The value of an option, before the arguments are parsed."""
    for position, token in enumerate(argv):
        name, equals, value = token.partition("=")
        if name == option:
            return value if equals else next(iter(argv[position + 1 :]), None)
    return None


def _algorithms_with(option: str) -> str:
    """A clause that names the algorithms with an option; empty if none has it."""
    kinds = {name: type(preset(name, default_preset(name), HORIZON)) for name in ALGORITHMS}
    having = [name for name, kind in kinds.items() if option in options(kind)]
    return f": it belongs to --algo {' or '.join(having)}" if having else ""


def _ignored_seed(algorithm: "Algorithm[Any]", spec: RunSpec) -> str:
    """A sentence if equal seeds gave different first observations."""
    from briee.rollout.host import HostSampler

    sampler = algorithm.sampler
    if not isinstance(sampler, HostSampler) or sampler.pure is not None:
        return ""
    with contextlib.suppress(Exception):  # training names what fails, with its step
        same = [sampler.env.reset(seed=[spec.seed] * sampler.env.num_envs)[0] for _ in range(2)]
        if (same[0] != same[1]).any():
            return f"{spec.env} ignores the seed of reset: a second run will not give the same numbers"
    return ""


def _large(algorithm: "Algorithm[Any]") -> str:
    """A sentence if the state will be large; `UsageError` if it does not fit into the memory."""
    import jax

    leaves = jax.tree.leaves(jax.eval_shape(algorithm.init, jax.random.key(0)))
    need = 3 * sum(leaf.size * getattr(leaf.dtype, "itemsize", 4) for leaf in leaves) / 1e9
    have = memory_gigabytes()
    if have is not None and need > have:
        smaller = "choose a smaller --horizon or --num-latents"
        raise UsageError(
            f"this run needs about {need:,.0f} GB of memory, and there are {have:,.0f}: {smaller}"
        )
    if have is not None and need > have / 4:
        return f"this run needs about {need:,.0f} GB of memory"
    values = flatten(dataclasses.asdict(algorithm.config)).items()
    latents = max((value for name, value in values if name.endswith("num_latents")), default=0)
    return f"num_latents={latents} is large: an update may take minutes" if latents >= MANY else ""


def _never_sure(algorithm: "Algorithm[Any]", spec: RunSpec) -> str:
    """A sentence if it is known that no policy reaches the optimal return in every episode."""
    from briee.envs.adapters.third_party import sure_return
    from briee.rollout.host import HostSampler

    sampler, rule = algorithm.sampler, spec.config.evaluation
    best, known = sampler.optimal_return, sampler.knowledge
    other_rule = rule.tolerance is not None or rule.target_return is not None
    if best is None or other_rule or not algorithm.capabilities.stops_when_solved:
        return ""
    sure = None
    if known.latent_model is not None and not known.soft:
        sure = known.latent_model.sure_return()
    elif isinstance(sampler, HostSampler):
        sure = sure_return(sampler.env, sampler.horizon)
    if sure is None or sure > best - 1e-3:
        return ""
    mean = f"no policy reaches the optimal return, {best:.3f} on average, in every episode"
    return f"{mean}: this run may never count as solved unless --evaluation.tolerance says how near is enough"
