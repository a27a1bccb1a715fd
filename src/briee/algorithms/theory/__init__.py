"""The paper's theory as running code: finite classes, exact oracles, the model-based view, the lemmas.

May import `rollout` and what stands left of it, and `algorithms.bonus`.
"""
