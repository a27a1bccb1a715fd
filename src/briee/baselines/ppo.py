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

from briee.baselines.config import PpoConfig
from briee.networks import orthonormal_rows
from briee.randomness import stream
from briee.rollout import Policy, Sampler, ScanSampler, Trajectories, _scan


class Dense(eqx.Module):
    """x -> W x + b, rows of W orthogonal at the start."""

    W: Float[Array, "rows columns"]
    b: Float[Array, " rows"]

    def __init__(self, key: PRNGKeyArray, columns: int, rows: int, scale: float = 2**0.5):
        self.W = scale * orthonormal_rows(key, rows, columns)
        self.b = jnp.zeros(rows)

    def __call__(self, x: Float[Array, "*n columns"]) -> Float[Array, "*n rows"]:
        return x @ self.W.T + self.b


class ActorCritic(eqx.Module):
    """Two hidden layers of rectified units, shared by the policy's logits and the value."""

    hidden: tuple[Dense, Dense]
    actor: Dense
    critic: Dense

    def __init__(self, key: PRNGKeyArray, inputs: int, width: int, num_actions: int):
        keys = jax.random.split(key, 4)
        self.hidden = Dense(keys[0], inputs, width), Dense(keys[1], width, width)
        self.actor = Dense(keys[2], width, num_actions, scale=0.01)
        self.critic = Dense(keys[3], width, 1, scale=1.0)

    def __call__(self, x: Float[Array, "*n d"]) -> tuple[Float[Array, "*n A"], Float[Array, "*n"]]:
        """Logits and values of flat observations."""
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return self.actor(x), self.critic(x)[..., 0]


class Distilled(eqx.Module):
    """The network of random network distillation: one hidden layer of rectified units."""

    hidden: Dense
    out: Dense

    def __init__(self, key: PRNGKeyArray, inputs: int, width: int):
        first, second = jax.random.split(key)
        self.hidden, self.out = Dense(first, inputs, width), Dense(second, width, width)

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n width"]:
        return self.out(jax.nn.relu(self.hidden(x)))


class NetworkPolicy(eqx.Module):
    """Actions drawn from the policy network, or its most likely ones."""

    network: ActorCritic
    greedy: bool = eqx.field(static=True)

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        logits, _ = self.network(observation.reshape(-1))
        return jnp.argmax(logits) if self.greedy else jax.random.categorical(key, logits)


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
    """n steps of a round, flat."""

    x: Float[Array, "n d"]
    next_x: Float[Array, "n d"]
    action: Int[Array, " n"]
    log_probability: Float[Array, " n"]
    advantage: Float[Array, " n"]
    target: Float[Array, " n"]


def ppo_loss(parameters, target: Distilled, steps: Steps, config: PpoConfig) -> Float[Array, ""]:
    """Clipped surrogate, value error, entropy, and the predictor's error where there is one."""
    network, predictor = parameters
    logits, value = network(steps.x)
    log_p = jax.nn.log_softmax(logits)
    chosen = jax.nn.one_hot(steps.action, logits.shape[-1])
    ratio = jnp.exp((log_p * chosen).sum(-1) - steps.log_probability)
    bounded = jnp.clip(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
    surrogate = jnp.minimum(ratio * steps.advantage, bounded * steps.advantage).mean()
    entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
    error = ((value - steps.target) ** 2).mean()
    loss = -surrogate - config.entropy * entropy + config.value * error
    if predictor is not None:
        loss = loss + ((predictor(steps.next_x) - target(steps.next_x)) ** 2).mean()
    return loss


def improve(
    learner: Learner, trajectories: Trajectories, key: PRNGKeyArray, config: PpoConfig
) -> tuple[Learner, dict[str, Array]]:
    """All gradient steps of one round. What does not fill a minibatch is left out, other steps each epoch."""
    E, H = trajectories.action.shape
    x = trajectories.observation.reshape(E, H + 1, -1)
    logits, value = learner.network(x[:, :-1])
    reward, intrinsic = trajectories.reward, jnp.zeros((E, H))
    if config.rnd.coefficient > 0:
        unknown = ((learner.predictor(x[:, 1:]) - learner.target(x[:, 1:])) ** 2).mean(-1)
        intrinsic = config.rnd.coefficient * unknown
    advantage = advantages(reward + intrinsic, value, config.discount, config.gae)
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), trajectories.action[..., None], axis=-1)[..., 0]
    normalised = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    n = E * H
    flat = lambda array: array.reshape(n, *array.shape[2:])  # noqa: E731
    steps = jax.tree.map(
        flat, Steps(x[:, :-1], x[:, 1:], trajectories.action, log_p, normalised, advantage + value)
    )
    vector, unravel = ravel_pytree(trainable(learner.network, learner.predictor, config))
    rule, m = optimizer(config), min(config.minibatch, n)

    def gradient_step(carry, batch: Steps):
        vector, memory = carry
        gradient = jax.grad(ppo_loss)(unravel(vector), learner.target, batch, config)
        change, memory = rule.update(ravel_pytree(gradient)[0], memory)
        return (vector + change, memory), None

    def epoch(carry, epoch_key):
        order = jax.random.permutation(epoch_key, n)[: n // m * m]
        batches = jax.tree.map(lambda leaf: leaf[order].reshape(n // m, m, *leaf.shape[1:]), steps)
        return jax.lax.scan(gradient_step, carry, batches)

    keys = jax.random.split(key, config.epochs)
    (vector, memory), _ = jax.lax.scan(epoch, (vector, learner.optimizer), keys)
    network, predictor = unravel(vector)
    learner = Learner(network, learner.predictor if predictor is None else predictor, learner.target, memory)
    measured = {"explore_return": reward.sum(1).mean(), "intrinsic": intrinsic.sum(1).mean()}
    return learner, measured


def reached_level(pure: Any, trajectories: Trajectories) -> Float[Array, ""]:
    """The deepest level at which an episode was still on the way; nan where nobody can tell."""
    if pure is None:
        return jnp.float32(jnp.nan)
    seen = (pure.good(trajectories.latent) & (trajectories.latent >= 0)).any(axis=0)
    return jnp.where(seen, jnp.arange(len(seen)), 0).max().astype(jnp.float32)


@eqx.filter_jit
def _rounds(pure, learner: Learner, key: PRNGKeyArray, indices: Int[Array, " R"], config: PpoConfig):
    never = jnp.full(config.workers, pure.horizon, jnp.int32)

    def one(learner: Learner, index):
        policy = NetworkPolicy(learner.network, False)
        trajectories = _scan(pure, policy, stream(key, "collect", index), config.workers, never)
        learner, measured = improve(learner, trajectories, stream(key, "improve", index), config)
        return learner, measured | {"reached_level": reached_level(pure, trajectories)}

    learner, measured = jax.lax.scan(one, learner, indices)
    return learner, jax.tree.map(lambda each: each[-1], measured)


_improve = eqx.filter_jit(improve)
