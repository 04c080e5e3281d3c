"""Samples to windows: streams on one time grid, what fills their gaps, and whether a sensor can be believed."""
