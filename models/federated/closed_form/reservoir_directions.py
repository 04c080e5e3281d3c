"""Which directions a reservoir's states move in, before there is any data: those of the reservoir under made-up input.

A reservoir of 500 units moves in few directions, and which ones is up to its weights more than to what it hears. The
cloud has the weights, and inputs in a gateway's own units have a variance of one. So it drives the reservoir with slow
noise of that kind and takes the principal directions of the states. Gateways then need to send the sums of a few
coordinates only, and no exchange is spent on electing them (ours; principal directions: Pearson 1901).
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import Arrays, Floats, Singles
from fedgate.models.detectors.esn import reservoir

STEPS = 3_000
FORGOTTEN = 200  # of them at the start, for the state to forget where it began
SLOWEST = 1e-3  # share of a channel that is new in a step; each channel has its own, up to one


def driven_directions(params: Arrays, count: int, clip: float, rng: np.random.Generator) -> Singles:
    """Return orthonormal directions (units of all layers, count) in which the states of a reservoir move most."""
    states, _ = reservoir.run(params, np.clip(noise(rng, int(params["reservoir.inputs"])), -clip, clip))
    moved = states[FORGOTTEN:].astype(np.float64)
    _, vectors = np.linalg.eigh(np.cov(moved, rowvar=False))
    return np.ascontiguousarray(vectors[:, ::-1][:, :count], dtype=np.float32)


def noise(rng: np.random.Generator, channels: int) -> Floats:
    """Return noise (STEPS, channels) of variance one; how slow a channel is, is drawn from 1 to 1,000 steps."""
    correlation = 1.0 - SLOWEST ** rng.uniform(0.0, 1.0, channels)
    fresh = rng.normal(size=(STEPS, channels))
    values, current = np.empty_like(fresh), fresh[0]
    for row, new in zip(values, fresh, strict=True):
        current = correlation * current + np.sqrt(1.0 - np.square(correlation)) * new
        row[:] = current
    return values
