"""Wrist features against signals of known rate and variability, slow twins and scipy's filters, and for any input."""

import json
import math
import re
import tomllib

import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedgate.config.settings.settings import GatewaySettings
from fedgate.models.arrays import Floats
from fedgate.models.detectors.esn import esn
from fedgate.models.detectors.esn.network import Network
from fedgate.models.features.physiology import (
    SPREAD_SHARE,
    band_passed,
    beats_s,
    electrodermal,
    moving_standardised,
    pulse,
)
from fedgate.models.features.spec import LARGEST, extract, extract_many, feature_names
from fedgate.models.windows.grid import Block, StreamSpec, Window, push, start
from tests.support.feature_specs import wrist
from tests.support.syntax import ROOT

RATE_HZ = 64.0
SAMPLES = 1920  # 30 s
UNKNOWN = (70.0, 40.0)
seeds = st.integers(0, 2**32 - 1)


def beats_of(rng: np.random.Generator, rate: float, jitter_s: float, duration_s: float = 40.0) -> Floats:
    """Return times of beats whose intervals lie around 60 / rate."""
    return np.cumsum(60.0 / rate + rng.normal(0.0, jitter_s, int(duration_s * rate / 60.0) + 5))


def pulse_wave(times_s: Floats, samples: int = SAMPLES, rate_hz: float = RATE_HZ) -> Floats:
    """Return a wave with a systolic top at each beat and a smaller diastolic one after it."""
    t = np.arange(samples) / rate_hz
    tops = np.exp(-0.5 * ((t[:, None] - times_s) / 0.09) ** 2)
    later = 0.3 * np.exp(-0.5 * ((t[:, None] - times_s - 0.3) / 0.09) ** 2)
    return np.asarray((tops + later).sum(axis=1))


def within(times_s: Floats, margin_s: float = 0.3) -> Floats:
    return times_s[(times_s > margin_s) & (times_s < SAMPLES / RATE_HZ - margin_s)]


@pytest.mark.soak
@given(seeds, st.floats(45.0, 110.0), st.floats(0.0, 0.03))
@settings(max_examples=50)
def test_rate_and_variability_are_those_of_the_beats(seed: int, rate: float, jitter_s: float) -> None:
    times_s = beats_of(np.random.default_rng(seed), rate, jitter_s)
    found_rate, found_rmssd = pulse(40.0 + 7.0 * pulse_wave(times_s), RATE_HZ, UNKNOWN)
    intervals_s = np.diff(within(times_s))
    assert found_rate == pytest.approx(60.0 / np.median(intervals_s), rel=0.01)
    assert found_rmssd == pytest.approx(1e3 * np.sqrt(np.mean(np.diff(intervals_s) ** 2)), rel=0.2, abs=5.0)


@pytest.mark.soak
@given(seeds, st.floats(1e-6, 1e6), st.floats(-1e6, 1e6))
@settings(max_examples=30)
def test_gain_and_offset_are_no_part_of_a_pulse(seed: int, gain: float, offset: float) -> None:
    wave = pulse_wave(beats_of(np.random.default_rng(seed), 70.0, 0.02))
    found = pulse(gain * (wave + offset * 1e-3), RATE_HZ, UNKNOWN)
    np.testing.assert_allclose(found, pulse(wave, RATE_HZ, UNKNOWN), rtol=1e-3)


def test_beats_are_found_between_samples_and_in_noise() -> None:
    rng = np.random.default_rng(0)
    times_s = within(beats_of(rng, 65.0, 0.03))
    wave = pulse_wave(times_s)
    clean = beats_s(band_passed(wave, RATE_HZ), RATE_HZ)
    assert len(clean) == len(times_s)
    shift_s = np.mean(clean - times_s)  # the band moves every top alike
    assert np.abs(clean - times_s - shift_s).max() < 0.25 / RATE_HZ
    drift = 3.0 * np.sin(2.0 * np.pi * 0.1 * np.arange(SAMPLES) / RATE_HZ)
    noisy = beats_s(band_passed(wave + drift + rng.normal(0.0, 0.1, SAMPLES), RATE_HZ), RATE_HZ)
    assert len(noisy) == len(times_s)
    assert np.abs(noisy - times_s - shift_s).max() < 0.05


def test_the_band_is_a_butterworth_filter_run_both_ways() -> None:
    values = np.random.default_rng(1).normal(size=SAMPLES).cumsum()
    ours = band_passed(values, RATE_HZ)
    low = scipy.signal.butter(3, 0.5, "high", fs=RATE_HZ, output="sos")
    high = scipy.signal.butter(3, 8.0, "low", fs=RATE_HZ, output="sos")
    theirs = scipy.signal.sosfiltfilt(np.vstack([low, high]), values)
    inner = slice(320, -320)  # what lies beyond the ends is anybody's guess
    assert np.corrcoef(ours[inner], theirs[inner])[0, 1] > 0.999
    assert np.abs(ours).max() == 1.0


def test_a_missed_beat_and_an_extra_one_count_as_neither() -> None:
    times_s = np.arange(0.5, 35.0, 0.8)
    regular = pulse(pulse_wave(times_s), RATE_HZ, UNKNOWN)
    assert regular == pytest.approx((75.0, 0.0), abs=1.0)
    missed = pulse(pulse_wave(np.delete(times_s, [7, 20])), RATE_HZ, UNKNOWN)
    extra = pulse(pulse_wave(np.sort([*times_s, times_s[12] + 0.4])), RATE_HZ, UNKNOWN)
    assert missed == pytest.approx((75.0, 0.0), abs=2.0)
    assert extra == pytest.approx((75.0, 0.0), abs=12.0)  # its neighbours' tops move a little


@pytest.mark.parametrize("values", [np.zeros(SAMPLES), np.full(SAMPLES, 1e15), np.arange(SAMPLES) * 1.0])
def test_no_pulse_gives_the_declared_values(values: Floats) -> None:
    assert pulse(values, RATE_HZ, (61.5, 22.0)).tolist() == [61.5, 22.0]
    spec = wrist({"kind": "pulse", "channels": ("bvp",), "unknown": (61.5, 22.0)})
    assert extract(spec, np.stack([values, values], axis=1)).tolist() == [61.5, 22.0]
    undeclared = wrist({"kind": "pulse", "channels": ("bvp",)})
    assert np.isnan(extract(undeclared, np.stack([values, values], axis=1))).all()


def test_five_beats_are_too_few() -> None:
    assert pulse(pulse_wave(np.arange(5.0, 9.5, 0.9)), RATE_HZ, UNKNOWN).tolist() == list(UNKNOWN)
    rate, _ = pulse(pulse_wave(np.arange(5.0, 10.5, 0.9)), RATE_HZ, UNKNOWN)
    assert rate == pytest.approx(60.0 / 0.9, rel=0.02)


@given(seeds, st.floats(-200, 15), st.sampled_from(["noise", "steps", "spikes"]))
def test_features_are_finite_and_in_range_for_any_input(seed: int, exponent: float, kind: str) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(SAMPLES, 2))
    if kind == "steps":
        values = np.sign(values).cumsum(axis=0)
    elif kind == "spikes":
        values = np.where(rng.random(values.shape) < 0.002, values, 0.0)
    values *= 10**exponent / max(np.abs(values).max(), 1e-300) * (1 - 1e-12)
    spec = wrist()
    found = dict(zip(feature_names(spec), extract(spec, values).tolist(), strict=True))
    assert all(math.isfinite(value) for name, value in found.items() if not name.startswith("bvp"))
    assert math.isnan(found["bvp.heart_rate"]) == math.isnan(found["bvp.rmssd"])
    found = {name: value for name, value in found.items() if math.isfinite(value)}
    assert 40.0 <= found.get("bvp.heart_rate", 40.0) <= 60.0 / 0.33 * 1.01
    assert 0.0 <= found.get("bvp.rmssd", 0.0) <= 1500.0
    assert abs(found["eda.tonic"]) <= LARGEST


def test_many_windows_are_to_the_bit_each_window() -> None:
    rng = np.random.default_rng(3)
    spec = wrist()
    values = np.stack([rng.normal(size=(SAMPLES, 2)).cumsum(axis=0) * 0.1 for _ in range(80)])  # more than one block
    together = extract_many(spec, values)
    assert together.shape == (80, 4 + 120)
    np.testing.assert_array_equal(together, np.stack([extract(spec, window) for window in values]))


def recursive(values: Floats, cutoff_hz: float) -> Floats:
    """The low-pass as it would run on for ever: two equal leaky means one after the other, started at rest."""
    share = 1.0 - math.exp(-2.0 * math.pi * cutoff_hz / RATE_HZ)
    slow = values
    for _ in range(2):
        state, out = slow[0], []
        for value in slow:
            state += share * (value - state)
            out.append(state)
        slow = np.array(out)
    return slow


@given(seeds)
@settings(max_examples=20)
def test_tonic_is_the_filter_that_never_stops(seed: int) -> None:
    values = 2.0 + 0.01 * np.random.default_rng(seed).normal(size=6000).cumsum()
    tonic, phasic = electrodermal(values[-SAMPLES:], RATE_HZ, 0.05)
    spread = values.std()
    assert tonic == pytest.approx(recursive(values, 0.05)[-1], abs=0.02 * spread)
    assert tonic + phasic == pytest.approx(values[-64:].mean(), rel=1e-12)


def test_half_of_the_cutoff_frequency_is_tonic() -> None:
    t = np.arange(SAMPLES) / RATE_HZ
    parts = [electrodermal(wave(2.0 * np.pi * 0.1 * t), RATE_HZ, 0.1)[0] for wave in (np.sin, np.cos)]
    assert math.hypot(*parts) == pytest.approx(0.5, abs=0.01)


@given(st.floats(-LARGEST, LARGEST))
def test_a_constant_skin_conductance_is_all_tonic(value: float) -> None:
    assert electrodermal(np.full(SAMPLES, value), RATE_HZ, 0.05).tolist() == [value, 0.0]


def test_a_startle_is_phasic_first_and_tonic_later() -> None:
    response = np.concatenate([np.full(3000, 1.0), np.full(4000, 1.5)])
    tonic, phasic = np.array([electrodermal(response[:at][-SAMPLES:], RATE_HZ, 0.05) for at in range(2936, 6000, 64)]).T
    assert phasic.argmax() < 3
    assert phasic.max() > 0.4
    assert np.all(np.diff(tonic) > -1e-12)
    assert (tonic[-1], phasic[-1]) == pytest.approx((1.5, 0.0), abs=1e-3)


def test_samples_are_the_window_channel_after_channel_or_means_of_its_blocks() -> None:
    values = np.random.default_rng(4).normal(size=(SAMPLES, 2))
    whole = wrist({"kind": "samples"})
    assert feature_names(whole)[:2] == ("eda.sample[0]", "eda.sample[1]")
    assert feature_names(whole)[SAMPLES] == "bvp.sample[0]"
    np.testing.assert_array_equal(extract(whole, values), values.T.ravel().astype(np.float32))
    slower = extract(wrist({"kind": "samples", "rate_hz": 16.0}), values)
    np.testing.assert_allclose(slower, values.T.reshape(2, 480, 4).mean(axis=-1).ravel(), rtol=1e-5, atol=1e-7)


def test_a_network_finds_its_time_steps_in_the_samples() -> None:
    """What `samples` puts side by side, `esn` with as many `steps` takes apart: time steps of all channels."""
    values = np.random.default_rng(5).normal(size=(SAMPLES, 2))
    x = extract(wrist({"kind": "samples", "rate_hz": 8.0}), values)[None].astype(np.float64)
    network = Network(task="classify", units=5, steps=240)
    params = esn.initial(np.random.default_rng(0), network, x.shape[1])
    np.testing.assert_allclose(esn.steps_of(params, x), values.reshape(240, 8, 2).mean(axis=1), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("step", "changes", "reason"),
    [
        ({"kind": "samples", "rate_hz": 10.0}, {}, r"steps\[0\].rate_hz: 10.0 Hz would average 6.4 of the 1920"),
        ({"kind": "samples", "rate_hz": 128.0}, {}, "would average 0.5 of the 1920"),
        ({"kind": "samples", "rate_hz": 9.142857142857142}, {}, "would average 7 of the 1920"),
        ({"kind": "moving", "latest_s": 30.0}, {}, "latest_s: 30.0 s is no part of window_s = 30.0 s"),
        ({"kind": "eda", "cutoff_hz": 0.03}, {}, "a period of 0.03 Hz is longer than window_s = 30.0 s; expected at l"),
        ({"kind": "eda", "cutoff_hz": 33.0}, {}, "cutoff_hz: 33.0 Hz is above half of rate_hz"),
        ({"kind": "pulse"}, {"window_s": 20.0}, r"window_s = 20.0 holds too few beats for 'pulse'; expected 25 s"),
        ({"kind": "pulse"}, {"rate_hz": 16.0}, r"rate_hz = 16.0 is too slow for 'pulse'; expected 25 Hz"),
        ({"kind": "pulse", "unknown": (0.0, 40.0)}, {}, "greater than 0"),
        ({"kind": "pulse", "unknown": (70.0,)}, {}, "unknown"),
    ],
)
def test_a_step_that_does_not_suit_is_refused(step: dict[str, object], changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        wrist(step, **changes)


def test_the_wrist_of_the_documentation_is_a_valid_gateway() -> None:
    page = (ROOT / "docs" / "reference" / "features.md").read_text("utf-8")
    blocks = re.findall(r"^```toml\n(\[\[source.*?)^```", page, re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if "bvp" in block]
    tables = {"gateway": {"id": "wrist-1", "site": "ward"}, **tomllib.loads(block)}
    settings = GatewaySettings.model_validate_json(json.dumps(tables), strict=True)
    assert feature_names(settings.features)[:4] == ("eda.tonic", "eda.phasic", "bvp.heart_rate", "bvp.rmssd")


def test_streams_of_a_wrist_make_its_windows() -> None:
    """Four samples a second and sixty-four: the fusion of the field joins them by straight lines."""
    streams = [StreamSpec(name="a", channels=("bvp",)), StreamSpec(name="b", channels=("eda",), gap_s=1.0)]
    state = start(wrist(), streams)
    pulses, skin = pulse_wave(np.arange(0.4, 40.0, 0.8), 40 * 64), 2.0 + 0.5 * np.sin(np.arange(160) / 20.0)
    windows = []
    for second in range(40):
        at = slice(64 * second, 64 * second + 64)
        for block in (
            Block("b", second * 10**9, 4.0, skin[4 * second : 4 * second + 4, None]),
            Block("a", second * 10**9, 64.0, pulses[at, None]),
        ):
            state, events = push(state, block)
            windows += [event for event in events if isinstance(event, Window)]
    assert [window.t_ns / 1e9 for window in windows] == [0.0, 5.0]
    tonic, phasic, rate, rmssd = extract(wrist(), windows[0].values)[:4]
    assert (rate, rmssd) == pytest.approx((75.0, 0.0), abs=2.0)
    last_second = np.interp(29.0 + np.arange(64) / 64.0, np.arange(160) / 4.0, skin)
    assert tonic + phasic == pytest.approx(last_second.mean(), rel=1e-6)


def brute_moving(x: Floats, span: float) -> Floats:
    """The definition: every row anew from all rows before it and their weights."""
    out, largest = np.zeros_like(x), np.zeros(x.shape[1])
    for t in range(len(x)):
        weights = (1.0 - 1.0 / span) ** np.arange(t, -1, -1)
        mean = np.average(x[: t + 1], axis=0, weights=weights)
        spread = np.sqrt(np.average((x[: t + 1] - mean) ** 2, axis=0, weights=weights))
        largest = np.maximum(largest, spread)
        floor = np.maximum(spread, SPREAD_SHARE * largest)
        out[t] = np.where(floor > 0, (x[t] - mean) / np.where(floor > 0, floor, 1.0), 0.0)
    return np.clip(out, -8.0, 8.0)


@pytest.mark.soak
@given(seeds, st.floats(1.0, 100.0), st.integers(0, 40))
@settings(max_examples=30)
def test_moving_normalisation_is_its_definition_and_goes_on_where_it_was(seed: int, span: float, cut: int) -> None:
    x = np.random.default_rng(seed).normal(size=(40, 3)).cumsum(axis=0)
    whole, end = moving_standardised(x, None, span)
    np.testing.assert_allclose(whole, brute_moving(x, span), rtol=1e-6, atol=1e-8)
    first, state = moving_standardised(x[:cut], None, span)
    second, last = moving_standardised(x[cut:], state, span)
    np.testing.assert_array_equal(np.concatenate([first, second]), whole)
    assert all(np.array_equal(end[name], last[name]) for name in end)


def test_moving_normalisation_of_a_signal_at_rest_does_not_explode() -> None:
    """The spread of skin conductance at rest is next to nothing, and what is divided by it would be thousands."""
    x = np.concatenate([np.sin(np.arange(50.0)), np.full(2000, 0.5), [0.5001, 100.0]])[:, None]
    z, _ = moving_standardised(x, None, 20.0)
    assert np.abs(z[60:-1]).max() < 8.0
    assert abs(z[-2, 0]) < 0.01
    assert z[-1, 0] <= 8.0
    assert not moving_standardised(np.full((30, 2), 1e9), None, 5.0)[0].any()


def test_golden() -> None:
    """What a model was trained on must not change under it: values of a signal written out as a formula."""
    t = np.arange(SAMPLES) / RATE_HZ
    phase = 2.0 * np.pi * (1.2 * t + 0.15 * np.sin(2.0 * np.pi * 0.2 * t))
    bvp = 30.0 * (np.sin(phase) + 0.4 * np.sin(2.0 * phase + 1.0)) + 5.0 * np.sin(0.7 * t)
    eda = 1.5 + 0.02 * t + 0.3 * np.maximum(t - 24.0, 0.0) * np.exp(-np.maximum(t - 24.0, 0.0) / 2.0)
    found = extract(wrist(), np.stack([eda, bvp], axis=1))[[0, 1, 2, 3, 4, 63, 123]]
    expected = [2.068801, 0.1270842, 72.16777, 92.33495, 1.502344, 1.797344, 2.191013]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
