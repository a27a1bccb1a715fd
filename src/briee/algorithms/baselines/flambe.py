"""FLAMBE (Agarwal, Kakade, Krishnamurthy and Sun 2020): reward-free exploration with a model.

    for h = 0, ..., H - 1:
        roll in to x_h with a uniformly drawn policy of the exploratory mixture, uniform action a, observe
        x_{h+1}; fit the model of this layer by maximum likelihood
        elliptical planner inside the model: repeat
            pi = the policy that maximises E[psi^T Gamma^-1 psi] at level h + 1;  Gamma += E_pi[psi psi^T]
        until that value is below beta;  these policies are the mixture of level h + 1
    plan for the recorded rewards inside the model

The model is a latent table with Gaussian emissions. Its features psi(x) ⊗ e_a are nearly one-hot, and the
action after a roll-in is uniform; so the planner covers psi alone, and Gamma is diagonal. It assumes that the
model class holds the truth.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.attempts import Attempts, AttemptState, counted
from briee.algorithms.baselines.config import FlambeConfig
from briee.algorithms.baselines.latent_models import (
    Decoder,
    Emissions,
    TableCover,
    TablePolicy,
    dynamic_programming,
    fit,
    mean_rewards,
    no_emissions,
    occupancy,
)
from briee.algorithms.baselines.psdp import Gathered, gather, inputs_of
from briee.numerics.keys import stream
from briee.numerics.linalg import at_level
from briee.protocols import Capabilities, PhaseHook, Policy, Sampler


class FlambeState(AttemptState):
    """The model, and the exploratory mixture of the next level; emissions are part of what is learned."""

    start: Float[Array, " K"]
    transition: Float[Array, "H K A K"]
    rewards: Float[Array, "H K A"]
    mixture: Float[Array, "M H K A"]
    size: Int[Array, ""]


class Flambe(Attempts[FlambeState]):
    """FLAMBE on the environment behind `sampler`."""

    name = "flambe"
    capabilities = Capabilities(decodes=True)
    config: FlambeConfig

    def __init__(self, sampler: Sampler, config: FlambeConfig):
        super().__init__(sampler, config)
        self.explore_updates, self.plan_updates = sampler.horizon, 0

    def blank(self, key: PRNGKeyArray) -> TablePolicy:
        """No emissions, and no preferences."""
        H, A, K = self.sampler.horizon, self.sampler.num_actions, self.config.likelihood.num_latents
        emissions = no_emissions(H + 1, K, inputs_of(self.sampler))
        return TablePolicy(Decoder(emissions), jnp.zeros((H, K, A)))

    def fresh(self, key: PRNGKeyArray, **common: Any) -> FlambeState:
        """An empty model."""
        H, A, K = self.sampler.horizon, self.sampler.num_actions, self.config.likelihood.num_latents
        return FlambeState(
            key=key,
            **common,
            start=jnp.full(K, 1.0 / K),
            transition=jnp.zeros((H, K, A, K)),
            rewards=jnp.zeros((H, K, A)),
            mixture=jnp.zeros((self.config.members, H, K, A)),
            size=jnp.int32(1),
        )

    def explore(self, state: FlambeState, step: int, key: PRNGKeyArray, phase: PhaseHook) -> FlambeState:
        """The layer of level `step`, and the mixture of the next level."""
        phase("collect")
        decoder = state.learned.decode
        cover = TableCover(decoder, state.mixture, state.size)
        rows, steps = gather(self.sampler, cover, step, key, self.config.episodes_per_level)
        phase("represent")
        layer = fit_layer(
            stream(key, "likelihood"), decoder.emissions, np.int32(step), rows, self.config,
            self.sampler.num_actions, step == 0,
        )  # fmt: skip
        emissions, start, transition, reward = layer
        start = start if step == 0 else state.start
        transition, rewards = state.transition.at[step].set(transition), state.rewards.at[step].set(reward)
        phase("plan")
        mixture, size = elliptical_planner(start, transition, jnp.int32(step), self.config)
        learned = TablePolicy(Decoder(emissions), dynamic_programming(transition, rewards))
        model = {"start": start, "transition": transition, "rewards": rewards}
        return counted(state, rows, steps, learned=learned, mixture=mixture, size=size, **model)

    def as_policy(self, learned: TablePolicy) -> Policy:
        """The plan for the recorded rewards."""
        return learned

    def decode(self, state: FlambeState, level: int, observations: Array) -> Float[Array, "n K"]:
        """Posteriors of the latent states."""
        emissions = at_level(state.learned.decode.emissions, level)
        return emissions.psi(observations.reshape(len(observations), -1))

    def decode_levels(self, state: FlambeState, observations: Array) -> Float[Array, "H n K"]:
        """Posteriors of the latent states."""
        levels = jnp.arange(len(observations))
        return jax.vmap(lambda level, x: self.decode(state, level, x))(levels, observations)


@eqx.filter_jit
def fit_layer(key, emissions: Emissions, step, rows: Gathered, config: FlambeConfig, A: int, first: bool):
    """All emissions with those of level `step` + 1 new, at level 0 also its own; the share of each state at
    this level, the transitions and the mean rewards."""
    K, n = config.likelihood.num_latents, len(rows.action)
    one, anything = jnp.ones(n), jnp.full((n, K), 1.0 / K)
    start_key, key = jax.random.split(key)
    put = lambda all_levels, level, own: jax.tree.map(lambda a, b: a.at[level].set(b), all_levels, own)  # noqa: E731
    if first:
        own, _, _ = fit(start_key, anything, rows.action, rows.x, one, A, config.likelihood)
        emissions = put(emissions, 0, own)
    psi = at_level(emissions, step).psi(rows.x)
    after, transition, _ = fit(key, psi, rows.action, rows.next_x, one, A, config.likelihood)
    reward = mean_rewards(psi, rows.action, rows.reward, one, A)
    return put(emissions, step + 1, after), psi.mean(axis=0), transition, reward


@eqx.filter_jit
def elliptical_planner(
    start: Float[Array, " K"], transition: Float[Array, "H K A K"], step: Int[Array, ""], config: FlambeConfig
) -> tuple[Float[Array, "M H K A"], Int[Array, ""]]:
    """Policies that together cover the latent states of level `step` + 1 in the model, and their number."""
    H, K, A, _ = transition.shape
    known = (jnp.arange(H) == step)[:, None, None]

    def add(carry):
        mixture, size, gamma, _ = carry
        q = dynamic_programming(transition, jnp.where(known, transition @ (1.0 / gamma), 0.0))
        visits = occupancy(start, transition, q)[step]
        arrived = jnp.einsum("ka,kal->l", visits, transition[step])
        return mixture.at[size].set(q), size + 1, gamma + arrived, arrived @ (1.0 / gamma)

    def goes_on(carry):
        return (carry[1] < config.members) & (carry[3] >= config.beta)

    empty = jnp.zeros((config.members, H, K, A))
    first = empty, jnp.int32(0), jnp.full(K, config.lam), jnp.float32(jnp.inf)
    mixture, size, _, _ = jax.lax.while_loop(goes_on, add, first)
    return mixture, size
