"""Federations that exchange support vectors or multipliers: ensembles, elections, conditional averages."""
