"""The contracts between the packages: environment, sampler, policy, state and algorithm.

A sampler states what is known about the true environment in its `Knowledge`, an algorithm what it can do in
its `Capabilities`; no caller probes for attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

if TYPE_CHECKING:
    from briee.envs.block import LatentModel
    from briee.envs.finite_block import BlockMDP
    from briee.rollout.trajectories import StoredRows, Trajectories

Policy = Callable[[Int[Array, ""], Float[Array, "..."], PRNGKeyArray], Int[Array, ""]]
"""(level, observation, key) -> action; an `equinox.Module`, unbatched."""

HostPolicy = Callable[[int, Float[np.ndarray, "n ..."]], Int[np.ndarray, " n"]]
"""(level, observations) -> actions of n episodes that run together, in NumPy; it may remember what it saw."""


@runtime_checkable
class HasHostForm(Protocol):
    """A policy that also has a form in NumPy, which the host sampler uses instead of a compiled one."""

    def on_host(self, rng: np.random.Generator) -> HostPolicy:
        """The form for one rollout; its random draws come from `rng`."""
        ...


PolicyKind = Literal["greedy", "optimistic", "mixture"]
"""The policy planned without bonus, the one planned with it, or the mixture of past policies of Theorem 1."""

Reward = Callable[[Int[Array, ""], Float[Array, "..."]], Float[Array, " A"]]
"""A known reward: (level, observation) -> one number per action."""

PhaseHook = Callable[[str], object]
"""Called at the start of each phase of an update with its name: collect, represent or plan."""


def no_phases(name: str) -> None:
    """A `PhaseHook` that does nothing."""


class Environment(Protocol):
    """A pure environment: an `equinox.Module` of unbatched functions, which compile into one scan.

    Training needs these members and no others. For diagnostics, oracles and baselines an environment may also
    have `latent_model`, `ground_truth_features`, `emit`, `num_latents`, `dense`, `temperature`, `block` and
    `held_out`; `briee.envs.block` reads them, once.
    """

    @property
    def horizon(self) -> int:
        """Steps per episode, H."""
        ...

    @property
    def num_actions(self) -> int:
        """Number of actions, A."""
        ...

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        ...

    @property
    def observation_bounds(self) -> tuple[float, float]:
        """Lower and upper bound of every coordinate of an observation."""
        ...

    @property
    def optimal_return(self) -> float:
        """The best expected return."""
        ...

    def initial(self, rng: PRNGKeyArray) -> Any:
        """The state at the start of an episode."""
        ...

    def transition(self, state: Any, action: Int[Array, ""], rng: PRNGKeyArray) -> Any:
        """The next state."""
        ...

    def observation(self, state: Any, rng: PRNGKeyArray) -> Float[Array, ...]:
        """The observation the agent receives in a state."""
        ...

    def reward(
        self, state: Any, action: Int[Array, ""], next_state: Any, rng: PRNGKeyArray
    ) -> Float[Array, ""]:
        """The reward of a transition."""
        ...

    def terminal(self, state: Any, rng: PRNGKeyArray) -> Bool[Array, ""]:
        """Whether the episode has ended, which it does at level H."""
        ...

    def level(self, state: Any) -> Int[Array, ""]:
        """The number of steps taken, 0 to H."""
        ...

    def latent(self, state: Any) -> Int[Array, ""]:
        """The latent state, for diagnostics only."""
        ...

    def good(self, latent: Any) -> Bool[Array, ...]:
        """Whether the goal can still be reached from a latent state, for diagnostics only."""
        ...


@dataclass(frozen=True)
class Knowledge:
    """Facts an environment reveals about itself; only for diagnostics, oracles and baselines."""

    latent_model: LatentModel | None = None
    """Transition and reward tables of the latent states."""
    features: bool = False
    """Whether the environment has `ground_truth_features`, that is psi*."""
    soft: bool = False
    """Whether psi* is a soft assignment, as in the simplex lock, instead of one-hot."""
    dense: bool = False
    """Whether every good step is rewarded, not only the last one."""
    exact: BlockMDP | None = None
    """Tables over all observations, if there are finitely many."""
    held_out: Environment | None = None
    """The same environment with observations kept apart for evaluation, if it has any."""


@runtime_checkable
class Sampler(Protocol):
    """An environment as an algorithm uses it: sizes, known facts and rollouts."""

    horizon: int
    num_actions: int
    observation_shape: tuple[int, ...]
    optimal_return: float | None
    """The best expected return, if it is known."""

    @property
    def knowledge(self) -> Knowledge:
        """Known facts about the environment."""
        ...

    @property
    def pure(self) -> Environment | None:
        """The pure environment, if there is one."""
        ...

    def rollout(
        self,
        policy: Policy,
        key: PRNGKeyArray,
        episodes: int,
        deviation: Int[Array, " E"] | None = None,
        whole: bool = False,
    ) -> Trajectories:
        """Run `episodes` episodes.

        With `deviation` d, the actions at levels d and d + 1 are uniform. Later steps are not used, unless
        the `whole` episode is asked for, in which the policy goes on.
        """
        ...


class State(Protocol):
    """The state that one update passes to the next: an `equinox.Module` whose leaves are all arrays."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Capabilities:
    """Optional abilities of an algorithm, beyond the minimum of the contract."""

    decodes: bool = False
    """Learns latent states: has `decode` and `decode_levels`."""
    mixture: bool = False
    """Keeps past policies: has `policy(state, "mixture")`."""
    plans_any_reward: bool = False
    """Plans for rewards that come later: has `plan_for`, `start_value` and `reward_decoder`."""
    stops_when_solved: bool = True
    """Whether a run ends when it is solved; otherwise it ends when its budget is used up."""
    keeps_rows: bool = False
    """Keeps transitions, from which a coverage map can be drawn: has `stored_rows`."""


class Algorithm(Generic[S]):
    """The contract of an algorithm. Every method is a pure function of the state.

    Inherit from this class. A method that belongs to a capability is needed only with that capability.
    """

    name: str
    sampler: Sampler
    config: Any
    """Its settings, an `AlgorithmConfig`; each algorithm annotates its own class."""
    capabilities: Capabilities = Capabilities()
    """Of the class; an instance whose settings change them has its own."""

    def init(self, key: PRNGKeyArray) -> S:
        """The state before the first episode."""
        raise NotImplementedError

    def update(self, state: S, phase: PhaseHook = no_phases) -> S:
        """One iteration: collect episodes, learn from them, plan."""
        raise NotImplementedError

    def policy(self, state: S, kind: PolicyKind = "greedy") -> Policy:
        """The policy of a state."""
        raise NotImplementedError

    def metrics(self, state: S) -> dict[str, float]:
        """Measurements of the last update, for metrics.csv."""
        raise NotImplementedError

    def compile(self, state: S) -> None:
        """Compile the jitted functions of the first update, several at a time; called once, before it."""
        return

    def decode(self, state: S, level: int, observations: Float[Array, "n ..."]) -> Float[Array, "n K"]:
        """Soft latent states of observations at one level."""
        raise NotImplementedError

    def decode_levels(self, state: S, observations: Float[Array, "H n ..."]) -> Float[Array, "H n K"]:
        """Soft latent states of observations at each of the H levels."""
        raise NotImplementedError

    def stored_rows(self, state: S) -> StoredRows:
        """The transitions the algorithm has kept."""
        raise NotImplementedError

    def plan_for(self, state: S, reward: Reward | None, kind: PolicyKind = "greedy") -> Policy:
        """A policy for this reward, or for the recorded rewards if it is None, without new episodes."""
        raise NotImplementedError

    def start_value(self, state: S, policy: Any) -> Float[Array, ""]:
        """The predicted return of a policy made by `plan_for`."""
        raise NotImplementedError

    def reward_decoder(self, state: S) -> Any:
        """(level, observation) -> the latent state, f32[K], for rewards that are functions of it."""
        raise NotImplementedError
