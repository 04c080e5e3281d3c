"""What a simulated world is made of, drawn from its seed: gateways, settings, what the sensors will measure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.config.settings.settings import AggregatorSettings, GatewaySettings
from fedgate.firmware_sim.recordings import Channel, Recording
from fedgate.firmware_sim.world.environment.faults import Faults, Handling
from fedgate.models.alarms.false_alarm_test import block_windows
from fedgate.models.arrays import FEATURES as ROWS
from fedgate.models.arrays import LABELS, Arrays, Floats
from fedgate.models.time_units import HOUR_S

SITE, STREAM = "bridge", "deck"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))  # of this world and no other
NAMES = ("east", "north", "west")
RATE_HZ, FRAME_S = 2.0, 30.0
WINDOWS = 60  # of a baseline
HOURS = 0.3  # of faults, a third of it without a model
COMMISSIONED = 1.25  # times what a baseline takes: then there may be damage
SETTLE_S = 4 * HOUR_S
ESCALATED_S, ESCALATED = 240.0, "major"  # after which, and from which severity on, an alarm is told of once more
SHIFT = 60.0  # deviations: damage that nobody can miss
FEATURES: dict[str, Any] = {
    "rate_hz": RATE_HZ,
    "channels": ["load"],
    "steps": [{"kind": "level"}, {"kind": "deviation"}, {"kind": "peak"}],
}
RECEIVER: dict[str, Any] = {  # of alarms, where somebody sees to them
    "webhook": {"url": "http://receiver.invalid/alarms", "retry_max_s": 60.0},
    "escalation": {"after_s": ESCALATED_S, "severity": ESCALATED},
}
REMOTE = "building"  # a system that may act on alarms over MQTT
KEPT: dict[str, Any] = {"max_clip_bytes": 65_536, "max_bytes": 131_072}  # of samples, at a gateway
PUBLISHED = ("load.level", "load.deviation")
FETCHED: dict[str, Any] = {"fetch": True, "max_clip_bytes": 65_536}
KEEPING = 0.75  # share of the gateways that keep samples, where somebody fetches any
SMALL = {"units": 12, "leak": 0.5, "washout": 4}
# One whose steps may come late, one that sums contributions, one that remembers whom it counted, one that stacks rows,
# one that masks; and how often each is drawn. Each "fedavg" asks for the width of its map first.
CHOICES: tuple[tuple[float, str, dict[str, Any]], ...] = (
    (0.35, "fedavg", {"rounds": 2, "components": 16, "loss": "logistic"}),
    (0.15, "fedavg", {"rounds": 2, "components": 16}),
    (0.2, "incfed", {"network": SMALL}),
    (0.2, "support-vector-election", {}),
    (0.1, "fedavg", {"rounds": 1, "components": 16, "masking": {"fewest": 3}}),
)
# A probation lasts for a block of windows at least, and each model begins another. So in a share of the worlds windows
# are short and rounds rare: there probations end, again and again.
PATIENT, UNWATCHED = 0.25, 0.05  # shares of the worlds: such ones, and those without probations
SUMMARISED = 0.15  # share of the worlds whose gateways publish a feature
STAGED = (0.65, 0.25, 0.1)  # shares of the worlds with [release] mode "all", "staged" and "manual"
FAULTY = 20  # windows of known condition, as a gateway would have them in a table
TWIN = "~"  # behind the name of a second device under one id


def gateway_of(device: str) -> str:
    """Return the id under which a device speaks."""
    return device.removesuffix(TWIN)


def stream_of(seed: int, concern: str) -> np.random.Generator:
    """Return the random numbers of one concern: another fault in one must not move those of another."""
    return np.random.default_rng([seed, crc32(concern.encode())])


def find_published(seed: int) -> tuple[str, ...]:
    """Return which features the gateways of a world publish; in most none."""
    return PUBLISHED if stream_of(seed, "features that are published").random() < SUMMARISED else ()


@dataclass(frozen=True)
class Pace:
    """How fast things go in a world."""

    window_s: float
    rest_s: float | None  # between rounds, where it is not drawn with the rest
    probation_s: float

    @property
    def features(self) -> dict[str, Any]:
        """What is measured."""
        return {**FEATURES, "window_s": self.window_s}


@dataclass(frozen=True)
class Setup:
    """What was drawn for a seed."""

    cloud: AggregatorSettings
    gateways: dict[str, GatewaySettings]
    recordings: dict[str, Recording]
    damages: dict[str, list[tuple[float, float]]]  # by gateway: from, to, in seconds
    phases_s: dict[str, float]  # when each machine ticks and each node sends
    handled: str  # the gateway that is in people's hands
    twin: GatewaySettings  # of a second device under its id


def setup(seed: int, hours: float, faults: Faults, folder: Path) -> Setup:
    """Return the world of a seed; its stores will lie in `folder`."""
    rng, pace = stream_of(seed, "setup"), _pace(stream_of(seed, "pace"))
    _, choice, settings = CHOICES[int(rng.choice(len(CHOICES), p=[share for share, *_ in CHOICES]))]
    is_masked = "masking" in settings  # which takes three
    names = NAMES if is_masked else NAMES[: int(rng.integers(2, len(NAMES) + 1))]
    # One that was handled may be shut out for good, where the algorithm remembers whom it counted.
    most = len(names) - (faults.handling != Handling())
    quorum = len(names) if is_masked else int(rng.integers(1, most + 1))
    limits = {"max_payload_bytes": int(rng.choice([1_024, 8_192]))}
    cloud = AggregatorSettings.model_validate(
        {
            "aggregator": {"site": SITE, "store": folder / "cloud.db"},
            "features": pace.features,
            "algorithm": {"name": choice, "seed": seed, "settings": settings},
            "rounds": {
                "quorum": quorum,
                "deadline_s": round(float(rng.uniform(10.0, 80.0)), 1),
                "rest_s": round(float(rng.uniform(10.0, 150.0)), 1),
                "late": str(rng.choice(["next-round", "refuse"], p=[0.8, 0.2])),
                "late_rounds": int(rng.choice([1, 2], p=[0.7, 0.3])),
            },
            "limits": limits,
            "release": _release(stream_of(seed, "release"), pace),
            **(RECEIVER if faults.alarms.orders else {}),
            **({"alarms": {"actions_from": [REMOTE]}} if faults.alarms.actions else {}),
            **({"samples": FETCHED} if faults.samples.fetches else {}),
        }
    )
    if pace.rest_s is not None:
        cloud = cloud.model_copy(update={"rounds": cloud.rounds.model_copy(update={"rest_s": pace.rest_s})})
    damages = {name: _damages(rng, hours, faults, pace.window_s) for name in names}
    handled = str(rng.choice(names))
    keeping = stream_of(seed, "samples kept").random(len(names)) < (KEEPING if faults.samples.fetches else 0.0)
    keeps = dict(zip(names, keeping.tolist(), strict=True))
    published = find_published(seed)
    return Setup(
        cloud=cloud,
        gateways={name: _gateway(name, folder, limits, pace, published, keeps=keeps[name]) for name in names},
        recordings={name: _recording(seed, name, hours, damages[name]) for name in names},
        damages=damages,
        phases_s={name: float(rng.uniform(0.0, 10.0)) for name in ("cloud", *names)},
        handled=handled,
        twin=_gateway(handled, folder / "twin", limits, pace, published, keeps=keeps[handled]),
    )


def _release(rng: np.random.Generator, pace: Pace) -> dict[str, Any]:
    block_s = block_windows(pace.window_s) * pace.window_s
    mode, (canary, watched, patience) = str(rng.choice(["all", "staged", "manual"], p=STAGED)), rng.random(3)
    times = {
        "watch_s": round(block_s * (1.0 + 0.3 * watched), 1),
        "patience_s": round(block_s * (0.5 + 3.0 * patience), 1),
    }
    return {"mode": mode, "canary": round(0.1 + 0.5 * canary, 2), **times}


def _pace(rng: np.random.Generator) -> Pace:
    is_patient, is_watched = rng.random() < PATIENT, rng.random() >= UNWATCHED
    window_s = 2.5 if is_patient else 5.0
    rest_s = round(float(rng.uniform(200.0, 500.0)), 1) if is_patient else None
    least_s = block_windows(window_s) * window_s
    return Pace(window_s, rest_s, round(least_s * float(rng.uniform(1.0, 1.5)), 1) if is_watched else 0.0)


def _gateway(
    name: str, folder: Path, limits: dict[str, int], pace: Pace, published: tuple[str, ...], *, keeps: bool
) -> GatewaySettings:
    source = {"name": STREAM, "kind": "frames", "channels": [{"role": "load"}], "silent_after_s": 120.0}
    return GatewaySettings.model_validate(
        {
            "gateway": {"id": name, "site": SITE, "store": folder / f"{name}.db"},
            "source": [source],
            "features": pace.features,
            "baseline": {"windows": WINDOWS},
            "limits": limits,
            "exchange": {"spread_s": 5.0, "publish_features": published},
            "models": {"probation_s": pace.probation_s},
            **({"samples": KEPT} if keeps else {}),
        }
    )


def faulty(seed: int, name: str) -> Arrays:
    """Return what the table of labelled windows of a gateway holds: faults, in deviations of what is normal."""
    rows = stream_of(seed, f"faults of {name}").normal(size=(FAULTY, len(FEATURES["steps"]))) + SHIFT
    return {ROWS: rows.astype(np.float32), LABELS: np.ones(FAULTY, dtype=np.int64)}


def _damages(rng: np.random.Generator, hours: float, faults: Faults, window_s: float) -> list[tuple[float, float]]:
    spans, at_s = [], COMMISSIONED * WINDOWS * window_s
    while faults.work.damage > 0:
        at_s += float(rng.exponential(HOUR_S / faults.work.damage))
        until_s = at_s + max(float(rng.exponential(faults.work.damage_s)), 2 * window_s)
        if until_s >= hours * HOUR_S:
            break
        spans.append((at_s, until_s))
        at_s = until_s
    return spans


def _recording(seed: int, name: str, hours: float, damages: list[tuple[float, float]]) -> Recording:
    count = round((hours * HOUR_S + SETTLE_S) * RATE_HZ)
    values: Floats = stream_of(seed, f"samples of {name}").normal(size=(count, 1))
    for first_s, last_s in damages:
        values[round(first_s * RATE_HZ) : round(last_s * RATE_HZ)] += SHIFT
    return Recording(f"{STREAM} at {name}", (Channel("load"),), RATE_HZ, values)
