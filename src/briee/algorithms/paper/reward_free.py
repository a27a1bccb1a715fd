"""Reward-free BRIEE, Algorithm 4: explore without a reward, then plan for any reward without new data.

Exploration is Algorithm 1 with every reward zero. It keeps the iteration ñ at which the planner promised the
least bonus: its data, features and bonus are the `World`. Planning is LSVI (Algorithm 3) on that world, for
any reward. Symbols as in `briee.py`; V̂_0 is the planner's value at the start.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.bonus import Bonus
from briee.algorithms.paper.briee import BrieeAlgorithm, BrieeState
from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.config import LSVIConfig
from briee.algorithms.paper.decoders import Decoder
from briee.algorithms.paper.lsvi import lsvi
from briee.algorithms.paper.reward_functions import ByLevel
from briee.numerics.linalg import at_level
from briee.protocols import PolicyKind, Reward
from briee.rollout.policies import GreedyPolicy, QValues


class World(eqx.Module):
    """Result of exploration: data, features and bonus of iteration ñ, and its V̂_0."""

    rows: Transitions
    decoder: Decoder
    bonus: Bonus
    value: Float[Array, ""]
    iteration: Int[np.ndarray, ""]


class RewardFreeState(BrieeState):
    """The state of Algorithm 1 and the best world so far: two copies of the data, however long the run."""

    world: World


class RewardFree(BrieeAlgorithm[RewardFreeState]):
    """Algorithm 4 on the environment behind `sampler`.

    The environment's own rewards are recorded with the data but never used by exploration. `policy` plans for
    them, as for any other reward.
    """

    name = "reward-free"
    capabilities = replace(BrieeAlgorithm.capabilities, plans_any_reward=True, stops_when_solved=False)
    """Exploration must not look at the reward, so only its budget ends it."""

    def init(self, key: PRNGKeyArray) -> RewardFreeState:
        """Alg. 4, l. 2; no world is worth keeping yet."""
        start = super().init(key)
        bonus = start.optimistic.bonus
        assert bonus is not None
        nothing = World(start.buffers.rows, start.decoder, bonus, jnp.float32(jnp.inf), start.iteration)
        return RewardFreeState(**vars(start), world=nothing)

    def plan(self, state: RewardFreeState, bonus: Bonus) -> RewardFreeState:
        """Alg. 4, l. 7 to 9: plan for the bonus alone, and keep the argmin of V̂_0."""
        rows, decoder, world = state.buffers.rows, state.decoder, state.world
        iteration, config, A = state.iteration + 1, self.config.lsvi, self.sampler.num_actions
        unrewarded = replace(rows, reward=jnp.zeros_like(rows.reward))
        optimistic = lsvi(  # Alg. 4, l. 7
            unrewarded, decoder, config.lam, A, bonus, clip=config.clip, prior=config.prior
        )
        value = start_value(optimistic, rows)
        if float(value) < float(world.value):  # Alg. 4, l. 9
            world = World(rows, decoder, bonus, value, iteration)
        greedy = plan_reward(world, None, config, A).q
        return replace(state, optimistic=optimistic, greedy=greedy, world=world, iteration=iteration)

    def plan_for(
        self, state: RewardFreeState, reward: Reward | None, kind: PolicyKind = "greedy"
    ) -> GreedyPolicy:
        """Planning phase: a policy for `reward`, or for the recorded rewards; no new episode."""
        if not np.isfinite(float(state.world.value)):
            raise ValueError("nothing was explored yet: run at least one update before planning")
        return plan_reward(state.world, reward, self.config.lsvi, self.sampler.num_actions, kind)

    def start_value(self, state: RewardFreeState, policy: GreedyPolicy) -> Float[Array, ""]:
        """The return that a plan of `plan_for` expects of an episode."""
        return start_value(policy.q, state.world.rows)

    def reward_decoder(self, state: RewardFreeState) -> ByLevel:
        """The decoders behind rewards of the latent state."""
        return ByLevel(state.world.decoder)

    def decode(
        self, state: RewardFreeState, level: int, observations: Float[Array, "n ..."]
    ) -> Float[Array, "n K"]:
        """Soft latent states with the features of iteration ñ, which planning uses."""
        return super().decode(replace(state, decoder=state.world.decoder), level, observations)

    def metrics(self, state: RewardFreeState) -> dict[str, float]:
        """As in Algorithm 1, and `explore_value`, the smallest V̂_0, found at `world_iteration`."""
        value, iteration = float(state.world.value), float(state.world.iteration)
        return super().metrics(state) | {"explore_value": value, "world_iteration": iteration}


def plan_reward(
    world: World, reward: Reward | None, config: LSVIConfig, num_actions: int, kind: PolicyKind = "greedy"
) -> GreedyPolicy:
    """Planning phase of Algorithm 4. `optimistic` adds the bonus of the world, as printed there; `greedy`
    leaves it out, which is better when there is much data and the bonus is still large.

    `reward` is a traceable function (level, observation) -> [A]; None means the recorded rewards.
    """
    bonus = world.bonus if kind == "optimistic" else None
    rows, decoder = world.rows, world.decoder
    q = lsvi(rows, decoder, config.lam, num_actions, bonus, reward, config.clip, config.prior)
    return GreedyPolicy(q)


@eqx.filter_jit
def start_value(q: QValues, rows: Transitions) -> Float[Array, ""]:
    """V̂_0: the mean of max_a Q_0(s, a) over the recorded first observations."""
    first = at_level(rows, 0)
    values = jax.vmap(lambda s: q(jnp.int32(0), s).max())(first.observation)
    return jnp.sum(values * first.valid) / jnp.maximum(first.size, 1)
