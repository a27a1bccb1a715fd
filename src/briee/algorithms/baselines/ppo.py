"""PPO (Schulman et al. 2017), and PPO with random network distillation (Burda et al. 2018), compiled.

Each round collects `workers` episodes with the current policy and improves the policy on them. For a pure
environment, the rollouts, advantages and gradient steps of several rounds are one scan. An episode ends after
H steps, so there is no bootstrapping: V_H = 0.

Symbols: H horizon, E episodes of a round, n = H E steps, m steps per minibatch.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from briee.algorithms.baselines.actor_critic import (
    ActorCritic,
    Distilled,
    NetworkPolicy,
    log_probability,
    sample_logits,
)
from briee.algorithms.baselines.config import PpoConfig
from briee.numerics.keys import stream, unrolled
from briee.protocols import Algorithm, PhaseHook, Policy, PolicyKind, Sampler, no_phases
from briee.rollout.samplers import ScanSampler, choose_action, deepest_good_level, run_levels
from briee.rollout.trajectories import Trajectories


class Learner(eqx.Module):
    """Trained networks and optimiser, and the fixed target of the distillation."""

    network: ActorCritic
    predictor: Distilled
    target: Distilled
    optimizer: Any


class PpoState(eqx.Module):
    """State between two updates."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    learner: Learner
    explore_return: Float[Array, ""]
    reached_level: Float[Array, ""]
    intrinsic: Float[Array, ""]


class Ppo(Algorithm[PpoState]):
    """PPO on the environment behind `sampler`."""

    name = "ppo"
    config: PpoConfig

    def __init__(self, sampler: Sampler, config: PpoConfig):
        self.sampler, self.config = sampler, config

    def init(self, key: PRNGKeyArray) -> PpoState:
        """Random networks."""
        zero, missing = np.asarray(0, np.int64), jnp.float32(jnp.nan)
        inputs = int(np.prod(self.sampler.observation_shape))
        learner = new_learner(stream(key, "init"), inputs, self.sampler.num_actions, self.config)
        return PpoState(key, zero, zero, zero, learner, missing, missing, jnp.float32(0))

    def update(self, state: PpoState, phase: PhaseHook = no_phases) -> PpoState:
        """One iteration: `rounds` policy updates, each on new episodes."""
        phase("plan")
        R, E, H = self.config.rounds, self.config.workers, self.sampler.horizon
        indices = int(state.iteration) * R + jnp.arange(R)
        if isinstance(self.sampler, ScanSampler):
            learner, measured = _rounds(self.sampler.pure, state.learner, state.key, indices, self.config)
        else:
            learner, measured = state.learner, {}
            for index in indices:
                collect_key, improve_key = (stream(state.key, name, index) for name in ("collect", "improve"))
                policy = NetworkPolicy(learner.network, greedy=False)
                trajectories = self.sampler.rollout(policy, collect_key, E)
                played = _judged(learner.network, trajectories)
                learner, measured = _improve(learner, played, improve_key, self.config)
                measured["reached_level"] = jnp.float32(deepest_good_level(self.sampler, trajectories))
        return replace(
            state,
            iteration=state.iteration + 1,
            episodes=state.episodes + R * E,
            env_steps=state.env_steps + R * E * H,
            learner=learner,
            **measured,
        )

    def policy(self, state: PpoState, kind: PolicyKind = "greedy") -> Policy:
        """The most likely actions, or sampled ones, as used for collecting data."""
        return NetworkPolicy(state.learner.network, kind == "greedy")

    def metrics(self, state: PpoState) -> dict[str, float]:
        """Measurements of the last round, for metrics.csv."""
        return {
            "explore_return": float(state.explore_return),
            "reached_level": float(state.reached_level),
            "intrinsic_return": float(state.intrinsic),
        }


class PpoRnd(Ppo):
    """PPO with a bonus for observations on which a trained network cannot predict a random one."""

    name = "ppo-rnd"


def new_learner(key: PRNGKeyArray, inputs: int, num_actions: int, config: PpoConfig) -> Learner:
    """Networks with random weights, and a new optimiser."""
    keys = jax.random.split(key, 3)
    network = ActorCritic(keys[0], inputs, config.hidden_size, num_actions)
    predictor, target = (Distilled(k, inputs, config.rnd.hidden_size) for k in keys[1:])
    vectors, _ = as_vectors(network, predictor, config)
    return Learner(network, predictor, target, optimizer(config).init(vectors))


def as_vectors(network: ActorCritic, predictor: Distilled, config: PpoConfig):
    """The trained parameters, one vector per network, and the inverse function. The predictor is trained only
    if it is used."""
    used = network, predictor if config.rnd.coefficient > 0 else None
    (first, first_back), (second, second_back) = map(ravel_pytree, used)
    return (first, second), lambda vectors: (first_back(vectors[0]), second_back(vectors[1]))


def optimizer(config: PpoConfig) -> optax.GradientTransformation:
    """RMSprop for both vectors; only the gradient of the actor-critic is clipped."""
    return optax.chain(
        optax.masked(optax.clip_by_global_norm(config.gradient_clip), (True, False)),
        optax.rmsprop(config.learning_rate, decay=config.decay, eps=1e-8, eps_in_sqrt=False),
    )


def advantages(
    reward: Float[Array, "E H"], value: Float[Array, "E H"], discount: float, gae: float
) -> Float[Array, "E H"]:
    """Generalised advantages sum_k (discount gae)^k delta_{t+k}, with V_H = 0."""
    later = jnp.concatenate([value[:, 1:], jnp.zeros_like(value[:, :1])], axis=1)
    delta = reward + discount * later - value

    def back(total, delta_t):
        total = delta_t + discount * gae * total
        return total, total

    _, result = jax.lax.scan(back, jnp.zeros(len(reward)), delta.T, reverse=True)
    return result.T


class Played(eqx.Module):
    """The E episodes of a round, by level, with the network's outputs at each step."""

    seen: Float[Array, "levels E d"]
    action: Int[Array, "H E"]
    reward: Float[Array, "H E"]
    latent: Int[Array, "levels E"]
    log_probability: Float[Array, "H E"]
    value: Float[Array, "H E"]


def play(pure: Any, network: ActorCritic, key: PRNGKeyArray, episodes: int) -> Played:
    """Episodes of the compiled sampler with this key; the network is evaluated once per step."""

    def draw(level, logits, key):
        return sample_logits(logits, key)

    def act(level, seen, keys):
        logits, value = network(seen.reshape(episodes, -1).T)
        of_each = (None, None, None, 1, 0, None)
        action = jax.vmap(choose_action, of_each)(draw, pure.num_actions, level, logits, keys, None)
        return action, (log_probability(logits, action), value)

    seen, action, reward, latent, thought = run_levels(pure, act, key, jnp.arange(episodes))
    return Played(seen.reshape(*latent.shape, -1), action, reward, latent, *thought)


def judged(network: ActorCritic, trajectories: Trajectories) -> Played:
    """Episodes of another sampler with the network's policy, and the network's outputs at each step."""
    levels = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), trajectories)
    action, seen = levels.action, levels.observation.reshape(*levels.latent.shape, -1)
    logits, value = network(seen[:-1].reshape(action.size, -1).T)
    taken = log_probability(logits, action.reshape(-1)).reshape(action.shape)
    return Played(seen, action, levels.reward, levels.latent, taken, value.reshape(action.shape))


class Steps(eqx.Module):
    """n steps of a round, flattened; `code` is the fixed network's output on x, if there is distillation."""

    x: Float[Array, "n d"]
    action: Int[Array, " n"]
    log_probability: Float[Array, " n"]
    advantage: Float[Array, " n"]
    target: Float[Array, " n"]
    code: Float[Array, "n width"] | None


def ppo_loss(parameters, steps: Steps, config: PpoConfig) -> Float[Array, ""]:
    """Clipped surrogate, value error, entropy, and the predictor's error, if there is distillation."""
    network, predictor = parameters
    logits, value = network(steps.x.T)
    log_p = jax.nn.log_softmax(logits, axis=0)
    ratio = jnp.exp(log_probability(logits, steps.action) - steps.log_probability)
    bounded = jnp.clip(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
    surrogate = jnp.minimum(ratio * steps.advantage, bounded * steps.advantage).mean()
    entropy = -(jnp.exp(log_p) * log_p).sum(0).mean()
    error = ((value - steps.target) ** 2).mean()
    loss = -surrogate - config.entropy * entropy + config.value * error
    if predictor is not None and steps.code is not None:
        loss = loss + ((predictor(steps.x.T) - steps.code.T) ** 2).mean()
    return loss


def novelty(learner: Learner, x: Float[Array, "d E"]) -> tuple[Float[Array, "E width"], Float[Array, " E"]]:
    """The fixed network's output on observations, and the squared error of the trained one."""
    code = learner.target(x)
    return code.T, ((learner.predictor(x) - code) ** 2).mean(0)


def measured_steps(learner: Learner, played: Played, config: PpoConfig) -> tuple[Steps, dict[str, Array]]:
    """The steps of a round with their advantages, and the mean returns."""
    n, seen = played.action.size, played.seen[:-1]
    reward, intrinsic, code = played.reward, jnp.zeros_like(played.reward), None
    if config.rnd.coefficient > 0:
        codes, error = jax.lax.map(lambda x: novelty(learner, x.T), seen)
        intrinsic, code = config.rnd.coefficient * error, codes.reshape(n, -1)
    advantage = advantages((reward + intrinsic).T, played.value.T, config.discount, config.gae).T
    normalised = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    steps = Steps(
        seen.reshape(n, -1),
        played.action.reshape(-1),
        played.log_probability.reshape(-1),
        normalised.reshape(-1),
        (advantage + played.value).reshape(-1),
        code,
    )
    return steps, {"explore_return": reward.sum(0).mean(), "intrinsic": intrinsic.sum(0).mean()}


def shuffled(key: PRNGKeyArray, n: int) -> UInt32[Array, " n"]:
    """0 to n - 1 in random order: random words that end in these numbers, sorted.

    This is several times faster than sorting pairs. Two numbers share their random bits once in about
    2^32 / n pairs; then they are neighbours, the smaller one first.
    """
    width = (n - 1).bit_length()
    words = jax.random.bits(key, (n,)) << width | jnp.arange(n, dtype=jnp.uint32)
    return jnp.sort(words) & (2**width - 1)


def improve(
    learner: Learner, played: Played, key: PRNGKeyArray, config: PpoConfig
) -> tuple[Learner, dict[str, Array]]:
    """All gradient steps of one round. Each epoch leaves out a random rest that fills no minibatch."""
    steps, measured = measured_steps(learner, played, config)
    vectors, back = as_vectors(learner.network, learner.predictor, config)
    n = len(steps.x)
    rule, m = optimizer(config), min(config.minibatch, n)

    def gradient_step(carry, batch: Steps):
        vectors, memory = carry
        gradient = jax.grad(lambda vectors: ppo_loss(back(vectors), batch, config))(vectors)
        change, memory = rule.update(gradient, memory)
        return (optax.apply_updates(vectors, change), memory), None

    def epoch(carry, epoch_key):
        order = shuffled(epoch_key, n)[: n // m * m].reshape(n // m, m)
        batches = jax.tree.map(lambda leaf: leaf.at[order].get(mode="promise_in_bounds"), steps)
        return jax.lax.scan(gradient_step, carry, batches)

    keys = jax.random.split(key, config.epochs)
    (vectors, memory), _ = jax.lax.scan(epoch, (vectors, learner.optimizer), keys)
    network, predictor = back(vectors)
    learner = Learner(network, learner.predictor if predictor is None else predictor, learner.target, memory)
    return learner, measured


def reached_level(pure: Any, played: Played) -> Float[Array, ""]:
    """The deepest level at which an episode was still on the way to the goal; traceable."""
    seen = (pure.good(played.latent) & (played.latent >= 0)).any(axis=1)
    return jnp.where(seen, jnp.arange(len(seen)), 0).max().astype(jnp.float32)


@eqx.filter_jit
def _rounds(pure, learner: Learner, key: PRNGKeyArray, indices: Int[Array, " R"], config: PpoConfig):
    key = unrolled(key)

    def one(learner: Learner, index):
        played = play(pure, learner.network, stream(key, "collect", index), config.workers)
        learner, measured = improve(learner, played, stream(key, "improve", index), config)
        return learner, measured | {"reached_level": reached_level(pure, played)}

    learner, measured = jax.lax.scan(one, learner, indices)
    return learner, jax.tree.map(lambda each: each[-1], measured)


_improve, _judged = eqx.filter_jit(improve), eqx.filter_jit(judged)
