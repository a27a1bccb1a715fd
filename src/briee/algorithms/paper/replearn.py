"""RepLearn, Algorithm 2: features against adversarial discriminators.

Symbols: phi = psi ⊗ e_a features, f discriminators, w ridge weights, lam their regularisation, ell the
threshold of line 6, T the number of rounds. The `rival` is phi tilde of line 5.

Two facts make it fast. The values of a frozen discriminator on the data are constants, so each is computed
once, as a column of `columns`. By the envelope theorem, the gradient of min_w L(phi, w, f) is the partial
gradient at the minimiser, so no gradient flows through the solve.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from briee.algorithms.paper.buffers import Transitions
from briee.algorithms.paper.config import RepLearnConfig
from briee.numerics.linalg import at_level, block_gram, block_moment, predict, ridge

Psi = Callable[[Float[Array, "..."]], Float[Array, " K"]]
"""A decoder of one level, an `equinox.Module`."""


class Discriminator(eqx.Module):
    """f(s') in [-1, 1] on a batch: tanh layers, also on the output."""

    weights: list[Float[Array, "fan_in fan_out"]]
    biases: list[Float[Array, " fan_out"]]

    def __init__(self, dimension: int, hidden: Sequence[int], key: PRNGKeyArray):
        shapes, orthogonal = list(pairwise((dimension, *hidden, 1))), jax.nn.initializers.orthogonal()
        keys = jax.random.split(key, len(shapes))
        self.weights = [orthogonal(k, shape, jnp.float32) for k, shape in zip(keys, shapes, strict=True)]
        self.biases = [jnp.zeros(fan_out) for _, fan_out in shapes]

    def __call__(self, observations: Float[Array, "n D"]) -> Float[Array, " n"]:
        hidden = observations
        for weight, bias in zip(self.weights, self.biases, strict=True):
            hidden = jnp.tanh(hidden @ weight + bias)
        return hidden[:, 0]


class Result(NamedTuple):
    """The features, line 5's objective in each round (inf if it was not played), and the rounds played."""

    decoder: Psi
    gaps: Float[Array, " T"]
    rounds: Int[Array, ""]


class Game(NamedTuple):
    """The state of the loop over t; `quiet` counts consecutive rounds below the threshold."""

    t: Int[Array, ""]
    decoder: Psi
    decoder_momentum: optax.OptState
    rival: Psi
    rival_momentum: optax.OptState
    columns: Float[Array, "n T"]
    gaps: Float[Array, " T"]
    quiet: Int[Array, ""]
    finished: Bool[Array, ""]


def least_squares_loss(
    psi: Float[Array, "n K"],
    action: Int[Array, " n"],
    weight: Float[Array, " n"],
    targets: Float[Array, "n T"],
    lam: float,
    num_actions: int,
) -> Float[Array, " T"]:
    """min_w L_{lam,D}(phi, w, f) (Alg. 2, l. 3) for each of T targets f(s'), differentiable in both.

    `weight` is non-negative and sums to one: the loss is a mean.
    """
    fixed_psi, fixed_targets = jax.lax.stop_gradient((psi, targets))
    gram = block_gram(fixed_psi, action, weight, num_actions)
    w = ridge(gram, block_moment(fixed_psi, action, weight, fixed_targets, num_actions), lam)
    error = predict(w, psi, action) - targets
    return weight @ error**2 + lam * jnp.sum(w**2, axis=(0, 1))


def discriminator_objective(
    psi: Float[Array, "n K"],
    rival_psi: Float[Array, "n K"],
    action: Int[Array, " n"],
    weight: Float[Array, " n"],
    values: Float[Array, " n"],
    lam: float,
    num_actions: int,
) -> Float[Array, ""]:
    """The loss of the current features on `values` f(s') minus that of the rival ones, Eq. (1)."""
    current = least_squares_loss(psi, action, weight, values[:, None], lam, num_actions)
    best = least_squares_loss(rival_psi, action, weight, values[:, None], lam, num_actions)
    return (current - best)[0]


def first_discriminators(key: PRNGKeyArray, dimension: int, config: RepLearnConfig) -> Discriminator:
    """The initial f of each round of `replearn` with the same key, stacked.

    Orthogonal weights need a QR decomposition, that is LAPACK, which may hang if it runs while several levels
    are learned in parallel (see `numerics.linalg`): call this before.
    """

    def draw(t: Int[Array, ""]) -> Discriminator:
        init_key = _round_keys(key, t)[0]
        return Discriminator(dimension, config.hidden_sizes, init_key)

    return jax.lax.map(draw, jnp.arange(config.rounds))


def _round_keys(key: PRNGKeyArray, t: Int[Array, ""]) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
    """Keys of round t: initial discriminator, its minibatches, minibatches of the features."""
    f_key, feature_key = jax.random.split(jax.random.fold_in(key, t))
    init_key, step_key = jax.random.split(f_key)
    return init_key, step_key, feature_key


def replearn(
    key: PRNGKeyArray,
    data: Transitions,
    decoder: Psi,
    rival: Psi,
    config: RepLearnConfig,
    num_actions: int,
    first: Discriminator | None = None,
) -> Result:
    """Algorithm 2 on the transitions of one level, starting with the features `decoder`.

    `first` is the result of `first_discriminators` with this key; without it, it is computed here.
    """
    players = Players(data, config, num_actions)
    first = first_discriminators(key, players.next_observations.shape[-1], config) if first is None else first
    untrained_first = config.first_player == "features"
    ell = -jnp.inf if config.ell is None else config.ell / jnp.maximum(data.size, 1)

    def play(game: Game) -> Game:
        """One round t."""
        t = game.t
        _, f_key, feature_key = _round_keys(key, t)
        skipped = (t == 0) & untrained_first
        steps = jnp.where(skipped, 0, config.discriminator_steps)
        f = at_level(first, t)
        f, rival, rival_momentum = players.select_discriminator(f_key, f, game, steps)  # Alg. 2, l. 5
        values = f(players.next_observations)
        gap = players.objective(game.decoder, rival, values)
        quiet = jnp.where((gap <= ell) & ~skipped, game.quiet + 1, 0)
        finished = quiet >= config.patience  # Alg. 2, l. 6
        columns = game.columns.at[:, t].set(values)
        decoder, momentum = jax.lax.cond(
            finished,
            lambda: (game.decoder, game.decoder_momentum),
            lambda: players.select_features(feature_key, game, columns),  # Alg. 2, l. 7
        )
        gaps = game.gaps.at[t].set(gap)
        return Game(t + 1, decoder, momentum, rival, rival_momentum, columns, gaps, quiet, finished)

    start = Game(
        t=jnp.int32(0),
        decoder=decoder,
        decoder_momentum=players.descent.init(eqx.filter(decoder, eqx.is_inexact_array)),
        rival=rival,
        rival_momentum=players.rival_ascent.init(eqx.filter(rival, eqx.is_inexact_array)),
        columns=jnp.zeros((data.action.shape[0], config.rounds)),
        gaps=jnp.full(config.rounds, jnp.inf),
        quiet=jnp.int32(0),
        finished=jnp.bool_(False),
    )
    end = jax.lax.while_loop(lambda game: (game.t < config.rounds) & ~game.finished, play, start)
    return Result(end.decoder, end.gaps, end.t)


class Players:
    """The two players; each takes minibatch gradient steps on the data of one level."""

    def __init__(self, data: Transitions, config: RepLearnConfig, num_actions: int):
        self.data, self.config, self.num_actions = data, config, num_actions
        self.next_observations = data.next_observation.reshape(data.next_observation.shape[0], -1)
        self.descent = optax.sgd(config.feature_learning_rate, config.momentum)
        self.rival_ascent = optax.chain(optax.scale(-1.0), self.descent)
        f_descent = optax.sgd(config.discriminator_learning_rate, config.momentum)
        self.f_ascent = optax.chain(optax.scale(-1.0), f_descent)

    def select_discriminator(self, key: PRNGKeyArray, f: Discriminator, game: Game, steps: Int[Array, ""]):
        """Alg. 2, l. 5: gradient ascent on f and the rival features."""

        def step(i, carry):
            f, f_momentum, rival, rival_momentum = carry
            rows = self.minibatch(jax.random.fold_in(key, i), self.config.discriminator_batch)
            values, pull_back = eqx.filter_vjp(lambda f: f(self.next_observations[rows]), f)

            def objective(values, rival):
                return self.objective(game.decoder, rival, values, rows)

            gap, values_grad = jax.value_and_grad(objective)(values, rival)
            rival_grad = eqx.filter_grad(lambda rival: objective(values, rival))(rival)
            change, rival_momentum = self.rival_ascent.update(rival_grad, rival_momentum)
            rival = eqx.apply_updates(rival, change)
            if self.config.ascent == "alternating":
                gap, values_grad = jax.value_and_grad(objective)(values, rival)
            if self.config.wait_for_rival:
                values_grad = jnp.where(gap > 0, values_grad, 0.0)
            change, f_momentum = self.f_ascent.update(pull_back(values_grad)[0], f_momentum)
            return eqx.apply_updates(f, change), f_momentum, rival, rival_momentum

        carry = (f, self.f_ascent.init(eqx.filter(f, eqx.is_inexact_array)), game.rival, game.rival_momentum)
        f, _, rival, rival_momentum = jax.lax.fori_loop(0, steps, step, carry)
        return f, rival, rival_momentum

    def select_features(self, key: PRNGKeyArray, game: Game, columns: Float[Array, "n T"]):
        """Alg. 2, l. 7: least squares on all discriminators so far; later columns are zero."""

        def step(i, carry):
            decoder, momentum = carry
            rows = self.minibatch(jax.random.fold_in(key, i), self.config.feature_batch)
            weight, lam, A = jnp.full(rows.shape, 1.0 / rows.shape[0]), self.config.lam, self.num_actions

            def loss(decoder):
                psi, action = jax.vmap(decoder)(self.data.observation[rows]), self.data.action[rows]
                return least_squares_loss(psi, action, weight, columns[rows], lam, A).sum()

            change, momentum = self.descent.update(eqx.filter_grad(loss)(decoder), momentum)
            return eqx.apply_updates(decoder, change), momentum

        return jax.lax.fori_loop(0, self.config.feature_steps, step, (game.decoder, game.decoder_momentum))

    def objective(
        self, decoder: Psi, rival: Psi, values: Float[Array, " n"], rows: Int[Array, " n"] | None = None
    ) -> Float[Array, ""]:
        """Line 5's objective, Eq. (1), on a minibatch of rows or on all data."""
        data, lam, A = self.data, self.config.lam, self.num_actions
        if rows is None:
            weight, x, action = data.valid / jnp.maximum(data.size, 1), data.observation, data.action
        else:
            weight = jnp.full(rows.shape, 1.0 / rows.shape[0])
            x, action = data.observation[rows], data.action[rows]
        psi, rival_psi = jax.vmap(decoder)(x), jax.vmap(rival)(x)
        return discriminator_objective(psi, rival_psi, action, weight, values, lam, A)

    def minibatch(self, key: PRNGKeyArray, size: int) -> Int[Array, " size"]:
        """Random filled rows, with replacement."""
        return jax.random.randint(key, (size,), 0, jnp.maximum(self.data.size, 1))
