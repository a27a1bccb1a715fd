"""MusIK (Mhammedi, Foster and Rakhlin 2023), as its authors run it on the lock.

    for h = 0, ..., H - 2:                                              (exploration)
        draw a cover policy I of level h, roll in to x_h, take a uniform action a, observe x_{h+1}
        fit p(a | x_h, x_{h+1}) = sum_j phi_j(x_{h+1}) f_j(a | x_h) by maximum likelihood
        cover policy j of level h + 1: f_j's best action at level h, and before it the cover policy that most
        often preceded argmax phi = j
    PSDP for the reward over the cover                                  (planning)

phi = softmax(linear), or a network with `decoder_size` hidden units; f_j one head each of a tanh network.
Nothing is assumed but a block MDP with K states a level; the index I is counted, which is the maximum
likelihood of a table.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.attempts import Attempts, AttemptState, counted
from briee.algorithms.baselines.fitting import Layers, descend, new_decoder, new_layers, zero_layers
from briee.algorithms.baselines.psdp import (
    Chains,
    Gathered,
    QPolicy,
    chain_of,
    gather,
    inputs_of,
    no_policy,
    psdp_level,
)
from briee.algorithms.baselines.rival_config import MusikConfig
from briee.protocols import PhaseHook, Policy, Sampler


class MusikState(AttemptState):
    """The cover: heads of every level, and for each cover policy its predecessor."""

    heads: Layers
    parent: Int[Array, "H K"]


class Musik(Attempts[MusikState]):
    """MusIK on the environment behind `sampler`."""

    name = "musik"
    config: MusikConfig

    def __init__(self, sampler: Sampler, config: MusikConfig):
        super().__init__(sampler, config)
        self.explore_updates, self.plan_updates = sampler.horizon - 1, sampler.horizon

    def blank(self, key: PRNGKeyArray) -> Layers:
        """PSDP's regressors."""
        return no_policy(self.sampler, self.config.psdp.regression)

    def fresh(self, key: PRNGKeyArray, **common) -> MusikState:
        """No cover yet."""
        H, K, A = self.sampler.horizon, self.config.num_latents, self.sampler.num_actions
        heads = zero_layers((inputs_of(self.sampler), self.config.hidden_size, K * A), H)
        return MusikState(key=key, **common, heads=heads, parent=jnp.zeros((H, K), jnp.int32))

    def cover(self, state: MusikState, level: int) -> Chains:
        """The cover policies of a level."""
        return Chains(state.heads, chain_of(state.parent, level), jnp.int32(self.config.num_latents))

    def explore(self, state: MusikState, step: int, key: PRNGKeyArray, phase: PhaseHook) -> MusikState:
        """Inverse kinematics at level `step`."""
        phase("collect")
        cover, n = self.cover(state, step), self.config.episodes_per_level
        rows, steps = gather(self.sampler, cover, step, key, n)
        phase("represent")
        heads, parent = inverse_kinematics(rows, self.config, self.sampler.num_actions, key)
        put = lambda all_levels, own: all_levels.at[step].set(own)  # noqa: E731
        heads, parent = jax.tree.map(put, state.heads, heads), state.parent.at[step].set(parent)
        return counted(state, rows, steps, heads=heads, parent=parent)

    def plan(self, state: MusikState, step: int, key: PRNGKeyArray, phase: PhaseHook) -> MusikState:
        """PSDP at one level, the last one first."""
        phase("plan")
        H = self.sampler.horizon
        level = H - 1 - step
        cover = self.cover(state, level)
        q, rows, steps = psdp_level(self.sampler, cover, state.learned, level, H, key, self.config.psdp)
        return counted(state, rows, steps, learned=q)

    def as_policy(self, learned: Layers) -> Policy:
        """PSDP's policy."""
        return QPolicy(learned)


def likelihood(parameters: tuple[Layers, Layers], rows, squash: bool) -> Float[Array, " n"]:
    """p(a | x, x') of each row."""
    (phi, heads), (x, action, next_x) = parameters, rows
    states = jax.nn.softmax(phi(next_x))
    logits = heads(x).reshape(len(x), states.shape[1], -1)
    inverse = jax.nn.softmax(jnp.tanh(logits) / 10 if squash else logits)
    chosen = jnp.take_along_axis(inverse, action[:, None, None], axis=2)[..., 0]
    return (states * chosen).sum(axis=1)


@eqx.filter_jit
def inverse_kinematics(
    rows: Gathered, config: MusikConfig, num_actions: int, key: PRNGKeyArray
) -> tuple[Layers, Int[Array, " K"]]:
    """The heads f_j of one level, and the cover policy that precedes each state j."""
    phi_key, heads_key, fit_key = jax.random.split(key, 3)
    training = {"steps": config.steps, "batch": config.batch, "learning_rate": config.learning_rate}
    d, K = rows.x.shape[1], config.num_latents
    start = (
        new_decoder(phi_key, d, config.decoder_size, K),
        new_layers(heads_key, (d, config.hidden_size, K * num_actions)),
    )
    data = rows.x, rows.action, rows.next_x

    def loss(parameters, part, key):
        return -jnp.log(likelihood(parameters, part, config.squash)).mean()

    phi, heads = descend(loss, start, data, fit_key, **training)
    state = jax.nn.one_hot(jnp.argmax(phi(rows.next_x), axis=1), K)
    if config.fitted_index:
        return heads, index_network(state, rows.member, config.hidden_size, fit_key, training)
    count = jnp.einsum("nj,ni->ji", state, jax.nn.one_hot(rows.member, K))
    return heads, jnp.argmax(count, axis=1).astype(jnp.int32)


def index_network(
    state: Float[Array, "n K"], member: Int[Array, " n"], hidden_size: int, key: PRNGKeyArray, training: dict
) -> Int[Array, " K"]:
    """The likeliest member of the cover before each state, by a network trained on p(member | state)."""
    K = state.shape[1]
    start_key, fit_key = jax.random.split(jax.random.fold_in(key, 1))

    def loss(g, part, key):
        state, member = part
        return -jnp.take_along_axis(jax.nn.log_softmax(g(state)), member[:, None], axis=1).mean()

    g = descend(loss, new_layers(start_key, (K, hidden_size, K)), (state, member), fit_key, **training)
    return jnp.argmax(g(jnp.eye(K)), axis=1).astype(jnp.int32)
