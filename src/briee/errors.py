"""The kinds of error a user sees as one sentence, and suggestions for unknown names."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class UsageError(ValueError):
    """The request is wrong; the message is one sentence."""


class UnknownArgumentError(UsageError, TypeError):
    """A function was called with an argument that it does not have; the message names the right one."""


class RunError(ValueError):
    """The request cannot be carried out; the message is one sentence."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """A clause with the known names close to `name`; without one, with all of them if they are few."""
    known = list(known)
    lower = {word.lower(): word for word in reversed(known)}
    near = [lower[word] for word in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.6)]
    if near:
        return f": did you mean {' or '.join(near)}?"
    return f": known are {', '.join(known)}" if len(known) <= 12 else ""


def named_arguments(habits: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator of a function that refuses an unknown keyword argument with one sentence.

    `habits` has what to say about names that other libraries use.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]
        owner = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    hint = f": {habits[name]}" if name in habits else suggestion(name, known)
                    raise UnknownArgumentError(f"{owner} has no argument {name!r}{hint}")
            return function(*args, **kwargs)

        return call

    return decorate
