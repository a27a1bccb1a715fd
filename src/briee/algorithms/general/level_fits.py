"""Which levels are fitted again, and what one fit changes in the state."""

from dataclasses import replace
from math import prod

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from briee.algorithms.general.candidates import Found, Rows, Rules, contexts_of, fit_level
from briee.algorithms.general.config import GeneralConfig
from briee.algorithms.general.decoders import (
    CLOUDS,
    KERNEL,
    Decoders,
    labels,
    put_clouds,
    put_in,
    put_one,
    put_regression,
)
from briee.algorithms.general.fresh_test import withdraw
from briee.algorithms.general.kernel_bank import TEACHERS, TEAM, no_bank
from briee.algorithms.general.label_search import on_more_rows
from briee.algorithms.general.patches import Patches, draw_patches, has_patches
from briee.algorithms.general.shared import (
    fit_shared,
    hopeless,
    labels_of,
    labels_score,
    sample_rows,
    transfers,
)
from briee.algorithms.general.state import GeneralState, balanced, numpy_generator, reward_bins
from briee.numerics.keys import stream
from briee.protocols import Sampler

TEACHES = 20.0  # nats that the states of a level are worth before other levels may ask it
BETTER = 1.3  # a teacher gives way to one of this many times its worth: levels that ask it are refitted then
STUCK_AGAIN = 1.1  # a level that is stuck is tried again when there are this many times as many episodes
SHARED_AGAIN, HOPELESS_AGAIN = 1.1, 2.0  # the same for a shared regression, and if labels do not transfer
SHARED_CHARGE = 5.0  # nats that a further label of all levels must gain; more than at one level
MORE = 6  # times as many rows that a regression sees once its labels are found
PATCH_DRAWS, PATCH_ROWS = 4, 1000  # draws of patches, and images of each
FITTED = (
    "decoders",
    "value",
    "charge",
    "race",
    "choice",
    "taught",
    "raced_at",
    "fresh_rows",
    "fresh_score",
    "transfer",
    "share_from",
)  # changed in place by a fit


class LevelFits:
    """Fits of the levels of the environment behind `sampler`."""

    def __init__(self, sampler: Sampler, config: GeneralConfig):
        self.sampler = sampler
        self.config = config

    def fit_levels(self, state: GeneralState) -> GeneralState:
        """Fit the levels that grew most, in ascending order, and relabel their observations."""
        fresh = self.fresh_patches(state)
        shared = float(state.transfer) > 0
        levels = list(range(self.sampler.horizon)) if fresh else self.due(state)
        before = state.decoders.states.copy()
        copies = {name: jax.tree.map(np.copy, getattr(state, name)) for name in FITTED}
        state = replace(state, **copies, levels_refit=np.asarray(len(levels), np.int64))
        if fresh:
            H, D = state.decoders.teachers.mean.shape  # large images have D = 0
            teachers = no_bank(H, D, self.config.data.fit_rows)
            state = replace(state, decoders=replace(state.decoders, patches=fresh, teachers=teachers))
            state.taught[:] = 0.0
        if shared:
            if levels:
                self.fit_shared(state, redrawn=fresh is not None)
            return state
        levels = sorted({*levels, *withdraw(state, self.config.fit.settled)})
        taught = state.taught.copy()
        for h in levels:
            self.fit(state, h)
        for h in reversed(range(len(before) - 1)):  # what follows tells states apart
            if state.decoders.states[h + 1] != before[h + 1] and not self.trusts_clouds(state):
                self.fit(state, h, search=True)
        for h in users_of(state.decoders, np.flatnonzero(state.taught != taught)):
            self.fit(state, h, teach=False)
        if self.shared_due(state):
            self.fit_shared(state)
        return state

    def shared_due(self, state: GeneralState) -> bool:
        """Whether one regression for all levels is tried: regressions win, and there are more episodes."""
        clouds, kernels = (state.race == CLOUDS).sum(), (state.race == KERNEL).sum()
        grown = int(state.episodes) >= int(state.share_from)
        return bool("shared" in self.config.fit.candidates and kernels > clouds and grown)

    def fit_shared(self, state: GeneralState, redrawn: bool = False) -> None:
        """Fit one regression for all levels, in place, and use it if labels transfer between levels.

        One in use stays if its labels are better, unless the patches that it sees were `redrawn`.
        """
        rule, A = self.config.fit, self.sampler.num_actions
        rng = numpy_generator(stream(state.key, "share", int(state.iteration)))
        label, action, reward = state.data.filled()
        n, used = len(action), float(state.transfer) > 0
        after = label[:, 1:] + (self.config.num_latents + 1) * self.bins(reward.ravel()).reshape(reward.shape)
        size = self.config.data.shared_rows
        sample = sample_rows(state.data.observation[:n], label, action, after, A, size, rng)
        settled = used and int(state.episodes) < rule.race_again * int(state.raced_at[0])
        settled &= rng.random() >= rule.search_again
        rules = self.rules(state, 0, settled)._replace(
            charge=SHARED_CHARGE, team=np.full(TEAM, -1), incumbent=int(state.choice[0]) if used else 0
        )
        found = fit_shared(sample.rows, self.sampler.horizon, state.decoders, rules, rng)
        again = HOPELESS_AGAIN if found is not None and hopeless(found, rule) else SHARED_AGAIN
        state.share_from[...] = int(again * int(state.episodes))
        if found is None or not transfers(found, used, rule):
            if settled and not redrawn:
                state.raced_at[:] = 0  # the next fit searches from one label, too
            else:
                state.transfer[...] = 0.0
            return
        more = sample_rows(state.data.observation[:n], label, action, after, A, MORE * size, rng).rows
        seen = contexts_of(more, A)
        regression = on_more_rows(found.regression, state.decoders, more.observation, seen)
        new = labels_of(regression, state.decoders, sample.rows.observation)
        state.growth[:] = 0.0
        if not settled:
            state.raced_at[:] = int(state.episodes)
        if used and not redrawn:
            contexts = contexts_of(sample.rows, A)
            if labels_score(new, contexts) < labels_score(sample.rows.label, contexts):
                return
        state.transfer[...] = found.transfer
        for h in range(self.sampler.horizon):
            put_regression(state.decoders, h, **regression)
            state.data.label[:n, h] = labels(state.decoders, h, state.data.observation[:n, h])
        state.data.label[sample.episode, sample.level] = new
        state.value[:], state.choice[:] = found.level_worth, found.name
        state.race[:] = KERNEL

    def blind(self, state: GeneralState) -> Float[np.ndarray, " H"]:
        """Where a new state could not be seen: the hope that there is one after no tries."""
        if float(state.transfer) > 0:  # full hope for levels without proof once nothing else is left
            hope = 1.0 if float(state.chance) < self.config.explore.settled else 1 - float(state.transfer)
            return hope * (state.value < self.config.fit.proven)
        hope = 1.0 if (state.race == KERNEL).any() else self.config.explore.blind_hope
        return hope * ((state.decoders.states == 1) & ~self.sees_novelty(state))

    def due(self, state: GeneralState) -> list[int]:
        """Levels to fit now, in ascending order: first all of them, later those that grew most."""
        rule, growth = self.config.refit, state.growth
        if int(state.data.size) < rule.min_rows:
            return []
        if (state.decoders.kind == 0).all():
            return list(range(len(growth)))
        order = np.argsort(-growth, kind="stable")[: rule.max_levels]
        known = (state.value > self.config.fit.settled) & (state.chance < self.config.explore.settled)
        enough = np.where(self.sees_novelty(state) | known, rule.growth, rule.growth_unsure)
        return sorted({int(h) for h in order if growth[h] > enough[h]} | set(self.stuck(state)))

    def stuck(self, state: GeneralState) -> list[int]:
        """Levels with one trusted cloud although nothing is left to discover, a while after their fit."""
        if float(state.chance) >= self.config.explore.settled:
            return []
        waited = int(state.episodes) >= STUCK_AGAIN * state.raced_at
        return [
            int(h) for h in np.flatnonzero(self.sees_novelty(state) & (state.decoders.states == 1) & waited)
        ]

    def fit(self, state: GeneralState, h: int, teach: bool = True, search: bool = False) -> None:
        """Fit one level, in place; others may learn from it if it may `teach`.

        With `search`, labels that proved their worth are searched for again, too.
        """
        rng = numpy_generator(stream(state.key, "represent", int(state.iteration), h))
        label, action, reward = state.data.filled()
        A, n = self.sampler.num_actions, len(action)
        own = label[:, h] * A + action[:, h]
        before = label[:, h - 1] * A + action[:, h - 1] if h else None
        after = label[:, h + 1] + (self.config.num_latents + 1) * self.bins(reward[:, h])
        settled = self.settled(state, h) and rng.random() >= self.config.fit.search_again and not search
        keys, size = [own] if before is None else [before, own], self.config.data.fit_rows
        every = Rows(state.data.observation[:n, h], label[:, h], before, action[:, h], after)
        chosen = balanced(keys, size, rng)
        trusted = self.trusts_clouds(state, self.config.fit.races)
        found = fit_level(every.some(chosen), state.decoders, self.rules(state, h, settled), rng)
        if found.regression is not None and n > size:
            more = every.some(balanced(keys, MORE * size, rng))
            seen = contexts_of(more, A)
            better = on_more_rows(found.regression, state.decoders, more.observation, seen)
            found = found._replace(regression=better)
        put_level(state.decoders, h, found)
        if teach and found.teacher and found.worth > max(TEACHES, BETTER * float(state.taught[h])):
            put_in(state.decoders.teachers, h, **found.teacher)
            state.taught[h] = found.worth
        new = labels(state.decoders, h, every.observation)
        new[chosen] = found.label
        state.data.label[:n, h] = new
        state.value[h], state.growth[h], state.choice[h] = found.worth, 0.0, found.name
        if not settled:
            state.raced_at[h] = int(state.episodes)
        if not trusted and found.worth > self.config.fit.proven:
            state.race[h] = state.decoders.kind[h]

    def rules(self, state: GeneralState, h: int, settled: bool) -> Rules:
        """How a level is fitted now."""
        return Rules(
            candidates=self.config.fit.candidates,
            joins=self.config.fit.joins,
            num_actions=self.sampler.num_actions,
            most=self.config.num_latents,
            charge=float(state.charge[h]),
            team=teachers_of(state, h),
            trusted=self.trusts_clouds(state, self.config.fit.races),
            last_resort=float(state.chance) < self.config.explore.settled,
            hopeful=not (state.race == KERNEL).any(),
            proven=self.config.fit.proven,
            incumbent=int(state.choice[h]),
            settled=settled,
        )

    def settled(self, state: GeneralState, h: int) -> bool:
        """Whether the regression of a level is kept until there are more data."""
        rule = self.config.fit
        few = int(state.episodes) < rule.race_again * int(state.raced_at[h])
        return bool(state.value[h] > rule.settled and few and state.decoders.kind[h] == KERNEL)

    def trusts_clouds(self, state: GeneralState, races: int = 1) -> bool:
        """Whether clouds won at least this many races, and more than twice as many as regressions did."""
        clouds, kernels = (state.race == CLOUDS).sum(), (state.race == KERNEL).sum()
        return bool(clouds >= max(races, 2 * kernels + 1))

    def sees_novelty(self, state: GeneralState) -> Bool[np.ndarray, " H"]:
        """Levels whose states are trusted clouds: there a new state is seen at once."""
        return (state.decoders.kind == CLOUDS) & self.trusts_clouds(state)

    def fresh_patches(self, state: GeneralState) -> Patches | None:
        """Patches of the first images, drawn anew when these are twice as many; all levels depend on them."""
        n, first, shape = int(state.data.size), self.config.refit.min_rows, self.sampler.observation_shape
        before = n - self.config.explore.episodes
        if not has_patches(shape) or not any(before < first * 2**i <= n for i in range(PATCH_DRAWS)):
            return None
        rng = numpy_generator(stream(state.key, "patches", int(state.iteration)))
        x = state.data.observation[:n].reshape(-1, prod(shape))
        return draw_patches(x[rng.permutation(len(x))[:PATCH_ROWS]], shape, rng)

    def bins(self, reward: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Rewards as small numbers; none are told apart if exploration must not look at them."""
        return reward_bins(np.zeros_like(reward) if self.config.explore.reward_free else reward)


def teachers_of(state: GeneralState, level: int) -> Int[np.ndarray, " T"]:
    """The levels whose regressions proved best, but not the level itself; -1 for none."""
    taught = state.decoders.teachers.states > 0
    order = [h for h in np.argsort(-state.value, kind="stable") if taught[h] and h != level][:TEAM]
    return np.array(order + [-1] * (TEAM - len(order)), np.int32)


def users_of(decoders: Decoders, teachers: Int[np.ndarray, " changed"]) -> list[int]:
    """Levels that ask one of these teachers."""
    asks = (decoders.kind == KERNEL) & (decoders.bank.embedding == TEACHERS)
    return [int(h) for h in np.flatnonzero(asks) if np.isin(decoders.bank.team[h], teachers).any()]


def put_level(decoders: Decoders, level: int, found: Found) -> None:
    """Set the decoder of a level, in place."""
    if found.clouds is not None:
        put_clouds(decoders, level, found.states, **found.clouds)
    elif found.regression is not None:
        put_regression(decoders, level, **found.regression)
    else:
        put_one(decoders, level)
