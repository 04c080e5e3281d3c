"""Features against slow twins (scipy, the definition of the DFT), and the laws that make them fit for learning."""

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
import scipy.signal
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedgate.models.features.kinds import AMPLITUDE_FLOOR, ENERGY_FLOOR, LEAST
from fedgate.models.features.spec import LARGEST, FeatureError, FeatureSpec, extract, extract_many, feature_names
from tests.support.feature_specs import ALL_KINDS, STATISTICS, spec_of

seeds = st.integers(0, 2**32 - 1)
gains = st.floats(1e-3, 1e3)
offsets = st.floats(-1e3, 1e3)


def noise(seed: int, samples: int = 200, channels: int = 2) -> NDArray[np.float64]:
    """Draw coloured noise with a heavy tail, so that no statistic has its trivial value."""
    drawn = np.random.default_rng(seed).normal(size=(samples, channels))
    return np.cumsum(drawn, axis=0) * 0.1 + drawn**3


def measured(spec: FeatureSpec, values: NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(feature_names(spec), extract(spec, values).tolist(), strict=True))


def naive_dft_amplitudes(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """|DFT| / T of every frequency from its definition, 0 Hz first."""
    count = len(x)
    return np.array(
        [
            abs(sum(x[t] * np.exp(-2j * np.pi * k * t / count) for t in range(count))) / count
            for k in range(count // 2 + 1)
        ]
    )


@pytest.mark.soak
@given(seeds, gains, offsets)
def test_statistics_are_those_of_scipy(seed: int, gain: float, offset: float) -> None:
    values = gain * noise(seed) + offset
    found = measured(spec_of(*({"kind": kind} for kind in STATISTICS)), values)
    for column, channel in enumerate("ab"):
        x = values[:, column]
        peak = np.abs(x - x.mean()).max()
        expected = (
            x.mean(),
            x.std(),
            np.sqrt(np.mean(x**2)),
            peak,
            peak / x.std(),
            scipy.stats.skew(x),
            scipy.stats.kurtosis(x),
        )
        assert [found[f"{channel}.{kind}"] for kind in STATISTICS] == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("samples", [32, 33])
def test_spectrum_is_the_naive_dft_of_the_standardised_window(samples: int) -> None:
    values = noise(7, samples)
    spec = spec_of({"kind": "spectrum"}, rate_hz=float(samples), window_s=1.0)
    standardised = (values - values.mean(axis=0)) / values.std(axis=0)
    expected = np.concatenate([naive_dft_amplitudes(standardised[:, column])[1:] for column in (0, 1)])
    np.testing.assert_allclose(extract(spec, values), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("segment_s", [0.5, 0.41, 2.0])  # an even and an odd number of samples, and the whole window
def test_welch_is_the_root_of_scipy_welch(segment_s: float) -> None:
    values = noise(3)
    frequencies_hz, power = scipy.signal.welch(
        values, 100.0, "hann", round(segment_s * 100), scaling="spectrum", axis=0
    )
    found = measured(spec_of({"kind": "welch", "segment_s": segment_s}), values)
    for column, channel in enumerate("ab"):
        for k in range(1, len(frequencies_hz)):
            name = f"{channel}.welch_{segment_s:g}s[{frequencies_hz[k]:.9g}Hz]"
            assert found[name] == pytest.approx(math.sqrt(power[k, column]), rel=1e-5)
    assert len(found) == 2 * (len(frequencies_hz) - 1)


def test_welch_normalises_over_the_chosen_bins_before_the_logarithm() -> None:
    values = noise(4)
    chosen: dict[str, object] = {"kind": "welch", "segment_s": 1.0, "low_hz": 2.0, "high_hz": 30.0}
    plain = extract(spec_of(chosen, channels=("a",)), values[:, :1]).astype(float)
    shares = extract(spec_of(chosen | {"normalise": True}, channels=("a",)), values[:, :1])
    logs = extract(spec_of(chosen | {"normalise": True, "log": True}, channels=("a",)), values[:, :1])
    assert len(plain) == 29
    assert shares.sum() == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(shares, plain / plain.sum(), rtol=1e-5)
    np.testing.assert_allclose(logs, np.log10(shares), rtol=1e-5)


def test_bands_are_sums_over_the_naive_dft() -> None:
    values = noise(5)[:, 0]
    edges_hz = (0.5, 3.0, 3.5, 20.0, 50.0)
    amplitudes = naive_dft_amplitudes(values - values.mean())
    energy = amplitudes**2 * np.array([0.0] + [2.0] * 99 + [1.0])  # 0 Hz left out; 50 Hz has no mirror image
    bins_hz = np.arange(101) * 0.5
    sums = [energy[(bins_hz >= low) & (bins_hz < high)].sum() for low, high in pairwise(edges_hz)]
    sums[-1] += energy[-1]  # the last band holds its upper edge
    found = extract(spec_of({"kind": "bands", "edges_hz": edges_hz}, channels=("a",)), values[:, None])
    np.testing.assert_allclose(found, np.log10(sums), rtol=1e-5, atol=1e-6)


def test_a_sinusoid_shows_its_mean_square_in_its_band_alone() -> None:
    t = np.arange(200) / 100
    values = (3.0 + 0.2 * np.sin(2 * np.pi * 10 * t))[:, None]
    spec = spec_of({"kind": "bands", "edges_hz": (0, 9, 11, 50)}, {"kind": "spectrum"}, channels=("a",))
    found = measured(spec, values)
    assert found["a.band[9-11Hz]"] == pytest.approx(math.log10(0.2**2 / 2), abs=1e-5)
    assert max(found["a.band[0-9Hz]"], found["a.band[11-50Hz]"]) < math.log10(ENERGY_FLOOR) + 1
    assert found["a.spectrum[10Hz]"] == pytest.approx(math.sqrt(0.5), rel=1e-5)


@pytest.mark.parametrize(
    ("window_s", "edges_hz", "tone_hz"), [(25.0, (0.28, 1.0), 0.28), (10.0, (0.1, 0.3), 0.3), (10.0, (0.1, 1.4), 1.4)]
)
def test_an_edge_on_a_bin_holds_it_whatever_the_rounding(
    window_s: float, edges_hz: tuple[float, float], tone_hz: float
) -> None:
    """0.28 / 0.04 is a little more than 7, and 0.3 / 0.1 a little less than 3."""
    values = np.sin(2 * np.pi * tone_hz * np.arange(round(window_s * 100)) / 100)[:, None]
    found = extract(spec_of({"kind": "bands", "edges_hz": edges_hz}, window_s=window_s, channels=("a",)), values)
    assert found[0] == pytest.approx(math.log10(0.5), abs=1e-5)


@given(seeds, st.sampled_from([200, 201]))
def test_parseval_bands_and_spectrum_hold_the_whole_variance(seed: int, samples: int) -> None:
    values = noise(seed, samples, 1)
    changes: dict[str, object] = {"rate_hz": samples / 2, "channels": ("a",)}
    bands = extract(spec_of({"kind": "bands", "edges_hz": (0, 7, 31, samples / 4)}, **changes), values).astype(float)
    assert (10**bands).sum() == pytest.approx(values.var(), rel=1e-5)
    squares = extract(spec_of({"kind": "spectrum"}, **changes), values).astype(float) ** 2
    mirrored = 2 * squares.sum() - (squares[-1] if samples % 2 == 0 else 0)
    assert mirrored == pytest.approx(1.0, rel=1e-5)


@pytest.mark.soak
@given(seeds, gains, offsets)
def test_gain_and_offset(seed: int, gain: float, offset: float) -> None:
    values = noise(seed)
    names = feature_names(spec_of(*ALL_KINDS))
    before = extract(spec_of(*ALL_KINDS), values)
    after = extract(spec_of(*ALL_KINDS), gain * values + offset)

    def change(kind: str, expected: NDArray[np.float32]) -> None:
        chosen = [i for i, name in enumerate(names) if name.split(".")[1].startswith(kind)]
        assert chosen
        np.testing.assert_allclose(after[chosen], expected[chosen], rtol=1e-4, atol=1e-4)

    change("level", gain * before + offset)
    change("band", before + 2 * math.log10(gain))
    for kind in ("deviation", "peak", "welch"):
        change(kind, gain * before)
    for kind in ("crest", "skewness", "kurtosis", "spectrum", "log_share_welch"):
        change(kind, before)


@given(st.floats(-LARGEST, LARGEST))
def test_a_constant_window_has_stated_finite_features(value: float) -> None:
    spec = spec_of(*ALL_KINDS, channels=("a",))
    found = measured(spec, np.full((200, 1), value))
    assert found.pop("a.level") == pytest.approx(value, rel=1e-6)
    assert found.pop("a.rms") == pytest.approx(abs(value), rel=1e-6)
    floors = {"band": math.log10(LEAST), "log_": math.log10(AMPLITUDE_FLOOR)}
    for name, feature in found.items():
        assert feature == pytest.approx(floors.get(name[2:6], 0.0)), name


@pytest.mark.parametrize("unit", [1e-100, 1e-15, 1e-3, 1.0, 1e12])
@pytest.mark.parametrize("is_tone", [False, True])
def test_logarithms_of_a_spectrum_follow_its_signal_in_any_unit(unit: float, is_tone: bool) -> None:
    """With floors in the channel's unit a band of a strain of 1e-15 said nothing; of a tone the others are rounding."""
    spec = spec_of(
        {"kind": "bands", "edges_hz": [0.0, 10.0, 30.0, 50.0]},
        {"kind": "welch", "segment_s": 0.5, "log": True},
        channels=("a",),
    )
    values = np.sin(2 * np.pi * 5.0 * np.arange(200) / 100.0)[:, None] if is_tone else noise(4, channels=1)
    once, thrice = extract(spec, values * unit), extract(spec, 3.0 * values * unit)
    shift = [math.log10(3.0) * (2 if "band" in name else 1) for name in feature_names(spec)]
    np.testing.assert_allclose(thrice - once, shift, atol=1e-4)
    still = extract(spec, np.full((200, 1), unit))
    assert (still < once - 50.0).all()


@given(seeds, st.floats(-200, 15))
def test_features_are_finite_at_any_scale(seed: int, exponent: float) -> None:
    values = noise(seed)
    values *= 10**exponent / np.abs(values).max() * (1 - 1e-12)
    assert np.isfinite(extract(spec_of(*ALL_KINDS), values)).all()


@pytest.mark.soak
def test_many_windows_are_to_the_bit_each_window() -> None:
    spec = spec_of(
        *ALL_KINDS, {"kind": "level", "channels": ("g",)}, channels=("a", "b", "c"), magnitude={"g": tuple("abc")}
    )
    values = np.stack([noise(seed, channels=3) for seed in range(450)])  # more than one block
    together = extract_many(spec, values)
    assert together.dtype == np.float32
    assert together.shape == (450, len(feature_names(spec)))
    np.testing.assert_array_equal(together, np.stack([extract(spec, window) for window in values]))
    assert extract_many(spec, values[:0]).shape == (0, together.shape[1])


def test_input_is_neither_changed_nor_bound_to_one_type() -> None:
    values = np.arange(400, dtype=np.int16).reshape(200, 2)
    copy = values.copy()
    np.testing.assert_array_equal(
        extract(spec_of(*ALL_KINDS), values), extract(spec_of(*ALL_KINDS), copy.astype(float))
    )
    np.testing.assert_array_equal(values, copy)


def test_magnitude_is_the_length_of_the_vector() -> None:
    values = noise(2, channels=3)
    steps: tuple[Mapping[str, object], ...] = ({"kind": "level", "channels": ("length", "c")}, {"kind": "deviation"})
    spec = spec_of(*steps, channels=("a", "b", "c"), magnitude={"length": ("c", "a", "b")})
    found = measured(spec, values)
    assert list(found) == ["length.level", "c.level", "a.deviation", "b.deviation", "c.deviation"]
    assert found["length.level"] == pytest.approx(np.linalg.norm(values, axis=1).mean(), rel=1e-5)
    assert found["c.level"] == pytest.approx(values[:, 2].mean(), rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2 * LARGEST, -2 * LARGEST])
def test_a_value_that_no_sensor_measured_is_refused_with_its_channel(bad: float) -> None:
    values = noise(1)
    values[17, 1] = bad
    with pytest.raises(FeatureError, match=r"channel 'b' holds .*expected finite values up to 1e\+15"):
        extract(spec_of({"kind": "level"}), values)


@pytest.mark.parametrize("shape", [(199, 2), (200, 3), (200,), (1, 200, 2)])
def test_another_shape_is_refused_with_both_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(FeatureError, match=r"expected \(samples, channels\) = \(200, 2\)"):
        extract(spec_of({"kind": "level"}), np.zeros(shape))
