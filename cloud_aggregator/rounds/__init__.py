"""Rounds of a training: updates in, each counted once, and the algorithm one step on."""
