"""PPO (Schulman et al. 2017), and PPO with random network distillation (Burda et al. 2018), compiled.

Every round takes `workers` episodes with the current policy, each from its own random stream, and improves
the policy on them: rollouts, advantages and gradient steps of several rounds are one scan where the
environment is pure. An episode ends after H steps, so no value is added beyond them: V_H = 0.

Symbols: H horizon, E episodes of a round, n = E H steps, m steps per minibatch, P parameters.
"""

from dataclasses import replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.baselines.actor_critic import ActorCritic, Distilled, NetworkPolicy
from briee.baselines.config import PpoConfig
from briee.randomness import stream, unrolled
from briee.rollout import Policy, Sampler, ScanSampler, Trajectories, _scan


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
    decodes = False

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
                learner, measured = _improve(
                    learner, trajectories, stream(state.key, "improve", index), self.config
                )
                measured["reached_level"] = reached_level(self.sampler.pure, trajectories)
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
    vector, _ = ravel_pytree(trainable(network, predictor, config))
    return Learner(network, predictor, target, optimizer(config).init(vector))


def trainable(network: ActorCritic, predictor: Distilled, config: PpoConfig):
    """What the gradient steps move; the predictor only where it is used."""
    return (network, predictor if config.rnd.coefficient > 0 else None)


def optimizer(config: PpoConfig) -> optax.GradientTransformation:
    """RMSprop on clipped gradients, on all parameters as one vector."""
    return optax.chain(
        optax.clip_by_global_norm(config.gradient_clip),
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


class Steps(eqx.Module):
    """n steps of a round, flat; what follows a step only where distillation needs it."""

    x: Float[Array, "n d"]
    action: Int[Array, " n"]
    log_probability: Float[Array, " n"]
    advantage: Float[Array, " n"]
    target: Float[Array, " n"]
    next_x: Float[Array, "n d"] | None
    next_code: Float[Array, "n width"] | None


def ppo_loss(parameters, steps: Steps, config: PpoConfig) -> Float[Array, ""]:
    """Clipped surrogate, value error, entropy, and the predictor's error where there is one."""
    network, predictor = parameters
    logits, value = network(steps.x.T)
    log_p = jax.nn.log_softmax(logits, axis=0)
    chosen = jax.nn.one_hot(steps.action, len(logits), axis=0)
    ratio = jnp.exp((log_p * chosen).sum(0) - steps.log_probability)
    bounded = jnp.clip(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
    surrogate = jnp.minimum(ratio * steps.advantage, bounded * steps.advantage).mean()
    entropy = -(jnp.exp(log_p) * log_p).sum(0).mean()
    error = ((value - steps.target) ** 2).mean()
    loss = -surrogate - config.entropy * entropy + config.value * error
    if predictor is not None and steps.next_x is not None and steps.next_code is not None:
        loss = loss + ((predictor(steps.next_x.T) - steps.next_code.T) ** 2).mean()
    return loss


def measured_steps(
    learner: Learner, trajectories: Trajectories, config: PpoConfig
) -> tuple[Steps, dict[str, Array]]:
    """A round's steps with their advantages, and its mean returns."""
    E, H = trajectories.action.shape
    seen = trajectories.observation.reshape(E, H + 1, -1)
    x, next_x = seen[:, :-1].reshape(E * H, -1), seen[:, 1:].reshape(E * H, -1)
    logits, value = learner.network(x.T)
    reward, intrinsic, next_code = trajectories.reward, jnp.zeros((E, H)), None
    if config.rnd.coefficient > 0:
        next_code = learner.target(next_x.T)
        unknown = ((learner.predictor(next_x.T) - next_code) ** 2).mean(0)
        intrinsic, next_code = config.rnd.coefficient * unknown.reshape(E, H), next_code.T
    advantage = advantages(reward + intrinsic, value.reshape(E, H), config.discount, config.gae).reshape(-1)
    action = trajectories.action.reshape(-1)
    log_p = (jax.nn.log_softmax(logits, axis=0) * jax.nn.one_hot(action, len(logits), axis=0)).sum(0)
    normalised = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    target = advantage + value
    steps = Steps(x, action, log_p, normalised, target, None if next_code is None else next_x, next_code)
    return steps, {"explore_return": reward.sum(1).mean(), "intrinsic": intrinsic.sum(1).mean()}


def improve(
    learner: Learner, trajectories: Trajectories, key: PRNGKeyArray, config: PpoConfig
) -> tuple[Learner, dict[str, Array]]:
    """All gradient steps of one round. What does not fill a minibatch is left out, other steps each epoch."""
    steps, measured = measured_steps(learner, trajectories, config)
    vector, unravel = ravel_pytree(trainable(learner.network, learner.predictor, config))
    n = len(steps.x)
    rule, m = optimizer(config), min(config.minibatch, n)

    def gradient_step(carry, batch: Steps):
        vector, memory = carry
        gradient = jax.grad(ppo_loss)(unravel(vector), batch, config)
        change, memory = rule.update(ravel_pytree(gradient)[0], memory)
        return (vector + change, memory), None

    def epoch(carry, epoch_key):
        order = jnp.argsort(jax.random.bits(epoch_key, (n,)))[: n // m * m]
        batches = jax.tree.map(lambda leaf: leaf[order].reshape(n // m, m, *leaf.shape[1:]), steps)
        return jax.lax.scan(gradient_step, carry, batches)

    keys = jax.random.split(key, config.epochs)
    (vector, memory), _ = jax.lax.scan(epoch, (vector, learner.optimizer), keys)
    network, predictor = unravel(vector)
    learner = Learner(network, learner.predictor if predictor is None else predictor, learner.target, memory)
    return learner, measured


def reached_level(pure: Any, trajectories: Trajectories) -> Float[Array, ""]:
    """The deepest level at which an episode was still on the way; nan where nobody can tell."""
    if pure is None:
        return jnp.float32(jnp.nan)
    seen = (pure.good(trajectories.latent) & (trajectories.latent >= 0)).any(axis=0)
    return jnp.where(seen, jnp.arange(len(seen)), 0).max().astype(jnp.float32)


@eqx.filter_jit
def _rounds(pure, learner: Learner, key: PRNGKeyArray, indices: Int[Array, " R"], config: PpoConfig):
    key = unrolled(key)

    def one(learner: Learner, index):
        policy = NetworkPolicy(learner.network, False)
        trajectories = _scan(pure, policy, stream(key, "collect", index), config.workers, None)
        learner, measured = improve(learner, trajectories, stream(key, "improve", index), config)
        return learner, measured | {"reached_level": reached_level(pure, trajectories)}

    learner, measured = jax.lax.scan(one, learner, indices)
    return learner, jax.tree.map(lambda each: each[-1], measured)


_improve = eqx.filter_jit(improve)
