"""Features in words: every kind is named, with its hertz and units, and a factor is one of energies."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from fedgate.models.features.describe import Meaning, describe_features, describe_value
from fedgate.models.features.kinds import Step
from fedgate.models.features.spec import FeatureSpec, feature_names

STEPS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "level": ({"kind": "level"}, ["mean"]),
    "deviation": ({"kind": "deviation"}, ["standard deviation"]),
    "rms": ({"kind": "rms"}, ["root mean square"]),
    "peak": ({"kind": "peak"}, ["peak"]),
    "crest": ({"kind": "crest"}, ["crest factor"]),
    "skewness": ({"kind": "skewness"}, ["skewness"]),
    "kurtosis": ({"kind": "kurtosis"}, ["excess kurtosis"]),
    "bands": ({"kind": "bands", "edges_hz": [1.0, 3.5, 8.0]}, ["1-3.5 Hz", "3.5-8 Hz"]),
    "spectrum": ({"kind": "spectrum", "low_hz": 2.0, "high_hz": 2.04}, ["2 Hz", "2.033 Hz"]),
    "welch": ({"kind": "welch", "segment_s": 2.0, "low_hz": 4.0, "high_hz": 4.5}, ["4 Hz", "4.5 Hz"]),
    "samples": ({"kind": "samples", "rate_hz": 0.1}, [f"value {at} s into the window" for at in (0, 10, 20)]),
    "moving": ({"kind": "moving", "latest_s": 2.0}, ["last 2 s beside the window"]),
    "eda": ({"kind": "eda"}, ["slow part of the skin conductance", "fast part of the skin conductance"]),
    "pulse": ({"kind": "pulse"}, ["heart rate", "heart rate variability (RMSSD)"]),
    "calendar": (
        {"kind": "calendar", "per": "window", "values": ["hour", "weekday", "workday", "year"]},
        [
            *("hour of the day",) * 2,
            *("day of the week",) * 2,
            "working day or not",
            *("time of the year",) * 2,
        ],
    ),
}


def test_every_kind_of_feature_is_in_the_list() -> None:
    kinds = {kind for one in get_args(get_args(Step)[0]) for kind in get_args(one.model_fields["kind"].annotation)}
    assert kinds == STEPS.keys()


@pytest.mark.parametrize("kind", STEPS)
def test_every_kind_of_feature_is_said_in_words(kind: str) -> None:
    step, words = STEPS[kind]
    spec = FeatureSpec.model_validate({"rate_hz": 30.0, "window_s": 30.0, "channels": ["a", "b"], "steps": [step]})
    found = describe_features(spec, {"a": "m", "b": "g"})
    assert tuple(found) == feature_names(spec)
    channels = [""] if kind == "calendar" else ["a", "b"]
    assert [(one.channel, one.what) for one in found.values()] == [(each, what) for each in channels for what in words]
    for meaning in found.values():
        text = describe_value(meaning, 2.5, 2.0, 0.1)
        assert meaning.what in text and "unit of" not in text
        if kind in ("level", "peak", "samples", "eda"):
            assert text.count(" m" if meaning.channel == "a" else " g") >= 2


ENERGY = Meaning("a", "3.1-3.4 Hz", "log10", 1, "energy")
AMPLITUDE = Meaning("a", "3 Hz", "ratio", 2, "energy")
LEVEL = Meaning("a", "mean", unit="°C")
SAID: dict[str, tuple[Meaning, float, float, float]] = {
    "3.1-3.4 Hz carries 6 times its usual energy": (ENERGY, -2.222, -3.0, 0.1),
    "3.1-3.4 Hz carries 0.25 times its usual energy": (ENERGY, -3.6, -3.0, 0.1),
    "3.1-3.4 Hz carries energy, and usually next to none": (ENERGY, -3.0, -24.0, 0.1),
    "3.1-3.4 Hz carries next to none of its usual energy": (ENERGY, -24.0, -3.0, 0.1),
    "energy at 3.1-3.4 Hz is 2 healthy spreads above its median": (ENERGY, -2.99, -3.0, 0.005),
    "3 Hz carries 36 times its usual energy": (AMPLITUDE, 6.0, 1.0, 0.1),
    "3 Hz carries energy, and usually next to none ": (AMPLITUDE, 1.0, 0.0, 0.0),
    "mean is 23.4 °C, usually 21 °C": (LEVEL, 23.4, 21.0, 0.1),
    "mean is 5 °C, and never left 3 °C in the baseline": (LEVEL, 5.0, 3.0, 0.0),
    "mean is 3 healthy spreads below its median": (LEVEL, 21.00001, 21.00004, 0.00001),
    "mean has moved, as it never did in the baseline": (LEVEL, 21.00001, 21.00004, 0.0),
}


@pytest.mark.parametrize("text", SAID)
def test_a_value_is_said_beside_what_is_usual(text: str) -> None:
    assert describe_value(*SAID[text]) == text.strip()
