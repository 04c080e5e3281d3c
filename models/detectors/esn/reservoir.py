"""The reservoir of an echo state network: fixed random weights, drawn from 32 bytes wherever they are needed
(Jaeger et al. 2007; the drawing is ours).

A matrix of 500 units is 2 MB, its seed 32 bytes. Every party must draw the same one, or the sums of two gateways would
speak of different units. So the numbers are made from the raw bits of PCG64 (numpy keeps those, not its distributions),
the spectral radius of each raw matrix is computed once, in the cloud, and travels (eigenvalue routines differ in the
last digit from one processor to the next), and a digest of the weights goes with them. Each unit hears the same number
of units, at least one: then there always is a cycle, so the radius of the raw matrix is not zero.

States are float32: with sums in float64 the readout is as good as with states in float64.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.models.arrays import Array, Arrays, Singles
from fedgate.models.detectors.esn.network import EchoStateWarning, Network

PREFIX = "reservoir."
SEED, RADII, DIGEST = f"{PREFIX}seed", f"{PREFIX}radii", f"{PREFIX}digest"
COUNTS = ("layers", "units", "inputs", "hears")
NUMBERS = ("spectral_radius", "leak", "input_scaling", "bias_scaling")
DRAWN_FROM = (SEED, RADII, DIGEST, *(PREFIX + name for name in (*COUNTS, *NUMBERS)))
SEED_BYTES = 32
RESERVOIRS_REMEMBERED = 4
IDENTITY = "reservoir"  # (64,) uint8 seed and digest, in every update of an echo state network
LARGEST_DISTANCE = 1e-6  # of two states that should have become one
# Times 1 / leak: a state shrinks by 1 - leak (1 - radius) a step or faster, to 1e-6 within this at a radius of 0.9.
STEPS_TO_FORGET = 200.0
STEPS_AT_ONCE = 100


class ReservoirError(ValueError):
    """The weights drawn here are not those that were drawn in the cloud."""


class Layer(NamedTuple):
    """Weights of one layer: Win (I, N), b (N,) and W (N, N); each unit hears those in `indices` (N, K) at `values`."""

    input: Singles
    bias: Singles
    indices: NDArray[np.int32]
    values: Singles
    recurrent: Singles


class Weights(NamedTuple):
    """All weights of a reservoir; they are shared and must not be written to."""

    layers: tuple[Layer, ...]
    leak: float


def initial(rng: np.random.Generator, network: Network, inputs: int) -> Arrays:
    """Return the tensors that stand for a new reservoir that hears so many inputs."""
    fan_in = max(1, round(network.density * network.units))
    counts = {"layers": network.layers, "units": network.units, "inputs": inputs, "hears": fan_in}
    params: Arrays = {PREFIX + name: np.array(count, dtype=np.int64) for name, count in counts.items()}
    params |= {PREFIX + name: np.array(getattr(network, name), dtype=np.float64) for name in NUMBERS}
    params[SEED] = rng.integers(256, size=SEED_BYTES, dtype=np.uint8)
    raw = _raw(params)
    params[RADII] = np.array([_radius(indices, values) for _, _, indices, values in raw])
    params[DIGEST] = _digest(_scaled(params, raw))
    return params


def drawn(params: Mapping[str, Array]) -> Weights:
    """Return the weights that the tensors of `initial` stand for.

    Raises `ReservoirError` where their digest is another one than that of the weights drawn in the cloud.
    """
    return _drawn(
        tuple((name, params[name].dtype.str, params[name].shape, params[name].tobytes()) for name in DRAWN_FROM)
    )


@lru_cache(maxsize=RESERVOIRS_REMEMBERED)
def _drawn(key: tuple[tuple[str, str, tuple[int, ...], bytes], ...]) -> Weights:
    params = {name: np.frombuffer(raw, dtype=kind).reshape(shape) for name, kind, shape, raw in key}
    weights = _scaled(params, _raw(params))
    found, expected = _digest(weights).tobytes().hex(), params[DIGEST].tobytes().hex()
    if found != expected:
        raise ReservoirError(
            f"the reservoir drawn here has digest {found}, expected {expected} as drawn in the cloud: other numbers "
            "from the same seed; give both the same release of fedgate, and of numpy if that does not help"
        )
    for array in (array for layer in weights.layers for array in layer):
        array.flags.writeable = False
    return weights


class _Raw(NamedTuple):
    """A layer in [-1, 1), as drawn."""

    input: Array
    bias: Array
    indices: NDArray[np.int32]
    values: Array


def _raw(params: Mapping[str, Array]) -> list[_Raw]:
    layers, units, inputs, fan_in = (int(params[PREFIX + name]) for name in COUNTS)
    bits = np.random.PCG64(int.from_bytes(params[SEED].tobytes(), "little"))

    def uniform(*shape: int) -> Array:
        raw = bits.random_raw(math.prod(shape)).reshape(shape)  # 64 random bits each
        return np.asarray((raw >> np.uint64(11)) * 2.0**-52 - 1.0)

    found = []
    for layer in range(layers):
        entry, bias = uniform(units if layer else inputs, units), uniform(units)
        order = [np.argsort(bits.random_raw(units), kind="stable")[:fan_in] for _ in range(units)]
        found.append(_Raw(entry, bias, np.array(order, dtype=np.int32), uniform(units, fan_in)))
    return found


def _radius(indices: Array, values: Array) -> float:
    return float(np.abs(np.linalg.eigvals(_dense(indices, values))).max())


def _dense(indices: Array, values: Array) -> Array:
    matrix = np.zeros((len(values), len(values)), dtype=values.dtype)
    np.put_along_axis(matrix, indices.astype(np.int64), values, axis=1)
    return matrix


def _scaled(params: Mapping[str, Array], raw: list[_Raw]) -> Weights:
    radius, leak, input_scaling, bias_scaling = (float(params[PREFIX + name]) for name in NUMBERS)
    layers = []
    for each, raw_radius in zip(raw, params[RADII], strict=True):
        values = (each.values * (radius / raw_radius)).astype(np.float32)
        entry, bias = (each.input * input_scaling).astype(np.float32), (each.bias * bias_scaling).astype(np.float32)
        layers.append(Layer(entry, bias, each.indices, values, _dense(each.indices, values)))
    return Weights(tuple(layers), leak)


def _digest(weights: Weights) -> NDArray[np.uint8]:
    """Return SHA-256 over the leak and the weights, as little-endian float32 and int32."""
    found = hashlib.sha256(np.array(weights.leak, dtype="<f4").tobytes())
    for layer in weights.layers:
        for array in layer[:4]:
            found.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return np.frombuffer(found.digest(), dtype=np.uint8)


def identity(params: Mapping[str, Array]) -> Array:
    """Return by what two reservoirs are told apart, (64,) uint8: the seed, then the digest."""
    return np.concatenate([params[SEED], params[DIGEST]])


def run(
    params: Mapping[str, Array], u: Array, state: Array | None = None, begins: Array | None = None
) -> tuple[Singles, Singles]:
    """Return all states (T, layers * N) along inputs u (T, I), and the last state (layers, N).

    :param state: where to start, (layers, N); zero where not given.
    :param begins: (T,) bool, steps before which the state goes back to zero.
    """
    weights = drawn(params)
    units = len(weights.layers[0].bias)
    start = np.zeros((len(weights.layers), units), np.float32) if state is None else np.asarray(state, np.float32)
    resets = set() if begins is None else set(np.flatnonzero(begins).tolist())
    edges = sorted({0, len(u), *resets})
    last, found, below = [], [], np.asarray(u, dtype=np.float32)
    for index, layer in enumerate(weights.layers):
        out = np.empty((len(u), units), dtype=np.float32)
        current = start[index]
        drive = below @ layer.input + layer.bias
        for first, stop in pairwise(edges):
            current = np.zeros(units, np.float32) if first in resets else current
            current = _advance(layer.recurrent, weights.leak, drive[first:stop], current, out[first:stop])
        below = out
        found.append(out)
        last.append(current)
    return found[0] if len(found) == 1 else np.concatenate(found, axis=1), np.array(last)


def _advance(recurrent: Singles, leak: float, drive: Singles, state: Singles, out: Singles) -> Singles:
    """Write the states along `drive` (T, N) into `out` (T, N), from `state` (N,), and return the last one."""
    # Arrays, since numpy takes as long to make one of a number as for the product.
    kept, share, remembered = np.full_like(state, 1.0 - leak), np.full_like(state, leak), np.empty_like(state)
    for force, row in zip(drive, out, strict=True):
        np.dot(recurrent, state, out=row)
        np.add(row, force, out=row)
        np.tanh(row, out=row)
        np.multiply(row, share, out=row)
        np.multiply(state, kept, out=remembered)
        np.add(row, remembered, out=row)
        state = row
    return state.copy()


def contraction(params: Mapping[str, Array], u: Array) -> float:
    """Return how far two states are apart, in the unit that differs most, that started as zero and as one and heard the
    same inputs u (T, I), over and over until they are within 1e-6 or 200 / leak steps have passed.

    Warns with `EchoStateWarning` where they are farther apart.
    """
    observed = np.asarray(u, dtype=np.float32)
    most = math.ceil(STEPS_TO_FORGET / float(params[f"{PREFIX}leak"]))
    zero = np.zeros((int(params[f"{PREFIX}layers"]), int(params[f"{PREFIX}units"])), np.float32)
    one, distance, step = zero + 1.0, math.inf, 0
    while step < most and distance > LARGEST_DISTANCE and len(observed):
        part = observed[np.arange(step, min(step + STEPS_AT_ONCE, most)) % len(observed)]
        zero, one = (run(params, part, state)[1] for state in (zero, one))
        distance, step = float(np.abs(zero - one).max()), step + len(part)
    if distance > LARGEST_DISTANCE:
        warnings.warn(
            f"after {step} steps two states that started apart still differ by {distance:.3g}, expected at most "
            f"{LARGEST_DISTANCE:g}: on this input the network lacks the echo state property; take a smaller "
            f"spectral_radius{' or a larger leak' if float(params[f'{PREFIX}leak']) < 1.0 else ''}",
            EchoStateWarning,
            stacklevel=2,
        )
    return distance
