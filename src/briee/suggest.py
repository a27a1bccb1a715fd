"""What was meant by a name that does not exist."""

import difflib
from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """A clause with near matches of `name`, or with all there are when none is near and they are few."""
    known = list(known)
    lower = {word.lower(): word for word in reversed(known)}
    near = [lower[word] for word in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.6)]
    if near:
        return f": did you mean {' or '.join(near)}?"
    return f": known are {', '.join(known)}" if len(known) <= 12 else ""
