"""Algorithms of Stable-Baselines3 under this package's contract, for comparison.

Each iteration trains on new episodes of H steps. Its state is arrays: the parameters of networks and
optimiser, and the replay buffer, if there is one. So a run is evaluated, saved and resumed like any other.
Stable-Baselines3 and PyTorch are the extra `sb3`, imported where they are used.
"""

# pyright: reportMissingImports=false

import contextlib
import random
import warnings
from dataclasses import replace
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from briee.algorithms.baselines.config import Sb3Config
from briee.envs.gym_shells import PureVectorEnv
from briee.numerics.keys import stream
from briee.protocols import Algorithm, Environment, PhaseHook, Policy, PolicyKind, Sampler, no_phases
from briee.rollout.host import HostSampler


class Sb3Policy(eqx.Module):
    """A policy network of Stable-Baselines3: (weight, bias) and the activation of each layer."""

    layers: list[tuple[Float[Array, "_ _"], Float[Array, " _"]]]
    activations: tuple[str, ...] = eqx.field(static=True)
    greedy: bool = eqx.field(static=True)

    def __call__(self, level, observation, key) -> Int[Array, ""]:
        x = observation.reshape(-1)
        for (W, b), name in zip(self.layers, self.activations, strict=True):
            x = {"Tanh": jnp.tanh, "ReLU": jax.nn.relu, "none": lambda x: x}[name](W @ x + b)
        return jnp.argmax(x) if self.greedy else jax.random.categorical(key, x)


class Sb3State(eqx.Module):
    """State between two updates."""

    key: PRNGKeyArray
    iteration: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    env_steps: Int[np.ndarray, ""]
    parameters: dict[str, np.ndarray]
    optimizer: list[np.ndarray]
    replay: dict[str, np.ndarray]
    explore_return: Float[np.ndarray, ""]


class Sb3(Algorithm[Sb3State]):
    """An algorithm of Stable-Baselines3 on the environment behind `sampler`."""

    config: Sb3Config

    def __init__(self, sampler: Sampler, config: Sb3Config):
        try:
            import stable_baselines3  # noqa: F401
        except ImportError as error:
            raise ValueError("sb3 algorithms need Stable-Baselines3: pip install 'briee[sb3]'") from error
        self.name = f"sb3:{config.algorithm}"
        self.sampler = sampler
        self.config = config
        self._model: Any = None

    def init(self, key: PRNGKeyArray) -> Sb3State:
        """Random networks."""
        with jax.ensure_compile_time_eval(), _private_randomness(_seed(key, 0)):
            self._model = self._new_model()
            zero = np.asarray(0, np.int64)
            parameters, optimizer = _arrays(self._model)
            replay, missing = _replay(self._model), np.asarray(np.nan, np.float32)
        return Sb3State(key, zero, zero, zero, parameters, optimizer, replay, missing)

    def update(self, state: Sb3State, phase: PhaseHook = no_phases) -> Sb3State:
        """Train on new episodes, from the state's parameters and with a seed of its iteration."""
        phase("plan")
        seed = _seed(state.key, int(state.iteration) + 1)
        if self._model is None:
            with _private_randomness(seed):
                self._model = self._new_model()
        with _private_randomness(seed):
            model = self._model
            _load(model, state.parameters, state.optimizer)
            _load_replay(model, state.replay)
            model.env.seed(seed)
            model.action_space.seed(seed)
            model._last_obs = None  # begin with new episodes
            model.num_timesteps = int(state.env_steps)
            model._n_calls = int(state.env_steps) // model.env.num_envs
            model._update_current_progress_remaining(model.num_timesteps, self._schedule_steps)
            if hasattr(model, "exploration_schedule"):
                model.exploration_rate = model.exploration_schedule(model._current_progress_remaining)
            before = model.env.episodes
            steps = self.config.episodes_per_update * self.sampler.horizon
            model.learn(steps, callback=self._lengthen_schedules(), reset_num_timesteps=False)
            parameters, optimizer = _arrays(model)
        return replace(
            state,
            iteration=state.iteration + 1,
            episodes=state.episodes + model.env.episodes - before,
            env_steps=np.asarray(model.num_timesteps, np.int64),
            parameters=parameters,
            optimizer=optimizer,
            replay=_replay(model),
            explore_return=np.asarray(model.env.last_return, np.float32),
        )

    def policy(self, state: Sb3State, kind: PolicyKind = "greedy") -> Policy:
        """The network of the state; DQN's policy is always greedy."""
        prefix = "q_net.q_net" if self.config.algorithm == "DQN" else "mlp_extractor.policy_net"
        names = sorted(
            {name.rsplit(".", 1)[0] for name in state.parameters if name.startswith(prefix + ".")},
            key=lambda name: int(name.rsplit(".", 1)[1]),
        )
        activation = "ReLU" if self.config.algorithm == "DQN" else "Tanh"
        if self.config.algorithm != "DQN":
            names.append("action_net")
        layers = [tuple(jnp.asarray(state.parameters[f"{n}.{p}"]) for p in ("weight", "bias")) for n in names]
        activations = (*[activation] * (len(layers) - 1), "none")
        greedy = kind == "greedy" or self.config.algorithm == "DQN"
        return Sb3Policy(layers, activations, greedy)  # type: ignore[arg-type]

    def metrics(self, state: Sb3State) -> dict[str, float]:
        """Measurements of the last update, for metrics.csv."""
        return {"explore_return": float(state.explore_return)}

    def _new_model(self) -> Any:
        import stable_baselines3

        config = self.config
        env = make_vec_env(self.sampler, config.workers)
        settings: dict[str, Any] = {}
        if config.algorithm == "PPO":
            rollout = -(-config.episodes_per_update // env.num_envs)
            settings["n_steps"] = rollout * self.sampler.horizon
        if config.algorithm == "DQN":
            settings["buffer_size"] = config.replay_size
        kind = getattr(stable_baselines3, config.algorithm)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="You have specified a mini-batch size")
            model = kind("MlpPolicy", env, device="cpu", verbose=0, **settings)
        model.env = env  # without the library's monitor
        return model

    @property
    def _schedule_steps(self) -> int:
        return self.config.schedule_episodes * self.sampler.horizon

    def _lengthen_schedules(self) -> Any:
        from stable_baselines3.common.callbacks import BaseCallback

        total = self._schedule_steps

        class Lengthen(BaseCallback):
            def _on_training_start(self) -> None:
                self.model._total_timesteps = total

            def _on_step(self) -> bool:
                return True

        return Lengthen()


def make_vec_env(sampler: Sampler, workers: int) -> Any:
    """The sampler's environment as a vector environment of Stable-Baselines3 that counts its episodes.

    All copies start together and terminate (no truncation) together after H steps.
    """
    from stable_baselines3.common.vec_env import VecEnv

    if isinstance(sampler, HostSampler):
        source: Any = sampler.env
    else:
        source = PureVectorEnv(cast(Environment, sampler.pure), workers)

    class Lockstep(VecEnv):
        def __init__(self):
            super().__init__(source.num_envs, source.single_observation_space, source.single_action_space)
            self.level, self.episodes, self.next_seed = 0, 0, None
            self.last_return, self.returns = float("nan"), np.zeros(source.num_envs)

        def seed(self, seed: int | None = None):
            self.next_seed = seed
            return [seed] * self.num_envs

        def reset(self):
            seed, self.next_seed = self.next_seed, None
            self.level, self.returns = 0, np.zeros(self.num_envs)
            return source.reset(seed=seed)[0]

        def step_async(self, actions):
            self.actions = np.asarray(actions)

        def step_wait(self):
            observation, reward, *_ = source.step(self.actions)
            self.episodes += self.num_envs if self.level == 0 else 0
            self.level += 1
            self.returns = self.returns + reward
            over = self.level == sampler.horizon
            infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            if over:
                self.last_return = float(self.returns.mean())
                infos = [{"terminal_observation": row, "TimeLimit.truncated": False} for row in observation]
                observation = self.reset()
            return observation, np.asarray(reward, np.float32), np.full(self.num_envs, over), infos

        def close(self): ...

        def get_attr(self, attr_name, indices=None):
            return [getattr(source, attr_name, None)] * self.num_envs

        def set_attr(self, attr_name, value, indices=None):
            raise NotImplementedError

        def env_method(self, method_name, *args, indices=None, **kwargs):
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class, indices=None):
            return [False] * self.num_envs

    return Lockstep()


def _seed(key: PRNGKeyArray, index: int) -> int:
    bits = jax.random.bits(stream(key, "sb3", index))
    return 0 if isinstance(bits, Tracer) else int(bits >> 1)  # a trace needs only shapes


@contextlib.contextmanager
def _private_randomness(seed: int):
    """Seed the global generators that the library uses, and restore them afterwards."""
    import torch

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.manual_seed(seed)
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


def _arrays(model: Any) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Parameters by name, and the optimiser's state: for each parameter, sorted by name."""
    parameters = {name: value.detach().numpy().copy() for name, value in model.policy.state_dict().items()}
    rule, numbers = model.policy.optimizer, []
    for group in rule.param_groups:
        for parameter in group["params"]:
            stored = rule.state.get(parameter) or _blank(rule, parameter)
            numbers += [np.asarray(stored[name], np.float32).copy() for name in sorted(stored)]
    return parameters, numbers


def _load(model: Any, parameters: dict[str, np.ndarray], numbers: list[np.ndarray]) -> None:
    """The inverse of `_arrays`."""
    import torch

    tensor = lambda array: torch.as_tensor(np.array(array))  # noqa: E731
    model.policy.load_state_dict({name: tensor(value) for name, value in parameters.items()})
    rule, left = model.policy.optimizer, iter(numbers)
    for group in rule.param_groups:
        for parameter in group["params"]:
            names = sorted(rule.state.get(parameter) or _blank(rule, parameter))
            rule.state[parameter] = {name: tensor(next(left)) for name in names}


REPLAY = ("observations", "next_observations", "actions", "rewards", "dones")
"""Arrays of the library's replay buffer; it has no timeouts here."""


def _replay(model: Any) -> dict[str, np.ndarray]:
    """A copy of the replay buffer, empty if the algorithm has none."""
    memory = getattr(model, "replay_buffer", None)
    if memory is None:
        return {}
    filled = {"pos": np.asarray(memory.pos, np.int64), "full": np.asarray(memory.full)}
    return {name: getattr(memory, name).copy() for name in REPLAY} | filled


def _load_replay(model: Any, replay: dict[str, np.ndarray]) -> None:
    """The inverse of `_replay`."""
    if replay:
        memory = model.replay_buffer
        for name in REPLAY:
            getattr(memory, name)[...] = replay[name]
        memory.pos, memory.full = int(replay["pos"]), bool(replay["full"])


def _blank(rule: Any, parameter: Any) -> dict[str, Any]:
    """The initial state of an optimiser for a parameter: Adam's two averages, or RMSprop's one."""
    import torch

    zero = torch.zeros_like(parameter.detach())
    if "betas" in rule.defaults:
        return {"step": torch.tensor(0.0), "exp_avg": zero, "exp_avg_sq": zero.clone()}
    # the library's RMSprop for A2C starts its average at one
    start = torch.ones_like(zero) if type(rule).__name__ == "RMSpropTFLike" else zero
    return {"step": torch.tensor(0.0), "square_avg": start}
