"""What the command line understands: dataclasses read by tyro, every error one sentence. Imports no JAX."""

import contextlib
import dataclasses
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from briee.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, DEFAULT_PRESET, default_preset, preset
from briee.choose import check_seed, with_value
from briee.gym_ids import registered
from briee.rundir import RunError, RunSpec, config_from_json, read_json
from briee.suggest import suggestion

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
HELP = ("-h", "--help")
REWARD_FREE = "reward-free"
HORIZON = 6
"""Steps per episode behind the values that --help shows."""
ALGO_HELP = (
    f"Algorithm: {', '.join(ALGORITHMS)}. Each has options of its own: `briee train lock --algo ppo --help`."
)


class UsageError(ValueError):
    """The request was wrong; the message is one sentence."""


@dataclasses.dataclass(frozen=True)
class TrainArgs:
    """Train an agent. Every further option changes one value of the preset.

    Arguments of the environment are given as --env.NAME VALUE, for example --env.noise 0.2, and those of
    --rich as --rich.NAME VALUE: noise, instance_seed, image_size, templates.
    """

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """Short name of an environment that `briee envs` lists, any Gymnasium id, or FILE.py:Class."""
    algo: Annotated[str, tyro.conf.arg(help=ALGO_HELP)] = DEFAULT_ALGORITHM
    preset: str = DEFAULT_PRESET
    """Preset of the algorithm: for briee efficient, paper, released or theory."""
    reward_free: Flag = False
    """Explore without a reward, to plan for any reward later with `briee plan`: short for --algo
    reward-free."""
    decoder: Literal["linear", "mlp", "cnn"] | None = None
    """Network of the decoders, where the preset offers a choice."""
    horizon: int | None = None
    """Steps per episode, H. By default the environment's own, which `briee envs` lists: 6 for the lock."""
    rich: Literal["hadamard", "random", "image", "noise"] | None = None
    """Show an environment with Discrete observations through noisy vectors, rotated by a Hadamard or a random
    matrix, or through small noisy images; or one with array observations through noise alone."""
    seed: int = 1
    """Seed of every random stream; it also draws the lock, unless --env.instance_seed is given."""
    episodes: int = 100_000
    """Budget: no iteration starts once this many training episodes were used."""
    run_dir: Path | None = None
    """Directory of the run; by default runs/ENV-hHORIZON-ALGO-PRESET-sSEED."""
    resume: Flag = False
    """Continue the run in the directory, whose own values are then the defaults; where there is none, a new
    run begins."""
    overwrite: Flag = False
    """Replace the run in the directory."""
    tensorboard: Flag = False
    """Write the metrics for TensorBoard too, into DIR/tensorboard (needs briee[tensorboard])."""

    @property
    def directory(self) -> Path:
        """Where the run goes."""
        env = "-".join([re.sub(r"[^\w.-]+", "-", self.env), *([self.rich] if self.rich else [])])
        name = f"{env}-h{self.horizon}-{self.algo}-{self.preset}-s{self.seed}"
        return self.run_dir or Path("runs") / name


def parse(
    kind: Any, argv: Sequence[str], prog: str, elsewhere: Callable[[str], str] = lambda option: ""
) -> Any:
    """An instance of the dataclass `kind`; whatever tyro rejects becomes a `UsageError`.

    `elsewhere` may say in a clause where an option exists that does not exist here.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            parsed, unknown = tyro.cli(kind, args=list(argv), prog=prog, return_unknown_args=True)
    except SystemExit as stop:
        if not stop.code:  # help was printed
            raise
        raise UsageError(_first_paragraph(complaint.getvalue())) from None
    except ValueError as error:  # a configuration refuses its values
        raise UsageError(str(error)) from None
    if unknown:
        name = unknown[0].partition("=")[0]
        if not name.startswith("-"):
            raise UsageError(f"unexpected argument {name!r}")
        option = name.replace("_", "-")
        raise UsageError(f"unknown option {name}{elsewhere(option) or suggestion(option, _options(kind))}")
    return parsed


def parse_train(argv: Sequence[str]) -> tuple[TrainArgs, RunSpec]:
    """The arguments of `briee train` and the run they describe.

    A first pass finds algorithm, preset, horizon and directory; they set the defaults of the second.
    """
    argv, env_arguments = split_options(_without_abbreviation(argv), "--env.")
    argv, rich_arguments = split_options(argv, "--rich.")
    algo = _peek(argv, "--algo", DEFAULT_ALGORITHM)
    with sentences():
        name = default_preset(algo)
        kind = _train_kind(preset(algo, _peek(argv, "--preset", name), HORIZON), preset=name)
    wants_help = any(token in HELP for token in argv)
    if wants_help:
        parse(kind, [*argv, "--help"], "briee train")
    args = parse(kind, argv, "briee train", lambda option: _presets_with(option, algo))
    if "horizon" in env_arguments and registered(args.env):
        raise UsageError(f"the horizon of {args.env} is no --env option: give --horizon H, not --env.horizon")
    if args.resume and args.overwrite:
        raise UsageError("--resume and --overwrite exclude each other")
    if args.horizon is None and not (args.resume and args.run_dir):
        args = dataclasses.replace(args, horizon=default_horizon(args.env, env_arguments))
    stored = read_json(args.directory / "config.json") if args.resume else None
    with sentences():
        if stored is None:
            horizon = args.horizon or default_horizon(args.env, env_arguments)
            config = preset(args.algo, args.preset, horizon, args.env, env_arguments)
            kind = _train_kind(config, preset=default_preset(args.algo), horizon=horizon)
        else:
            kind, env_arguments = _stored_kind(stored), stored["env_arguments"] | env_arguments
            rich_arguments = stored.get("rich", {}) | rich_arguments
    args = parse(kind, argv, "briee train")
    with sentences():
        check_seed(args.seed)
    if args.episodes < 1:
        raise UsageError(f"episodes must be >= 1, got {args.episodes}")
    if rich_arguments and args.rich is None:
        raise UsageError(f"--rich.{next(iter(rich_arguments))} needs --rich")
    rich = rich_arguments | {"emission": args.rich} if args.rich else {}
    config = args.config
    if args.decoder is not None:
        with sentences():
            config = with_value(config, "decoder", args.decoder, f"preset {args.preset!r} of {args.algo}")
    named = (args.env, args.algo, args.preset, args.horizon, args.seed, args.episodes, config)
    return args, RunSpec(*named, env_arguments=env_arguments, rich=rich)


def default_horizon(env: str, arguments: dict[str, Any]) -> int:
    """Steps per episode where none are given: the time limit that the environment has."""
    from briee.foreign import make_one, own_horizon

    if own := registered(env):
        return own.horizon
    with sentences():
        horizon = own_horizon(make_one(env, arguments))
    if horizon is None:
        raise UsageError(f"horizon is missing: {env} has no time limit, so add --horizon H")
    return horizon


def load_spec(run_dir: Path) -> RunSpec:
    """The run in a directory, from its config.json."""
    stored = read_json(run_dir / "config.json")
    if stored is None:
        raise UsageError(f"{run_dir} is not a run directory: it has no config.json")
    try:
        config = config_from_json(_stored_preset(stored), stored["config"])
        return RunSpec(**(stored | {"config": config}))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run_dir / 'config.json'} does not describe a run: {error}") from None


def _train_kind(config: Any, **defaults: Any) -> Any:
    """`TrainArgs` with other defaults, and with every field of `config` as an option."""
    fields = [
        (field.name, field.type, dataclasses.field(default=defaults[field.name]))
        for field in dataclasses.fields(TrainArgs)
        if field.name in defaults
    ]
    if (episodes := getattr(config, "default_episodes", None)) and "episodes" not in defaults:
        fields.append(("episodes", int, dataclasses.field(default=episodes)))
    flat = ("config", Annotated[type(config), tyro.conf.arg(name="")], dataclasses.field(default=config))
    kind = dataclasses.make_dataclass("Train", [*fields, flat], bases=(TrainArgs,), frozen=True)
    kind.__doc__ = TrainArgs.__doc__
    return kind


def _stored_kind(stored: dict[str, Any]) -> Any:
    """The options of `briee train` with the values of an earlier run as defaults."""
    names = ("preset", "horizon", "seed", "episodes")
    config = config_from_json(_stored_preset(stored), stored["config"])
    rich = stored.get("rich", {}).get("emission")
    return _train_kind(config, algo=stored["algorithm"], rich=rich, **{name: stored[name] for name in names})


def _stored_preset(stored: dict[str, Any]) -> Any:
    named = (stored["algorithm"], stored["preset"], stored["horizon"], stored["env"])
    return preset(*named, stored.get("env_arguments"))


@contextlib.contextmanager
def sentences():
    """Turn an unknown name or an incomplete config.json into a `UsageError`."""
    try:
        yield
    except KeyError as error:
        raise UsageError(f"the run directory's config.json lacks {error}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def _without_abbreviation(argv: Sequence[str]) -> list[str]:
    """The arguments with --reward-free spelled out."""
    flags = [token for token in argv if token.replace("_", "-") == "--reward-free"]
    if not flags:
        return list(argv)
    algo = _peek(argv, "--algo", REWARD_FREE)
    if algo != REWARD_FREE:
        raise UsageError(f"--reward-free is an algorithm of its own: leave out --algo {algo}")
    return [*(token for token in argv if token not in flags), "--algo", REWARD_FREE]


def split_options(argv: Sequence[str], prefix: str) -> tuple[list[str], dict[str, Any]]:
    """Take options such as --env.NAME VALUE out of the arguments, by their prefix."""
    rest, arguments, tokens = [], {}, iter(argv)
    for token in tokens:
        if not token.startswith(prefix):
            rest.append(token)
            continue
        name, equals, value = token.removeprefix(prefix).partition("=")
        given = value if equals else next(tokens, None)
        if given is None:
            raise UsageError(f"{prefix}{name} needs a value")
        arguments[name.replace("-", "_")] = _value(given)
    return rest, arguments


def _value(text: str) -> Any:
    """A number, a truth value or None, where the text is one; else the text."""
    named = {"True": True, "False": False, "None": None}
    if text in named:
        return named[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _peek(argv: Sequence[str], option: str, default: str) -> str:
    """The value of an option, before the arguments are parsed."""
    for position, token in enumerate(argv):
        name, equals, value = token.partition("=")
        if name == option:
            return value if equals else next(iter(argv[position + 1 :]), default)
    return default


def _options(kind: Any, prefix: str = "--") -> list[str]:
    """The options of a dataclass as tyro names them."""
    options = []
    for field in dataclasses.fields(kind):
        name = "" if field.name == "config" else field.name.replace("_", "-")
        default = (
            field.default if field.default is not dataclasses.MISSING else getattr(kind, field.name, None)
        )
        if dataclasses.is_dataclass(default):
            options += _options(default, f"{prefix}{name}." if name else prefix)
        else:
            options.append(prefix + name)
    return options


def _presets_with(option: str, algo: str) -> str:
    """Which presets of an algorithm have an option, as a clause; empty where none has."""
    presets = ALGORITHMS[algo].presets
    having = [name for name in presets if option in _options(preset(algo, name, HORIZON))]
    return f": it belongs to --preset {' or '.join(having)}" if having else ""


def _first_paragraph(box: str) -> str:
    """The text of tyro's framed message, up to its first rule, in one line."""
    lines: list[str] = []
    for line in (line.strip("│| ") for line in box.splitlines()[1:]):
        rule = line.startswith(("─", "╰", "----"))
        if rule and lines:
            break
        lines += [] if rule else [line]
    text = " ".join(" ".join(lines).split())
    refused = re.fullmatch(r"Error parsing config\.([\w.]+): (\w+)( must .*)", text)
    return f"--{refused[1]}.{refused[2]}".replace("_", "-") + refused[3] if refused else text
