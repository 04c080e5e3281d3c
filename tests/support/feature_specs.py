"""Feature specifications that several tests measure or judge."""

from collections.abc import Mapping

from fedgate.models.features.spec import FeatureSpec

STATISTICS = ("level", "deviation", "rms", "peak", "crest", "skewness", "kurtosis")
ALL_KINDS: tuple[Mapping[str, object], ...] = (
    *({"kind": kind} for kind in STATISTICS),
    {"kind": "bands", "edges_hz": (0, 5, 20, 50)},
    {"kind": "spectrum"},
    {"kind": "welch", "segment_s": 0.4},
    {"kind": "welch", "segment_s": 0.4, "log": True, "normalise": True},
    {"kind": "moving"},
)
WRIST: tuple[Mapping[str, object], ...] = (
    {"kind": "eda", "channels": ("eda",)},
    {"kind": "pulse", "channels": ("bvp",)},
    {"kind": "samples", "rate_hz": 4.0, "channels": ("eda",)},
)


def spec_of(*steps: Mapping[str, object], **changes: object) -> FeatureSpec:
    keys: dict[str, object] = {"rate_hz": 100.0, "window_s": 2.0, "channels": ("a", "b"), "steps": steps}
    return FeatureSpec.model_validate(keys | changes)


def wrist(*steps: Mapping[str, object], **changes: object) -> FeatureSpec:
    """Return a specification for a wrist: by default skin conductance, pulse, and the former as 120 samples."""
    keys: dict[str, object] = {"rate_hz": 64.0, "window_s": 30.0, "hop_s": 5.0, "channels": ("eda", "bvp")}
    return FeatureSpec.model_validate(keys | {"steps": steps or WRIST} | changes)
