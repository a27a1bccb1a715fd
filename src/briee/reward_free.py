"""Reward-free BRIEE, Algorithm 4: explore without a reward, then plan for any reward without new data.

Exploration is Algorithm 1 with every reward zero. Of all iterations n it keeps one, ñ, at which the planner
promised the least bonus: its data, features and bonus are the `World`. Planning is LSVI (Algorithm 3) on that
world, for whatever reward comes. Symbols as in `briee.briee`; V̂_0 is the planner's value at the start.
"""

from dataclasses import replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.briee import BRIEE, BrieeState
from briee.config import LSVIConfig
from briee.data import Transitions
from briee.features import Decoder, at_level
from briee.lsvi import Bonus, GreedyPolicy, QFunction, Reward, lsvi, upper_bound

Kind = Literal["greedy", "optimistic"]


class World(eqx.Module):
    """What exploration hands to planning: data, features and bonus of iteration ñ, and its V̂_0."""

    rows: Transitions
    decoder: Decoder
    bonus: Bonus
    value: Float[Array, ""]
    iteration: Int[np.ndarray, ""]


class RewardFreeState(BrieeState):
    """The state of Algorithm 1 and the best world so far: two copies of the data, however long the run."""

    world: World


class RewardFreeBRIEE(BRIEE):
    """Algorithm 4 on the environment behind `sampler`.

    The environment's own rewards are recorded with the data but never seen by exploration; `policy` answers
    them, as one of the rewards that one may plan for.
    """

    name = "reward-free"
    stops_when_solved = False
    """Exploration must not look at the reward, so only its budget ends it."""

    def init(self, key: PRNGKeyArray) -> RewardFreeState:
        """Alg. 4, l. 2; no world is worth keeping yet."""
        start = super().init(key)
        bonus = start.optimistic.bonus
        assert bonus is not None
        nothing = World(start.buffers.rows, start.decoder, bonus, jnp.float32(jnp.inf), start.iteration)
        return RewardFreeState(**vars(start), world=nothing)

    def update(self, state: RewardFreeState) -> RewardFreeState:  # type: ignore[override]
        """One iteration n of the exploration phase."""
        return super().update(state)  # type: ignore[return-value]

    def plan(self, state: RewardFreeState) -> RewardFreeState:  # type: ignore[override]
        """Alg. 4, l. 6 to 9: plan for the bonus alone, and keep the argmin of V̂_0."""
        seen = state.buffers
        blind = replace(seen, rows=replace(seen.rows, reward=jnp.zeros_like(seen.rows.reward)))
        planned = super().plan(replace(state, buffers=blind))  # Alg. 4, l. 6 and 7
        value = start_value(planned.optimistic, seen.rows)
        world, bonus = state.world, planned.optimistic.bonus
        assert bonus is not None
        if float(value) < float(world.value):  # Alg. 4, l. 9
            world = World(seen.rows, state.decoder, bonus, value, planned.iteration)
        greedy = plan_reward(world, None, self.config.lsvi, self.sampler.num_actions)
        return RewardFreeState(**vars(planned) | {"buffers": seen, "world": world, "greedy": greedy.q})

    def plan_for(self, state: RewardFreeState, reward: Reward | None, kind: Kind = "greedy") -> GreedyPolicy:
        """Planning phase: a policy for `reward`, or for the rewards that were recorded; no new episode."""
        if not np.isfinite(float(state.world.value)):
            raise ValueError("nothing was explored yet: run at least one update before planning")
        return plan_reward(state.world, reward, self.config.lsvi, self.sampler.num_actions, kind)

    def start_value(self, state: RewardFreeState, policy: GreedyPolicy) -> Float[Array, ""]:
        """What a plan of `plan_for` expects of an episode."""
        return start_value(policy.q, state.world.rows)

    def reward_decoder(self, state: RewardFreeState) -> Decoder:
        """The decoders, levels stacked, behind rewards of the latent state."""
        return state.world.decoder

    def decode(
        self,
        state: RewardFreeState,
        level: int,
        observations: Float[Array, "n ..."],  # type: ignore[override]
    ) -> Float[Array, "n K"]:
        """Soft latent states as planning sees them: with the features of iteration ñ."""
        return super().decode(replace(state, decoder=state.world.decoder), level, observations)

    def metrics(self, state: RewardFreeState) -> dict[str, float]:  # type: ignore[override]
        """What the last update did; `explore_value` is the smallest V̂_0, found at `world_iteration`."""
        world = {
            "explore_value": float(state.world.value),
            "world_iteration": float(state.world.iteration),
        }
        return super().metrics(state) | world


def plan_reward(
    world: World, reward: Reward | None, config: LSVIConfig, num_actions: int, kind: Kind = "greedy"
) -> GreedyPolicy:
    """Planning phase of Algorithm 4. `optimistic` adds the bonus of the world, as printed there; `greedy`
    leaves it out, which is better when the data are many and the bonus still large.

    `reward` is a traceable function (level, observation) -> [A]; None: the recorded rewards. The regression
    is compiled once for all rewards: a reward enters it as numbers.
    """
    bonus = world.bonus if kind == "optimistic" else None
    if reward is None:
        weights = _recorded(world.rows, world.decoder, bonus, config, num_actions)
    else:
        later = reward_values(reward, world.rows.next_observation)
        weights = _known(world.rows, later, world.decoder, bonus, config)
    return GreedyPolicy(QFunction(world.decoder, weights, upper_bound(config.clip), bonus, reward))


@eqx.filter_jit
def start_value(q: QFunction, rows: Transitions) -> Float[Array, ""]:
    """V̂_0: the mean of max_a Q_0(s, a) over the recorded first observations."""
    first = at_level(rows, 0)
    values = jax.vmap(lambda s: q(jnp.int32(0), s).max())(first.observation)
    return jnp.sum(values * first.valid) / jnp.maximum(first.size, 1)


@eqx.filter_jit
def reward_values(reward: Reward, next_observation: Float[Array, "H n ..."]) -> Float[Array, "H n A"]:
    """The reward of every action at s', which is an observation of the level after its row's."""
    H = next_observation.shape[0]
    later = jnp.minimum(jnp.arange(H) + 1, H - 1)  # Alg. 3, l. 2: nothing is earned at level H
    return jax.vmap(lambda h, rows: jax.vmap(lambda s: reward(h, s))(rows))(later, next_observation)


class _Annotated(eqx.Module):
    """A decoder of observations that carry the rewards of the actions behind them."""

    decoder: Any
    shape: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, observation: Float[Array, " D+A"]) -> Float[Array, " K"]:
        return self.decoder(observation[: int(np.prod(self.shape))].reshape(self.shape))


@eqx.filter_jit
def _known(rows, later: Float[Array, "H n A"], decoder, bonus, config: LSVIConfig) -> Float[Array, "H A K"]:
    """LSVI for a reward given by its values at s': each observation is annotated with them."""
    H, n, A = later.shape

    def annotate(observation, rewards):
        return jnp.concatenate([observation.reshape(H, n, -1), rewards], axis=-1)

    annotated = replace(
        rows,
        observation=annotate(rows.observation, jnp.zeros_like(later)),
        next_observation=annotate(rows.next_observation, later),
    )
    decoder = _Annotated(decoder, rows.observation.shape[2:])
    q = lsvi(annotated, decoder, config.lam, A, bonus, lambda level, s: s[-A:], config.clip)
    return q.weights


@eqx.filter_jit
def _recorded(rows, decoder, bonus, config: LSVIConfig, num_actions: int) -> Float[Array, "H A K"]:
    return lsvi(rows, decoder, config.lam, num_actions, bonus, None, config.clip).weights
