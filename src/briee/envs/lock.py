"""The rich-observation combination lock of Section 5 as pure functions: sparse, dense, simplex and kin."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .block import Block, BlockState, cdf, sample_cdf
from .emission import ImageEmission, VectorEmission, require, require_probability
from .latent_model import LatentModel


class LockState(BlockState):
    """Where an episode stands; `source` is the latent state (resampled in the simplex lock) last acted on."""

    source: Int[Array, ""]


class CombinationLock(Block):
    r"""The diabolical combination lock: one right action per step, two lanes that look alike, no way back.

    ## Description
    At each level there are good lanes (0 and 1) and a bad state (2). In a good state one action of
    `num_actions`, drawn once per lane and level, leads on to a good state of the next level, by a coin to the
    same lane or the other; every other action leads to the bad state, for good. A random policy opens it
    once in num_actions^H episodes.

        level     0        1        2               H-1       H
        lane 0   (0) ===> (0) ===> (0) ===> ... ===> (0) ===> (0)   final reward
                     \  //   \  //   \  //           \  //
                      XX       XX       XX               XX          right action, then a coin
                     //  \   //  \   //  \           //  \
        lane 1   (1) ===> (1) ===> (1) ===> ... ===> (1) ===> (1)   final reward
                   |        |        |                |              any other action,
                   v        v        v                v              anti-shaped reward
        bad      (2) ---> (2) ---> (2) ---> ... ---> (2) ---> (2)   nothing

    ## Action Space
    `Discrete(num_actions)`, 10 in the paper.

    ## Observation Space
    A `Box` of float32 vectors of dimension 2^⌈log₂(H + 4)⌉: one-hot vectors of the latent state and of the
    level, padded to a power of two, Gaussian noise on every coordinate, times the unnormalised Hadamard
    matrix. Its bounds are wide but finite, as float32 noise is. Or pictures [size, size, 1] in [0, 1].

    ## Starting State
    Level 0, uniform over the good lanes.

    ## Rewards
    `final_reward` for a good state at level H, `step_reward` for one before; `anti_reward` with probability
    `anti_reward_probability` for the step from a good state to the bad one.

    ## Episode End
    After `horizon` steps, as `terminated`; the observation of level H is emitted too.

    ## Information
    `latent` and `level`.

    ## Arguments
    - `horizon`, `num_actions`, `num_good` (good lanes), `instance_seed` (draws the combination).
    - `switch_probability`: of changing lanes after the right action. `failure_probability`: of falling in
      spite of it. `rare_probability`: adds one more good lane, entered with this probability (down to 0).
    - `anti_reward`, `anti_reward_probability`, `final_reward`, `step_reward`: see Rewards.
    - `temperature`: τ of the simplex lock, in which the latent state is resampled from softmax(I₃R⁻¹s/τ)
      before each step; None for a block MDP.
    - `noise` (standard deviation), `noise_coordinates` (`all`, or `first`: not the last of the one-hot
      coordinates, nor the padding), `distractors` more coordinates of pure noise of `distractor_std`.
    - `rotation`: `stationary` or `per_level`. `emission`: `vector` or `image` with `image_size`, `templates`.

    ## Version History
    v0: initial version.
    """

    combination: Int[Array, "horizon num_latents"]
    lane_cdf: Float[Array, "num_latents num_latents"]
    start_cdf: Float[Array, " num_latents"]
    emission: VectorEmission | ImageEmission
    horizon: int = eqx.field(static=True)
    num_actions: int = eqx.field(static=True)
    num_good: int = eqx.field(static=True)
    num_latents: int = eqx.field(static=True)
    anti_reward: float = eqx.field(static=True)
    anti_reward_probability: float = eqx.field(static=True)
    final_reward: float = eqx.field(static=True)
    step_reward: float = eqx.field(static=True)
    temperature: float | None = eqx.field(static=True)

    def __init__(
        self,
        horizon: int = 6,
        num_actions: int = 10,
        *,
        switch_probability: float = 0.5,
        anti_reward: float = 0.1,
        anti_reward_probability: float = 0.5,
        final_reward: float = 1.0,
        step_reward: float = 0.0,
        noise: float = 0.1,
        noise_coordinates: str = "all",
        instance_seed: int = 0,
        temperature: float | None = None,
        num_good: int = 2,
        rare_probability: float | None = None,
        failure_probability: float = 0.0,
        distractors: int = 0,
        distractor_std: float = 1.0,
        rotation: str = "stationary",
        emission: str = "vector",
        image_size: int = 28,
        templates: int = 4,
    ):
        """Draw the combination (and the rotations or pictures) from `instance_seed`; check every argument."""
        require(horizon >= 1, f"horizon must be >= 1, got {horizon}")
        require(num_actions >= 2, f"num_actions must be >= 2, got {num_actions}")
        require(num_good >= 1, f"num_good must be >= 1, got {num_good}")
        require_probability("switch_probability", switch_probability)
        require_probability("anti_reward_probability", anti_reward_probability)
        require_probability("failure_probability", failure_probability)
        require_probability("rare_probability", rare_probability or 0.0)
        for name, value in (
            ("anti_reward", anti_reward),
            ("final_reward", final_reward),
            ("step_reward", step_reward),
        ):
            require(bool(np.isfinite(value)), f"{name} must be finite, got {value}")
        require(temperature is None or temperature > 0, f"temperature must be > 0, got {temperature}")
        require(
            rotation in ("stationary", "per_level"),
            f"rotation must be 'stationary' or 'per_level', got {rotation!r}",
        )
        require(emission in ("vector", "image"), f"emission must be 'vector' or 'image', got {emission!r}")
        require(
            temperature is None or emission == "vector",
            "the simplex lock (temperature given) needs emission='vector'",
        )
        require(instance_seed >= 0, f"instance_seed must be >= 0, got {instance_seed}")

        self.horizon, self.num_actions, self.num_good = int(horizon), int(num_actions), int(num_good)
        self.num_latents = self.num_good + (1 if rare_probability is None else 2)
        self.anti_reward = float(anti_reward)
        self.anti_reward_probability = float(anti_reward_probability)
        self.final_reward = float(final_reward)
        self.step_reward = float(step_reward)
        self.temperature = None if temperature is None else float(temperature)

        rng = np.random.default_rng([instance_seed, 0])
        self.combination = jnp.asarray(
            rng.integers(num_actions, size=(horizon, self.num_latents)), dtype=jnp.int32
        )
        rare = rare_probability or 0.0
        lanes = lane_table(self.num_good, self.num_latents, switch_probability, rare, failure_probability)
        start = np.zeros(self.num_latents)
        start[: self.num_good] = 1.0 / self.num_good
        self.lane_cdf, self.start_cdf = jnp.asarray(cdf(lanes)), jnp.asarray(cdf(start))

        per_level = rotation == "per_level"
        if emission == "image":
            self.emission = ImageEmission(
                self.num_latents,
                horizon + 1,
                noise=noise,
                size=image_size,
                templates=templates,
                per_level=per_level,
                seed=instance_seed,
            )
        else:
            self.emission = VectorEmission(
                self.num_latents,
                horizon + 1,
                noise=noise,
                noise_coordinates=noise_coordinates,
                distractors=distractors,
                distractor_std=distractor_std,
                per_level=per_level,
                seed=instance_seed,
            )

    # -- the functions of an episode, unbatched ---------------------------------------------------------

    def initial(self, rng: PRNGKeyArray) -> LockState:
        """Level 0, uniform over the good lanes."""
        draw, noise = jax.random.split(rng)
        latent = sample_cdf(self.start_cdf, draw)
        level = jnp.int32(0)
        return LockState(latent, level, self.emission(latent, level, noise), latent)

    def transition(self, state: LockState, action: Int[Array, ""], rng: PRNGKeyArray) -> LockState:
        """One step: (simplex only) resample the latent, then on along the lanes or down to the bad state."""
        resample, draw, noise = jax.random.split(rng, 3)
        source = state.latent
        if self.temperature is not None:
            weights = self.ground_truth_features(state.level, state.emission)
            source = jax.random.categorical(resample, jnp.log(weights)).astype(jnp.int32)
        right = (action == self.right_action(source, state.level)) & self.good(source)
        latent = jnp.where(right, sample_cdf(self.lane_cdf[source], draw), jnp.int32(self.num_good))
        level = state.level + 1
        return LockState(latent, level, self.emission(latent, level, noise), source)

    def reward(
        self, state: LockState, action: Int[Array, ""], next_state: LockState, rng: PRNGKeyArray
    ) -> Float[Array, ""]:
        """Final reward in a good state at level H, step reward before it; anti-shaped reward on a fall."""
        lucky = jax.random.uniform(rng) < self.anti_reward_probability
        fell = self.good(next_state.source) & ~self.good(next_state.latent)
        arrived = jnp.where(next_state.level == self.horizon, self.final_reward, self.step_reward)
        reward = jnp.where(self.good(next_state.latent), arrived, 0.0)
        return (reward + jnp.where(fell & lucky, self.anti_reward, 0.0)).astype(jnp.float32)

    # -- the truth, for diagnostics, oracles and tests -------------------------------------------------

    def right_action(self, latent: Int[ArrayLike, ""], level: Int[ArrayLike, ""]) -> Int[Array, ""]:
        """The one action that leads on from a good state (meaningless in the bad one)."""
        return self.combination[jnp.minimum(level, self.horizon - 1), latent]

    def good(self, latent: Int[ArrayLike, ""]) -> Bool[Array, ""]:
        """Still on the way: every latent state but the bad one, whose index is `num_good`."""
        return jnp.asarray(latent) != self.num_good

    def ground_truth_features(
        self, level: Int[ArrayLike, ""], observation: Float[Array, ...]
    ) -> Float[Array, " num_latents"]:
        """ψ*(s): softmax(I₃R⁻¹s/τ) for the simplex lock, else the one-hot vector of the latent state."""
        if self.temperature is not None:
            assert isinstance(self.emission, VectorEmission)
            return jax.nn.softmax(self.emission.scores(level, observation) / self.temperature)
        return jax.nn.one_hot(self.emission.decode(level, observation), self.num_latents)

    def latent_model(self) -> LatentModel:
        """The lock without its observations, as tables."""
        H, Z, A, bad = self.horizon, self.num_latents, self.num_actions, self.num_good
        transition = np.zeros((H, Z, A, Z))
        transition[..., bad] = 1.0
        lanes = np.diff(np.asarray(self.lane_cdf, np.float64), axis=1, prepend=0.0)
        combination = np.asarray(self.combination)
        for z in (z for z in range(Z) if z != bad):
            transition[np.arange(H), z, combination[:, z]] = lanes[z]
        good = np.arange(Z) != bad
        arrived = np.where(np.arange(1, H + 1) == H, self.final_reward, self.step_reward)
        reward = transition[..., good].sum(axis=-1) * arrived[:, None, None]
        fall = self.anti_reward * self.anti_reward_probability
        reward += fall * transition[..., bad] * good[None, :, None]
        start = np.diff(np.asarray(self.start_cdf, np.float64), prepend=0.0)
        return LatentModel(start, transition, reward)

    def noise_features(self, log2_samples: int = 12) -> np.ndarray | None:
        """Equally likely draws of ψ*(s) per latent state, f64[Z, samples, Z]; None where it is one-hot."""
        if self.temperature is None:
            return None
        from scipy.stats import norm, qmc

        assert isinstance(self.emission, VectorEmission)
        Z = self.num_latents
        uniform = qmc.Sobol(Z, scramble=False).random_base2(log2_samples) + 0.5**log2_samples / 2
        normal = norm.ppf(uniform) * np.asarray(self.emission.std[:Z], np.float64)
        logits = (np.eye(Z)[:, None, :] + normal[None]) / self.temperature
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True)

    @property
    def dense(self) -> bool:
        """Whether every good step is rewarded, not the last alone."""
        return self.step_reward > 0

    @property
    def optimal_return(self) -> float:
        """Best expected return of a policy that sees the observations, by dynamic programming."""
        return self.latent_model().optimal_return(self.noise_features())


def lane_table(
    num_good: int, num_latents: int, switch_probability: float, rare: float, failure: float
) -> np.ndarray:
    """f64[Z, Z]: where the right action leads, from each latent state (the bad row is never used).

    It fails (to the bad state) with probability `failure`; else it enters the rare lane with probability
    `rare`; else it keeps its lane or switches to another. From the rare lane it goes to any ordinary one.
    """
    bad = num_good
    table = np.zeros((num_latents, num_latents))
    for lane in range(num_latents):
        if lane < num_good:
            others = switch_probability / max(num_good - 1, 1)
            ordinary = np.full(num_good, others)
            ordinary[lane] = 1.0 - switch_probability if num_good > 1 else 1.0
        else:
            ordinary = np.full(num_good, 1.0 / num_good)
        table[lane, :num_good] = (1.0 - failure) * (1.0 - rare) * ordinary
        if num_latents > num_good + 1:
            table[lane, num_good + 1] = (1.0 - failure) * rare
        table[lane, bad] = failure
    table[bad] = np.eye(num_latents)[bad]
    return table
