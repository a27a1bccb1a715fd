"""Algorithms under one contract: the paper's, the efficient one, the theory's and the baselines.

A package may import `rollout` and what stands left of it, and `bonus`, but no other package of this room.
"""
