"""Rivals of BRIEE under the same contract, counter and stopping rule; one file each. Imports no JAX."""

from functools import partial

from briee.baselines.config import LsviRffConfig, LsviUcbConfig, PpoConfig, Sb3Config

BASELINES = {
    "lsvi-ucb": (
        "LSVI-UCB with the environment's true features",
        "briee.baselines.lsvi_ucb:LsviUcb",
        {"paper": LsviUcbConfig.paper},
    ),
    "lsvi-ucb-rff": (
        "LSVI-UCB with random Fourier features",
        "briee.baselines.lsvi_ucb:LsviUcbRff",
        {"paper": LsviRffConfig.paper},
    ),
    "ppo": ("PPO", "briee.baselines.ppo:Ppo", {"paper": PpoConfig.paper}),
    "ppo-rnd": (
        "PPO with random network distillation",
        "briee.baselines.ppo:PpoRnd",
        {"paper": PpoConfig.paper_rnd},
    ),
    **{
        f"sb3:{name}": (
            f"{name} of Stable-Baselines3",
            "briee.baselines.sb3:Sb3",
            {"paper": partial(Sb3Config.defaults, name)},
        )
        for name in ("PPO", "A2C", "DQN")
    },
}
"""By name: one line on what it is, where its class is, and its presets."""
