"""L-BFGS as one compiled loop, which `jax.vmap` can run on many small problems at once."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

ARMIJO = 1e-4  # share of the predicted decrease that an accepted step must achieve
SHRINK = 0.4  # factor of a rejected step
SMALLEST_STEP = 1e-4  # a rejected step below this ends the search
FLAT = 1e-5  # relative decrease below which an accepted step ends it
LEAST_CURVATURE = 1e-10  # flatter pairs (move, change) would make the inverse Hessian explode
TINY, LEAST_NORM = 1e-20, 1e-12  # keep quotients finite


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
        curvature = push(s.curvature, 1 / jnp.maximum(curved, TINY))
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
    scale = 1 / jnp.maximum(curvature[-1] * jnp.dot(changes[-1], changes[-1]), TINY)
    unit = 1 / jnp.maximum(jnp.linalg.norm(gradient), LEAST_NORM)
    q = q * jnp.where(curvature[-1] > 0, scale, unit)
    return -jax.lax.scan(up, q, (moves, changes, curvature, shares))[0]
