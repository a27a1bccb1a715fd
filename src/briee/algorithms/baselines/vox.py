"""VoX (Mhammedi, Block, Foster and Rakhlin 2023): a barycentric spanner of learned features.

    for h = 0, ..., H - 2:
        roll in to x_h with a uniformly drawn member of the cover, uniform action a, observe x_{h+1}
        learn features psi_h from these transitions
        barycentric spanner of {E_pi[psi_h(x_h)]}: for each member in turn, find by PSDP the policy that
        maximises the determinant, which is linear in E_pi[psi_h];  then exchange members as long as the
        determinant grows by the factor `ratio`
        the cover of level h + 1: the spanner's policies, then a uniform action at level h
    PSDP for the reward over the cover

No reachability is assumed: what can hardly be reached spans little. Its features phi_h = psi_h ⊗ e_a have K A
dimensions; a uniform action after the spanner of psi_h covers them all at a cost of A.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from briee.algorithms.baselines.attempts import Attempts, AttemptState, counted
from briee.algorithms.baselines.config import VoxConfig
from briee.algorithms.baselines.fitting import Layers, learn_features, psi_of
from briee.algorithms.baselines.psdp import Members, QPolicy, gather, no_policy, psdp, psdp_level
from briee.numerics.keys import stream
from briee.numerics.linalg import at_level
from briee.protocols import PhaseHook, Policy, Sampler

LEAST_SHARE = 1e-2
"""The spanner starts from this multiple of the unit vectors, which a policy must beat."""


class VoxState(AttemptState):
    """The cover of each level: K policies, with one regressor for each step."""

    cover: Layers
    volume: Float[Array, ""]
    """Determinant of the last spanner."""


class Vox(Attempts[VoxState]):
    """VoX on the environment behind `sampler`."""

    name = "vox"
    config: VoxConfig

    def __init__(self, sampler: Sampler, config: VoxConfig):
        super().__init__(sampler, config)
        self.explore_updates, self.plan_updates = sampler.horizon - 1, sampler.horizon

    def blank(self, key: PRNGKeyArray) -> Layers:
        """PSDP's regressors."""
        return no_policy(self.sampler, self.config.psdp.regression)

    def fresh(self, key: PRNGKeyArray, **common: Any) -> VoxState:
        """Uniform policies."""
        H, K = self.sampler.horizon, self.config.features.num_latents
        cover = no_policy(self.sampler, self.config.psdp.regression, H, K)
        return VoxState(key=key, **common, cover=cover, volume=jnp.float32(0))

    def members(self, state: VoxState, level: int) -> Members:
        """The cover of a level."""
        return Members(at_level(state.cover, level), jnp.int32(self.config.features.num_latents))

    def explore(self, state: VoxState, step: int, key: PRNGKeyArray, phase: PhaseHook) -> VoxState:
        """Features of level `step`, and the cover of the next one."""
        phase("collect")
        rows, steps = gather(
            self.sampler, self.members(state, step), step, key, self.config.episodes_per_level
        )
        state = counted(state, rows, steps)
        if step == 0:  # no action precedes level 0, so all policies are alike there
            return state
        phase("represent")
        A, features = self.sampler.num_actions, self.config.features
        net, _ = learn_features(stream(key, "features"), rows.x, rows.action, rows.next_x, A, features)
        phase("plan")
        state, cover, volume = self.spanner(state, step, net, stream(key, "spanner"))
        put = lambda levels, own: levels.at[step + 1].set(own)  # noqa: E731
        where = lambda s: (s.cover, s.volume)  # noqa: E731
        return eqx.tree_at(where, state, (jax.tree.map(put, state.cover, cover), jnp.float32(volume)))

    def spanner(self, state: VoxState, level: int, net: Layers, key: PRNGKeyArray):
        """K policies whose expected features at `level` span those of all policies, and their determinant."""
        K, config = self.config.features.num_latents, self.config
        columns = LEAST_SHARE * np.eye(K)
        policies = [no_policy(self.sampler, config.psdp.regression)] * K
        for turn in range(K + config.swaps):
            place, before = turn % K, abs(np.linalg.det(columns))
            candidates = []
            for sign in (1.0, -1.0):
                direction = sign * cofactors(columns, place)
                own = stream(key, "direction", turn, int(sign > 0))
                state, q, mean = self.best_in_direction(state, level, net, direction, own)
                candidates.append((abs(direction @ mean), q, mean))
            volume, q, mean = max(candidates, key=lambda candidate: candidate[0])
            if turn < K or volume > config.ratio * before:
                columns[:, place], policies[place] = mean, q
        cover = jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
        return state, cover, abs(np.linalg.det(columns))

    def best_in_direction(self, state: VoxState, level: int, net: Layers, direction: np.ndarray, key):
        """PSDP for direction^T psi at `level`; the policy, and an estimate of its expected features."""
        theta = jnp.asarray(direction / (np.abs(direction).max() + 1e-12), jnp.float32)
        before = state
        q, played = psdp(
            self.sampler, lambda h: self.members(before, h), level, stream(key, "plan"), self.config.psdp,
            lambda rows: _projected(net, rows.end, theta),
        )  # fmt: skip
        for episodes, steps in played:
            state = counted(state, episodes, steps)
        alone = Members(jax.tree.map(lambda leaf: leaf[None], q), jnp.int32(1))
        n = self.config.estimate_episodes
        rows, steps = gather(self.sampler, alone, level, stream(key, "estimate"), n)
        mean = np.asarray(psi_of(net, rows.x).mean(axis=0), np.float64)
        return counted(state, rows, steps), q, mean

    def plan(self, state: VoxState, step: int, key: PRNGKeyArray, phase: PhaseHook) -> VoxState:
        """PSDP at one level, the last one first."""
        phase("plan")
        H = self.sampler.horizon
        level = H - 1 - step
        cover = self.members(state, level)
        q, rows, steps = psdp_level(self.sampler, cover, state.learned, level, H, key, self.config.psdp)
        return counted(state, rows, steps, learned=q)

    def as_policy(self, learned: Layers) -> Policy:
        """PSDP's policy."""
        return QPolicy(learned)


def cofactors(columns: np.ndarray, place: int) -> np.ndarray:
    """theta with theta^T v = det of the matrix whose column `place` is replaced by v."""
    result = np.zeros(len(columns))
    for i in range(len(columns)):
        replaced = columns.copy()
        replaced[:, place] = np.eye(len(columns))[i]
        result[i] = np.linalg.det(replaced)
    return result


@eqx.filter_jit
def _projected(net: Layers, x: Float[Array, "n d"], theta: Float[Array, " K"]) -> Array:
    return psi_of(net, x) @ theta
