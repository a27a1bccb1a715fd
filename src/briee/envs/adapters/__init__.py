"""Adapters: any Gymnasium environment with discrete actions as episodes of H steps of float32 arrays.

Covers third-party environments by name, observation encoding, early ends, and rich observations of tabular
environments. May import the rest of `envs`.
"""
