"""The reservoir against a loop that cannot be misread, against reservoirpy, and against itself in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.protocol.wire import decode, encode
from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.esn import reservoir
from fedgate.models.detectors.esn.network import EchoStateWarning, Network
from fedgate.models.detectors.esn.reservoir import DIGEST, RADII, SEED, ReservoirError

INPUTS = 3
LAYERED = Network(units=20, layers=3, leak=0.4, input_scaling=0.7, bias_scaling=0.3)


def made(network: Network, seed: int = 1, inputs: int = INPUTS) -> Arrays:
    return reservoir.initial(np.random.default_rng(seed), network, inputs)


def noise(seed: int, rows: int, inputs: int = INPUTS) -> Floats:
    return np.random.default_rng(seed).normal(size=(rows, inputs))


def by_hand(params: Arrays, u: Array, state: Array | None = None, begins: Array | None = None) -> Floats:
    """Return the states (T, layers * N) in float64, one unit after another."""
    weights = reservoir.drawn(params)
    layers = [tuple(np.asarray(array, dtype=np.float64) for array in each[:2]) for each in weights.layers]
    units = len(layers[0][1])
    current = list(np.zeros((len(layers), units)) if state is None else np.asarray(state, dtype=np.float64))
    rows = []
    for t, below in enumerate(np.asarray(u, dtype=np.float32).astype(np.float64)):
        if begins is not None and begins[t]:
            current = [np.zeros(units) for _ in layers]
        for i, ((entry, bias), layer) in enumerate(zip(layers, weights.layers, strict=True)):
            heard = [
                sum(float(w) * current[i][k] for k, w in zip(*pair, strict=True))
                for pair in zip(layer.indices, layer.values, strict=True)
            ]
            new = np.tanh((below if i == 0 else current[i - 1]) @ entry + bias + np.array(heard))
            current[i] = (1.0 - weights.leak) * current[i] + weights.leak * new
        rows.append(np.concatenate(current))
    return np.array(rows).reshape(len(u), -1)


@pytest.mark.parametrize("network", [Network(units=30), Network(units=25, leak=1.0, density=0.01), LAYERED])
def test_states_are_those_of_a_plain_loop(network: Network) -> None:
    params, u = made(network), noise(2, 80)
    start = np.random.default_rng(3).uniform(-1.0, 1.0, (network.layers, network.units))
    begins = np.isin(np.arange(80), [0, 31, 32])
    for state, reset in ((None, None), (start, None), (start, begins), (start, ~np.isin(np.arange(80), [40]))):
        states, last = reservoir.run(params, u, state, reset)
        assert states.dtype == np.float32
        np.testing.assert_allclose(states, by_hand(params, u, state, reset), rtol=0.0, atol=2e-6)
        np.testing.assert_array_equal(last.ravel(), states[-1])


@pytest.mark.parametrize(("leak", "radius"), [(0.1, 0.9), (1.0, 0.99), (0.3, 1.2)])
def test_states_are_those_of_reservoirpy(leak: float, radius: float) -> None:
    from reservoirpy.nodes import Reservoir

    params, u = made(Network(units=60, leak=leak, spectral_radius=radius, input_scaling=0.5)), noise(4, 200)
    (layer,) = reservoir.drawn(params).layers
    recurrent, entry, bias = (np.asarray(each, np.float64) for each in (layer.recurrent, layer.input.T, layer.bias))
    theirs: Any = Reservoir(units=60, lr=leak, W=recurrent, Win=entry, bias=bias)
    np.testing.assert_allclose(reservoir.run(params, u)[0], theirs.run(u), rtol=0.0, atol=1e-5)


@pytest.mark.soak
@given(
    seed=st.integers(0, 2**32),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    network=st.sampled_from([LAYERED, Network(units=15, leak=1.0)]),
)
@settings(deadline=None, max_examples=40)
def test_many_series_are_one_with_resets_and_one_is_its_pieces_in_a_row(
    seed: int, lengths: list[int], network: Network
) -> None:
    params, u = made(network), noise(seed, sum(lengths))
    parts = np.split(u, np.cumsum(lengths)[:-1])
    begins = np.zeros(len(u) + 1, dtype=np.bool_)
    begins[np.cumsum([0, *lengths[:-1]])] = True  # of an empty part it is the beginning of the next
    alone = [reservoir.run(params, part)[0] for part in parts]
    whole, _ = reservoir.run(params, u, begins=begins[:-1])
    np.testing.assert_allclose(whole, np.concatenate(alone), rtol=0.0, atol=1e-6)
    pieces, state = [], None
    for part in parts:
        states, state = reservoir.run(params, part, state)
        pieces.append(states)
    np.testing.assert_allclose(reservoir.run(params, u)[0], np.concatenate(pieces), rtol=0.0, atol=1e-6)


@given(seed=st.integers(0, 2**32), units=st.integers(1, 90), density=st.floats(0.01, 1.0), radius=st.floats(0.01, 3.0))
@settings(deadline=None, max_examples=40)
def test_the_spectral_radius_is_exact(seed: int, units: int, density: float, radius: float) -> None:
    params = made(Network(units=units, density=density, spectral_radius=radius), seed)
    (raw,) = reservoir._raw(params)
    scaled = reservoir._dense(raw.indices, raw.values * (radius / params[RADII][0]))
    assert np.abs(np.linalg.eigvals(scaled)).max() == pytest.approx(radius, rel=1e-12)
    (layer,) = reservoir.drawn(params).layers
    assert np.abs(layer.recurrent - scaled).max() <= np.finfo(np.float32).eps * np.abs(scaled).max()


@pytest.mark.parametrize(("density", "hears"), [(0.1, 5), (0.001, 1), (1.0, 50)])
def test_every_unit_hears_as_many_others(density: float, hears: int) -> None:
    (layer,) = reservoir.drawn(made(Network(units=50, density=density))).layers
    assert layer.indices.shape == layer.values.shape == (50, hears)
    assert all(len(set(row)) == hears for row in layer.indices.tolist())
    assert ((layer.recurrent != 0.0).sum(axis=1) == hears).all()


def test_golden_weights() -> None:
    """Whatever version of numpy draws them: another digest would be another model under the name of this one."""
    params = made(Network(units=40, layers=2), inputs=2) | {
        SEED: np.arange(32, dtype=np.uint8),
        RADII: np.array([1.5, 1.25]),
        DIGEST: np.frombuffer(bytes.fromhex(GOLDEN), dtype=np.uint8),
    }
    first, second = reservoir.drawn(params).layers
    np.testing.assert_array_equal(first.indices[0], FIRST_HEARD)
    np.testing.assert_array_equal(first.values[0], np.array(FIRST_VALUES, dtype=np.float32))
    assert second.input.shape == (40, 40)


GOLDEN = "b59c5c4c59a3f967ba75fbc12d50493b2f0fa1e668ecb0e1fc0cdb9895c73e95"
FIRST_HEARD = [20, 13, 35, 39]
FIRST_VALUES = [-0.36182427406311035, -0.14653737843036652, 0.06375081837177277, 0.055348653346300125]


def test_what_travels_is_small_and_gives_the_same_weights() -> None:
    params = made(LAYERED)
    assert sum(array.nbytes for array in params.values()) < 200
    received, _ = decode(encode(params))
    reservoir._drawn.cache_clear()
    again = reservoir.drawn(received)
    for one, other in zip(reservoir.drawn(params).layers, again.layers, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_reservoirs_differ_by_seed_and_by_leak() -> None:
    one, other = made(Network(units=20)), made(Network(units=20), seed=2)
    slower = made(Network(units=20, leak=0.05))
    identities = [reservoir.identity(params).tobytes() for params in (one, other, slower, made(Network(units=20)))]
    assert len(set(identities)) == 3 and identities[0] == identities[3]
    assert reservoir.identity(one).shape == (64,) and reservoir.identity(one).dtype == np.uint8


@pytest.mark.parametrize("name", [SEED, RADII, DIGEST, "reservoir.input_scaling", "reservoir.leak"])
def test_other_weights_than_in_the_cloud_are_refused(name: str) -> None:
    params = made(Network(units=20))
    changed = params[name] + (1 if params[name].dtype == np.uint8 else 1e-3)
    with pytest.raises(ReservoirError, match=r"digest \w{64}, expected \w{64} as drawn in the cloud"):
        reservoir.drawn({**params, name: np.asarray(changed, dtype=params[name].dtype)})


def test_weights_cannot_be_written_to() -> None:
    (layer,) = reservoir.drawn(made(Network(units=20))).layers
    for array in layer:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_no_rows_no_states() -> None:
    params, state = made(LAYERED), np.full((3, 20), 0.25, np.float32)
    states, last = reservoir.run(params, np.zeros((0, INPUTS)), state)
    assert states.shape == (0, 60)
    np.testing.assert_array_equal(last, state)


@pytest.mark.parametrize("network", [Network(), Network(units=50, leak=1.0), Network(units=50, leak=0.02), LAYERED])
def test_a_network_that_forgets_passes_in_silence(network: Network) -> None:
    assert reservoir.contraction(made(network), noise(5, 120)) <= 1e-6


def test_a_network_that_does_not_forget_warns_with_the_distance() -> None:
    params = made(Network(units=50, leak=0.9, spectral_radius=2.5, bias_scaling=0.0))
    with pytest.warns(EchoStateWarning, match=r"still differ by \d.*echo state property") as caught:
        distance = reservoir.contraction(params, 1e-3 * noise(6, 120))
    assert distance > 1e-3
    assert f"{distance:.3g}" in str(caught[0].message)
