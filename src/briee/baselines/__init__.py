"""Rivals of BRIEE under the same contract, counter and stopping rule; one file each."""
