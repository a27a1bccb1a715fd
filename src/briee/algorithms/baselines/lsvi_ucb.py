"""LSVI-UCB (Jin et al. 2020) with fixed features: the true ones, any given ones, or random Fourier features.

Symbols: phi(s, a) features of dimension D, Sigma_h = sum phi phi^T + lam I, w_h = Sigma_h^-1 sum phi (r + V),
Q_h = min(w_h^T phi + beta ||phi||_{Sigma_h^-1}, clip), V_h = max_a Q_h. Features psi(s) ⊗ e_a have one block
of Sigma per action (B = A), others one block in all (B = 1).
"""

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.config import LsviRffConfig, LsviUcbConfig
from briee.algorithms.baselines.lsvi_data import (
    Counts,
    Episodes,
    FourierFeatures,
    GroundTruth,
    ProductFeatures,
    Psi,
    fourier_features,
)
from briee.algorithms.bonus import elliptical_bonus
from briee.numerics.keys import stream
from briee.protocols import Algorithm, PhaseHook, Policy, PolicyKind, Sampler, no_phases
from briee.rollout.policies import GreedyPolicy
from briee.rollout.samplers import deepest_good_level
from briee.rollout.trajectories import Trajectories


class UcbQFunction(eqx.Module):
    """Q_h(s, a) = min(w_h^T phi(s, a) + beta ||phi(s, a)||_{Sigma_h^-1}, clip); no bonus without factors."""

    features: ProductFeatures | FourierFeatures
    weights: Float[Array, "H B D"]
    factor: Float[Array, "H B D D"] | None
    beta: Float[Array, ""]
    clip: Float[Array, ""]

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " A"]:
        """The values of all actions."""
        phi = self.features(self.features.encode(level, observation))
        factor = None if self.factor is None else self.factor[level]
        return action_values(phi[None], self.weights[level], factor, self.beta, self.clip)[0]


def action_values(
    phi: Float[Array, "n A D"], w: Float[Array, "B D"], factor: Float[Array, "B D D"] | None, beta, clip
) -> Float[Array, "n A"]:
    """min(w^T phi + beta ||phi||_{Sigma^-1}, clip); factor is L^-1 of Sigma = L L^T, None for no bonus."""
    values = jnp.einsum("nad,ad->na", phi, w) if len(w) > 1 else phi @ w[0]
    if factor is not None:
        whitened = jnp.einsum("nad,aed->nae", phi, factor) if len(w) > 1 else phi @ factor[0].T
        values = values + elliptical_bonus(jnp.linalg.norm(whitened, axis=-1), beta)
    return jnp.minimum(values, clip)


class LsviUcbState(eqx.Module):
    """State between two updates."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    memory: Counts | Episodes
    optimistic: Float[Array, "H B D"]
    greedy: Float[Array, "H B D"]
    factor: Float[Array, "H B D D"]
    explore_return: Float[Array, ""]
    reached_level: Float[Array, ""]


class LsviUcb(Algorithm[LsviUcbState]):
    """LSVI-UCB on the environment behind `sampler`, with its true features or with `psi`.

    Args:
        sampler: source of episodes; without `psi`, its environment must know its true features.
        config: hyperparameters.
        psi: features psi(level, observation) of a state; phi(s, a) = psi(s) ⊗ e_a.
        one_hot: whether psi is always one-hot, so that counts can replace the data.
    """

    name = "lsvi-ucb"
    config: LsviUcbConfig

    def __init__(
        self, sampler: Sampler, config: LsviUcbConfig, psi: Psi | None = None, one_hot: bool = False
    ):
        self.sampler, self.config = sampler, config
        if psi is None:
            if not sampler.knowledge.features:
                raise ValueError(
                    f"{self.name} needs ground-truth features, which this environment does not have: "
                    "give it features, or use lsvi-ucb-rff"
                )
            psi, one_hot = GroundTruth(sampler.pure), not sampler.knowledge.soft
        self.psi, self.one_hot = psi, one_hot

    def update(self, state: LsviUcbState, phase: PhaseHook = no_phases) -> LsviUcbState:
        """One policy update."""
        phase("collect")
        state = self.collect(state)
        phase("plan")
        return self.plan(state)

    def features(self, key: PRNGKeyArray) -> ProductFeatures | FourierFeatures:
        """phi."""
        return ProductFeatures(self.psi, self.sampler.num_actions)

    @property
    def blocks(self) -> int:
        """B, the number of blocks of Sigma."""
        return self.sampler.num_actions

    def init(self, key: PRNGKeyArray) -> LsviUcbState:
        """No data, and a policy without preferences."""
        H, A, B, lam = self.sampler.horizon, self.sampler.num_actions, self.blocks, self.config.lam
        zero, missing, features = np.asarray(0, np.int64), jnp.float32(jnp.nan), self.features(key)
        observation = jax.ShapeDtypeStruct(self.sampler.observation_shape, jnp.float32)
        code = jax.eval_shape(features.encode, jax.ShapeDtypeStruct((), jnp.int32), observation)
        D = jax.eval_shape(features, code).shape[-1]
        m = self.config.episodes_per_update
        if self.one_hot:
            memory = Counts(jnp.zeros((H, A, D, D)), jnp.zeros((H, A, D)))
        else:
            n = max(self.config.buffer_size // (H * m), 1) * m
            codes, action = jnp.zeros((H, n, code.shape[0])), jnp.zeros((H, n), jnp.int32)
            memory = Episodes(codes, action, jnp.zeros((H, n)), jnp.int32(0), m)
        return LsviUcbState(
            key=key,
            iteration=zero,
            episodes=zero,
            env_steps=zero,
            memory=memory,
            optimistic=jnp.zeros((H, B, D)),
            greedy=jnp.zeros((H, B, D)),
            factor=jnp.broadcast_to(jnp.eye(D) / math.sqrt(lam), (H, B, D, D)),
            explore_return=missing,
            reached_level=missing,
        )

    def collect(self, state: LsviUcbState) -> LsviUcbState:
        """Full episodes with the optimistic policy."""
        m, key = self.config.episodes_per_update, stream(state.key, "collect", int(state.iteration))
        trajectories = self.sampler.rollout(self.policy(state, "optimistic"), key, m)
        return replace(
            state,
            episodes=state.episodes + m,
            env_steps=state.env_steps + m * self.sampler.horizon,
            memory=_insert(state.memory, self.features(state.key), trajectories),
            explore_return=trajectories.reward.sum(axis=1).mean(),
            reached_level=jnp.float32(deepest_good_level(self.sampler, trajectories)),
        )

    def plan(self, state: LsviUcbState) -> LsviUcbState:
        """Least squares from the last level to the first, with the bonus and without."""
        config, features = self.config, self.features(state.key)
        prior = config.prior
        w, greedy, factor = _plan(
            state.memory, features, config.beta, config.lam, config.clip, self.blocks, prior
        )
        return replace(state, optimistic=w, greedy=greedy, factor=factor, iteration=state.iteration + 1)

    def policy(self, state: LsviUcbState, kind: PolicyKind = "greedy") -> Policy:
        """The last plan without bonus, or with it, as used for collecting data."""
        greedy = kind == "greedy"
        weights, factor = (state.greedy, None) if greedy else (state.optimistic, state.factor)
        beta, clip = jnp.float32(self.config.beta), jnp.float32(self.config.clip)
        return GreedyPolicy(UcbQFunction(self.features(state.key), weights, factor, beta, clip))

    def metrics(self, state: LsviUcbState) -> dict[str, float]:
        """Measurements of the last update, for metrics.csv."""
        return {"explore_return": float(state.explore_return), "reached_level": float(state.reached_level)}


class LsviUcbRff(LsviUcb):
    """LSVI-UCB with random Fourier features of the observation, drawn once per seed."""

    name = "lsvi-ucb-rff"
    config: LsviRffConfig

    def __init__(self, sampler: Sampler, config: LsviRffConfig):
        self.sampler, self.one_hot = sampler, False
        self.config = config  # pyright: ignore[reportIncompatibleVariableOverride]

    def features(self, key: PRNGKeyArray) -> FourierFeatures:
        """phi, the same at every level, drawn with the key of the run."""
        config, A, key = self.config, self.sampler.num_actions, stream(key, "fourier")
        inputs, joint = math.prod(self.sampler.observation_shape), config.reading == "joint"
        return _fourier_features(key, config.dimension, inputs, A, config.bandwidth, joint)

    @property
    def blocks(self) -> int:
        """One block per action, or one block if the action is part of the input."""
        return 1 if self.config.reading == "joint" else self.sampler.num_actions


_fourier_features = eqx.filter_jit(fourier_features)


@eqx.filter_jit
def _insert(memory: Counts | Episodes, features, trajectories: Trajectories):
    by_level = lambda x: jnp.swapaxes(x, 0, 1)  # noqa: E731
    observation = by_level(trajectories.observation)
    encode = jax.vmap(jax.vmap(features.encode, (None, 0)))
    code = encode(jnp.arange(len(observation)), observation)
    return memory.insert(code, by_level(trajectories.action), by_level(trajectories.reward))


@eqx.filter_jit
def _plan(memory: Counts | Episodes, features, beta, lam, clip, blocks: int, prior: str):
    """Weights with and without bonus [H, B, D], and factors of Sigma [H, B, D, D]."""
    H = memory.reward.shape[0]
    D = jax.eval_shape(lambda: features(memory.rows(jnp.int32(0), jnp.int32(0)).code[0])).shape[-1]

    def level(later, h):
        w_next, factor_next = later

        def accumulate(chunk, sums):
            rows = memory.rows(h, chunk)
            next_phi = jax.vmap(features)(rows.next_code)
            optimistic = action_values(next_phi, w_next[..., 0], factor_next, beta, clip).max(axis=1)
            plain = action_values(next_phi, w_next[..., 1], None, beta, clip).max(axis=1)
            value = jnp.where(h + 1 < H, jnp.stack([optimistic, plain], axis=-1), 0.0)  # V_H = 0
            phi = jax.vmap(lambda code, action: features(code)[action])(rows.code, rows.action)
            target = rows.reward[:, None] + rows.weight[:, None] * value
            block = jax.nn.one_hot(rows.action, blocks) if blocks > 1 else jnp.ones((len(phi), 1))
            gram = jnp.einsum("nb,nk,nl->bkl", block * rows.weight[:, None], phi, phi)
            moment = jnp.einsum("nb,nk,nt->bkt", block, phi, target)
            seen = jnp.where(rows.weight[:, None] > 0, value, jnp.inf)
            return sums[0] + gram, sums[1] + moment, jnp.minimum(sums[2], seen.min(axis=0))

        empty = jnp.zeros((blocks, D, D)), jnp.zeros((blocks, D, 2)), jnp.full(2, jnp.inf)
        gram, moment, least = jax.lax.fori_loop(0, memory.chunks, accumulate, empty)
        if prior == "least":  # features that sum to 1 predict it where there is no data
            moment = moment + lam * jnp.where(jnp.isfinite(least), least, 0.0)
        lower = jnp.linalg.cholesky(gram + lam * jnp.eye(D))  # LAPACK is faster for 1,000 features
        factor = solve_triangular(lower, jnp.broadcast_to(jnp.eye(D), lower.shape), lower=True)
        w = jnp.einsum("bkl,bkm,bmt->blt", factor, factor, moment)  # Sigma^-1 = L^-T L^-1
        return (w, factor), (w, factor)

    start = jnp.zeros((blocks, D, 2)), jnp.zeros((blocks, D, D))
    _, (w, factor) = jax.lax.scan(level, start, jnp.arange(H), reverse=True)
    return w[..., 0], w[..., 1], factor
