"""Rewards that come later: plans on the episodes that were kept, without a new one; see docs/reward_free.md.

The reward of a state and an action is the mean of the given function over the observations of that state. So
an action has a reward wherever its state was seen, and the plan needs no reward that was earned:

    Q_h(c, a) = r_h(c, a) + sum_y P(y|c,a) max_a' Q_{h+1}(y, a')             over cells that were tried
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from briee.algorithms.general.decoders import StatePolicy
from briee.algorithms.general.planning import Cells, plan_cells
from briee.protocols import Algorithm, Policy, PolicyKind, Reward, S

if TYPE_CHECKING:
    from briee.algorithms.general.state import GeneralState

NOTHING = np.ones(1)  # a discovery curve for plans that do not explore


class DecodedState(eqx.Module):
    """(level, observation) -> the state as a one-hot vector, for rewards of the latent state."""

    policy: StatePolicy
    states: int = eqx.field(static=True)

    def __call__(self, level: Int[Array, ""], observation: Float[Array, "..."]) -> Float[Array, " K"]:
        return jax.nn.one_hot(self.policy.label(level, observation) - 1, self.states)


class RewardPlans(Algorithm[S]):
    """Mixin: plans for any reward, for algorithms with states of each level, kept episodes and `cells`."""

    def cells(self, state: Any) -> Cells:
        """Counts of the kept episodes."""
        raise NotImplementedError

    def plan_for(self, state: Any, reward: Reward | None, kind: PolicyKind = "greedy") -> Policy:
        """A policy for this reward, or for the recorded ones if it is None."""
        policy = self._state_policy(state)
        if kind == "optimistic":
            raise ValueError(f"{self.name} plans for a reward without a bonus")
        if reward is None:
            return policy
        n, H, L = int(state.data.size), policy.value.shape[0], policy.value.shape[1]
        x = state.data.observation[: 1 << (n - 1).bit_length(), :H]  # few shapes, so few compilations
        rows = reward_rows(reward, x.reshape(len(x), H, *self.sampler.observation_shape))
        table = reward_table(np.asarray(rows)[:, :n], state.data.label[:n, :H], L)
        counts = self.cells(state).counts
        known = Cells(counts, table * counts.sum(-1))
        return replace(policy, value=jnp.asarray(plan_cells(known, NOTHING).reward, jnp.float32))

    def start_value(self, state: Any, policy: Any) -> Float[Array, ""]:
        """The return that a plan expects of an episode: the mean over the states at the first level."""
        first = jnp.asarray(state.data.label[: int(state.data.size), 0])
        return policy.value[0].max(-1)[first].mean()

    def reward_decoder(self, state: Any) -> DecodedState:
        """The states behind rewards of the latent state."""
        return DecodedState(self._state_policy(state), self.config.num_latents)

    def _state_policy(self, state: "GeneralState") -> StatePolicy:
        policy = self.policy(state)  # type: ignore[arg-type]
        if not int(state.episodes):
            raise ValueError("nothing was explored yet: run at least one update before planning")
        if not isinstance(policy, StatePolicy):
            advice = "train with --reward-free, or Agent(env, reward_free=True)"
            raise ValueError(
                f"{self.name} keeps one table of states for all steps, for this reward alone: {advice}"
            )
        return policy


@eqx.filter_jit
def reward_rows(reward: Reward, observation: Float[Array, "n H ..."]) -> Float[Array, "H n A"]:
    """The reward of every action at every kept observation."""
    of_level = lambda own: jax.vmap(lambda s: reward(own[0], s))(own[1])  # noqa: E731
    return jax.lax.map(of_level, (jnp.arange(observation.shape[1]), jnp.swapaxes(observation, 0, 1)))


def reward_table(
    rows: Float[np.ndarray, "H n A"], label: Int[np.ndarray, "n H"], num_labels: int
) -> Float[np.ndarray, "H L A"]:
    """The mean reward of every state and action; zero where a state was not seen."""
    member = (label.T[..., None] == np.arange(num_labels)).astype(np.float32)
    return np.einsum("hnl,hna->hla", member, rows, optimize=True) / np.maximum(member.sum(1), 1)[..., None]
