"""The two kinds of error a user sees as one sentence, and suggestions for unknown names."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """The request is wrong; the message is one sentence."""


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
