"""The specification: what it names, that it survives as JSON, and that every contradiction names its key."""

import json
import math

import pytest
from pydantic import ValidationError

from fedgate.models.features.spec import FeatureSpec, feature_names
from tests.support.feature_specs import ALL_KINDS, spec_of


def test_order_of_features_and_cropping() -> None:
    spec = spec_of({"kind": "bands", "edges_hz": (1, 2.5, 4)}, {"kind": "spectrum", "low_hz": 0.5, "high_hz": 1.0})
    assert feature_names(spec) == (
        *("a.band[1-2.5Hz]", "a.band[2.5-4Hz]", "b.band[1-2.5Hz]", "b.band[2.5-4Hz]"),
        *("a.spectrum[0.5Hz]", "a.spectrum[1Hz]", "b.spectrum[0.5Hz]", "b.spectrum[1Hz]"),
    )


def test_the_bridge_of_the_paper_gives_600_bins_half_a_hertz_apart() -> None:
    spec = spec_of({"kind": "spectrum"}, rate_hz=600.0, channels=("a",))
    names = feature_names(spec)
    assert (len(names), names[0], names[-1]) == (600, "a.spectrum[0.5Hz]", "a.spectrum[300Hz]")


def test_specification_survives_json() -> None:
    spec = spec_of(
        *ALL_KINDS, {"kind": "rms", "channels": ("g",)}, channels=("a", "b", "c"), magnitude={"g": tuple("abc")}
    )
    text = spec.model_dump_json()
    assert FeatureSpec.model_validate_json(text) == spec
    assert FeatureSpec.model_validate_json(text).model_dump_json() == text
    assert json.loads(text)["hop_s"] == 2.0


def test_counts_of_samples() -> None:
    spec = spec_of({"kind": "level"}, rate_hz=0.0033333333, window_s=86400.0, hop_s=3600.0)
    assert (spec.samples, spec.hop_samples) == (288, 12)
    assert spec_of({"kind": "level"}).hop_s == 2.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window_s": 2.005}, r"window_s: makes 200.5 samples"),
        ({"window_s": 0.01}, r"window_s: makes 1 samples .* at least 2"),
        ({"hop_s": 0.005}, r"hop_s: makes 0.5 samples"),
        ({"hop_s": 3.0}, r"hop_s: 3.0 s would skip samples; expected at most window_s = 2.0 s"),
        ({"hop_s": 0.0}, r"hop_s\n .*greater than 0"),
        ({"rate_hz": math.nan}, r"rate_hz\n .*finite number"),
        ({"channels": ("a", "a")}, r"name 'a' occurs 2 times"),
        ({"steps": ()}, r"steps\n .*at least 1 item"),
        ({"steps": ({"kind": "lvl"},)}, r"steps.0\n .*'lvl'.*'level', 'deviation'"),
        ({"steps": ({"kind": "level", "edges_hz": (1, 2)},)}, r"edges_hz\n .*Extra inputs"),
        (
            {"steps": ({"kind": "level", "channels": ("z",)},)},
            r"steps: \['z'\] are neither in channels nor in magnitude",
        ),
        ({"steps": ({"kind": "level"}, {"kind": "level", "channels": ("b",)})}, r"feature 'b.level' occurs 2 times"),
        ({"steps": ({"kind": "bands", "edges_hz": (1, 20, 60)},)}, r"steps\[0\].edges_hz: 60.0 Hz .* at most 50.0 Hz"),
        ({"steps": ({"kind": "bands", "edges_hz": (2, 1)},)}, r"edges_hz: no bin .* between 2.0 and 1.0 Hz; .*rising"),
        ({"steps": ({"kind": "bands", "edges_hz": (0, 0.4)},)}, r"edges_hz: no bin .* 0.5 Hz apart"),
        ({"steps": ({"kind": "spectrum", "high_hz": 51},)}, r"steps\[0\].high_hz: 51.0 Hz .* at most 50.0 Hz"),
        ({"steps": ({"kind": "spectrum", "low_hz": 9.1, "high_hz": 9.4},)}, r"low_hz: no bin .* from 9.1 to 9.4 Hz"),
        ({"steps": ({"kind": "welch", "segment_s": 2.5},)}, r"segment_s: 2.5 s is longer than window_s = 2.0 s"),
        ({"steps": ({"kind": "welch", "segment_s": 0.555},)}, r"segment_s: makes 55.5 samples"),
        ({"magnitude": {"g": ("a", "b", "z")}}, r"magnitude.g: .*expected three different names"),
        ({"magnitude": {"g": ("a", "b", "b")}}, r"magnitude.g: .*expected three different names"),
        ({"magnitude": {"a": ("a", "b", "b")}}, r"name 'a' occurs 2 times"),
        ({"channels": ("a", "b", "c"), "magnitude": {"g": ("a", "b", "c")}}, r"magnitude.g: no step names it"),
        ({"colour": 1}, r"colour\n .*Extra inputs"),
    ],
)
def test_a_contradictory_specification_names_the_key(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec_of({"kind": "level"}, **changes)


def test_specification_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        spec_of({"kind": "level"}).__setattr__("rate_hz", 1.0)
