"""The demo's two stories: which real recording each gateway's sensor plays, and when what is damaged."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgate.firmware_sim.demo.faults import stiffness_loss
from fedgate.firmware_sim.demo.outcome import Scenario
from fedgate.firmware_sim.recordings import Channel, Recording, read, shipped
from fedgate.models.time_units import DAY_S, NS

HEALTHY, DAMAGED, NEITHER = 0, 1, -1
MUNICH_PLAN = Path(__file__).with_name("munich-plan.svg")
GRID_S = 100  # of which the windows of both stories are parts: they are cut alike whenever it is played
T0_NS = 1_700_000_000 * NS  # the replay's own clock: when its first sample is said to have been taken


@dataclass(frozen=True)
class Span:
    """A stretch of the replay and what is true of the structure in it."""

    start_s: float
    end_s: float
    label: int
    text: str


@dataclass(frozen=True)
class Story:
    """A scenario ready to play: one recording a gateway, all on one clock."""

    scenario: Scenario
    sensors: tuple[Recording, ...]  # one channel each, one a gateway
    spans: tuple[Span, ...]
    features: dict[str, Any]  # the [features] table of all settings
    baseline_windows: int
    alarm: dict[str, Any]  # the [alarm] table
    speed: float
    t0_ns: int = T0_NS
    frame_s: float | None = None  # of the nodes; None: a second, or one sample
    source: Mapping[str, Any] = field(default_factory=dict)  # what else stands in the [[source]] table of a gateway
    aggregator: Mapping[str, Any] = field(default_factory=dict)  # more tables of aggregator.toml
    defaults: Mapping[str, Any] = field(default_factory=dict)  # settings of any algorithm that has them
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the algorithm, beside the quick ones of all demos
    locations: tuple[str, ...] = ()  # of the gateways' devices, one a sensor; empty: the sensors' names
    plan: Path | None = None  # of the site, an SVG
    positions: tuple[tuple[float, float], ...] = ()  # of the gateways on it, shares of its width and height

    @property
    def places(self) -> tuple[str, ...]:
        """Where each gateway is, in the words of `[gateway.device]`."""
        return self.locations or tuple(sensor.name for sensor in self.sensors)

    @property
    def length_s(self) -> float:
        """Length of the replay in recording seconds."""
        return self.spans[-1].end_s

    def end_now(self) -> Story:
        """Return the story on a clock by which its recording ends now: what its gateways tell is of today."""
        begin_s = (time.time() - self.length_s) // GRID_S * GRID_S
        return replace(self, t0_ns=int(begin_s) * NS)

    def seconds(self, t_ns: int) -> float:
        """Return a time stamp of the replay as seconds into it."""
        return (t_ns - self.t0_ns) / NS

    def moment(self, at_s: float) -> str:
        """Return a moment of the replay as a person would say it."""
        return f"day {at_s / DAY_S:.1f}" if self.length_s > 3 * DAY_S else f"{at_s:.0f} s"

    def label(self, start_s: float, end_s: float) -> int:
        """Return what is true of a window: the label of the span it lies in, `NEITHER` where it lies in none."""
        return next((s.label for s in self.spans if s.start_s <= start_s and end_s <= s.end_s), NEITHER)


def munich() -> Story:
    """A support of a test bridge is lowered in two stages: the level of force and strain shifts, the spectrum does
    not.
    """
    healthy, first, second = (
        read(shipped(f"munich_bridge/{name}")) for name in ("ref_load_01", "lowered_load_01", "lowered_load_02")
    )
    commissioned_s, returned_s = 432.0, 540.0
    parts = [healthy, first, second, healthy.cut(returned_s, healthy.length_s)]
    ends = np.cumsum([part.length_s for part in parts])
    whole = np.concatenate([part.values for part in parts])  # (T, 3)
    spans = (
        Span(0.0, ends[0], HEALTHY, "healthy, load moving"),
        Span(ends[0], ends[1], DAMAGED, "support lowered, stage 1"),
        Span(ends[1], ends[2], DAMAGED, "support lowered, stage 2"),
        Span(ends[2], ends[3], NEITHER, "healthy again"),
    )
    scenario = Scenario(
        title="Munich test bridge: a support is lowered",
        data=(
            "Recorded on the UniBw test bridge on 11 April 2022: forces FRC-01 and FRC-02 and strain DMS_CN at 100 Hz "
            "under a moving load, healthy and after a support was lowered in two stages (imcs-compsim/"
            "munich-bridge-data, MIT; Jaelani et al., Steel Construction 16, 2023). One sensor a gateway. The damage "
            "is real."
        ),
        damage=_damage(spans),
        commissioning=(0.0, commissioned_s),
        notes=(
            f"The last {ends[3] - ends[2]:.0f} s repeat the end of the healthy recording, to show that alarms clear. "
            "They count neither as healthy nor as damaged.",
            "The lowering shifts the level of force and strain by many deviations; its spectrum stays as it was.",
        ),
    )
    features = {
        "rate_hz": 100.0,
        "window_s": 10.0,
        "hop_s": 2.5,
        "channels": ["load"],
        "steps": [
            {"kind": "level"},
            {"kind": "deviation"},
            {"kind": "bands", "edges_hz": [0.5, 2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 49.0]},
        ],
    }
    sensors = [
        Recording(channel.name, (channel,), healthy.rate_hz, whole[:, [column]])
        for column, channel in enumerate(healthy.channels)
    ]
    alarm = {"false_alarms_per_day": 1.0, "reach": 3.0, "minimum_duration_s": 10.0}
    locations = tuple(f"Munich test bridge, {_describe(channel)} {channel.name}" for channel in healthy.channels)
    story = _story(scenario, sensors, spans, features, alarm, speed=60.0)
    return replace(story, locations=locations, plan=MUNICH_PLAN, positions=((0.2, 0.58), (0.8, 0.58), (0.5, 0.38)))


def _describe(channel: Channel) -> str:
    return "force" if channel.unit == "kN" else "strain"


def footbridge() -> Story:
    """A stiffness loss injected into ambient accelerations of a footbridge, at a known time."""
    from scipy.signal import resample

    recording = read(shipped("usc_footbridges/bridge_A_ambient"))
    rate_hz, commissioned_s, damaged_s, lasts_s, loss = 200.0, 26.0, 34.0, 6.0, 0.3
    count = int(len(recording.values) * rate_hz / recording.rate_hz)
    slower = resample(recording.values - recording.values.mean(axis=0), count)  # (T, 3), low-passed at 100 Hz by this
    whole = stiffness_loss(slower, rate_hz, damaged_s, lasts_s, loss)
    spans = (
        Span(0.0, damaged_s, HEALTHY, "healthy, ambient"),
        Span(damaged_s, damaged_s + lasts_s, DAMAGED, f"injected: {loss:.0%} of the stiffness lost"),
        Span(damaged_s + lasts_s, len(whole) / rate_hz, HEALTHY, "healthy again"),
    )
    scenario = Scenario(
        title="USC footbridge A: an injected loss of stiffness",
        data=(
            "Recorded on footbridge A of the University of South Carolina: three ambient runs of 43.6 s at 1651.6 Hz "
            "(ARTS-Laboratory/USC-walking-bridges, CC BY-SA 4.0), resampled to 200 Hz, one run a gateway. The damage "
            f"is injected: for {lasts_s:g} s the recording is played slower, as if {loss:.0%} of the stiffness were "
            "gone."
        ),
        damage=_damage(spans),
        commissioning=(0.0, commissioned_s),
        notes=(
            "The injection moves all lines of the spectrum, those of the mains too; real damage moves some and less.",
            "26 s of commissioning are far too little in service; the recording has no more.",
        ),
    )
    features = {
        "rate_hz": rate_hz,
        "window_s": 2.0,
        "hop_s": 0.25,
        "channels": ["acceleration"],
        "steps": [{"kind": "welch", "segment_s": 0.5, "low_hz": 2.0, "high_hz": 45.0, "log": True, "normalise": True}],
    }
    story = _story(
        scenario,
        [
            Recording(f"run_{k + 1}", (Channel(f"run {k + 1}", "g"),), rate_hz, whole[:, [k]])
            for k in range(whole.shape[1])
        ],
        spans,
        features,
        alarm={"false_alarms_per_day": 1.0, "minimum_duration_s": 0.5},
        speed=1.5,
        # A wide kernel: from twenty windows the tail of the default's scores is extrapolated so far that one of three
        # gateways misses the damage, at an area under the ROC curve of 1.
        defaults={"gamma": 0.02},
    )
    return replace(story, locations=tuple(f"footbridge A, run {k + 1}" for k in range(whole.shape[1])))


def _story(
    scenario: Scenario,
    sensors: list[Recording],
    spans: tuple[Span, ...],
    features: dict[str, Any],
    alarm: dict[str, Any],
    speed: float,
    defaults: Mapping[str, Any] | None = None,
) -> Story:
    commissioned_s = scenario.commissioning[1]
    windows = int((commissioned_s - features["window_s"]) / features["hop_s"]) + 1
    return Story(scenario, tuple(sensors), spans, features, windows, alarm, speed, defaults=defaults or {})


def _damage(spans: tuple[Span, ...]) -> tuple[tuple[float, float, str], ...]:
    return tuple((span.start_s, span.end_s, span.text) for span in spans if span.label == DAMAGED)


STORIES: dict[str, Callable[[], Story]] = {"munich": munich, "footbridge": footbridge}
