"""The agent contract as a test suite, for any algorithm including a user's own.

    from briee import BRIEE
    from briee.testing import check_agent

    check_agent(lambda seed=1, **settings: BRIEE("lock", seed=seed, **settings))

Each check raises `AssertionError` with a sentence naming the broken promise.
"""

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from briee.agent.agent import Agent, NotLearnedError
from briee.rollout.policies import UniformPolicy

Make = Callable[..., Agent]
"""`make(seed=...)` returns a new agent, always with the same environment and settings."""

QUIET: dict[str, Any] = {"progress": False, "until_solved": False}


def check_agent(make: Make, *, many_workers: Make | None = None, iterations: int = 2) -> Agent:
    """Check the whole agent contract; use a small problem, because it takes about a dozen updates.

    Args:
        make: returns a new agent for `seed=`.
        many_workers: like `make`, but with more workers, if the algorithm has workers.
        iterations: n; agents learn n updates, n + n updates, and 2 n updates at once.

    Returns the agent that learned 2 n updates.
    """
    check_asks_to_learn_first(make(seed=1))
    reference, half = make(seed=1), []
    global_state = _numpy_random_state()
    reference.learn(
        iterations=2 * iterations,
        callbacks=lambda row: half.append(reference.state) if row["iteration"] == iterations else None,
        **QUIET,
    )
    observations = some_observations(reference)
    check_predictions(reference, observations)
    check_evaluation(reference)
    assert _numpy_random_state() == global_state, "learning or acting touched NumPy's global generator"
    with _other_global_seeds():  # tools may use Python's global generator, but results must not depend on it
        check_repeats(make, half[0], iterations)
    check_other_seed(make, half[0], iterations)
    check_continues(make, reference, iterations)
    check_saves(make, reference, observations, iterations)
    if many_workers is not None:
        crowd = many_workers(seed=1).learn(iterations=iterations, **QUIET)
        assert equal(crowd.state, half[0]), "more workers changed what is learned"
    return reference


def check_asks_to_learn_first(agent: Agent) -> None:
    """An agent that has not learned raises `NotLearnedError`."""
    shape = agent.algorithm.sampler.observation_shape
    for question in (
        lambda: agent.predict(np.zeros(shape, np.float32), 0),
        lambda: agent.evaluate(1),
    ):
        try:
            question()
        except NotLearnedError:
            continue
        raise AssertionError("predict and evaluate must raise NotLearnedError before learn")


def check_predictions(agent: Agent, observations: np.ndarray) -> None:
    """Actions are valid, repeatable, and equal for single and batched observations; latent states too.

    `observations` f32[H, N, ...] are encoded observations of every level.
    """
    for step, batch in enumerate(observations):
        actions = agent.predict(batch, step)
        assert actions.shape == (len(batch),), f"predict gave shape {actions.shape} for {len(batch)} rows"
        inside = (actions >= 0) & (actions < agent.num_actions)
        assert inside.all(), f"predict gave actions {actions[~inside]} outside 0..{agent.num_actions - 1}"
        assert np.array_equal(actions, agent.predict(batch, step)), (
            "predict gave another action when repeated"
        )
        alone = [agent.predict(row, step) for row in batch[:4]]
        assert alone == actions[:4].tolist(), f"predict is not batch-consistent: {alone}, {actions[:4]}"
        try:
            latents = agent.latent_states(batch, step)
        except ValueError:  # an algorithm without latent states
            continue
        assert latents.shape[0] == len(batch), f"latent_states gave shape {latents.shape}"
        assert np.allclose(latents[0], agent.latent_states(batch[0], step), atol=1e-6), (
            "latent_states is not batch-consistent"
        )
    for step in (-1, agent.horizon):
        try:
            agent.predict(observations[0], step)
        except ValueError:
            continue
        raise AssertionError(f"predict accepted step {step} of an episode with {agent.horizon} steps")


def check_evaluation(agent: Agent) -> None:
    """Evaluation depends only on its seed and does not change the agent."""
    before = agent.state
    first, again = agent.evaluate(8, seed=3), agent.evaluate(8, seed=3)
    assert np.array_equal(first.returns, again.returns), "evaluate with one seed gave two results"
    assert equal(before, agent.state), "evaluate changed the agent"


def check_repeats(make: Make, reference: Any, iterations: int) -> None:
    """The same seed gives the same state, with additional evaluations and any global seeds."""
    agent = make(seed=1)
    agent.learn(iterations=iterations, callbacks=lambda row: bool(agent.evaluate(3)) and False, **QUIET)
    assert equal(agent.state, reference), (
        "the same seed gave another result: learning is not repeatable, draws from a global generator, or "
        "more evaluation changes it"
    )


def check_other_seed(make: Make, reference: Any, iterations: int) -> None:
    """Another seed gives another state."""
    state = make(seed=2).learn(iterations=iterations, **QUIET).state
    assert not equal(state, reference, keys=False), "another seed gave the same result"


def check_continues(make: Make, reference: Agent, iterations: int) -> None:
    """learn n + n equals learn 2 n, metrics included."""
    agent = make(seed=1).learn(iterations=iterations, **QUIET).learn(iterations=iterations, **QUIET)
    assert equal(agent.state, reference.state), "learn n + n is not learn 2 n"
    assert untimed(agent) == untimed(reference), "learn n + n gave other metrics than learn 2 n"


def check_saves(make: Make, reference: Agent, observations: np.ndarray, iterations: int) -> None:
    """Saving, loading and continuing equals never stopping; a loaded agent acts like the saved one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.briee"
        saved = make(seed=1).learn(iterations=iterations, **QUIET)
        saved.save(path)
        loaded = make(seed=1).restore(path)
    assert equal(saved.state, loaded.state), "a loaded agent differs from the saved one"
    for step, batch in enumerate(observations):
        same = np.array_equal(saved.predict(batch, step), loaded.predict(batch, step))
        assert same, f"a loaded agent acts otherwise at step {step}"
    loaded.learn(iterations=iterations, **QUIET)
    assert equal(loaded.state, reference.state), "save, load and continue is not the same as never stopping"
    assert untimed(loaded) == untimed(reference), "save, load and continue gave other metrics"


def some_observations(agent: Agent, episodes: int = 6) -> np.ndarray:
    """Encoded observations f32[H, episodes, ...] under the uniform policy."""
    sampler = agent.algorithm.sampler
    data = sampler.rollout(UniformPolicy(sampler.num_actions), jax.random.key(99), episodes)
    return np.swapaxes(np.asarray(data.observation)[:, :-1], 0, 1)


def untimed(agent: Agent) -> list[dict[str, Any]]:
    """The agent's metrics without the columns that measure time."""
    return [
        {name: value for name, value in row.items() if not name.startswith("seconds_")}
        for row in agent.history
    ]


def equal(one: Any, two: Any, keys: bool = True) -> bool:
    """Whether two states are bit-identical; `keys=False` ignores random keys."""

    def same(a: Any, b: Any) -> bool:
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            return not keys or np.array_equal(jax.random.key_data(a), jax.random.key_data(b))
        return np.array_equal(a, b, equal_nan=np.issubdtype(a.dtype, np.inexact))

    return jax.tree.structure(one) == jax.tree.structure(two) and jax.tree.all(jax.tree.map(same, one, two))


def _numpy_random_state() -> tuple[Any, ...]:
    kind, words, *rest = np.random.get_state()  # noqa: NPY002
    return kind, tuple(np.asarray(words).tolist()), *rest


@contextlib.contextmanager
def _other_global_seeds() -> Iterator[None]:
    """Reseed the global generators within the context."""
    before, before_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(12345)
    np.random.seed(12345)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(before_numpy)  # noqa: NPY002
