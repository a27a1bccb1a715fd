"""MOFFLE (Modi, Chen, Krishnamurthy, Jiang and Agarwal 2021): reward-free exploration without a model.

    for h = 0, ..., H - 1:
        roll in to x_h with a uniformly drawn policy of the exploratory mixture, uniform action, keep the rows
        learn features psi_h by the min-max-min objective
        elliptical planner: repeat
            pi = fitted Q iteration on the kept rows for the reward psi_h^T Gamma^-1 psi_h at level h
            Gamma += E_pi[psi_h psi_h^T], estimated with new episodes of pi
        until that reward is below beta;  the mixture of level h + 1: these policies, then a uniform action
    fitted Q iteration on the kept rows for the recorded rewards

It assumes reachability. phi_h = psi_h ⊗ e_a; the uniform action after the mixture covers e_a.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.attempts import Attempts, AttemptState, counted
from briee.algorithms.baselines.config import MoffleConfig
from briee.algorithms.baselines.fitting import Layers, learn_features, psi_of, zero_layers
from briee.algorithms.baselines.psdp import gather, greedy_action, inputs_of
from briee.numerics.keys import stream
from briee.numerics.linalg import at_level, block_gram, block_moment, ridge
from briee.protocols import PhaseHook, Policy, Sampler


class FeaturePolicy(eqx.Module):
    """Greedy in psi_h(x)^T w_h[:, a]."""

    features: Layers
    w: Float[Array, "H K A"]

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        psi = psi_of(at_level(self.features, level), observation.reshape(-1))
        return greedy_action(psi @ self.w[level], key)


class FeatureCover(eqx.Module):
    """A mixture of such policies, which share their features."""

    features: Layers
    w: Float[Array, "M H K A"]
    size: Int[Array, ""]

    def act(self, member, level, observation, key) -> Int[Array, ""]:
        """The action of a member."""
        psi = psi_of(at_level(self.features, level), observation.reshape(-1))
        return greedy_action(psi @ self.w[member, level], key)


class Kept(eqx.Module):
    """The rows of every level."""

    x: Float[Array, "H n d"]
    action: Int[Array, "H n"]
    reward: Float[Array, "H n"]
    next_x: Float[Array, "H n d"]


class MoffleState(AttemptState):
    """The rows, and the exploratory mixture of the next level; features are part of what is learned."""

    data: Kept
    mixture: Float[Array, "M H K A"]
    size: Int[Array, ""]


class Moffle(Attempts[MoffleState]):
    """MOFFLE on the environment behind `sampler`."""

    name = "moffle"
    config: MoffleConfig

    def __init__(self, sampler: Sampler, config: MoffleConfig):
        super().__init__(sampler, config)
        self.explore_updates, self.plan_updates = sampler.horizon, 0

    def blank(self, key: PRNGKeyArray) -> FeaturePolicy:
        """Features that see nothing, and no preferences."""
        H, A, K = self.sampler.horizon, self.sampler.num_actions, self.config.features.num_latents
        return FeaturePolicy(zero_layers((inputs_of(self.sampler), K), H), jnp.zeros((H, K, A)))

    def fresh(self, key: PRNGKeyArray, **common: Any) -> MoffleState:
        """No rows."""
        H, A, K = self.sampler.horizon, self.sampler.num_actions, self.config.features.num_latents
        flat = jnp.zeros((H, self.config.episodes_per_level))
        wide = jnp.zeros((*flat.shape, inputs_of(self.sampler)))
        data = Kept(wide, flat.astype(jnp.int32), flat, wide)
        mixture = jnp.zeros((self.config.members, H, K, A))
        return MoffleState(key=key, **common, data=data, mixture=mixture, size=jnp.int32(1))

    def explore(self, state: MoffleState, step: int, key: PRNGKeyArray, phase: PhaseHook) -> MoffleState:
        """Rows and features of level `step`, and the mixture of the next one."""
        phase("collect")
        A, config, level = self.sampler.num_actions, self.config, np.int32(step)
        cover = FeatureCover(state.learned.features, state.mixture, state.size)
        rows, steps = gather(self.sampler, cover, step, key, config.episodes_per_level)
        own = Kept(rows.x, rows.action, rows.reward, rows.next_x)
        data = jax.tree.map(lambda levels, new: levels.at[level].set(new), state.data, own)
        state = counted(state, rows, steps, data=data)
        phase("represent")
        net, _ = learn_features(stream(key, "features"), rows.x, rows.action, rows.next_x, A, config.features)
        features = jax.tree.map(lambda levels, new: levels.at[level].set(new), state.learned.features, net)
        phase("plan")
        state = self.elliptical_planner(state, features, step, stream(key, "planner"))
        w = fitted_q_iteration(data, features, jnp.int32(step), None, config.ridge, A)
        return eqx.tree_at(lambda s: s.learned, state, FeaturePolicy(features, w))

    def elliptical_planner(self, state: MoffleState, features: Layers, step: int, key) -> MoffleState:
        """Policies that together cover the features of level `step`; each is played to estimate them."""
        config, A, K = self.config, self.sampler.num_actions, self.config.features.num_latents
        gamma, mixture, size = config.lam * np.eye(K), jnp.zeros_like(state.mixture), 0
        for member in range(config.members if step > 0 else 0):  # all policies are alike at level 0
            inverse = jnp.asarray(np.linalg.inv(gamma), jnp.float32)
            w = fitted_q_iteration(state.data, features, jnp.int32(step), inverse, config.ridge, A)
            cover = FeatureCover(features, w[None], jnp.int32(1))
            rows, steps = gather(
                self.sampler, cover, step, stream(key, "play", member), config.estimate_episodes
            )
            state = counted(state, rows, steps)
            psi = np.asarray(psi_of(at_level(features, step), rows.x), np.float64)
            value = np.einsum("nk,kl,nl->n", psi, np.linalg.inv(gamma), psi).mean()
            gamma = gamma + psi.T @ psi / len(psi)
            mixture, size = mixture.at[member].set(w), member + 1
            if value < config.beta:
                break
        where = lambda s: (s.mixture, s.size)  # noqa: E731
        return eqx.tree_at(where, state, (mixture, jnp.int32(max(size, 1))))

    def as_policy(self, learned: FeaturePolicy) -> Policy:
        """The plan for the recorded rewards."""
        return learned


@eqx.filter_jit
def fitted_q_iteration(
    data: Kept,
    features: Layers,
    last: Int[Array, ""],
    inverse: Float[Array, "K K"] | None,
    lam: float,
    num_actions: int,
) -> Float[Array, "H K A"]:
    """Weights of Q for the recorded rewards up to level `last`, or for psi^T inverse psi at that level.

    In the latter case no action at `last` is better than another. Targets are bounded by what was seen.
    """
    H = len(data.action)

    def level(w_next, h):
        later = at_level(features, jnp.minimum(h + 1, H - 1))
        psi, psi_next = psi_of(at_level(features, h), data.x[h]), psi_of(later, data.next_x[h])
        value = (psi_next @ w_next).max(axis=1)
        if inverse is None:
            target = data.reward[h] + jnp.where(h < last, value, 0.0)
            counts = h <= last
        else:
            novelty = jnp.einsum("nk,kl,nl->n", psi_next, inverse, psi_next)
            target, counts = jnp.where(h + 1 < last, value, novelty), h < last
        one = jnp.ones(len(psi))
        gram = block_gram(psi, data.action[h], one, num_actions)
        w = ridge(gram, block_moment(psi, data.action[h], one, target[:, None], num_actions), lam)[..., 0].T
        w = jnp.where(counts, w, 0.0)
        return w, w

    K = features.biases[-1].shape[-1]
    return jax.lax.scan(level, jnp.zeros((K, num_actions)), jnp.arange(H), reverse=True)[1]
