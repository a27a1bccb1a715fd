"""The paper's Algorithms 1 to 4: `briee`, `replearn`, `lsvi` and `reward_free`, and the data they share.

May import `rollout` and what stands left of it, and `algorithms.bonus`.
"""
