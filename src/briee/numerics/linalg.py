"""Ridge regression and elliptical norms for features phi(s, a) = psi(s) ⊗ e_a, and L-BFGS.

Such features make every covariance block diagonal, one K x K block per action, so the AK x AK matrix is never
built. Symbols: n samples, K features psi, A actions, T targets regressed at once.

Nothing here calls LAPACK. XLA runs such a call on its thread pool and waits, which deadlocks if the caller
holds the last free thread, as happens when several levels are fitted in parallel. The matrices are small and
positive definite, so elimination without pivots works as well.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

ROW_BY_ROW = 64  # larger matrices are factorised in halves: matrix products beat elimination row by row
DEPENDENT = 1e-5  # a column with a smaller share outside the span of those before counts as dependent

# L-BFGS
ARMIJO = 1e-4  # share of the predicted decrease that an accepted step must achieve
SHRINK = 0.4  # factor of a rejected step
SMALLEST_STEP = 1e-4  # a rejected step below this ends the search
FLAT = 1e-5  # relative decrease below which an accepted step ends it
LEAST_CURVATURE = 1e-10  # flatter pairs (move, change) would make the inverse Hessian explode
LEAST_DIVISOR, LEAST_NORM = 1e-20, 1e-12  # keep quotients finite


def block_gram(
    psi: Float[Array, "n K"], action: Int[Array, " n"], weight: Float[Array, " n"], num_actions: int
) -> Float[Array, "A K K"]:
    """The blocks of sum_i weight_i phi_i phi_i^T."""
    return block_moment(psi, action, weight, psi, num_actions)


def block_moment(
    psi: Float[Array, "n K"],
    action: Int[Array, " n"],
    weight: Float[Array, " n"],
    target: Float[Array, "n T"],
    num_actions: int,
) -> Float[Array, "A K T"]:
    """The blocks of sum_i weight_i phi_i target_i."""
    selected = jax.nn.one_hot(action, num_actions, dtype=psi.dtype) * weight[:, None]
    return jnp.einsum("na,nk,nt->akt", selected, psi, target)


def ridge(
    gram: Float[Array, "*B K K"], moment: Float[Array, "*B K T"], lam: float | Float[Array, ""]
) -> Float[Array, "*B K T"]:
    """w = (gram + lam I)^-1 moment for each block, by Gauss-Jordan elimination."""
    K = gram.shape[-1]

    def eliminate(k, table):
        pivot = jax.lax.dynamic_slice_in_dim(table, k, 1, axis=-2)
        pivot = pivot / jax.lax.dynamic_slice_in_dim(pivot, k, 1, axis=-1)
        table = table - jax.lax.dynamic_slice_in_dim(table, k, 1, axis=-1) * pivot
        return jax.lax.dynamic_update_slice_in_dim(table, pivot, k, axis=-2)

    table = jnp.concatenate([gram + lam * jnp.eye(K, dtype=gram.dtype), moment], axis=-1)
    return jax.lax.fori_loop(0, K, eliminate, table)[..., K:]


def predict(
    weights: Float[Array, "A K T"], psi: Float[Array, "n K"], action: Int[Array, " n"]
) -> Float[Array, "n T"]:
    """phi(s_i, a_i)^T w for every sample and target."""
    return jnp.einsum("nk,nkt->nt", psi, weights[action])


def factorise(matrix: Float[Array, "*B K K"]) -> tuple[Float[Array, "*B K K"], Float[Array, "*B K K"]]:
    """L and L^-1 with matrix = L L^T, for each block."""
    K = matrix.shape[-1]
    if K > ROW_BY_ROW:
        (L, inverse), below, rest = first_half(matrix)
        L_rest, inverse_rest = factorise(rest)
        corner = jnp.zeros_like(jnp.swapaxes(below, -2, -1))
        inverse_below = -inverse_rest @ below @ inverse
        lower = jnp.block([[L, corner], [below, L_rest]])
        return lower, jnp.block([[inverse, corner], [inverse_below, inverse_rest]])
    identity = jnp.broadcast_to(jnp.eye(K, dtype=matrix.dtype), matrix.shape)
    upper, lower = jnp.split(forward_eliminate(jnp.concatenate([matrix, identity], axis=-1)), 2, axis=-1)
    scale = jax.lax.rsqrt(jnp.diagonal(upper, axis1=-2, axis2=-1))[..., None]
    return jnp.swapaxes(scale * upper, -2, -1), scale * lower


def log_determinant(matrix: Float[Array, "*B K K"]) -> Float[Array, "*B"]:
    """log det of each block."""
    if matrix.shape[-1] > ROW_BY_ROW:
        (L, _), _, rest = first_half(matrix)
        return 2 * jnp.log(jnp.diagonal(L, axis1=-2, axis2=-1)).sum(-1) + log_determinant(rest)
    return jnp.log(jnp.diagonal(forward_eliminate(matrix), axis1=-2, axis2=-1)).sum(-1)


def first_half(matrix: Float[Array, "*B K K"]) -> tuple[tuple[Array, Array], Array, Array]:
    """The factors of the upper left quarter, the quarter of L below, and the rest to be factorised."""
    half = matrix.shape[-1] // 2
    L, inverse = factorise(matrix[..., :half, :half])
    below = matrix[..., half:, :half] @ jnp.swapaxes(inverse, -2, -1)
    return (L, inverse), below, matrix[..., half:, half:] - below @ jnp.swapaxes(below, -2, -1)


def forward_eliminate(table: Float[Array, "*B K M"]) -> Float[Array, "*B K M"]:
    """Subtract multiples of each row from those below until the first K columns are upper triangular."""
    rows = jnp.arange(table.shape[-2])[:, None]

    def eliminate(k, table):
        pivot = jax.lax.dynamic_slice_in_dim(table, k, 1, axis=-2)
        column = jax.lax.dynamic_slice_in_dim(table, k, 1, axis=-1)
        factor = jnp.where(rows > k, column / jax.lax.dynamic_slice_in_dim(pivot, k, 1, axis=-1), 0)
        return table - factor * pivot

    return jax.lax.fori_loop(0, table.shape[-2], eliminate, table)


def orthonormal(columns: Float[Array, "D k"]) -> Float[Array, "D k"]:
    """Gram-Schmidt, twice per column against rounding errors; dependent columns become zero."""

    def one(j, basis):
        column = basis[:, j]
        size, before = jnp.linalg.norm(column), jnp.where(jnp.arange(basis.shape[1]) < j, basis, 0.0)
        for _ in range(2):
            column = column - before @ (before.T @ column)
        rest = jnp.linalg.norm(column)
        return basis.at[:, j].set(jnp.where(rest > DEPENDENT * size, column / (rest + 1e-30), 0.0))

    return jax.lax.fori_loop(0, columns.shape[1], one, columns)


def top_subspace(matrix: Float[Array, "D D"], count: int, steps: int = 30) -> Float[Array, "D count"]:
    """A basis of (nearly) the top `count` eigenvectors of a semi-definite matrix, by orthogonal iteration."""
    start = jax.random.normal(jax.random.key(0), (matrix.shape[0], count), matrix.dtype)
    return jax.lax.fori_loop(0, steps, lambda _, basis: orthonormal(matrix @ basis), start)


def inverse_factor(gram: Float[Array, "A K K"], lam: float | Float[Array, ""]) -> Float[Array, "A K K"]:
    """M = L^-1 with (gram + lam I) = L L^T, so that ||phi||_{Sigma^-1} = ||M phi||."""
    return factorise(gram + lam * jnp.eye(gram.shape[-1], dtype=gram.dtype))[1]


def elliptical_norm(factor: Float[Array, "A K K"], psi: Float[Array, "n K"]) -> Float[Array, "n A"]:
    """||phi(s_i, a)||_{Sigma^-1} for every sample and every action; factor from `inverse_factor`."""
    return jnp.linalg.norm(jnp.einsum("akl,nl->nak", factor, psi), axis=-1)


def at_level(tree, level: int | Int[Array, ""]):
    """One level of a pytree whose leaves have a leading axis of levels; `level` may be traced."""
    return jax.tree.map(lambda leaf: leaf[level], tree)


class _State(NamedTuple):
    moves: Float[Array, "m n"]
    changes: Float[Array, "m n"]
    curvature: Float[Array, " m"]
    turns: Int[Array, ""]
    x: Float[Array, " n"]
    value: Float[Array, ""]
    gradient: Float[Array, " n"]
    direction: Float[Array, " n"]
    slope: Float[Array, ""]
    step: Float[Array, ""]
    done: Bool[Array, ""]


def minimise(
    function: Callable[[Float[Array, " n"]], Float[Array, ""]],
    start: Float[Array, " n"],
    evaluations: int,
    memory: int = 8,
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """A local minimum and its value. Each turn of the loop evaluates value and gradient once and accepts or
    shortens the step. The loop ends if a step gains nothing or the evaluations are used up."""
    value_and_gradient = jax.value_and_grad(function)

    def turn(s: _State) -> _State:
        move = s.step * s.direction
        value, gradient = value_and_gradient(s.x + move)
        first = s.turns == 0
        accept = first | (value <= s.value + ARMIJO * s.step * s.slope)
        change = gradient - s.gradient
        curved = jnp.dot(move, change)
        learn = accept & ~first & (curved > LEAST_CURVATURE)
        push = lambda old, new: jnp.where(learn, jnp.concatenate([old[1:], new[None]]), old)  # noqa: E731
        moves, changes = push(s.moves, move), push(s.changes, change)
        curvature = push(s.curvature, 1 / jnp.maximum(curved, LEAST_DIVISOR))
        direction = two_loops(gradient, moves, changes, curvature)
        slope = jnp.dot(direction, gradient)
        downhill = slope < 0
        direction = jnp.where(downhill, direction, -gradient)
        slope = jnp.where(downhill, slope, -jnp.dot(gradient, gradient))
        flat = s.value - value < FLAT * jnp.maximum(jnp.abs(value), 1.0)
        point = s.x + move, value, gradient, direction, slope, 1.0, ~first & flat
        stay = s.x, s.value, s.gradient, s.direction, s.slope, SHRINK * s.step, s.step < SMALLEST_STEP
        chosen = jax.tree.map(lambda new, old: jnp.where(accept, new, old), point, stay)
        return _State(moves, changes, curvature, s.turns + 1, *chosen)

    zero, history = jnp.zeros_like(start), jnp.zeros((memory, start.shape[0]))
    point = start, jnp.float32(jnp.inf), zero, zero, jnp.float32(0), jnp.float32(1), jnp.array(False)
    state = _State(history, history, jnp.zeros(memory), jnp.int32(0), *point)
    state = jax.lax.while_loop(lambda s: (s.turns < evaluations) & ~s.done, turn, state)
    return state.x, state.value


def two_loops(
    gradient: Float[Array, " n"],
    moves: Float[Array, "m n"],
    changes: Float[Array, "m n"],
    curvature: Float[Array, " m"],
) -> Float[Array, " n"]:
    """-H g, with the inverse Hessian H of the last m steps, oldest first; unused steps have curvature 0."""

    def down(q, past):
        move, change, inverse = past
        share = inverse * jnp.dot(move, q)
        return q - share * change, share

    def up(q, past):
        move, change, inverse, share = past
        return q + (share - inverse * jnp.dot(change, q)) * move, None

    q, shares = jax.lax.scan(down, gradient, (moves, changes, curvature), reverse=True)
    scale = 1 / jnp.maximum(curvature[-1] * jnp.dot(changes[-1], changes[-1]), LEAST_DIVISOR)
    unit = 1 / jnp.maximum(jnp.linalg.norm(gradient), LEAST_NORM)
    q = q * jnp.where(curvature[-1] > 0, scale, unit)
    return -jax.lax.scan(up, q, (moves, changes, curvature, shares))[0]


def orthonormal_rows(key: PRNGKeyArray, rows: int, columns: int) -> Float[Array, "rows columns"]:
    """A random matrix whose rows (or columns, if there are fewer) are orthonormal."""
    return jax.nn.initializers.orthogonal()(key, (rows, columns), jnp.float32)


def scaled_normal(key: PRNGKeyArray, fan_out: int, fan_in: int) -> Float[Array, "fan_out fan_in"]:
    """He initialisation: normal weights that keep the scale of activations through ReLU layers."""
    return jax.random.normal(key, (fan_out, fan_in)) * jnp.sqrt(2.0 / fan_in)
