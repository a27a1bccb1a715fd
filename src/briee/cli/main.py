"""The command line: `briee COMMAND ...`. Finds the command and reads its options into a dataclass.

tyro prints the help; every error is one sentence. JAX is imported only after the arguments were understood.
Exit codes: 0 done; 2 the request was wrong (one sentence on standard error); 130 after Ctrl-C.
"""

import contextlib
import dataclasses
import importlib
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import tyro

import briee
from briee.cli import COMMANDS
from briee.compute import still_computing
from briee.errors import RunError, UsageError, suggestion

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
LATENTS = "--num-latents"
"""Understood by every algorithm with latent states, whatever part of its configuration has the field."""
KINDS = {int: "a whole number", float: "a number", str: "a word", Path: "a path"}
T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    command, *rest = [*(sys.argv[1:] if argv is None else argv)] or [""]
    if command in ("-h", "--help", "help", ""):
        print(usage(), file=sys.stdout if command else sys.stderr)
        return 0 if command else 2
    if command == "--version":
        print(f"briee {briee.__version__}")
        return 0
    try:
        if command not in COMMANDS:
            raise UsageError(f"no command {command!r}: commands are {', '.join(COMMANDS)}")
        return importlib.import_module(f"briee.cli.{command}").run(rest)
    except (UsageError, RunError) as error:
        print(f"briee: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def entry() -> None:
    """The console script `briee`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for characters it lacks
    signal.signal(signal.SIGTERM, end)
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` for instance, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    if code == 130 or still_computing():  # threads may be in XLA, which aborts at exit: everything is saved
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def end(number: int, frame: FrameType | None) -> None:
    """SIGTERM does what Ctrl-C does, also in a background job of a script, which ignores Ctrl-C."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


def usage() -> str:
    """The text of `briee --help`."""
    lines = [f"  {name:13}{summary}" for name, summary in COMMANDS.items()]
    about = "BRIEE: provable exploration with rich observations."
    return "\n".join(
        ["usage: briee COMMAND ...", "", about, "", *lines, "", "`briee COMMAND --help` says more."]
    )


class Option(NamedTuple):
    """An option, whose name begins with --, or a positional argument."""

    name: str
    path: tuple[str, ...]
    """The names of the fields that lead to it."""
    type: Any
    """bool, int, float, str, Path, Literal, one of these or None, or tuple[X, ...]."""
    required: bool
    switch: bool = True
    """The value of a bool if the option is given."""

    def take(self, tokens: list[str]) -> Any:
        """The value that the first tokens spell; they are removed."""
        if self.type is bool:
            return self.switch
        many = get_origin(self.type) is tuple
        kind = get_args(self.type)[0] if many else self.type
        values = []
        while tokens and not tokens[0].startswith("--") and (many or not values):
            values.append(_read(kind, self.name, tokens.pop(0)))
        if not (many or values):
            raise UsageError(f"{self.name} needs a value")
        return tuple(values) if many else values[0]


def parse(
    kind: type[T], argv: Sequence[str], prog: str, elsewhere: Callable[[str], str] = lambda option: ""
) -> T:
    """An instance of the dataclass `kind`, or `UsageError`; with --help, print the help and exit.

    `elsewhere` returns a clause about an option that only other algorithms have, or nothing.
    """
    if {"-h", "--help"} & set(argv):
        tyro.cli(kind, args=["--help"], prog=prog)
    known, given, loose, tokens = options(kind), {}, [], list(argv)
    while tokens:
        token = tokens.pop(0)
        if not token.startswith("-"):
            loose.append(token)
            continue
        name, equals, text = token.partition("=")
        spelled = name.replace("_", "-")
        if spelled == LATENTS and spelled not in known:  # the field of a part, as of --features.num-latents
            spelled = next((option for option in known if option.endswith(".num-latents")), spelled)
        if spelled not in known:
            near = elsewhere(spelled) or suggestion(spelled, [o for o in known if o.startswith("-")])
            raise UsageError(f"unknown option {name}{near}")
        tokens[:0] = [text] if equals else []
        given[known[spelled].path] = known[spelled].take(tokens)
    for option in known.values():
        if loose and not option.name.startswith("-"):
            given[option.path] = option.take(loose)
        elif option.required and option.path not in given:
            raise UsageError(f"Missing from {prog}: {option.name}")
    if loose:
        raise UsageError(f"unexpected argument {loose[0]!r}")
    values: dict[str, Any] = {path[0]: value for path, value in given.items() if len(path) == 1}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if dataclasses.is_dataclass(field.default):
            values[field.name] = _replaced(field.default, (field.name,), given)
    return kind(**values)


def options(kind: Any, path: tuple[str, ...] = ()) -> dict[str, Option]:
    """The options of a dataclass by name; fields of a part have dotted names, except those of `config`."""
    found: list[Option] = []
    plain, annotated = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        own, own_type, marks = (*path, field.name), plain[field.name], get_args(annotated[field.name])
        if dataclasses.is_dataclass(own_type):
            found += options(own_type, own).values()
            continue
        *parts, last = (name.replace("_", "-") for name in own if name != "config")
        option = Option(
            "--" + ".".join([*parts, last]), own, own_type, not path and field.default is dataclasses.MISSING
        )
        found.append(option._replace(name=marks[-1].metavar) if tyro.conf.Positional in marks else option)
        if own_type is bool and tyro.conf.FlagCreatePairsOff not in marks:
            found.append(option._replace(name="--" + ".".join([*parts, f"no-{last}"]), switch=False))
    return {option.name: option for option in found}


def _read(kind: Any, name: str, text: str) -> Any:
    """One value of a type."""
    if NoneType in get_args(kind):
        if text == "None":
            return None
        (kind,) = set(get_args(kind)) - {NoneType}
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise UsageError(f"{name} must be one of {', '.join(get_args(kind))}, got {text!r}")
        return text
    try:
        whole = kind is int and not text.lstrip("+-").isdigit() and float(text).is_integer()  # as 1e4
        return int(float(text)) if whole else kind(text)
    except (ValueError, OverflowError):
        raise UsageError(f"{name} must be {KINDS[kind]}, got {text!r}") from None


def _replaced(default: Any, path: tuple[str, ...], given: dict[tuple[str, ...], Any]) -> Any:
    """A configuration with the given values; those of one part are checked together."""
    values = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
    for name, value in values.items():
        own, is_part = (*path, name), dataclasses.is_dataclass(value)
        values[name] = _replaced(value, own, given) if is_part else given.get(own, value)
    try:
        return dataclasses.replace(default, **values)
    except ValueError as error:
        word, _, rest = str(error).partition(" ")
        option = "--" + ".".join((*path[1:], word)).replace("_", "-")
        raise UsageError(f"{option} {rest}" if word in values else str(error)) from None


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
    """A number, a truth value or None if the text is one; else the text."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Turn an unknown name or an incomplete config.json into a `UsageError`."""
    try:
        yield
    except KeyError as error:
        raise UsageError(f"the run directory's config.json lacks {error}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
