"""The agent that a user holds.

    env = gym.make_vec("briee/CombinationLock-v0", num_envs=50, horizon=6)
    agent = briee.BRIEE(env, seed=1)
    agent.learn(episodes=20_000)
    action = agent.predict(observation, step=3)

Learning is the same computation as a run of `briee train` with the same values. An update is a pure function
of the state, so neither the number of calls of `learn` nor anything between them changes a result.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from briee.agent.arguments import AGENT_HABITS, LEARN_HABITS, check_kinds, check_path, chosen, told
from briee.agent.prediction import RewardPlan, encode, padded, plan, predict
from briee.algorithms.registry import ALGORITHMS
from briee.algorithms.registry import preset as make_preset
from briee.configuration import AlgorithmConfig, changed, check_seed, whole_number, with_value
from briee.errors import named_arguments
from briee.numerics.keys import stream
from briee.protocols import Algorithm, PolicyKind, State
from briee.rollout.samplers import Evaluation, adapt, evaluate
from briee.training import loop
from briee.training.checkpoint import CheckpointError, finite_names, nonfinite
from briee.training.checkpoint import load as load_checkpoint
from briee.training.checkpoint import save as save_checkpoint
from briee.training.progress import make_display, summary_lines
from briee.training.spec import RunSpec


class NotLearnedError(ValueError):
    """Something was asked of an agent that has not learned yet."""


class Agent:
    """A learner on an environment.

    Args:
        env: an environment of `gym.make_vec` or `gym.make`, a pure one, or a name that `briee envs` lists.
            Pure environments are compiled into the rollout, all others are stepped on the host.
        preset: named settings of the algorithm; its default preset if missing.
        algo: a registered name, or a class that keeps the contract of `briee.protocols.Algorithm`; a class
            needs `config`. If missing, the algorithm that has the preset, and `general` without one.
        num_latents: K, latent states that a level's decoder can tell apart; the preset's if missing.
        decoder: network of the decoders, if the algorithm offers a choice: "linear", "mlp", "cnn", or an
            Equinox module from one observation to `num_latents` logits; the preset's if missing.
        horizon: H, if the environment has no time limit of its own, or to cut it short.
        seed: seed of every random stream of the agent.
        reward_free: explore without looking at rewards; then `plan` plans for any reward.
        target_return: the mean return that counts as solved; the environment's optimum if missing.
        config: settings that replace those of the preset.
        algorithm: an older spelling of `algo`.
    """

    default_algo: ClassVar[str | None] = None

    @named_arguments(AGENT_HABITS)
    def __init__(
        self,
        env: Any,
        preset: str | None = None,
        *,
        algo: str | type[Algorithm[Any]] | None = None,
        num_latents: int | None = None,
        decoder: Any = None,
        horizon: int | None = None,
        seed: int = 1,
        reward_free: bool = False,
        target_return: float | None = None,
        config: AlgorithmConfig | None = None,
        algorithm: str | type[Algorithm[Any]] | None = None,
    ):
        algo = algorithm if algo is None else algo
        check_kinds(algo, preset, decoder, config)
        if algo is None and preset is None and config is None:
            algo = self.default_algo
        adapted = adapt(env, horizon)
        sampler = adapted.sampler
        choice = chosen(algo, preset, config)
        if config is None:
            known = adapted.name if sampler.pure is None else sampler.pure
            config = cast(AlgorithmConfig, make_preset(*choice, sampler.horizon, known))
        given = decoder if decoder is None or isinstance(decoder, str) else "custom"
        free = (reward_free and choice.algorithm != "reward-free") or None  # which always is
        for field, value in (("num_latents", num_latents), ("decoder", given), ("reward_free", free)):
            if value is not None:
                config = with_value(config, field, value, f"preset {choice.preset!r} of {choice.algorithm}")
        if target_return is not None:
            config = cast(AlgorithmConfig, changed(config, "evaluation.target_return", target_return))
        arguments = adapted.arguments or {}
        self.spec = RunSpec(adapted.name, *choice, sampler.horizon, check_seed(seed), 0, config, arguments)
        make = algo if isinstance(algo, type) else ALGORITHMS[choice.algorithm].load()
        network = {"network": decoder} if given == "custom" else {}
        self.algorithm: Algorithm[State] = cast(Any, make)(sampler, config, **network)
        """The algorithm, whose methods are functions of `state`."""
        self.history: tuple[loop.Row, ...] = ()
        """The metrics of every iteration so far; columns as in metrics.csv."""
        self.adapted = adapted
        """The environment as the agent uses it."""
        self._moment: loop.Moment[State] | None = None
        self._step, self._draws = 0, 0

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
        return self.algorithm.sampler.num_actions

    @property
    def episodes(self) -> int:
        """Training episodes so far."""
        return 0 if self._moment is None else int(self._moment.state.episodes)

    @property
    def iterations(self) -> int:
        """Policy updates so far."""
        return 0 if self._moment is None else int(self._moment.state.iteration)

    @property
    def env_steps(self) -> int:
        """Steps of training episodes so far."""
        return 0 if self._moment is None else int(self._moment.state.env_steps)

    @property
    def solved(self) -> bool:
        """Whether enough evaluations in a row have reached the optimal return, as for `briee train`."""
        return self._moment is not None and self._moment.progress.solved

    @property
    def state(self) -> State:
        """The algorithm's state after the last complete iteration, a pytree of arrays."""
        return self.now.state

    @property
    def now(self) -> loop.Moment[State]:
        """The last complete iteration, as the training loop knows it."""
        if self._moment is None:
            self._moment = loop.first_moment(self.algorithm, self.spec)
        return self._moment

    def keep(self, moment: loop.Moment[State]) -> None:
        """Take up another complete iteration; the training loop calls this."""
        assert moment.row is not None
        self._moment, self.history = moment, (*self.history, moment.row)

    def take(self, moment: loop.Moment[State], history: Sequence[loop.Row] = ()) -> None:
        """Go on from this iteration of the same algorithm, settings and sizes."""
        self._moment, self.history = moment, tuple(history)

    @named_arguments(LEARN_HABITS)
    def learn(
        self,
        episodes: int | None = None,
        *,
        iterations: int | None = None,
        total_timesteps: int | None = None,
        callbacks: Callable[..., Any] | Iterable[Callable[..., Any]] = (),
        until_solved: bool = True,
        progress: bool = True,
    ) -> Self:
        """Learn from more episodes, or for more policy updates; may be called again and then continues.

        No update starts once `episodes` more training episodes, or `total_timesteps` more steps, were used.
        Each callback gets the metrics of an update as a dict, and the agent if a parameter has that name; it
        stops learning by returning true. With `until_solved` learning ends when the environment is solved or,
        if no target is known, when nothing is left to discover and the return stays the same.
        Ctrl-C ends it too and keeps every complete update.
        """
        budget = {"episodes": episodes, "iterations": iterations, "total_timesteps": total_timesteps}
        given = {name: whole_number(name, value) for name, value in budget.items() if value is not None}
        if not given:
            raise ValueError("learn needs a budget: episodes=..., iterations=... or total_timesteps=...")
        used = lambda: (self.episodes, self.iterations, self.env_steps)  # noqa: E731
        ends = [n + given.get(name, sys.maxsize) for n, name in zip(used(), budget, strict=True)]

        def done(moment: loop.Moment[State]) -> bool:
            used_up = any(n >= end for n, end in zip(used(), ends, strict=True))
            return used_up or (until_solved and loop.ends_early(self.spec, self.algorithm, moment.progress))

        steps = given.get("total_timesteps", 0) // self.horizon
        spec = dataclasses.replace(self.spec, episodes=self.episodes + given.get("episodes", steps))
        called = told(callbacks, self)
        with make_display() if progress else loop.Display() as display:
            try:
                loop.train(
                    self.algorithm,
                    spec,
                    self.now,
                    done=done,
                    keep=self.keep,
                    display=display,
                    callbacks=called,
                )
            except KeyboardInterrupt:
                print(f"interrupted; kept {self.iterations} complete updates ({self.episodes:,} episodes)")
        if progress and self.iterations:
            told_of = self.summary() | loop.how_it_ended(self.spec, self.algorithm, self.now)
            print("; ".join(summary_lines(told_of, Path())[:2]), flush=True)
        return self

    def predict(self, observation: Any, step: int | None = None, deterministic: bool = True) -> Any:
        """The action at step 0 <= `step` < H for one observation, or int[N] for a batch [N, ...].

        Ties between actions are broken by the agent's seed, so equal observations give equal actions. If not
        `deterministic`, the exploring policy acts, with new random choices at each call.
        """
        if step is None:
            instead = "predict(observation, step=0), or act(observation), which counts the steps"
            raise ValueError(f"predict needs the step, since each level has a decoder of its own: {instead}")
        state = self._learned("predict")
        kind = self.spec.config.evaluation.policy if deterministic else "optimistic"
        policy = loop.policy_of_kind(self.algorithm, state, kind)
        self._draws += not deterministic
        draw = None if deterministic else self._draws
        return predict(policy, self.adapted, observation, step, self.spec.seed, draw)

    def act(self, observation: Any, deterministic: bool = True) -> Any:
        """The action at the next step of an episode, or of a batch; `reset_episode` begins another."""
        if self._step >= self.horizon:
            raise ValueError(f"the {self.horizon} steps of this episode are over: call reset_episode()")
        action = self.predict(observation, self._step, deterministic)
        self._step += 1
        return action

    def reset_episode(self) -> None:
        """The next observation that `act` gets is the first of an episode."""
        self._step = 0

    def latent_states(self, observation: Any, step: int) -> Float[np.ndarray, "*N K"]:
        """Soft latent states f32[K] of one observation at `step`, or f32[N, K] of a batch [N, ...]."""
        state = self._learned("latent_states")
        rows, single = encode(self.adapted, observation, step)
        if not self.algorithm.capabilities.decodes:
            raise ValueError(f"{self.spec.algorithm} learns no latent states")
        decoded = np.asarray(self.algorithm.decode(state, int(step), jnp.asarray(padded(rows))))[: len(rows)]
        return decoded[0] if single else decoded

    def decode(self, observation: Any, step: int) -> Any:
        """The most probable latent state of one observation at `step`, an int, or int[N] of a batch."""
        found = self.latent_states(observation, step).argmax(axis=-1)
        return int(found) if found.ndim == 0 else found

    def evaluate(self, episodes: int = 100, seed: int = 0, policy: PolicyKind | None = None) -> Evaluation:
        """Play episodes with the learned policy, or with one named in docs/agent.md; nothing is learned."""
        episodes = whole_number("episodes", episodes)
        state = self._learned("evaluate")
        check_seed(seed)
        chosen = loop.policy_of_kind(self.algorithm, state, policy or self.spec.config.evaluation.policy)
        key = stream(jax.random.key(seed), "evaluate command")
        returns = evaluate(self.algorithm.sampler, chosen, key, episodes)
        return Evaluation.of(returns, self.algorithm.sampler.optimal_return)

    def plan(self, reward: Callable[..., Any], *, bonus: bool = False) -> RewardPlan:
        """A policy for another reward, from what a reward-free agent has explored, without a new episode.

        `reward` takes (step, observation, action) or (step, observation), see
        `briee.algorithms.paper.reward_functions`. With `bonus`, the exploration bonus is added to it.
        """
        kind = "optimistic" if bonus else "greedy"
        planned = plan(self.algorithm, self._learned("plan"), reward, kind)
        return RewardPlan(*planned, self.adapted, self.spec.seed)

    def summary(self) -> dict[str, Any]:
        """The outcome so far, as in a run's summary.json."""
        return loop.summarize(self.spec, self.algorithm, self.now)

    def plot(self, what: str = "return") -> Any:
        """A matplotlib figure of what was learned: the `return` over the episodes, the `map` of the latent
        states, or another figure of the report."""
        from briee.agent import files

        return files.plot(self, what)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write one self-contained HTML file about what was learned, as `briee report` does."""
        from briee.agent import files

        return files.report(self, check_path(path))

    def save(self, path: str | Path) -> None:
        """Write the whole agent to one file, from which it can go on learning; `briee.load` reads it."""
        path, now = check_path(path), self.now
        loop.check_finite(now.state, now.finite, self.spec.horizon)
        about = {
            "spec": self.spec.to_json(),
            "rebuild": self.adapted.arguments is not None,
            "num_actions": self.num_actions,
            "observation_shape": list(self.algorithm.sampler.observation_shape),
            "progress": dataclasses.asdict(now.progress),
            "history": list(self.history),
        }
        try:
            save_checkpoint(path, now.state, {"agent": about})
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise CheckpointError(f"cannot write {path}: {reason}") from error

    @staticmethod
    def load(path: str | Path, env: Any = None, decoder: Any = None) -> "Agent":
        """A saved agent: the same as `briee.load`."""
        from briee.agent.files import load

        return load(path, env, decoder)

    def restore(self, path: str | Path) -> Self:
        """Take over what a saved agent of the same algorithm, settings and sizes had learned."""
        path = Path(path)
        key = jax.random.key(self.spec.seed)
        template = jax.eval_shape(self.algorithm.init, key)
        loaded = load_checkpoint(path, template, finite=())  # refuse what does not fit before `init`
        finite = finite_names(self.algorithm.init(key))
        if bad := nonfinite(loaded.state, finite):
            raise CheckpointError(f"cannot load {path}: {bad.name}{list(bad.index)} is not a finite number")
        try:
            about = loaded.extra["agent"]
            self._moment = loop.Moment(loaded.state, loop.Progress(**about["progress"]), finite)
            self.history = tuple(about["history"])
        except (KeyError, TypeError):
            raise CheckpointError(f"{path} is a checkpoint, but not a saved agent") from None
        return self

    def __repr__(self) -> str:
        spec = self.spec
        about = f"{spec.env}, horizon={spec.horizon}, preset={spec.preset!r}, seed={spec.seed}"
        return f"<{spec.algorithm} agent on {about}: {self.iterations} updates, {self.episodes:,} episodes>"

    def _learned(self, verb: str) -> State:
        if self._moment is None or self.iterations == 0:
            raise NotLearnedError(f"call learn(...) before {verb}: this agent has not learned anything yet")
        return self._moment.state


class BRIEE(Agent):
    """An agent that learns with Algorithm 1, preset `practical`, unless something else is asked for; see
    `Agent` for its arguments."""

    default_algo = "briee"
