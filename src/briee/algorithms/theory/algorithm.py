"""Algorithm 1 in the setting of Theorem 1, as an algorithm of `briee train`.

The environment has finitely many observations, so the data is counts, and many episodes of one policy are one
multinomial draw: the 10^17 samples that the theorem's bonus needs take seconds.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.theory.config import TheoryConfig, TheoryPreset
from briee.algorithms.theory.exploration import Data, ExactSetting, batch, collect, no_data, plan, represent
from briee.algorithms.theory.oracle import deterministic, random_class, value_iteration, values
from briee.numerics.keys import stream
from briee.protocols import Algorithm, Capabilities, PhaseHook, Policy, PolicyKind, Sampler, no_phases
from briee.rollout.policies import MixturePolicy


class TheoryState(eqx.Module):
    """State between two updates. A policy is an action per level and observation; -1 means a uniform one."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    samples: Int[np.ndarray, ""]
    counts: Int[np.ndarray, "H S A S"]
    counts_prime: Int[np.ndarray, "H S A S"]
    chosen: Int[np.ndarray, " H"]
    rounds: Int[np.ndarray, " H"]
    gaps: Float[np.ndarray, " H"]
    optimistic: Int[np.ndarray, "H S"]
    greedy: Int[np.ndarray, "H S"]
    promised: Float[np.ndarray, ""]
    explore_return: Float[np.ndarray, ""]
    members: Int[np.ndarray, "M H S"]
    shares: Int[np.ndarray, " M"]


class TablePolicy(eqx.Module):
    """The best action of a table for the observation, a one-hot vector; ties are broken at random."""

    table: Float[Array, "*M H S A"]

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        row = self.table[level, jnp.argmax(observation)]
        return jax.random.categorical(key, jnp.where(row >= row.max(), 0.0, -jnp.inf))


class WeightedMixture(MixturePolicy):
    """A mixture of policies with these weights."""

    shares: Float[Array, " M"]

    def draw(self, key: PRNGKeyArray) -> Policy:
        """A member, drawn by weight."""
        index = jax.random.categorical(key, jnp.log(self.shares))
        return jax.tree.map(lambda leaf: leaf[index], self.members)


class Theory(Algorithm[TheoryState]):
    """Algorithm 1 with the parameters of Theorem 1, on the finite block MDP behind `sampler`."""

    name = "theory"
    capabilities = Capabilities(decodes=True, mixture=True, stops_when_solved=False)
    """The run shows convergence, so only its budget ends it."""
    config: TheoryConfig

    def __init__(self, sampler: Sampler, config: TheoryConfig):
        block = sampler.knowledge.exact
        if block is None:
            known = "finite-block and finite-lock have them"
            raise ValueError(f"the algorithm theory needs finitely many observations and decoders: {known}")
        self.sampler, self.config, self.mdp = sampler, config, block
        classes = random_class(np.random.default_rng(config.class_seed), block, config.class_size)
        preset = TheoryPreset(
            block.num_latents, block.num_actions, config.class_size, config.samples,
            config.delta, config.constants, alpha_scale=config.alpha_scale,
        )  # fmt: skip
        self.setting = ExactSetting(block, classes, preset, growth=config.growth).with_discriminators()

    def update(self, state: TheoryState, phase: PhaseHook = no_phases) -> TheoryState:
        """One iteration of Algorithm 1."""
        phase("collect")
        state = self.collect(state)  # Alg. 1, l. 4
        phase("represent")
        state = self.learn_features(state)  # Alg. 1, l. 5
        phase("plan")
        return self.plan(state)  # Alg. 1, l. 6 and 7

    def init(self, key: PRNGKeyArray) -> TheoryState:
        """No data, and a policy without preferences."""
        H, M = self.mdp.horizon, self.config.members
        zero, counts = np.asarray(0, np.int64), np.zeros(self.mdp.transition.shape, np.int64)
        anything = np.full(self.mdp.reward.shape[:2], -1)
        return TheoryState(
            key=key,
            iteration=zero,
            episodes=zero,
            env_steps=zero,
            samples=zero,
            counts=counts,
            counts_prime=counts,
            chosen=np.zeros(H, np.int64),
            rounds=np.zeros(H, np.int64),
            gaps=np.zeros(H, np.float32),
            optimistic=anything,
            greedy=anything,
            promised=np.asarray(0.0, np.float32),
            explore_return=np.asarray(np.nan, np.float32),
            members=np.broadcast_to(anything, (M, *anything.shape)),
            shares=np.zeros(M, np.int64),
        )

    def collect(self, state: TheoryState) -> TheoryState:
        """Alg. 1, l. 4, repeated until the data has grown by the factor."""
        H, n = self.mdp.horizon, int(state.samples)
        m = batch(n, self.config.growth)
        rng = np.random.default_rng(_seeds(stream(state.key, "collect", int(state.iteration))))
        policy = self.table(state.optimistic)
        data = collect(self.mdp, self.data(state), policy, m, rng)
        members, shares = self.remember(state, m)
        return replace(
            state,
            episodes=state.episodes + (2 * H - 1) * m,
            env_steps=state.env_steps + m * (H * H + H - 1),  # D_h takes h + 1 steps, and so does D'_h
            samples=state.samples + m,
            counts=data.counts.astype(np.int64),
            counts_prime=data.counts_prime.astype(np.int64),
            members=members,
            shares=shares,
            explore_return=np.asarray(self.value(state.optimistic), np.float32),
        )

    def remember(self, state: TheoryState, m: int) -> tuple[np.ndarray, np.ndarray]:
        """Add the policy that collects m samples to the mixture; a full one loses its smallest share."""
        n = int(state.iteration)
        slot = n if n < len(state.shares) else int(np.argmin(state.shares))
        members, shares = state.members.copy(), state.shares.copy()
        members[slot], shares[slot] = state.optimistic, m
        return members, shares

    def learn_features(self, state: TheoryState) -> TheoryState:
        """Alg. 1, l. 5."""
        found = represent(self.setting, self.data(state))
        return replace(
            state,
            chosen=np.array([result.index for result in found]),
            rounds=np.array([result.rounds for result in found]),
            gaps=np.array([result.gaps[-1] for result in found], np.float32),
        )

    def plan(self, state: TheoryState) -> TheoryState:
        """Alg. 1, l. 6 and 7, and the plan without bonus."""
        model, bonus = plan(self.setting, self.data(state), self.decoders(state))
        q, V = value_iteration(model, self.mdp.reward + bonus)
        greedy, _ = value_iteration(model, self.mdp.reward)
        return replace(
            state,
            iteration=state.iteration + 1,
            optimistic=q.argmax(axis=2),
            greedy=greedy.argmax(axis=2),
            promised=np.asarray(self.mdp.initial @ V[0], np.float32),
        )

    def policy(self, state: TheoryState, kind: PolicyKind = "greedy") -> Policy:
        """The last plan without or with bonus, or the mixture of the policies that collected data."""
        if kind == "mixture":
            if not state.shares.any():
                raise ValueError("no policy has collected data yet: the mixture has no member")
            members, size = jnp.asarray(self.table(state.members)), jnp.int32((state.shares > 0).sum())
            return WeightedMixture(TablePolicy(members), size, jnp.asarray(state.shares / state.shares.sum()))
        return TablePolicy(jnp.asarray(self.table(state.greedy if kind == "greedy" else state.optimistic)))

    def decode(
        self, state: TheoryState, level: int, observations: Float[Array, "n S"]
    ) -> Float[Array, "n Z"]:
        """One-hot latent states by the decoder that RepLearn chose."""
        labels = self.setting.classes[level, int(state.chosen[level])]
        return jax.nn.one_hot(labels[np.argmax(np.asarray(observations), axis=1)], self.mdp.num_latents)

    def decode_levels(self, state: TheoryState, observations: Float[Array, "H n S"]) -> Float[Array, "H n Z"]:
        """One-hot latent states of observations at each level."""
        return jnp.stack([self.decode(state, h, rows) for h, rows in enumerate(observations)])

    def metrics(self, state: TheoryState) -> dict[str, float]:
        """Measurements of the last update. A regret is V* minus the policy's value in the true model."""
        preset, n, best = self.setting.preset, int(state.samples), self.mdp.optimal_return
        played = np.flatnonzero(state.shares)
        mixed = [self.value(state.members[i]) for i in played]
        return {
            "explore_return": float(state.explore_return),
            "reached_level": float("nan"),
            "replearn_gap": float(state.gaps.max()),
            "replearn_rounds": float(state.rounds.max()),
            "levels_refit": self.mdp.horizon,
            "samples": float(n),
            "alpha": preset.alpha(n),
            "ell": preset.ell(n),
            "optimistic_value": float(state.promised),
            "regret": best - self.value(state.optimistic),
            "mixture_regret": best - float(np.average(mixed, weights=state.shares[played])),
        }

    def value(self, actions: Int[np.ndarray, "H S"]) -> float:
        """The exact value of a policy."""
        V = values(self.mdp.transition, self.mdp.reward, self.table(actions))
        return float(self.mdp.initial @ V[0])

    def table(self, actions: Int[np.ndarray, "*M H S"]) -> Float[np.ndarray, "*M H S A"]:
        """The probabilities of all actions under a policy."""
        A = self.mdp.num_actions
        return np.where(actions[..., None] < 0, 1.0 / A, deterministic(actions, A))

    def data(self, state: TheoryState) -> Data:
        """The data in the form of `exploration`, without the mixtures of Appendix A."""
        counts, counts_prime = state.counts.astype(float), state.counts_prime.astype(float)
        return replace(no_data(self.mdp), n=int(state.samples), counts=counts, counts_prime=counts_prime)

    def decoders(self, state: TheoryState) -> np.ndarray:
        """The decoders [H, S] that RepLearn chose."""
        return np.stack([self.setting.classes[h, int(index)] for h, index in enumerate(state.chosen)])


def _seeds(key: PRNGKeyArray) -> list[int]:
    return [int(word) for word in np.asarray(jax.random.key_data(key))]
