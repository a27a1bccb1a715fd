"""Rep-UCB (Uehara, Zhang and Sun 2022): maximum likelihood of a model, a bonus, a plan in the model.

    collect D_h (pi to level h, then a uniform action) and D'_{h+1} (one more uniform action), for every h
    fit features phi_h = psi_h ⊗ e_a and the model by maximum likelihood on D and D'
    bonus b_h(x, a) = min(alpha ||phi_h(x, a)||_{Sigma_h^-1}, cap), Sigma_h from D
    pi = the best policy of the learned model for the reward plus the bonus

The model is a latent table with Gaussian emissions; values in the model are averages over observations drawn
from the emissions. Rewards are regressed on the features. It assumes that the model class holds the truth.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.config import RepUcbConfig
from briee.algorithms.baselines.latent_models import Emissions, fit, mean_rewards, no_emissions
from briee.algorithms.baselines.psdp import greedy_action, inputs_of
from briee.algorithms.bonus import elliptical_bonus
from briee.numerics.keys import stream
from briee.numerics.linalg import at_level, block_gram, elliptical_norm, inverse_factor
from briee.protocols import Algorithm, Capabilities, PhaseHook, Policy, PolicyKind, Sampler, no_phases
from briee.rollout.samplers import deepest_good_level
from briee.rollout.trajectories import Trajectories


class Rows(eqx.Module):
    """A ring buffer of N transitions for each level; `valid` marks those that are filled."""

    x: Float[Array, "H N d"]
    action: Int[Array, "H N"]
    reward: Float[Array, "H N"]
    next_x: Float[Array, "H N d"]
    valid: Float[Array, "H N"]


class Plan(eqx.Module):
    """Q_h(x, a) = psi_h(x)^T table_h[:, a] + bonus; no bonus if alpha is zero."""

    emissions: Emissions
    table: Float[Array, "H K A"]
    factor: Float[Array, "H A K K"]
    alpha: Float[Array, ""]
    cap: Float[Array, ""]

    def values(self, level, x: Float[Array, "n d"]) -> Float[Array, "n A"]:
        """Q-values of several observations of one level."""
        psi = at_level(self.emissions, level).psi(x)
        bonus = elliptical_bonus(elliptical_norm(self.factor[level], psi), self.alpha, self.cap)
        return psi @ self.table[level] + bonus

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        return greedy_action(self.values(level, observation.reshape(1, -1))[0], key)


class RepUcbState(eqx.Module):
    """State between two updates: D, D', and the plans with and without bonus."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    on_policy: Rows
    off_policy: Rows
    optimistic: Plan
    greedy: Plan
    log_likelihood: Float[Array, ""]
    explore_return: Float[Array, ""]
    reached_level: Float[Array, ""]


class RepUcb(Algorithm[RepUcbState]):
    """Rep-UCB on the environment behind `sampler`."""

    name = "rep-ucb"
    capabilities = Capabilities(decodes=True)
    config: RepUcbConfig

    def __init__(self, sampler: Sampler, config: RepUcbConfig):
        self.sampler, self.config = sampler, config

    def init(self, key: PRNGKeyArray) -> RepUcbState:
        """No data, and plans without preferences."""
        H, A, d = self.sampler.horizon, self.sampler.num_actions, inputs_of(self.sampler)
        K, N, config = self.config.likelihood.num_latents, self.config.buffer_size, self.config
        zero, missing = np.asarray(0, np.int64), jnp.float32(jnp.nan)
        flat, wide = jnp.zeros((H, N)), jnp.zeros((H, N, d))
        rows = Rows(wide, flat.astype(jnp.int32), flat, wide, flat)
        factor = jnp.broadcast_to(jnp.eye(K) / config.lam**0.5, (H, A, K, K))
        plan = Plan(
            no_emissions(H + 1, K, d), jnp.zeros((H, K, A)), factor, jnp.float32(config.alpha),
            jnp.float32(config.cap),
        )  # fmt: skip
        return RepUcbState(
            key=key, iteration=zero, episodes=zero, env_steps=zero, on_policy=rows, off_policy=rows,
            optimistic=plan, greedy=eqx.tree_at(lambda p: p.alpha, plan, jnp.float32(0)),
            log_likelihood=jnp.float32(0), explore_return=missing, reached_level=missing,
        )  # fmt: skip

    def update(self, state: RepUcbState, phase: PhaseHook = no_phases) -> RepUcbState:
        """One iteration."""
        phase("collect")
        state = self.collect(state)
        phase("represent")
        index = int(state.iteration)
        optimistic, greedy, likely = learn_and_plan(
            stream(state.key, "learn", index), state.on_policy, state.off_policy, state.optimistic,
            self.config,
        )  # fmt: skip
        return replace(
            state, iteration=state.iteration + 1, optimistic=optimistic, greedy=greedy, log_likelihood=likely
        )

    def collect(self, state: RepUcbState) -> RepUcbState:
        """D_h and D'_{h+1} from one roll-in with two uniform actions, for every level h."""
        H, m, index = self.sampler.horizon, self.config.episodes_per_level, int(state.iteration)
        deviation = np.repeat(np.arange(H), m)
        key = stream(state.key, "collect", index)
        played = self.sampler.rollout(state.optimistic, key, H * m, jnp.asarray(deviation, jnp.int32))
        place = jnp.int32(index * m % self.config.buffer_size)
        return replace(
            state,
            episodes=state.episodes + H * m,
            env_steps=state.env_steps + int(np.minimum(deviation + 2, H).sum()),
            on_policy=_insert(state.on_policy, played, place, m, False),
            off_policy=_insert(state.off_policy, played, place, m, True),
            explore_return=played.reward.sum(axis=1).mean(),
            reached_level=jnp.float32(deepest_good_level(self.sampler, played)),
        )

    def policy(self, state: RepUcbState, kind: PolicyKind = "greedy") -> Policy:
        """The plan without bonus, or with it, as used for collecting data."""
        return state.greedy if kind == "greedy" else state.optimistic

    def metrics(self, state: RepUcbState) -> dict[str, float]:
        """Measurements of the last update, for metrics.csv."""
        return {
            "explore_return": float(state.explore_return),
            "reached_level": float(state.reached_level),
            "log_likelihood": float(state.log_likelihood),
        }

    def decode(self, state: RepUcbState, level: int, observations: Array) -> Float[Array, "n K"]:
        """Posteriors of the latent states."""
        return at_level(state.greedy.emissions, level).psi(observations.reshape(len(observations), -1))

    def decode_levels(self, state: RepUcbState, observations: Array) -> Float[Array, "H n K"]:
        """Posteriors of the latent states."""
        levels = jnp.arange(len(observations))
        return jax.vmap(lambda level, x: self.decode(state, level, x))(levels, observations)


@eqx.filter_jit
def _insert(rows: Rows, played: Trajectories, place, m: int, later: bool) -> Rows:
    """The buffer with one transition of each episode: at its deviation, or at the next level if any."""
    H = len(rows.action)
    x = played.observation.reshape(H, m, H + 1, -1)  # the deviation is the first axis
    action, reward = (part.reshape(H, m, H) for part in (played.action, played.reward))
    level = jnp.arange(H)
    source = jnp.maximum(level - 1, 0) if later else level  # D'_h comes from deviations at level h - 1
    there = jnp.broadcast_to((level > 0 if later else level >= 0)[:, None], (H, m)).astype(jnp.float32)
    new = Rows(
        x[source, :, level],
        action[source, :, level],
        reward[source, :, level],
        x[source, :, level + 1],
        there,
    )
    return jax.tree.map(lambda old, own: jax.lax.dynamic_update_slice_in_dim(old, own, place, 1), rows, new)


@eqx.filter_jit
def learn_and_plan(
    key: PRNGKeyArray, on_policy: Rows, off_policy: Rows, last: Plan, config: RepUcbConfig
) -> tuple[Plan, Plan, Float[Array, ""]]:
    """Maximum likelihood on D and D', and the plans of the learned model with and without bonus."""
    both = jax.tree.map(lambda one, two: jnp.concatenate([one, two], axis=1), on_policy, off_policy)
    H, A = len(both.action), last.table.shape[-1]
    keys = jax.random.split(key, H + 2)
    K = config.likelihood.num_latents

    first = at_level(both, 0)
    anything = jnp.full((len(first.action), K), 1.0 / K)
    start, _, _ = fit(keys[H], anything, first.action, first.x, first.valid, A, config.likelihood)

    def layer(emissions: Emissions, each):
        key, rows = each
        psi = emissions.psi(rows.x)
        after, T, likely = fit(key, psi, rows.action, rows.next_x, rows.valid, A, config.likelihood)
        reward = mean_rewards(psi, rows.action, rows.reward, rows.valid, A)
        return after, (after, T, reward, likely)

    _, (later, T, reward, likely) = jax.lax.scan(layer, start, (keys[:H], both))
    emissions = jax.tree.map(lambda one, rest: jnp.concatenate([one[None], rest]), start, later)

    def covariance(emissions: Emissions, rows: Rows):
        return inverse_factor(block_gram(emissions.psi(rows.x), rows.action, rows.valid, A), config.lam)

    levels = jax.tree.map(lambda leaf: leaf[:H], emissions)
    factor = jax.lax.map(lambda each: covariance(*each), (levels, on_policy))
    noise = jax.random.normal(keys[H + 1], (config.emissions, 1, start.means.shape[-1]))

    def plan(alpha: Array) -> Plan:
        blank = Plan(emissions, jnp.zeros_like(reward), factor, alpha, last.cap)

        def back(value: Float[Array, " K"], h):
            own = eqx.tree_at(lambda p: p.table, blank, blank.table.at[h].set(reward[h] + T[h] @ value))
            means, scale = emissions.means[h], jnp.sqrt(emissions.variance[h])
            drawn = (means + scale * noise).reshape(-1, means.shape[-1])
            best = own.values(h, drawn).max(axis=1).reshape(config.emissions, K).mean(axis=0)
            return jnp.minimum(best, H + 2.0), own.table[h]

        _, table = jax.lax.scan(back, jnp.zeros(K), jnp.arange(H), reverse=True)
        return eqx.tree_at(lambda p: p.table, blank, table)

    return plan(last.alpha), plan(jnp.float32(0)), likely.mean()
