"""Features from the min-max-min objective of MOFFLE, which VoX uses too.

psi = softmax(A x + b) should predict f(x') linearly from psi(x) ⊗ e_a for every discriminator f that some
other features predict better:

    repeat: f = argmax_f [min_w L(psi, w, f) - min_{psi', w'} L(psi', w', f)]
            psi = argmin_psi sum over all f so far of min_w L(psi, w, f)

L is a mean squared error; both minima over w are ridge regressions in closed form, through which no gradient
flows (the envelope theorem).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.config import AdversaryConfig
from briee.algorithms.baselines.fitting import Layers, descend, new_layers
from briee.numerics.linalg import block_gram, block_moment, predict, ridge


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
