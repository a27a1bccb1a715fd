"""MusIK: its inverse model finds the state that an action leads to, and it opens a small lock."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from briee.agent.agent import Agent
from briee.algorithms.baselines.musik import inverse_kinematics
from briee.algorithms.baselines.psdp import PsdpConfig
from briee.algorithms.baselines.rival_config import MusikConfig, RegressionConfig
from briee.algorithms.baselines.roll_in import Gathered
from briee.envs.lock import CombinationLock

SMALL = replace(
    MusikConfig.paper(3), episodes_per_level=600, steps=64, psdp=PsdpConfig(200, RegressionConfig("ridge"))
)


def test_heads_play_the_action_that_leads_to_their_state():
    """Action 2 of three leads from x = 0 to x' = e_0, the others to e_1; member 1 alone is in x = 0."""
    rng = np.random.default_rng(0)
    action, member = rng.integers(3, size=900), rng.integers(2, size=900)
    won = (action == 2) & (member == 1)
    x = jnp.asarray(np.eye(2)[member], jnp.float32)
    next_x = jnp.asarray(np.where(won[:, None], [1.0, 0.0], [0.0, 1.0]), jnp.float32)
    zero = jnp.zeros(900)
    rows = Gathered(x, jnp.asarray(action), zero, next_x, zero, next_x, zero, jnp.asarray(member), zero)
    config = replace(SMALL, num_latents=2, steps=300, learning_rate=1e-2)
    heads, parent = inverse_kinematics(rows, config, 3, jax.random.key(0))
    best = np.asarray(heads(jnp.array([0.0, 1.0])).reshape(2, 3)).argmax(axis=1)
    assert (2 in best, list(best).count(2)) == (True, 1)
    assert int(parent[list(best).index(2)]) == 1


def test_it_opens_a_small_lock_within_its_budget():
    lock = CombinationLock(horizon=3, num_actions=4, instance_seed=5)
    agent = Agent(lock, algo="musik", config=SMALL, seed=7).learn(episodes=4000, progress=False)
    assert agent.solved
    assert agent.summary()["episodes_to_solve"] == 2 * 600 + 3 * 200 + 4 * 20


def test_a_budget_that_ends_too_early_still_gives_a_policy():
    lock = CombinationLock(horizon=3, num_actions=4, instance_seed=5)
    agent = Agent(lock, algo="musik", config=SMALL, seed=7).learn(episodes=1300, progress=False)
    assert agent.episodes == 1400  # the level that was begun is completed
    assert agent.evaluate(5).returns.shape == (5,)
