"""HOMER (Misra, Henaff, Krishnamurthy and Langford 2020).

    for h = 0, ..., H - 2:
        roll in to x_h with a uniformly drawn homing policy of level h, uniform action a, observe x_{h+1}
        train a classifier to tell (x_h, a, x_{h+1}) from triples whose x_{h+1} comes from another episode;
        it sees x_{h+1} through B discrete values: the abstract states of level h + 1
        for each abstract state i: a homing policy of level h + 1 that maximises P(phi(x_{h+1}) = i)
    plan for the reward over the homing policies

`planner` psdp: both plans by PSDP, as in the paper. prefix: a homing policy is a homing policy of level h and
one greedy step, the reward is planned by fitted Q iteration on the stored transitions, as in its program.
prefix-psdp: prefixes too, but the reward is planned by PSDP, an option of its program.
It assumes that every state can be reached with a probability eta that is not tiny.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.attempts import Attempts, AttemptState, counted
from briee.algorithms.baselines.fitting import (
    Layers,
    Stopped,
    descend_with_patience,
    new_decoder,
    new_layers,
    regress,
)
from briee.algorithms.baselines.psdp import (
    Chains,
    Gathered,
    Members,
    QPolicy,
    chain_of,
    gather,
    inputs_of,
    no_policy,
    psdp,
    psdp_level,
)
from briee.algorithms.baselines.rival_config import HomerConfig
from briee.numerics.keys import stream
from briee.numerics.linalg import at_level
from briee.protocols import PhaseHook, Policy, Sampler


class Classifier(eqx.Module):
    """p(real | x, a, x') = sigmoid(head([enc(x); e_a; phi(x')]))."""

    encoder: Layers
    phi: Layers
    head: Layers


class Stored(eqx.Module):
    """The transitions of every level, for fitted Q iteration."""

    x: Float[Array, "*H n d"]
    action: Int[Array, "*H n"]
    reward: Float[Array, "*H n"]
    next_x: Float[Array, "*H n d"]


class HomerState(AttemptState):
    """Homing policies: with PSDP one regressor for each level, abstract state and step; with prefixes one
    regressor for each step and abstract state, the parent of each, and the data that fitted Q iteration
    needs."""

    homing: Layers
    parent: Int[Array, "H B"]
    data: Stored | None


class Homer(Attempts[HomerState]):
    """HOMER on the environment behind `sampler`."""

    name = "homer"
    config: HomerConfig

    def __init__(self, sampler: Sampler, config: HomerConfig):
        super().__init__(sampler, config)
        H, self.homes_by_psdp, self.plans_by_psdp = (
            sampler.horizon,
            config.planner == "psdp",
            config.planner != "prefix",
        )
        self.explore_updates, self.plan_updates = (H - 1, H) if self.plans_by_psdp else (H, 1)

    def blank(self, key: PRNGKeyArray) -> Layers:
        """Regressors of the reward."""
        return no_policy(self.sampler, self.config.psdp.regression)

    def fresh(self, key: PRNGKeyArray, **common: Any) -> HomerState:
        """No homing policies and no data."""
        H, B, n, d = (
            self.sampler.horizon,
            self.config.num_latents,
            self.config.episodes_per_level,
            inputs_of(self.sampler),
        )
        parent = jnp.zeros((H, B), jnp.int32)
        if self.homes_by_psdp:
            homing = no_policy(self.sampler, self.config.psdp.regression, H, B)
            return HomerState(key=key, **common, homing=homing, parent=parent, data=None)
        one = no_policy(self.sampler, self.config.psdp.regression, B)  # axes B, H
        homing = _joined(jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), one))
        if self.plans_by_psdp:
            return HomerState(key=key, **common, homing=homing, parent=parent, data=None)
        rows = jnp.zeros((H, n, d)), jnp.zeros((H, n), jnp.int32), jnp.zeros((H, n)), jnp.zeros((H, n, d))
        return HomerState(key=key, **common, homing=homing, parent=parent, data=Stored(*rows))

    def cover(self, state: HomerState, level: int) -> Members | Chains:
        """The homing policies of a level."""
        size = jnp.int32(self.config.num_latents)
        if self.homes_by_psdp:
            return Members(at_level(state.homing, level), size)
        return Chains(state.homing, chain_of(state.parent, level), size)

    def explore(self, state: HomerState, step: int, key: PRNGKeyArray, phase: PhaseHook) -> HomerState:
        """The abstract states of level `step` + 1 and their homing policies."""
        phase("collect")
        rows, steps = gather(self.sampler, self.cover(state, step), step, key, self.config.episodes_per_level)
        if state.data is not None:
            own = Stored(rows.x, rows.action, rows.reward, rows.next_x)
            state = eqx.tree_at(lambda s: s.data, state, _at(state.data, step, own))
        state = counted(state, rows, steps)
        if step == self.sampler.horizon - 1:  # the last rewards, which need no abstract states
            return state
        phase("represent")
        phi = abstraction(rows, self.config, self.sampler.num_actions, stream(key, "classifier"))
        phase("plan")
        home = self.psdp_homes if self.homes_by_psdp else self.prefix_homes
        return home(state, step, rows, phi, stream(key, "homing"))

    def psdp_homes(self, state: HomerState, step: int, rows: Gathered, phi: Layers, key) -> HomerState:
        """PSDP for the indicator of each abstract state of level `step` + 1."""
        homes, before = [], state
        for i in range(self.config.num_latents):
            home, played = psdp(
                self.sampler, lambda level: self.cover(before, level), step + 1, stream(key, "home", i),
                self.config.psdp, lambda rows, i=i: _is_state(phi, rows.end, i),
            )  # fmt: skip
            homes.append(home)
            for episodes, steps in played:
                state = counted(state, episodes, steps)
        own = jax.tree.map(lambda *leaves: jnp.stack(leaves), *homes)
        return eqx.tree_at(lambda s: s.homing, state, _at(state.homing, step + 1, own))

    def prefix_homes(self, state: HomerState, step: int, rows: Gathered, phi: Layers, key) -> HomerState:
        """One greedy step for the indicator of each abstract state, after the prefix that helps it most."""
        fits, parents = [], []
        for i in range(self.config.num_latents):
            target = _is_state(phi, rows.next_x, i)
            q = regress(
                self.config.psdp.regression, rows.x, rows.action, target, self.sampler.num_actions,
                stream(key, "home", i),
            )  # fmt: skip
            fits.append(q)
            parents.append(_best_prefix(q, rows, self.config.num_latents))
        own = _joined(jax.tree.map(lambda *leaves: jnp.stack(leaves), *fits))
        state = eqx.tree_at(lambda s: s.homing, state, _at(state.homing, step, own))
        return eqx.tree_at(lambda s: s.parent, state, state.parent.at[step].set(jnp.stack(parents)))

    def plan(self, state: HomerState, step: int, key: PRNGKeyArray, phase: PhaseHook) -> HomerState:
        """PSDP for the reward at one level, or all of fitted Q iteration."""
        phase("plan")
        H = self.sampler.horizon
        if self.plans_by_psdp:
            cover = self.cover(state, H - 1 - step)
            q, rows, steps = psdp_level(
                self.sampler, cover, state.learned, H - 1 - step, H, key, self.config.psdp
            )
            return counted(state, rows, steps, learned=q)
        assert state.data is not None
        q = fitted_q_iteration(state.data, state.learned, self.config, self.sampler.num_actions, key)
        return eqx.tree_at(lambda s: s.learned, state, q)

    def as_policy(self, learned: Layers) -> Policy:
        """Greedy in the regressors of the reward."""
        return QPolicy(learned)


def abstraction(rows: Gathered, config: HomerConfig, num_actions: int, key: PRNGKeyArray) -> Layers:
    """phi of the classifier with the least validation loss; trainings stop once one is good enough."""
    best = None
    for restart in range(config.restarts):
        found = _trained(rows, config, num_actions, stream(key, "restart", restart))
        if best is None or found.loss < best.loss:
            best = found
        if best.loss < config.enough:
            break
    assert best is not None
    return best.parameters.phi


@eqx.filter_jit
def _trained(rows: Gathered, config: HomerConfig, num_actions: int, key: PRNGKeyArray) -> Stopped:
    """A classifier trained first with soft abstract states, then with discrete ones."""
    keys, d, B = jax.random.split(key, 6), rows.x.shape[1], config.num_latents
    start = Classifier(
        new_decoder(keys[0], d, config.decoder_size, B),
        new_decoder(keys[1], d, config.decoder_size, B),
        new_layers(keys[2], (2 * B + num_actions, config.hidden_size, 1), "leaky_relu"),
    )
    impostor = rows.next_x[jax.random.permutation(keys[3], len(rows.action))]
    data = rows.x, rows.action, rows.next_x, impostor
    found = Stopped(start, jnp.float32(jnp.inf))
    for discrete, fit_key in ((False, keys[4]), (True, keys[5])):
        loss = partial(contrastive_loss, config=config, num_actions=num_actions, discrete=discrete)
        found = descend_with_patience(
            loss, found.parameters, data, fit_key, epochs=config.epochs, patience=config.patience,
            batch=config.batch // 2, learning_rate=config.learning_rate,
        )  # fmt: skip
    return found


def contrastive_loss(
    net: Classifier, part: Any, key: PRNGKeyArray, config: HomerConfig, num_actions: int, discrete: bool
) -> Float[Array, ""]:
    """Mean cross-entropy of real triples (label 1) and those with another episode's x' (label 0)."""
    x, action, next_x, impostor = part
    keys = jax.random.split(key, 3)

    def states(logits, key):
        noise = jax.random.gumbel(key, logits.shape) if discrete else 0.0
        return jax.nn.softmax((logits + noise) / config.temperature)

    before = net.encoder(x)
    before = states(before, keys[2]) if config.forward_abstraction else before
    known = jnp.concatenate([before, jax.nn.one_hot(action, num_actions)], axis=1)
    score = lambda x, key: net.head(jnp.concatenate([known, states(net.phi(x), key)], axis=1))[:, 0]  # noqa: E731
    real, swapped = score(next_x, keys[0]), score(impostor, keys[1])
    return (jax.nn.softplus(-real) + jax.nn.softplus(swapped)).mean() / 2


@eqx.filter_jit
def fitted_q_iteration(
    data: Stored, q: Layers, config: HomerConfig, num_actions: int, key: PRNGKeyArray
) -> Layers:
    """Backwards over the levels: regress r + max_a q_{h+1}(x', a) on (x, a)."""
    H = len(data.action)

    def level(later: Layers, h):
        value = jnp.where(h + 1 < H, later(data.next_x[h]).max(axis=1), 0.0)
        target = data.reward[h] + value
        fit_key = stream(key, "level", h)
        own = regress(config.psdp.regression, data.x[h], data.action[h], target, num_actions, fit_key)
        return own, own

    return jax.lax.scan(level, at_level(q, 0), jnp.arange(H), reverse=True)[1]


def _at(tree: Any, level: int, own: Any) -> Any:
    """The tree with one level replaced."""
    return jax.tree.map(lambda leaf, new: leaf.at[level].set(new), tree, own)


def _joined(q: Layers) -> Layers:
    """Regressors stacked on the axis before the last ones, as one network with all their outputs."""
    *lead, _, _ = q.biases[-1].shape
    weights = jnp.moveaxis(q.weights[0], -3, -2)
    return Layers(
        (weights.reshape(*weights.shape[:-2], -1),), (q.biases[0].reshape(*lead, -1),), q.activation
    )


@eqx.filter_jit
def _is_state(phi: Layers, x: Float[Array, "n d"], i: int) -> Float[Array, " n"]:
    """Whether the abstract state of each row is i."""
    return (jnp.argmax(phi(x), axis=1) == i).astype(jnp.float32)


@eqx.filter_jit
def _best_prefix(q: Layers, rows: Gathered, num_members: int) -> Int[Array, ""]:
    """The member of the cover after which the greedy step succeeds most often, by the regression."""
    member = jax.nn.one_hot(rows.member, num_members)
    return jnp.argmax((member.T @ q(rows.x).max(axis=1)) / jnp.maximum(member.sum(axis=0), 1)).astype(
        jnp.int32
    )
