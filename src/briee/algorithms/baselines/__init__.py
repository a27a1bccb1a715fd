"""Algorithms that BRIEE is compared with, under the same contract, counter and stopping rule.

May import `rollout` and what stands left of it, and `algorithms.bonus`.
"""
