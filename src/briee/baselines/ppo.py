"""PPO (Schulman et al. 2017), and PPO with random network distillation (Burda et al. 2018), compiled.

Every round takes `workers` episodes with the current policy, each from its own random stream, and improves
the policy on them: rollouts, advantages and gradient steps of several rounds are one scan where the
environment is pure. An episode ends after H steps, so no value is added beyond them: V_H = 0.

Symbols: H horizon, E episodes of a round, n = H E steps, m steps per minibatch.
"""

from dataclasses import replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from briee.baselines.actor_critic import (
    ActorCritic,
    Distilled,
    NetworkPolicy,
    log_probability,
    sample_logits,
)
from briee.baselines.config import PpoConfig
from briee.randomness import stream, unrolled
from briee.rollout import Policy, Sampler, ScanSampler, Trajectories, choose_action, run_levels


class Learner(eqx.Module):
    """What gradient steps change, and the fixed target of the distillation."""

    network: ActorCritic
    predictor: Distilled
    target: Distilled
    optimizer: Any


class PpoState(eqx.Module):
    """Everything that one iteration hands to the next."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    learner: Learner
    explore_return: Float[Array, ""]
    reached_level: Float[Array, ""]
    intrinsic: Float[Array, ""]


class Ppo:
    """PPO on the environment behind `sampler`."""

    name = "ppo"

    def __init__(self, sampler: Sampler, config: PpoConfig):
        self.sampler = sampler
        self.config = config

    def update(self, state: PpoState) -> PpoState:
        """One iteration: `rounds` policy updates."""
        return self.plan(self.represent(self.collect(state)))

    def init(self, key: PRNGKeyArray) -> PpoState:
        """Random networks."""
        zero, missing = np.asarray(0, np.int64), jnp.float32(jnp.nan)
        inputs = int(np.prod(self.sampler.observation_shape))
        learner = new_learner(stream(key, "init"), inputs, self.sampler.num_actions, self.config)
        return PpoState(key, zero, zero, zero, learner, missing, missing, jnp.float32(0))

    def collect(self, state: PpoState) -> PpoState:
        """Nothing: data are used up as they come, in `plan`."""
        return state

    def represent(self, state: PpoState) -> PpoState:
        """Nothing: there are no features apart from the policy's."""
        return state

    def plan(self, state: PpoState) -> PpoState:
        """Rounds of episodes and gradient steps on them."""
        R, E, H = self.config.rounds, self.config.workers, self.sampler.horizon
        first = int(state.iteration) * R
        indices = jnp.arange(first, first + R)
        if isinstance(self.sampler, ScanSampler):
            learner, measured = _rounds(self.sampler.pure, state.learner, state.key, indices, self.config)
        else:
            learner, measured = state.learner, {}
            for index in indices:
                trajectories = self.sampler.rollout(
                    NetworkPolicy(learner.network, False), stream(state.key, "collect", index), E
                )
                played = _judged(learner.network, trajectories)
                learner, measured = _improve(
                    learner, played, stream(state.key, "improve", index), self.config
                )
                measured["reached_level"] = reached_level(self.sampler.pure, played)
        return replace(
            state,
            iteration=state.iteration + 1,
            episodes=state.episodes + R * E,
            env_steps=state.env_steps + R * E * H,
            learner=learner,
            **measured,
        )

    def policy(self, state: PpoState, kind: Literal["greedy", "optimistic"] = "greedy") -> Policy:
        """The most likely actions, or actions drawn as for collecting data."""
        return NetworkPolicy(state.learner.network, kind == "greedy")

    def decode(self, state: PpoState, level: int, observations):
        """There are no latent states."""
        raise NotImplementedError("PPO learns no latent states")

    def metrics(self, state: PpoState) -> dict[str, float]:
        """What the last round did, for the run's table."""
        return {
            "explore_return": float(state.explore_return),
            "reached_level": float(state.reached_level),
            "intrinsic_return": float(state.intrinsic),
        }


class PpoRnd(Ppo):
    """PPO whose reward has a bonus for states that a trained network cannot predict."""

    name = "ppo-rnd"


def new_learner(key: PRNGKeyArray, inputs: int, num_actions: int, config: PpoConfig) -> Learner:
    """Networks with random weights, and an optimiser that has seen nothing."""
    keys = jax.random.split(key, 3)
    network = ActorCritic(keys[0], inputs, config.hidden_size, num_actions)
    predictor, target = (Distilled(k, inputs, config.rnd.hidden_size) for k in keys[1:])
    vectors, _ = as_vectors(network, predictor, config)
    return Learner(network, predictor, target, optimizer(config).init(vectors))


def as_vectors(network: ActorCritic, predictor: Distilled, config: PpoConfig):
    """What the gradient steps move, as one vector for each network, and the way back. The predictor is moved
    only where it is used."""
    used = network, predictor if config.rnd.coefficient > 0 else None
    (first, first_back), (second, second_back) = map(ravel_pytree, used)
    return (first, second), lambda vectors: (first_back(vectors[0]), second_back(vectors[1]))


def optimizer(config: PpoConfig) -> optax.GradientTransformation:
    """RMSprop for both vectors; only the gradient of actor and critic is clipped."""
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
    """The E episodes of a round, level by level, with what the network thought of each step."""

    seen: Float[Array, "levels E d"]
    action: Int[Array, "H E"]
    reward: Float[Array, "H E"]
    latent: Int[Array, "levels E"]
    log_probability: Float[Array, "H E"]
    value: Float[Array, "H E"]


def play(pure: Any, network: ActorCritic, key: PRNGKeyArray, episodes: int) -> Played:
    """The episodes that the compiled sampler runs with this key; the network is asked once for each step."""

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
    """Episodes that another sampler has run with the network's policy."""
    levels = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), trajectories)
    action, seen = levels.action, levels.observation.reshape(*levels.latent.shape, -1)
    logits, value = network(seen[:-1].reshape(action.size, -1).T)
    taken = log_probability(logits, action.reshape(-1)).reshape(action.shape)
    return Played(seen, action, levels.reward, levels.latent, taken, value.reshape(action.shape))


class Steps(eqx.Module):
    """n steps of a round, flat, with what the fixed network makes of x where there is distillation."""

    x: Float[Array, "n d"]
    action: Int[Array, " n"]
    log_probability: Float[Array, " n"]
    advantage: Float[Array, " n"]
    target: Float[Array, " n"]
    code: Float[Array, "n width"] | None


def ppo_loss(parameters, steps: Steps, config: PpoConfig) -> Float[Array, ""]:
    """Clipped surrogate, value error, entropy, and the predictor's error where there is one."""
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
    """What the fixed network makes of observations, and how far the trained one is from it."""
    code = learner.target(x)
    return code.T, ((learner.predictor(x) - code) ** 2).mean(0)


def measured_steps(learner: Learner, played: Played, config: PpoConfig) -> tuple[Steps, dict[str, Array]]:
    """A round's steps with their advantages, and its mean returns."""
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

    To sort pairs of a word and a number takes several times as long. Two numbers have the same random bits
    once in about 2^32 / n pairs; they become neighbours, the smaller one first.
    """
    width = (n - 1).bit_length()
    words = jax.random.bits(key, (n,)) << width | jnp.arange(n, dtype=jnp.uint32)
    return jnp.sort(words) & (2**width - 1)


def improve(
    learner: Learner, played: Played, key: PRNGKeyArray, config: PpoConfig
) -> tuple[Learner, dict[str, Array]]:
    """All gradient steps of one round. What does not fill a minibatch is left out, other steps each epoch."""
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
    """The deepest level at which an episode was still on the way; nan where nobody can tell."""
    if pure is None:
        return jnp.float32(jnp.nan)
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
