"""The compiled sampler, the choice of a sampler for any environment, and evaluation by a sampler.

Pure environments are compiled: an episode is one scan over its steps. Every other Gymnasium environment is
stepped on the host (`briee.rollout.host`).
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from briee.compute import available_cores, prepare_process, quick_jit
from briee.configuration import whole_number
from briee.envs.adapters.encoding import ObservationEncoder, discrete_actions
from briee.envs.adapters.episodic import find_horizon
from briee.envs.adapters.third_party import environment_name, make_copy, own_optimum
from briee.envs.block import episode_start, episode_step, is_pure, knowledge_of
from briee.envs.gym_shells import PureEnv, PureVectorEnv
from briee.envs.registry import SHORT_NAMES, make, registered
from briee.protocols import Environment, Knowledge, Policy, Sampler
from briee.rollout.policies import MixturePolicy
from briee.rollout.trajectories import Trajectories

if TYPE_CHECKING:
    from briee.rollout.host import HostSampler

TRANSPARENT = (OrderEnforcing, PassiveEnvChecker)
"""Wrappers of `gym.make` that do not change what an agent observes."""
HOST_ENVIRONMENTS = 20
"""Copies of a host environment that are stepped together."""
LEAST_WORKERS = 5
"""Least number of copies in processes of their own: that of the episodes of a round, so that a batch of
episodes is the same as in one process, and so are the numbers."""
CHUNK = 500
"""Episodes per chunk of a long rollout; this many fit the CPU's cache."""
FEW = 100
"""Below this many episodes per call, compiling costs more than running."""
SMALL_CHUNK = 5
"""Episodes per chunk of a short rollout whose number of episodes is a multiple of this."""
CALLS = 8
"""Up to this many calls, reusing the jitted function of a small chunk is faster than compiling another."""
MEMBER = 0x6D656D62
"""Folded into an episode's key to draw its member of a mixture; no level is this large."""


class Adapted(NamedTuple):
    """A sampler and its origin."""

    sampler: Sampler
    name: str
    """Short name of a pure environment of this package, a Gymnasium id, or the name of a class."""
    arguments: Mapping[str, Any] | None
    """Arguments with which `make(name, horizon=..., **arguments)` rebuilds it; None if that is impossible."""
    encoder: ObservationEncoder | None
    """Encoder of raw observations; None if they are arrays already."""


def adapt(
    env: Any,
    horizon: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    rich: Mapping[str, Any] | None = None,
) -> Adapted:
    """A sampler for `env`: an environment of `gym.make` or `gym.make_vec`, a pure one, or a name.

    `horizon` is needed if the environment has no time limit. With a name, `arguments` are passed to the
    environment and `rich` to `rich_observation`. Raises `ValueError` with one sentence.
    """
    prepare_process()
    if isinstance(env, Adapted):
        return env
    if horizon is not None:
        horizon = whole_number("horizon", horizon)
    if isinstance(env, str):
        arguments = dict(arguments or {})
        sampler = make_sampler(env, horizon, arguments, rich)
        if isinstance(sampler, ScanSampler):
            return Adapted(sampler, SHORT_NAMES[env], arguments, None)
        return Adapted(sampler, env, None, sampler.encoder)
    if not isinstance(env, gym.Env | gym.vector.VectorEnv):
        if is_pure(env):
            return Adapted(ScanSampler(env), type(env).__name__, None, None)
        kinds = "an environment of gym.make or gym.make_vec, a pure environment, or a name"
        raise ValueError(f"env must be {kinds}, got {_kind(env)}")
    pure = pure_behind(env)
    if pure is not None and horizon in (None, pure.horizon):
        return Adapted(ScanSampler(pure), *_origin(env, pure), None)
    if isinstance(env, gym.Env):
        discrete_actions(env.action_space, environment_name(env))
    from briee.rollout.host import HostSampler

    sampler = HostSampler(env, horizon)
    return Adapted(sampler, environment_name(env), None, sampler.encoder)


def _kind(env: Any) -> str:
    """Describes an argument that is no environment."""
    if isinstance(env, type):
        return f"the class {env.__name__}: call it, {env.__name__}(...)"
    old = type(env).__module__.partition(".")[0] == "gym"
    return type(env).__name__ + (" of the old package gym: import gymnasium instead" if old else "")


def make_sampler(
    env: str,
    horizon: int | None,
    arguments: Mapping[str, Any],
    rich: Mapping[str, Any] | None = None,
    env_workers: int = 0,
) -> "ScanSampler | HostSampler":
    """A sampler for an environment by name; with `rich`, its observations go through `rich_observation`.

    With `env_workers`, this many copies run in processes of their own, for environments with slow steps.
    Raises `ValueError` with one sentence.
    """
    if env_workers and (registered(env) or env_workers < LEAST_WORKERS):
        why = "compiled, not stepped in processes" if registered(env) else "run in rounds of five episodes"
        least = "" if registered(env) else f", so at least {LEAST_WORKERS} workers, got {env_workers}"
        raise ValueError(f"--env-workers does not fit: episodes of {env} are {why}{least}")
    prepare_process()
    if registered(env):
        if rich:
            raise ValueError(f"{env} has rich observations already: --rich is for Discrete ones")
        steps = {} if horizon is None else {"horizon": horizon}
        return ScanSampler(make(env, **{**arguments, **steps}))

    from briee.rollout.host import HostSampler

    copy = functools.partial(make_copy, env, arguments, rich)
    if not env_workers:
        return HostSampler(SyncVectorEnv([copy] * HOST_ENVIRONMENTS), horizon)
    one = copy()  # what it says of itself is not asked of another process
    steps = find_horizon(one, horizon)
    workers = AsyncVectorEnv([copy] * env_workers, shared_memory=False, context="spawn")
    return HostSampler(workers, steps, optimal_return=own_optimum(one, steps))


def pure_behind(env: gym.Env | gym.vector.VectorEnv) -> Environment | None:
    """The pure environment of a shell without wrappers that change it, or None."""
    base: Any = env
    while isinstance(base, TRANSPARENT):
        base = base.env
    return base.pure if isinstance(base, PureEnv | PureVectorEnv) else None


def _origin(env: gym.Env | gym.vector.VectorEnv, pure: Environment) -> tuple[str, Mapping[str, Any] | None]:
    """Short name and arguments of a pure environment made by Gymnasium."""
    entry = None if env.spec is None else registered(env.spec.id)
    if env.spec is None or entry is None:
        return type(pure).__name__, None
    parameters = inspect.signature(entry.constructor).parameters
    given = {key: value for key, value in env.spec.kwargs.items() if key in parameters}
    plain = all(isinstance(value, int | float | str | bool | None) for value in given.values())
    return SHORT_NAMES[env.spec.id], given if plain else None


class ScanSampler:
    """Runs episodes of a pure environment as compiled scans."""

    def __init__(self, pure: Environment):
        self.pure = pure
        self.horizon: int = pure.horizon
        self.num_actions: int = pure.num_actions
        self.observation_shape: tuple[int, ...] = pure.observation_shape
        self.optimal_return: float | None = pure.optimal_return
        self._knowledge: Knowledge | None = None

    @property
    def knowledge(self) -> Knowledge:
        """See `Sampler.knowledge`; collected on first use, because it holds the latent tables."""
        if self._knowledge is None:
            self._knowledge = knowledge_of(self.pure)
        return self._knowledge

    def rollout(
        self,
        policy: Policy,
        key: PRNGKeyArray,
        episodes: int,
        deviation: Int[Array, " E"] | None = None,
        whole: bool = False,
    ) -> Trajectories:
        """See `Sampler.rollout`; episodes are always whole.

        Chunks of episodes run in parallel, one per core. Each episode has its own keys, and the chunk size
        depends only on `episodes`, so the result depends neither on earlier calls nor on the number of cores.
        """
        size = chunk_size(episodes)
        chunks, scan = -(-episodes // size), _scan_few if size < FEW else _scan_many

        def run(chunk: int) -> Trajectories:
            first = min(chunk * size, episodes - size)  # all chunks have the same length
            own = None if deviation is None else deviation[first : first + size]
            return scan(self.pure, policy, key, size, own, np.asarray(first, np.int32))

        if chunks == 1:
            return run(0)
        with ThreadPoolExecutor(available_cores()) as pool:
            parts = list(pool.map(lambda chunk: jax.block_until_ready(run(chunk)), range(chunks)))
        twice = chunks * size - episodes  # episodes that the last two chunks share
        join = lambda *leaves: jnp.asarray(np.concatenate([*leaves[:-1], leaves[-1][twice:]]))  # noqa: E731
        return jax.tree.map(join, *(jax.tree.map(np.asarray, part) for part in parts))


def chunk_size(episodes: int) -> int:
    """Number of episodes per chunk of a rollout of `episodes` episodes."""
    if episodes < 2 * CHUNK:
        small = episodes % SMALL_CHUNK == 0 and episodes <= CALLS * SMALL_CHUNK
        return SMALL_CHUNK if small else episodes
    return -(-episodes // -(-episodes // CHUNK))


def episode_keys(key: PRNGKeyArray, index: Int[ArrayLike, " E"]) -> Key[Array, "2 E"]:
    """Environment and policy keys [2, E] of the episodes with these indices in the rollout of `key`."""
    return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(jax.random.split(key), index)


def run_levels(
    pure: Environment, act: Callable, key: PRNGKeyArray, index: Int[ArrayLike, " E"]
) -> tuple[Array, Array, Array, Array, Any]:
    """Run the episodes with these indices level by level.

    `act` is called once per level: (level, observations, keys) -> (actions, extra). Returns observations
    [H + 1, E, ...], actions and rewards [H, E], latent states [H + 1, E], and the stacked extras.
    """
    env_keys, policy_keys = episode_keys(key, index)

    def step(carry, level):
        state, seen = carry
        action, extra = act(level, seen, policy_keys)
        state, seen, reward, _ = jax.vmap(episode_step, (None, 0, 0, 0))(pure, state, action, env_keys)
        return (state, seen), (seen, action, reward, jax.vmap(pure.latent)(state), extra)

    start, first = jax.vmap(episode_start, (None, 0))(pure, env_keys)
    _, (seen, action, reward, latent, extra) = jax.lax.scan(step, (start, first), jnp.arange(pure.horizon))
    latent = jnp.concatenate([jax.vmap(pure.latent)(start)[None], latent])
    return jnp.concatenate([first[None], seen]), action, reward, latent, extra


def choose_action(policy: Policy, num_actions: int, level, observation, key, deviation) -> Int[Array, ""]:
    """The policy's action at one level of one episode, or a uniform one at levels `deviation` and
    `deviation` + 1. `key` belongs to the episode."""
    if isinstance(policy, MixturePolicy):
        policy = policy.draw(jax.random.fold_in(key, MEMBER))  # the same member at every level
    policy_key, uniform_key = jax.random.split(jax.random.fold_in(key, level))
    action = policy(level, observation, policy_key).astype(jnp.int32)
    if deviation is None:
        return action
    uniform = jax.random.randint(uniform_key, (), 0, num_actions)
    deviates = (level == deviation) | (level == deviation + 1)
    return jnp.where(deviates, uniform, action)


def _scan(pure, policy, key, episodes: int, deviation, first: Int[ArrayLike, ""] = 0) -> Trajectories:
    """Episodes `first`, `first` + 1, ... of the rollout of `key`."""
    axes = (None, None, None, 0, 0, None if deviation is None else 0)

    def act(level, seen, keys):
        chosen = jax.vmap(choose_action, axes)(policy, pure.num_actions, level, seen, keys, deviation)
        return chosen, None

    *levels, _ = run_levels(pure, act, key, first + jnp.arange(episodes))
    return Trajectories(*(jnp.swapaxes(x, 0, 1) for x in levels))


_scan_few, _scan_many = quick_jit(_scan), eqx.filter_jit(_scan)


class Evaluation(NamedTuple):
    """Returns of evaluation episodes."""

    mean: float
    standard_error: float
    returns: Float[np.ndarray, " episodes"]
    optimal_return: float | None
    """The best expected return, if known."""

    @classmethod
    def of(cls, returns: Float[np.ndarray, " episodes"], optimal_return: float | None) -> Self:
        """Mean and standard error of these returns."""
        best = None if optimal_return is None else float(optimal_return)
        return cls(float(returns.mean()), float(returns.std() / len(returns) ** 0.5), returns, best)

    def __repr__(self) -> str:
        best = "" if self.optimal_return is None else f"; optimal {self.optimal_return:.4g}"
        mean = f"mean return {self.mean:.4g} ± {self.standard_error:.2g} (standard error)"
        return f"{mean} over {len(self.returns)} episodes{best}"

    def numbers(self) -> dict[str, float]:
        """Mean, standard error and range of the returns."""
        extremes = {"minimum": float(self.returns.min()), "maximum": float(self.returns.max())}
        return {"mean": self.mean, "standard_error": self.standard_error, **extremes}


def evaluate(sampler: Sampler, policy: Policy, key: PRNGKeyArray, episodes: int) -> Float[np.ndarray, " E"]:
    """The returns of full episodes, with the observations kept apart for evaluation if there are any."""
    held_out = sampler.knowledge.held_out
    sampler = sampler if held_out is None else ScanSampler(held_out)
    return np.asarray(sampler.rollout(policy, key, episodes).reward, np.float64).sum(axis=1)


def deepest_good_level(sampler: Sampler, trajectories: Trajectories) -> float:
    """The deepest level at which an episode could still reach the goal; NaN if latent states are unknown."""
    if sampler.pure is None:
        return float("nan")
    latent = np.asarray(trajectories.latent)
    good = np.asarray(sampler.pure.good(latent)) & (latent >= 0)
    return float(np.flatnonzero(good.any(axis=0)).max(initial=0))
