"""Inspect a pure environment, possibly a user's own; the only place that probes for its members."""

from typing import Any

from briee.protocols import Environment, Knowledge


def is_pure(env: Any) -> bool:
    """Whether an object looks like a pure environment."""
    return all(hasattr(env, name) for name in ("initial", "transition", "observation", "horizon"))


def is_dense(pure: Environment) -> bool:
    """Whether an environment says that it rewards every good step."""
    return bool(getattr(pure, "dense", False))


def knowledge_of(pure: Environment) -> Knowledge:
    """Collect the optional members of a pure environment."""
    latent_model = getattr(pure, "latent_model", None)
    return Knowledge(
        latent_model=None if latent_model is None else latent_model(),
        features=hasattr(pure, "ground_truth_features"),
        soft=getattr(pure, "temperature", None) is not None,
        dense=is_dense(pure),
        exact=getattr(pure, "block", None),
    )
