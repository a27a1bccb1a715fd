"""L-BFGS as one compiled loop, made for many small problems at once (`jax.vmap`)."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

ARMIJO, SHRINK, SMALLEST_STEP, FLAT = 1e-4, 0.4, 1e-4, 1e-5


class _State(eqx.Module):
    x: Float[Array, " n"]
    value: Float[Array, ""]
    gradient: Float[Array, " n"]
    direction: Float[Array, " n"]
    slope: Float[Array, ""]
    step: Float[Array, ""]
    moves: Float[Array, "m n"]
    changes: Float[Array, "m n"]
    curvature: Float[Array, " m"]
    count: Int[Array, ""]
    done: Bool[Array, ""]


def minimise(
    function: Callable[[Float[Array, " n"]], Float[Array, ""]],
    start: Float[Array, " n"],
    evaluations: int,
    memory: int = 8,
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """A local minimum and its value. Each turn of the loop evaluates value and gradient once, and either
    accepts the step or shortens it; it ends when a step gains nothing or the evaluations are used up."""
    value_and_gradient = jax.value_and_grad(function)

    def turn(s: _State) -> _State:
        move = s.step * s.direction
        value, gradient = value_and_gradient(s.x + move)
        first = s.count == 0
        accept = first | (value <= s.value + ARMIJO * s.step * s.slope)
        change = gradient - s.gradient
        curved = jnp.dot(move, change)
        learn = accept & ~first & (curved > 1e-10)
        push = lambda old, new: jnp.where(learn, jnp.concatenate([old[1:], new[None]]), old)  # noqa: E731
        moves, changes = push(s.moves, move), push(s.changes, change)
        curvature = push(s.curvature, 1 / jnp.maximum(curved, 1e-20))
        direction = two_loops(gradient, moves, changes, curvature)
        slope = jnp.dot(direction, gradient)
        downhill = slope < 0
        direction = jnp.where(downhill, direction, -gradient)
        slope = jnp.where(downhill, slope, -jnp.dot(gradient, gradient))
        flat = s.value - value < FLAT * jnp.maximum(jnp.abs(value), 1.0)
        pick = lambda new, old: jnp.where(accept, new, old)  # noqa: E731
        return _State(
            x=pick(s.x + move, s.x),
            value=pick(value, s.value),
            gradient=pick(gradient, s.gradient),
            direction=pick(direction, s.direction),
            slope=pick(slope, s.slope),
            step=pick(1.0, SHRINK * s.step),
            moves=moves,
            changes=changes,
            curvature=curvature,
            count=s.count + 1,
            done=pick(~first & flat, s.step < SMALLEST_STEP),
        )

    zero, history = jnp.zeros_like(start), jnp.zeros((memory, start.shape[0]))
    state = _State(
        start, jnp.float32(jnp.inf), zero, zero, jnp.float32(0), jnp.float32(1), history, history,
        jnp.zeros(memory), jnp.int32(0), jnp.array(False),
    )  # fmt: skip
    state = jax.lax.while_loop(lambda s: (s.count < evaluations) & ~s.done, turn, state)
    return state.x, state.value


def two_loops(
    gradient: Float[Array, " n"],
    moves: Float[Array, "m n"],
    changes: Float[Array, "m n"],
    curvature: Float[Array, " m"],
) -> Float[Array, " n"]:
    """-H g with the inverse Hessian H of the last m steps, oldest first; unused ones have curvature 0."""

    def down(q, past):
        move, change, inverse = past
        share = inverse * jnp.dot(move, q)
        return q - share * change, share

    def up(q, past):
        move, change, inverse, share = past
        return q + (share - inverse * jnp.dot(change, q)) * move, None

    q, shares = jax.lax.scan(down, gradient, (moves, changes, curvature), reverse=True)
    scale = 1 / jnp.maximum(curvature[-1] * jnp.dot(changes[-1], changes[-1]), 1e-20)
    unit = 1 / jnp.maximum(jnp.linalg.norm(gradient), 1e-12)
    q = q * jnp.where(curvature[-1] > 0, scale, unit)
    return -jax.lax.scan(up, q, (moves, changes, curvature, shares))[0]
