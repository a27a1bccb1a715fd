"""Diagnostics: checks of an environment before a run, and of the decoders and speed after it.

Nothing here influences learning, except that the training loop reports the decoders' accuracy.
May import `algorithms`, `rollout`, `envs`, `numerics` and the top-level modules.
"""
