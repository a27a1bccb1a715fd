"""The rich-observation combination lock of Section 5 as pure functions, with all its variants."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from briee.envs.block import Block, BlockState, LatentModel, cdf, probabilities, sample_cdf
from briee.envs.emission import EmissionChoice, Index, VectorEmission, require, require_least
from briee.envs.exogenous import AnyEmission


class LockState(BlockState):
    """A block state with `source`, the latent state last acted on; the simplex lock resamples it."""

    source: Int[Array, ""]


class CombinationLock(Block):
    r"""The diabolical combination lock: one right action per step, two good lanes, no way back.

    ## Description
    Each level has two good lanes (0 and 1) and a bad state (2). In a good state, one of `num_actions`
    actions, drawn once per lane and level, leads to a good state of the next level; a coin decides between
    the same lane and the other. Every other action leads to the bad state, which is never left. A random
    policy opens the lock once in num_actions^H episodes.

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
    level, padded to a power of two, with Gaussian noise on every coordinate, times the unnormalised Hadamard
    matrix. The bounds are wide but finite, because float32 noise is. Other emissions are vectors of 12 or 20
    coordinates, or images [size, size, 1] in [0, 1].

    ## Starting State
    Level 0, uniform over the good lanes.

    ## Rewards
    `final_reward` for a good state at level H, `step_reward` for one at an earlier level; `anti_reward` with
    probability `anti_reward_probability` for the step from a good state to the bad one.

    ## Episode End
    After `horizon` steps, as `terminated`; the observation of level H is emitted too.

    ## Information
    `latent` and `level`.

    ## Arguments
    - `horizon`, `num_actions`, `num_good` (good lanes), `instance_seed` (draws the combination).
    - `switch_probability`: of changing lanes after the right action. `failure_probability`: of reaching the
      bad state in spite of it. `rare_probability`: adds a good lane that is entered with this probability.
    - `anti_reward`, `anti_reward_probability`, `final_reward`, `step_reward`: see Rewards.
    - `temperature`: τ of the simplex lock, in which the latent state is resampled from softmax(I₃R⁻¹s/τ)
      before each step; None for a block MDP.
    - `emission`: `vector` as above; `modes`: one of `modes` prototypes a state; `rings`: the radius on a
      sphere; `network`: a random network; `digits`: handwritten ones, others with `held_out`, as in every
      evaluation; `shapes`: a moving one; `image`: one of `templates`, of `image_size` pixels a side.
    - `noise`: standard deviation, 0.1 unless given (`network` 0.02, `digits` 0); `degrees_of_freedom`: of
      Student's t, if the noise has heavy tails. `noise_coordinates`: `all`, or `first`: neither the last
      one-hot coordinate nor the padding. `distractors`: coordinates of pure noise of `distractor_std`.
    - `exogenous`: coordinates that follow an AR(1) process with `exogenous_correlation`, rotated together
      with the informative ones, which are e_z + ε for `vector`.
    - `rotation`: `stationary` (one rotation, network, set of images), `permuted` (one, but latent states
      change places with the level) or `per_level`. `rings`, `network`: permuted; `modes`, `digits`,
      `shapes`: per level; `vector` and `image`: stationary, unless given, and never permuted.

    ## Version History
    v0: initial version.
    """

    combination: Int[Array, "horizon num_latents"]
    lane_cdf: Float[Array, "num_latents num_latents"]
    start_cdf: Float[Array, " num_latents"]
    emission: AnyEmission
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
        noise: float | None = None,
        noise_coordinates: str = "all",
        instance_seed: int = 0,
        temperature: float | None = None,
        num_good: int = 2,
        rare_probability: float | None = None,
        failure_probability: float = 0.0,
        distractors: int = 0,
        distractor_std: float = 1.0,
        rotation: str | None = None,
        emission: str = "vector",
        image_size: int = 28,
        templates: int = 4,
        modes: int = 6,
        exogenous: int = 0,
        exogenous_correlation: float = 0.95,
        degrees_of_freedom: float | None = None,
        held_out: bool = False,
    ):
        """Check every argument; draw the combination and the rotations or images from `instance_seed`."""
        require_least(0, instance_seed=instance_seed)
        require_least(1, horizon=horizon, num_good=num_good)
        require_least(2, num_actions=num_actions)
        rare = rare_probability or 0.0
        for name, value in (
            ("switch_probability", switch_probability),
            ("anti_reward_probability", anti_reward_probability),
            ("failure_probability", failure_probability),
            ("rare_probability", rare),
        ):
            require(0.0 <= value <= 1.0, f"{name} must be in [0, 1], got {value}")
        rewards = {"anti_reward": anti_reward, "final_reward": final_reward, "step_reward": step_reward}
        for name, value in rewards.items():
            require(bool(np.isfinite(value)), f"{name} must be finite, got {value}")
        require(temperature is None or temperature > 0, f"temperature must be > 0, got {temperature}")
        choice = EmissionChoice(
            emission,
            noise=noise,
            sharing=rotation,
            seed=instance_seed,
            noise_coordinates=noise_coordinates,
            distractors=distractors,
            distractor_std=distractor_std,
            degrees_of_freedom=degrees_of_freedom,
            modes=modes,
            image_size=image_size,
            templates=templates,
            exogenous=exogenous,
            exogenous_correlation=exogenous_correlation,
            held_out=held_out,
        )
        plain = emission == "vector" and not exogenous and degrees_of_freedom is None
        require(
            temperature is None or plain,
            "the simplex lock (temperature given) needs emission='vector' with normal noise alone",
        )

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
        lanes = lane_table(self.num_good, self.num_latents, switch_probability, rare, failure_probability)
        start = np.zeros(self.num_latents)
        start[: self.num_good] = 1.0 / self.num_good
        self.lane_cdf, self.start_cdf = jnp.asarray(cdf(lanes)), jnp.asarray(cdf(start))

        self.emission = choice.make(self.num_latents, horizon + 1)

    # -- the functions of an episode, unbatched ---------------------------------------------------------

    def initial(self, rng: PRNGKeyArray) -> LockState:
        """Level 0, uniform over the good lanes."""
        draw, noise = jax.random.split(rng)
        latent = sample_cdf(self.start_cdf, draw)
        level = jnp.int32(0)
        seen, exogenous = self.arrive(latent, level, None, noise)
        return LockState(latent, level, seen, latent, exogenous=exogenous)

    def transition(self, state: LockState, action: Int[Array, ""], rng: PRNGKeyArray) -> LockState:
        """One step: the simplex lock resamples the latent state, then the action decides what follows."""
        resample, draw, noise = jax.random.split(rng, 3)
        source = state.latent
        if self.temperature is not None:
            weights = self.ground_truth_features(state.level, state.emission)
            source = jax.random.categorical(resample, jnp.log(weights)).astype(jnp.int32)
        right = (action == self.right_action(source, state.level)) & self.good(source)
        latent = jnp.where(right, sample_cdf(self.lane_cdf[source], draw), jnp.int32(self.num_good))
        level = state.level + 1
        seen, exogenous = self.arrive(latent, level, state, noise)
        return LockState(latent, level, seen, source, exogenous=exogenous)

    def reward(
        self, state: LockState, action: Int[Array, ""], next_state: LockState, rng: PRNGKeyArray
    ) -> Float[Array, ""]:
        """Final reward in a good state at level H, step reward before it; anti-shaped reward on a fall."""
        lucky = jax.random.uniform(rng) < self.anti_reward_probability
        fell = self.good(next_state.source) & ~self.good(next_state.latent)
        arrived = jnp.where(next_state.level == self.horizon, self.final_reward, self.step_reward)
        reward = jnp.where(self.good(next_state.latent), arrived, 0.0)
        return (reward + jnp.where(fell & lucky, self.anti_reward, 0.0)).astype(jnp.float32)

    # -- ground truth, for diagnostics, oracles and tests ----------------------------------------------

    def right_action(self, latent: Index, level: Index) -> Int[Array, ""]:
        """The action that keeps a good state good (meaningless in the bad one)."""
        return self.combination[jnp.minimum(level, self.horizon - 1), latent]

    def good(self, latent: Int[ArrayLike, "*n"]) -> Bool[Array, "*n"]:
        """True for every latent state but the bad one, whose index is `num_good`."""
        return jnp.asarray(latent) != self.num_good

    def ground_truth_features(
        self, level: Index, observation: Float[Array, ...]
    ) -> Float[Array, " num_latents"]:
        """ψ*(s): softmax(I₃R⁻¹s/τ) for the simplex lock, else the one-hot vector of the latent state."""
        if self.temperature is None:
            return super().ground_truth_features(level, observation)
        assert isinstance(self.emission, VectorEmission)
        return jax.nn.softmax(self.emission.scores(level, observation) / self.temperature)

    def latent_model(self) -> LatentModel:
        """The lock as tables, without observations."""
        H, Z, A, bad = self.horizon, self.num_latents, self.num_actions, self.num_good
        transition = np.zeros((H, Z, A, Z))
        transition[..., bad] = 1.0
        lanes, combination = probabilities(self.lane_cdf), np.asarray(self.combination)
        for z in (z for z in range(Z) if z != bad):
            transition[np.arange(H), z, combination[:, z]] = lanes[z]
        good = np.arange(Z) != bad
        arrived = np.where(np.arange(1, H + 1) == H, self.final_reward, self.step_reward)
        reward = transition[..., good].sum(axis=-1) * arrived[:, None, None]
        fall = self.anti_reward * self.anti_reward_probability
        reward += fall * transition[..., bad] * good[None, :, None]
        return LatentModel(probabilities(self.start_cdf), transition, reward)

    def noise_features(self, log2_samples: int = 12) -> np.ndarray | None:
        """Equally likely draws of ψ*(s) per latent state, f64[Z, samples, Z]; None if it is one-hot."""
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
        """Whether every good step is rewarded, not only the last one."""
        return self.step_reward > 0

    @property
    def optimal_return(self) -> float:
        """Best expected return of a policy that sees the observations, by dynamic programming."""
        if self.temperature is None:
            return super().optimal_return
        return self.latent_model().optimal_return(self.noise_features())


def lane_table(
    num_good: int, num_latents: int, switch_probability: float, rare: float, failure: float
) -> np.ndarray:
    """f64[Z, Z]: next latent state after the right action, by latent state (the bad row is never used).

    With probability `failure` it is the bad state; otherwise with probability `rare` the rare lane; otherwise
    the same lane or another ordinary one. All ordinary lanes are equally likely after the rare lane.
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
