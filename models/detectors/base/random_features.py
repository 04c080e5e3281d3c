"""A random Fourier map of an RBF kernel, drawn from a seed where it is needed (Rahimi and Recht 2007).

    φ(z) = sqrt(2/M) cos(zΩ + p),   Ω ~ N(0, 2γ) of shape (F, M),   p ~ U(0, 2π):   φ(z)·φ(z') ≈ exp(-γ |z - z'|²)

The map is F M + M numbers that never change, against M that are learnt: 2.5 MB a round for 300 features and 1,024
components. So parameters hold three scalars and every party draws the same map from them. numpy promises the same
numbers from another version only for the raw bits of a bit generator, not for `normal`, so the normals are made here
from those bits (Box and Muller 1958).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats

SEED = "map.seed"  # () int64
FEATURE_COUNT = "map.feature_count"  # () int64
WIDTH = "map.gamma"  # () γ
SEEDS = 2**52
MAPS_REMEMBERED = 4  # a training draws its map once a phase, a table of scores once a batch


def drawn(rng: np.random.Generator, feature_count: int, gamma: float | None) -> Arrays:
    """Return the scalars that stand for a map of F features; the width is missing where it is None."""
    width = {} if gamma is None else {WIDTH: np.array(gamma, dtype=np.float64)}
    return {
        SEED: np.array(rng.integers(SEEDS), dtype=np.int64),
        FEATURE_COUNT: np.array(feature_count, dtype=np.int64),
        **width,
    }


def held(params: Mapping[str, Array]) -> bool:
    """Tell whether parameters name a map."""
    return SEED in params


def of(params: Mapping[str, Array], components: int) -> tuple[Floats, Floats]:
    """Return Ω (F, M) and p (M,) of the parameters; the arrays are shared and must not be written to."""
    return _map(int(params[SEED]), int(params[FEATURE_COUNT]), float(params[WIDTH]), components)


@lru_cache(maxsize=MAPS_REMEMBERED)
def _map(seed: int, feature_count: int, gamma: float, components: int) -> tuple[Floats, Floats]:
    count = feature_count * components
    uniform = uniforms(seed, 2 * count + components)
    radius = np.sqrt(-2.0 * np.log(1.0 - uniform[:count]))  # 1 - u is never zero
    normal = radius * np.cos(2.0 * np.pi * uniform[count : 2 * count])
    frequencies = (np.sqrt(2.0 * gamma) * normal).reshape(feature_count, components)
    phases = 2.0 * np.pi * uniform[2 * count :]
    for array in (frequencies, phases):
        array.flags.writeable = False
    return frequencies, phases


def uniforms(seed: int, count: int) -> Floats:
    """Return numbers (count,) in [0, 1), the same ones for a seed in every version of numpy."""
    raw = np.random.PCG64(seed).random_raw(count)  # (count,) 64 random bits each
    return np.asarray((raw >> np.uint64(11)) * 2.0**-53)
