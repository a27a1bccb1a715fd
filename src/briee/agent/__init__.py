"""The agent that a user holds: it learns, acts, plans for another reward, and can be saved and loaded.

This room may import `training` and everything to its left, but neither `report` nor `experiments`.
"""
