"""Networks of the rivals and how they are trained: Adam on minibatches, early stopping, and ridge regression.

Inputs are rows: an observation [d], or n of them [n, d]. Everything is traceable, so that a fit is one
compiled loop.

Adversarial features follow the min-max-min objective of MOFFLE, which VoX uses too. psi = softmax(A x + b)
should predict f(x') linearly from psi(x) ⊗ e_a for every discriminator f that some other features predict
better:

    repeat: f = argmax_f [min_w L(psi, w, f) - min_{psi', w'} L(psi', w', f)]
            psi = argmin_psi sum over all f so far of min_w L(psi, w, f)

L is a mean squared error; both minima over w are ridge regressions in closed form, through which no gradient
flows (the envelope theorem).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.config import AdversaryConfig
from briee.algorithms.baselines.rival_config import RegressionConfig
from briee.numerics.linalg import block_gram, block_moment, predict, ridge

Loss = Callable[[Any, Any, PRNGKeyArray], Float[Array, ""]]
"""(parameters, rows, key) -> mean loss."""

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu, "leaky_relu": jax.nn.leaky_relu}


class Layers(eqx.Module):
    """Affine layers with an activation between them; one layer is a linear function."""

    weights: tuple[Float[Array, "... _ _"], ...]
    biases: tuple[Float[Array, "... _"], ...]
    activation: str = eqx.field(static=True, default="tanh")

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n out"]:
        for W, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = ACTIVATIONS[self.activation](x @ W + b)
        return x @ self.weights[-1] + self.biases[-1]


def new_layers(key: PRNGKeyArray, sizes: Sequence[int], activation: str = "tanh") -> Layers:
    """Parameters uniform within ±1/√fan_in, the default of PyTorch."""
    shapes = list(pairwise(sizes))

    def draw(key, fan_in, fan_out):
        values = jax.random.uniform(key, (fan_in + 1, fan_out), minval=-(fan_in**-0.5), maxval=fan_in**-0.5)
        return values[:-1], values[-1]

    keys = jax.random.split(key, len(shapes))
    weights, biases = zip(*(draw(k, *shape) for k, shape in zip(keys, shapes, strict=True)), strict=True)
    return Layers(weights, biases, activation)


def new_decoder(key: PRNGKeyArray, dimension: int, hidden_size: int, num_latents: int) -> Layers:
    """Scores of latent states: a linear function, or a ReLU network if there are hidden units."""
    hidden = [hidden_size] if hidden_size else []
    return new_layers(key, (dimension, *hidden, num_latents), "relu" if hidden else "tanh")


def zero_layers(sizes: Sequence[int], *leading: int, activation: str = "tanh") -> Layers:
    """Zeros, with further leading axes."""
    shapes = list(pairwise(sizes))
    weights = tuple(jnp.zeros((*leading, *shape)) for shape in shapes)
    return Layers(weights, tuple(jnp.zeros((*leading, shape[1])) for shape in shapes), activation)


def descend(
    loss: Loss, start: Any, rows: Any, key: PRNGKeyArray, *, steps: int, batch: int, learning_rate: float
) -> Any:
    """Adam for a number of steps, each on a random minibatch, or on all rows if there are no more."""
    n, rule = len(jax.tree.leaves(rows)[0]), optax.adam(learning_rate)

    def step(i, carry):
        parameters, memory = carry
        rows_key, loss_key = jax.random.split(jax.random.fold_in(key, i))
        chosen = jax.random.randint(rows_key, (batch,), 0, n)
        part = rows if batch >= n else jax.tree.map(lambda leaf: leaf[chosen], rows)
        change, memory = rule.update(jax.grad(loss)(parameters, part, loss_key), memory)
        return optax.apply_updates(parameters, change), memory

    return jax.lax.fori_loop(0, steps, step, (start, rule.init(start)))[0]


class Stopped(NamedTuple):
    """The parameters with the least loss on the validation rows, and that loss."""

    parameters: Any
    loss: Float[Array, ""]


class _Epochs(NamedTuple):
    parameters: Any
    memory: Any
    best: Stopped
    epoch: Int[Array, ""]
    waited: Int[Array, ""]


def descend_with_patience(
    loss: Loss,
    start: Any,
    rows: Any,
    key: PRNGKeyArray,
    *,
    epochs: int,
    patience: int,
    batch: int,
    learning_rate: float,
    gradient_clip: float = 40.0,
    validation: float = 0.2,
) -> Stopped:
    """Adam in epochs, until the loss on the last rows has not fallen for `patience` epochs."""
    n = len(jax.tree.leaves(rows)[0])
    train = max(n - int(validation * n), 1)
    m = min(batch, train)
    rule = optax.chain(optax.clip_by_global_norm(gradient_clip), optax.adam(learning_rate))
    held_out = jax.tree.map(lambda leaf: leaf[train:] if train < n else leaf, rows)

    def step(carry, each):
        (parameters, memory), (chosen, step_key) = carry, each
        part = jax.tree.map(lambda leaf: leaf[chosen], rows)
        change, memory = rule.update(jax.grad(loss)(parameters, part, step_key), memory)
        return (optax.apply_updates(parameters, change), memory), None

    def one_epoch(e: _Epochs) -> _Epochs:
        order_key, step_key, check_key = jax.random.split(jax.random.fold_in(key, e.epoch), 3)
        order = jax.random.permutation(order_key, train)[: train // m * m].reshape(-1, m)
        each = order, jax.random.split(step_key, len(order))
        (parameters, memory), _ = jax.lax.scan(step, (e.parameters, e.memory), each)
        value = loss(parameters, held_out, check_key)
        better = value < e.best.loss
        now = Stopped(parameters, value)
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), now, e.best)
        return _Epochs(parameters, memory, best, e.epoch + 1, jnp.where(better, 0, e.waited + 1))

    first = _Epochs(start, rule.init(start), Stopped(start, jnp.float32(jnp.inf)), jnp.int32(0), jnp.int32(0))
    going = lambda e: (e.epoch < epochs) & (e.waited < patience)  # noqa: E731
    return jax.lax.while_loop(going, one_epoch, first).best


def regressor_sizes(config: RegressionConfig, inputs: int, outputs: int) -> tuple[int, ...]:
    """Layer sizes of a regressor."""
    return (inputs, config.hidden_size, outputs) if config.kind == "mlp" else (inputs, outputs)


@eqx.filter_jit
def regress(
    config: RegressionConfig, x: Float[Array, "n d"], action: Int[Array, " n"], target: Float[Array, " n"],
    num_actions: int, key: PRNGKeyArray,
) -> Layers:  # fmt: skip
    """q(x)[a], fitted to one target per row: in closed form, or by Adam on a linear function or a network."""
    if config.kind == "ridge":
        return ridge_regressor(x, action, target, num_actions, config.lam)
    init_key, fit_key = jax.random.split(key)

    def loss(q: Layers, rows, key):
        x, action, target = rows
        return jnp.mean((jnp.take_along_axis(q(x), action[:, None], axis=1)[:, 0] - target) ** 2)

    start = new_layers(init_key, regressor_sizes(config, x.shape[1], num_actions))
    numbers: dict[str, Any] = {"batch": config.batch, "learning_rate": config.learning_rate}
    return descend(loss, start, (x, action, target), fit_key, steps=config.steps, **numbers)


def ridge_regressor(x, action, target, num_actions: int, lam: float) -> Layers:
    """One ridge regression per action, with an intercept."""
    padded, one = jnp.concatenate([x, jnp.ones((len(x), 1))], axis=1), jnp.ones(len(x))
    gram = block_gram(padded, action, one, num_actions)
    w = ridge(gram, block_moment(padded, action, one, target[:, None], num_actions), lam)[..., 0]
    return Layers((w[:, :-1].T,), (w[:, -1],))


def psi_of(net: Layers, x: Float[Array, "*n d"]) -> Float[Array, "*n K"]:
    """psi(x)."""
    return jax.nn.softmax(net(x))


def prediction_loss(
    psi: Float[Array, "n K"],
    action: Int[Array, " n"],
    targets: Float[Array, "n T"],
    lam: float,
    num_actions: int,
) -> Float[Array, ""]:
    """min_w L(psi, w, f), summed over the targets f(x')."""
    fixed, goal = jax.lax.stop_gradient((psi, targets))
    weight = jnp.full(len(psi), 1.0 / len(psi))
    gram = block_gram(fixed, action, weight, num_actions)
    w = jax.lax.stop_gradient(ridge(gram, block_moment(fixed, action, weight, goal, num_actions), lam))
    return ((predict(w, psi, action) - targets) ** 2).mean(axis=0).sum() + lam * (w**2).sum()


@eqx.filter_jit
def learn_features(
    key: PRNGKeyArray,
    x: Float[Array, "n d"],
    action: Int[Array, " n"],
    next_x: Float[Array, "n d"],
    num_actions: int,
    config: AdversaryConfig,
) -> tuple[Layers, Float[Array, ""]]:
    """The network of psi, and the advantage that the last discriminator's other features had."""
    d, K = x.shape[1], config.num_latents
    steps = {"steps": config.steps, "batch": config.batch, "learning_rate": config.learning_rate}
    # one scale for all observations keeps the step size meaningful
    scale = jnp.sqrt((x**2).mean()) + 1e-6

    def loss(net, part, column):
        x, action, _, _ = part
        return prediction_loss(psi_of(net, x), action, column, config.lam, num_actions)

    def advantage(players, net, part):
        f, other = players
        column = jnp.tanh(f(part[2] / scale))
        return loss(net, part, column) - loss(other, part, column)

    def play(carry, t):
        net, columns = carry
        f_key, other_key, ascent_key, descent_key = jax.random.split(jax.random.fold_in(key, t), 4)
        players = new_layers(f_key, (d, config.hidden_size, 1)), new_layers(other_key, (d, K))
        data = x, action, next_x, columns
        ascend = lambda players, part, key: -advantage(players, net, part)  # noqa: E731
        f, other = descend(ascend, players, data, ascent_key, **steps)
        gap = advantage((f, other), net, data)
        columns = columns.at[:, t].set(jnp.tanh(f(next_x / scale))[:, 0])
        data = x, action, next_x, columns
        net = descend(lambda net, part, key: loss(net, part, part[3]), net, data, descent_key, **steps)
        return (net, columns), gap

    start = new_layers(jax.random.fold_in(key, config.rounds), (d, K)), jnp.zeros((len(x), config.rounds))
    (net, _), gaps = jax.lax.scan(play, start, jnp.arange(config.rounds))
    return net, gaps[-1]
