"""A sibling of Algorithm 1 for few episodes, with one decoder per level (`algorithm`) or one for all
(`stationary`). Imports `numerics`, `rollout` and the top-level modules, but no other algorithm.
"""
