"""Planning on counts of cells (latent state, action): explore where a discovery is likeliest, or exploit.

Symbols: L = K + 1 labels per level, the last one for observations unlike all known states; N[h, c, a, c']
counts.
"""

from math import ceil, log

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from briee.algorithms.efficient.config import ExploreConfig
from briee.algorithms.efficient.state_decoder import StateDecoder
from briee.algorithms.efficient.strata import Strata
from briee.numerics.linalg import at_level

UNTRIED = -1e6  # Q-value the greedy policy assigns to an untried action
PRECISION = 1e-6  # of discounted values, relative to the error of the first sweep


class CellPlan(eqx.Module):
    """Action values of every cell: the probability of a discovery, and the expected reward."""

    discovery: Float[Array, "H L A"]
    reward: Float[Array, "H L A"]
    chance: Float[Array, ""]
    """Estimated probability that an exploring episode makes a discovery."""


def count_cells(
    strata: Strata, num_labels: int, num_actions: int
) -> tuple[Float[Array, "H L A L"], Float[Array, "H L A"]]:
    """How often each cell led to each label, and the sum of its rewards."""
    H, L, A = strata.action.shape[0], num_labels, num_actions
    cell = (jnp.arange(H)[:, None] * L + strata.label) * A + jnp.maximum(strata.action, 0)
    counts = jnp.zeros(H * L * A * L).at[cell * L + strata.next_label].add(strata.weight)
    rewards = jnp.zeros(H * L * A).at[cell].add(strata.weight * strata.reward)
    return counts.reshape(H, L, A, L), rewards.reshape(H, L, A)


def discovery_curve(
    counts: Float[Array, "*cells L"], max_tries: int, prior_cells: float
) -> Float[Array, " {max_tries}+1"]:
    """u_n, the probability that a cell tried n times shows a new successor at the next try; u_0 = 1.

    Let N tries of a cell come in random order, N_j of them leading to j. Try n + 1 leads to a successor not
    seen in the n before it with probability sum_j C(N - N_j, n) / C(N, n) * N_j / (N - n) (rarefaction). The
    mean over all cells with more than n tries and `prior_cells` imaginary ones with 1 / (n + 1) is made
    non-increasing in n.
    """
    counts = counts.reshape(-1, counts.shape[-1])
    total = counts.sum(-1)

    def at(n):
        falling = lambda m: gammaln(m + 1) - gammaln(jnp.maximum(m - n, 0) + 1)  # noqa: E731
        unseen = jnp.exp(falling(total[:, None] - counts) - falling(total)[:, None])
        unseen = jnp.where(total[:, None] - counts >= n, unseen, 0.0)
        new = jnp.sum(unseen * counts, -1) / jnp.maximum(total - n, 1.0)
        tried = total > n
        return (jnp.sum(new * tried) + prior_cells / (n + 1)) / (tried.sum() + prior_cells)

    tries = jnp.arange(1, max_tries + 1, dtype=jnp.float32)
    return jnp.concatenate([jnp.ones(1), jax.lax.cummin(jax.lax.map(at, tries))])


def trial_values(counts: Float[Array, "*cells L"], explore: ExploreConfig) -> Float[Array, " n"]:
    """The value of trying a cell again after n = 0, 1, ... tries, by the rule of `explore`."""
    n = jnp.arange(explore.max_tries + 1)
    if explore.rule == "tries":
        return jnp.where(n < explore.known_after, 1.0, 0.0)
    if explore.rule == "bonus":
        return jax.lax.rsqrt(n + 1.0)
    return discovery_curve(counts, explore.max_tries, explore.prior_cells)


def estimate(
    counts: Float[Array, "*H L A L"], rewards: Float[Array, "*H L A"], curve: Float[Array, " n"]
) -> tuple[Float[Array, "*H L A L"], Float[Array, "*H L A"], Float[Array, "*H L A"], Float[Array, "*H L A"]]:
    """The empirical model of the cells: transitions P, mean rewards r, value u of a further try, tries.

    `curve` is the value of a try after n = 0, 1, ... others.
    """
    tries = counts.sum(-1)
    P = counts / jnp.maximum(tries, 1.0)[..., None]
    u = curve[jnp.minimum(tries, curve.shape[0] - 1).astype(jnp.int32)]
    return P, rewards / jnp.maximum(tries, 1.0), u, tries


def best_tried(Q: Float[Array, "*H L A"]) -> Float[Array, "*H L"]:
    """The highest value among actions that were tried, 0 if none was."""
    best = Q.max(-1)
    return jnp.where(best > UNTRIED, best, 0.0)


def plan_cells(
    counts: Float[Array, "H L A L"], rewards: Float[Array, "H L A"], curve: Float[Array, " n"]
) -> CellPlan:
    """Backward recursions on the estimated model:

    U_h(c, a) = max(u_{n(c,a)}, sum_c' P(c'|c,a) max_a' U_{h+1}(c', a'))      discovery, no reward
    Q_h(c, a) = r(c, a) + sum_c' P(c'|c,a) max_a' Q_{h+1}(c', a')             over cells that were tried
    """

    def backward(values, level):
        P, r, u, tries = level
        explore, exploit = values
        U = jnp.maximum(u, P @ explore)
        Q = jnp.where(tries > 0, r + P @ exploit, UNTRIED)
        return (U.max(-1), best_tried(Q)), (U, Q)

    model, start = estimate(counts, rewards, curve), jnp.zeros(counts.shape[1])
    _, (U, Q) = jax.lax.scan(backward, (start, start), model, reverse=True)
    first = model[-1][0].sum(-1)  # visits of each label at level 0
    return CellPlan(U, Q, (first @ U[0].max(-1)) / jnp.maximum(first.sum(), 1.0))


def plan_discounted(
    counts: Float[Array, "L A L"], rewards: Float[Array, "L A"], curve: Float[Array, " n"], discount: float
) -> tuple[Float[Array, "L A"], Float[Array, "L A"]]:
    """The fixed points, up to `PRECISION`, of the recursions of `plan_cells` with a discount:

    U(c, a) = max(u_{n(c,a)}, discount sum_c' P(c'|c,a) max_a' U(c', a'))       discovery, no reward
    Q(c, a) = r(c, a) + discount sum_c' P(c'|c,a) max_a' Q(c', a')              over cells that were tried
    """
    P, r, u, tries = estimate(counts, rewards, curve)

    def sweep(_, values):
        U, Q = values
        further = r + discount * P @ best_tried(Q)
        return jnp.maximum(u, discount * P @ U.max(-1)), jnp.where(tries > 0, further, UNTRIED)

    sweeps = ceil(log(PRECISION) / log(discount)) if discount > 0 else 1
    return jax.lax.fori_loop(0, sweeps, sweep, (u, jnp.where(tries > 0, r, UNTRIED)))


class CellPolicy(eqx.Module):
    """Decode the observation, then draw uniformly among the actions of (nearly) the highest value.

    Levels beyond the last one use the last, so that a single level serves a whole episode.
    """

    decoder: StateDecoder
    value: Float[Array, "H L A"]
    tolerance: Float[Array, ""]
    """Share of the highest value that is good enough."""
    known_only: Bool[Array, ""]
    """Treat an observation unlike all known states as the nearest of them."""

    def __call__(
        self, level: Int[Array, ""], observation: Float[Array, "..."], key: PRNGKeyArray
    ) -> Int[Array, ""]:
        level = jnp.minimum(level, self.value.shape[0] - 1)
        decoder, observation = at_level(self.decoder, level), observation.reshape(-1)
        label = jnp.where(self.known_only, decoder.nearest(observation), decoder.label(observation))
        value = self.value[level, label]
        enough = value.max() - (1 - self.tolerance) * jnp.abs(value.max())
        return jnp.argmax((value >= enough) * (1 + jax.random.uniform(key, value.shape))).astype(jnp.int32)
