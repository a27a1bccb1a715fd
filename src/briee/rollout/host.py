"""The host sampler, for environments that are not pure functions.

It steps a Gymnasium vector environment, queries the policy once per level for a batch of actions, and returns
the same `Trajectories` as the compiled sampler. A rollout depends only on policy and key, because every batch
of episodes starts from a reset with seeds drawn from the key.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, cast

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from briee.envs.adapters.episodic import EpisodicVector, episodic
from briee.envs.block import knowledge_of
from briee.envs.gym_shells import PureVectorEnv
from briee.protocols import Environment, HasHostForm, HostPolicy, Knowledge, Policy
from briee.rollout.policies import UniformPolicy
from briee.rollout.samplers import choose_action, episode_keys
from briee.rollout.trajectories import Trajectories


class HostSampler:
    """Episodes of any Gymnasium environment, stepped on the host.

    Args:
        env: a vector environment or a single one. It is wrapped by `EpisodicVector`, unless it is one already
            or a pure environment of this package.
        horizon: H; needed if the environment declares none.
        optimal_return: best expected return, if known.
        **kwargs: further arguments of `EpisodicVector`, such as `keys`.
    """

    def __init__(
        self,
        env: gym.Env | gym.vector.VectorEnv,
        horizon: int | None = None,
        *,
        optimal_return: float | None = None,
        **kwargs,
    ):
        vector = gym.vector.SyncVectorEnv([lambda: env]) if isinstance(env, gym.Env) else env
        self.env: Any = vector
        self.pure: Environment | None = None
        self.knowledge = Knowledge()
        if isinstance(vector, PureVectorEnv) and horizon in (None, vector.pure.horizon):
            self.pure = vector.pure
            self.knowledge = knowledge_of(vector.pure)
            self.horizon = int(vector.pure.horizon)
        else:
            if not isinstance(vector, EpisodicVector):
                self.env = episodic(vector, horizon, **kwargs)
                self.env.info_keys = ("latent",)
            self.horizon = int(self.env.horizon)
        self.num_actions = int(self.env.single_action_space.n)
        self.observation_shape: tuple[int, ...] = self.env.single_observation_space.shape
        self.encoder = self.env.encoder if isinstance(self.env, EpisodicVector) else None
        known: float | None = self.env.optimal_return
        self.optimal_return = known if optimal_return is None else optimal_return

    def rollout(
        self,
        policy: Policy,
        key: PRNGKeyArray,
        episodes: int,
        deviation: Int[Array, " E"] | None = None,
        whole: bool = False,
    ) -> Trajectories:
        """See `Sampler.rollout`; a batch stops early once all its deviations have passed."""
        H, n = self.horizon, self.env.num_envs
        env_keys, policy_keys, seeds = (np.asarray(x) for x in _keys(key, episodes))
        deviates = np.asarray(np.full(episodes, H) if deviation is None else deviation, np.int32)
        data = SimpleNamespace(
            observation=np.zeros((episodes, H + 1, *self.observation_shape), np.float32),
            action=np.zeros((episodes, H), np.int32),
            reward=np.zeros((episodes, H), np.float32),
            latent=np.full((episodes, H + 1), -1, np.int32),
        )
        hosted = isinstance(policy, HasHostForm)
        ask = self._hosted(policy, key) if isinstance(policy, HasHostForm) else self._compiled(policy)
        for first in range(0, episodes, n):
            # In a short last batch, the surplus environments repeat an episode, which is dropped.
            rows = np.minimum(np.arange(first, first + n), episodes - 1)
            kept = slice(first, min(first + n, episodes))
            last = np.full(n, H) if whole else np.minimum(deviates[rows] + 2, H)
            end = np.where(np.arange(n) < kept.stop - first, last, 0)
            start = self._reset(env_keys[rows], seeds[rows], kept.stop - first)
            asked = rows[: kept.stop - first if hosted else self._asked(kept.stop - first)]
            choose = ask(policy_keys[asked], None if deviation is None else deviates[asked])
            self._batch(data, kept, start, choose, end, hosted)
        return Trajectories(**jax.device_put(vars(data)))

    def _batch(
        self, data: SimpleNamespace, rows: slice, start, choose, end: np.ndarray, hosted: bool
    ) -> None:
        """Run a batch of episodes after their reset up to `end`, and store them in these rows of `data`."""
        (observation, info), kept = start, rows.stop - rows.start
        drop = self.env.drop if isinstance(self.env, EpisodicVector) else lambda episodes: None
        asked = kept if hosted else self._asked(kept)
        action, first_end = np.zeros(len(end), np.int32), int(end.min())
        data.observation[rows, 0], data.latent[rows, 0] = observation[:kept], _latent(info, kept)
        for level in range(end.max()):
            if level >= first_end:
                drop(end <= level)
            chosen = choose(level if hosted else np.int32(level), observation[:asked])
            action[: len(chosen)] = chosen
            observation, reward, _, _, info = self.env.step(action)
            data.action[rows, level] = action[:kept]
            data.reward[rows, level] = reward[:kept]
            data.observation[rows, level + 1] = observation[:kept]
            if "latent" in info:
                data.latent[rows, level + 1] = _latent(info, kept)

    def _compiled(self, policy: Policy):
        """(keys, deviations) -> (level, observations) -> actions, by a jitted function."""
        H, A = self.horizon, self.num_actions
        if isinstance(policy, UniformPolicy):

            def drawn(keys, deviation):
                actions = np.asarray(_uniform_actions(A, H, keys, deviation))
                return lambda level, observation: actions[level]

            return drawn
        act = _actor(policy, A)
        return lambda keys, deviation: functools.partial(act, key_data=keys, deviation=deviation)

    def _hosted(self, policy: HasHostForm, key: PRNGKeyArray):
        """(keys, deviations) -> (level, observations) -> actions, by the policy's form in NumPy.

        All batches of a rollout share one form, which may learn from one to the next.
        """
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
        form = policy.on_host(rng)

        def asked(keys, deviation):
            return form if deviation is None else _with_deviations(form, deviation, self.num_actions, rng)

        return asked

    def _asked(self, kept: int) -> int:
        """Batch size of policy queries: a power of two, so that few batch sizes are compiled."""
        return min(1 << (kept - 1).bit_length(), self.env.num_envs)

    def _reset(self, keys, seeds: np.ndarray, kept: int):
        """Start the episodes of these keys and seeds, of which the first `kept` are used."""
        base = self.env.unwrapped
        if isinstance(self.env, EpisodicVector) and self.env.steps_copies:
            return self.env.start(seeds[:kept].tolist())
        if isinstance(base, PureVectorEnv):
            return self.env.reset(options={"keys": jax.random.wrap_key_data(keys)})
        if isinstance(base, (gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv)):
            return cast(Any, self.env).reset(seed=[int(seed) for seed in seeds])
        return self.env.reset(seed=int(seeds[0]))  # other vector environments take one seed

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _with_deviations(
    policy: HostPolicy, deviation: np.ndarray, num_actions: int, rng: np.random.Generator
) -> HostPolicy:
    """The policy with uniform actions at the levels `deviation` and `deviation` + 1."""

    def choose(level: int, observation: np.ndarray) -> np.ndarray:
        action = policy(level, observation)
        deviates = np.isin(deviation, (level - 1, level))
        if deviates.any():
            action = np.where(deviates, rng.integers(0, num_actions, len(action)), action)
        return action

    return choose


@functools.partial(jax.jit, static_argnums=1)
def _keys(key, episodes: int):
    """Per episode: environment and policy key data, equal to the compiled sampler's, and a seed."""
    env_keys, policy_keys = episode_keys(key, jnp.arange(episodes))
    seeds = jax.vmap(lambda k: jax.random.bits(k) >> 1)(env_keys)
    return jax.random.key_data(env_keys), jax.random.key_data(policy_keys), seeds


def _actor(policy, num_actions: int):
    """(level, observation, key_data, deviation) -> actions, for a batch; flattens the policy once."""
    leaves, treedef = jax.tree.flatten(policy)
    is_array = tuple(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)
    arrays = [jnp.asarray(leaf) for leaf, yes in zip(leaves, is_array, strict=True) if yes]
    others = tuple(None if yes else leaf for leaf, yes in zip(leaves, is_array, strict=True))
    return functools.partial(_actions, (treedef, is_array, others), num_actions, arrays)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _actions(static, num_actions: int, arrays, level, observation, key_data, deviation):
    treedef, is_array, others = static
    given = iter(arrays)
    leaves = [next(given) if yes else leaf for leaf, yes in zip(others, is_array, strict=True)]
    policy, keys = jax.tree.unflatten(treedef, leaves), jax.random.wrap_key_data(key_data)
    choose = jax.vmap(choose_action, (None, None, None, 0, 0, None if deviation is None else 0))
    return choose(policy, num_actions, level, observation, keys, deviation)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _uniform_actions(num_actions: int, horizon: int, key_data, deviation):
    """The uniform policy's actions at all levels at once, because they do not depend on observations."""
    policy, keys = UniformPolicy(num_actions), jax.random.wrap_key_data(key_data)
    choose = jax.vmap(choose_action, (None, None, None, None, 0, None if deviation is None else 0))
    levels = jnp.arange(horizon)
    return jax.vmap(lambda level: choose(policy, num_actions, level, None, keys, deviation))(levels)


def _latent(info: dict[str, Any], kept: int) -> np.ndarray:
    """Latent states from the environments' infos, -1 if unknown."""
    if "latent" not in info:
        return np.full(kept, -1, np.int32)
    told = info.get("_latent", np.ones(len(info["latent"]), bool))
    return np.where(told, info["latent"], -1)[:kept].astype(np.int32)
