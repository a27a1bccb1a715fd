"""What a user holds: an agent on an environment that learns, acts, tells what it sees, and can be saved.

    env = gym.make_vec("briee/CombinationLock-v0", num_envs=50, horizon=6)
    agent = briee.BRIEE(env, seed=1)
    agent.learn(episodes=20_000)
    action = agent.predict(observation, step=3)

Learning is the same computation as a run of `briee train` with the same values: an update is a pure function
of the state, so neither the number of calls of `learn` nor what happens between them changes a result.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jaxtyping import Float

from briee import algorithms, checkpoint, rollout
from briee.acting import Evaluation, act, checked_step, padded
from briee.adapt import adapt, encode
from briee.choose import check_seed, choose, with_value
from briee.display import make_display, summary_lines
from briee.planned import Plan, plan
from briee.randomness import stream
from briee.rundir import RunSpec
from briee.runs import Callback, Silent
from briee.training import (
    Progress,
    Row,
    check_finite,
    check_row,
    evaluation_config,
    iterate,
    policy_of_kind,
    solved_is_the_end,
    summarize,
)


class NotLearnedError(ValueError):
    """Something was asked of an agent that has not learned yet."""


class Moment(NamedTuple):
    """An agent after a complete iteration."""

    state: Any
    progress: Progress
    history: tuple[Row, ...]


class Agent:
    """A learner on an environment.

    Args:
        env: an environment of `gym.make_vec` or `gym.make`, a pure one, or a name that `briee envs` lists.
            Pure environments are compiled into the rollout, all others are stepped on the host.
        preset: named settings of the algorithm.
        algorithm: a registered name, or a class that keeps the contract of `briee.briee.BRIEE`; a class needs
            `config`.
        num_latents: K, latent states that a level's decoder can tell apart; the preset's if missing.
        decoder: network of the decoders, where the algorithm offers a choice: "linear", "mlp", "cnn", or an
            Equinox module from one observation to `num_latents` logits; the preset's if missing.
        horizon: H, where the environment has no time limit of its own, or to cut it short.
        seed: seed of every random stream of the agent.
        config: settings that replace those of the preset.
    """

    def __init__(
        self,
        env: Any,
        preset: str | None = None,
        *,
        algorithm: str | type = algorithms.DEFAULT_ALGORITHM,
        num_latents: int | None = None,
        decoder: Any = None,
        horizon: int | None = None,
        seed: int = 1,
        config: Any = None,
    ):
        self._adapted = adapt(env, horizon)
        sampler = self._adapted.sampler
        kind, name, preset = choose(algorithm, preset, config)
        if config is None:
            if isinstance(algorithm, type):
                raise ValueError(f"an algorithm given as a class needs config=..., got {algorithm.__name__}")
            known = self._adapted.name if sampler.pure is None else sampler.pure
            config = algorithms.preset(name, preset, sampler.horizon, known)
        given = decoder if decoder is None or isinstance(decoder, str) else "custom"
        for field, value in (("num_latents", num_latents), ("decoder", given)):
            if value is not None:
                config = with_value(config, field, value, f"preset {preset!r} of {name}")
        arguments = self._adapted.arguments or {}
        self.spec = RunSpec(
            self._adapted.name, name, preset, sampler.horizon, check_seed(seed), 0, config, arguments
        )
        self._algorithm = kind(sampler, config, **({"network": decoder} if given == "custom" else {}))
        self._moment: Moment | None = None
        self._finite: frozenset[str] = frozenset()

    @property
    def horizon(self) -> int:
        """H, the steps of an episode."""
        return self.spec.horizon

    @property
    def config(self) -> Any:
        """The settings, a frozen dataclass."""
        return self.spec.config

    @property
    def num_actions(self) -> int:
        """A, the number of actions."""
        return self._algorithm.sampler.num_actions

    @property
    def episodes(self) -> int:
        """Training episodes so far."""
        return 0 if self._moment is None else int(self._moment.state.episodes)

    @property
    def iterations(self) -> int:
        """Policy updates so far."""
        return 0 if self._moment is None else int(self._moment.state.iteration)

    @property
    def solved(self) -> bool:
        """Whether enough evaluations in a row have reached the optimal return, as for `briee train`."""
        return self._moment is not None and self._moment.progress.solved

    @property
    def history(self) -> tuple[Row, ...]:
        """The metrics of every iteration so far; columns as in metrics.csv."""
        return () if self._moment is None else self._moment.history

    @property
    def state(self) -> Any:
        """The algorithm's state after the last complete iteration, a pytree of arrays."""
        return self._start().state

    def learn(
        self,
        episodes: int | None = None,
        *,
        iterations: int | None = None,
        callbacks: Callback | Iterable[Callback] = (),
        until_solved: bool = True,
        progress: bool = True,
    ) -> Self:
        """Learn from more episodes, or for more policy updates; may be called again and then continues.

        No update starts once `episodes` more training episodes were used. Each callback gets the metrics of
        an update as a dict and stops learning by returning true. With `until_solved` learning ends when the
        environment is solved. Ctrl-C ends it too and keeps every complete update.
        """
        if episodes is None and iterations is None:
            raise ValueError("learn needs a budget: learn(episodes=...) or learn(iterations=...)")
        for name, value in (("episodes", episodes), ("iterations", iterations)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        now = self._start()
        last_episode = sys.maxsize if episodes is None else self.episodes + episodes
        last_iteration = sys.maxsize if iterations is None else self.iterations + iterations
        told = [callbacks] if callable(callbacks) else list(callbacks)
        with contextlib.ExitStack() as stack:
            display = stack.enter_context(make_display()) if progress else Silent()
            shown = self.episodes if episodes is None else last_episode
            display.start(dataclasses.replace(self.spec, episodes=shown), now.state, now.progress)
            try:
                while self.episodes < last_episode and self.iterations < last_iteration:
                    if until_solved and solved_is_the_end(self._algorithm, self._start().progress):
                        break
                    row = self._iterate(display.phase)
                    display.iteration(row)
                    stops = [callback(row) for callback in told]  # each is told, whatever another says
                    if any(stops):
                        break
            except KeyboardInterrupt:
                print(f"interrupted; kept {self.iterations} complete updates ({self.episodes:,} episodes)")
        if progress and self.iterations:
            print("; ".join(summary_lines(self.summary(), Path())[:2]), flush=True)
        return self

    def predict(self, observation: Any, step: int) -> Any:
        """The action at step 0 <= `step` < H for one observation, or int[N] for a batch [N, ...].

        Ties between actions are broken by the agent's seed, so equal observations give equal actions.
        """
        state, rows, single = self._question(observation, step)
        policy = policy_of_kind(self._algorithm, state, evaluation_config(self.spec).policy)
        actions = act(policy, rows, step, self.spec.seed)
        return int(actions[0]) if single else actions

    def latent_states(self, observation: Any, step: int) -> Float[np.ndarray, "*N K"]:
        """Soft latent states f32[K] of one observation at `step`, or f32[N, K] of a batch [N, ...]."""
        state, rows, single = self._question(observation, step)
        try:
            decoded = np.asarray(self._algorithm.decode(state, int(step), padded(rows)))[: len(rows)]
        except NotImplementedError:
            raise ValueError(f"{self.spec.algorithm} learns no latent states") from None
        return decoded[0] if single else decoded

    def evaluate(self, episodes: int = 100, seed: int = 0, policy: str | None = None) -> Evaluation:
        """Play episodes with the learned policy, or with one named in docs/agent.md; nothing is learned."""
        if episodes < 1:
            raise ValueError(f"episodes must be >= 1, got {episodes}")
        state = self._learned("evaluate")
        check_seed(seed)
        chosen = policy_of_kind(self._algorithm, state, policy or evaluation_config(self.spec).policy)
        key = stream(jax.random.key(seed), "evaluate command")
        returns = rollout.evaluate(self._algorithm.sampler, chosen, key, episodes)
        return Evaluation.of(returns, self._algorithm.sampler.optimal_return)

    def plan(self, reward: Callable[..., Any]) -> Plan:
        """A policy for another reward, from what a reward-free agent has explored, without a new episode.

        `reward` takes (step, observation, action) or (step, observation), see `briee.rewards`.
        """
        state = self._learned("plan")
        return Plan(plan(self._algorithm, state, reward), self._adapted, self.spec.seed)

    def summary(self) -> dict[str, Any]:
        """The outcome so far, as in a run's summary.json."""
        now = self._start()
        return summarize(self.spec, self._algorithm, now.state, now.progress)

    def save(self, path: str | Path) -> None:
        """Write the whole agent to one file, from which it can go on learning; `briee.load` reads it."""
        now = self._start()
        about = {
            "spec": self.spec.to_json(),
            "rebuild": self._adapted.arguments is not None,
            "num_actions": self.num_actions,
            "observation_shape": list(self._algorithm.sampler.observation_shape),
            "progress": dataclasses.asdict(now.progress),
            "history": list(now.history),
        }
        path = Path(path)
        try:
            checkpoint.save(path, now.state, {"agent": about})
        except OSError as error:
            raise checkpoint.CheckpointError(
                f"cannot write {path}: {error.strerror or type(error).__name__}"
            ) from error

    def restore(self, path: str | Path) -> Self:
        """Take over what a saved agent of the same algorithm, settings and sizes had learned."""
        path = Path(path)
        key = jax.random.key(self.spec.seed)
        template = jax.eval_shape(self._algorithm.init, key)
        loaded = checkpoint.load(path, template, finite=())
        self._finite = checkpoint.finite_names(self._algorithm.init(key))
        if bad := checkpoint.nonfinite(loaded.state, self._finite):
            raise checkpoint.CheckpointError(
                f"cannot load {path}: {bad.name}{list(bad.index)} is not a finite number"
            )
        try:
            about = loaded.extra["agent"]
            self._moment = Moment(loaded.state, Progress(**about["progress"]), tuple(about["history"]))
        except (KeyError, TypeError):
            raise checkpoint.CheckpointError(f"{path} is a checkpoint, but not a saved agent") from None
        return self

    def __repr__(self) -> str:
        spec = self.spec
        about = f"{spec.env}, horizon={spec.horizon}, preset={spec.preset!r}, seed={spec.seed}"
        return f"<{spec.algorithm} agent on {about}: {self.iterations} updates, {self.episodes:,} episodes>"

    def _start(self) -> Moment:
        if self._moment is None:
            state = self._algorithm.init(jax.random.key(self.spec.seed))
            self._finite = checkpoint.finite_names(state)
            self._moment = Moment(state, Progress(), ())
        return self._moment

    def _iterate(self, phase: Callable[[str], Any]) -> Row:
        """One iteration; it counts only when it is complete, in one assignment."""
        now = self._start()
        state, progress, row = iterate(self._algorithm, now.state, now.progress, self.spec, phase)
        check_finite(state, self._finite, self.spec.horizon)
        check_row(row)
        seconds = sum(value for name, value in row.items() if name.startswith("seconds_"))
        self._moment = Moment(state, progress.spend(total=seconds), (*now.history, row))
        return row

    def _learned(self, verb: str) -> Any:
        if self._moment is None or self.iterations == 0:
            raise NotLearnedError(f"call learn(...) before {verb}: this agent has not learned anything yet")
        return self._moment.state

    def _question(self, observation: Any, step: int) -> tuple[Any, np.ndarray, bool]:
        """State, encoded observations [N, ...] and whether it is one alone, after all checks."""
        state = self._learned("predict or latent_states")
        checked_step(step, self.spec.horizon)
        return state, *encode(self._adapted, observation)


class BRIEE(Agent):
    """An agent that learns with BRIEE; see `Agent` for its arguments."""
