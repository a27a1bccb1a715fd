"""Latent states behind any observation, found by what they predict; see docs/general.md."""
