"""The agent that a user holds: it learns, acts, plans for another reward, and can be saved and loaded.

This room may import `report` and everything to its left.
"""
