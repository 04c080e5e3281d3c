"""A large gateway: 24 channels at 600 Hz, cut into windows of 2 s, with a model in force; all made from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from fedgate.cloud_aggregator.context import sign_message
from fedgate.cloud_aggregator.releases.deploy import make_model
from fedgate.config.identity.signing import verify
from fedgate.config.protocol import wire
from fedgate.config.protocol.frames import Frame, FrameMeta
from fedgate.config.protocol.messages import Manifest, name_audience
from fedgate.config.protocol.topics import Topic, topic_of
from fedgate.config.settings.settings import GatewaySettings, load
from fedgate.gateway_agent import machine
from fedgate.gateway_agent.deployment.deployment import MODEL, MODELS, Bundle, Models, SlotEntry, save, save_model
from fedgate.gateway_agent.events import Connection, Effect, Event, Publish, Received
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.state import Host, State, Stored, restore
from fedgate.gateway_agent.training.training import OWN
from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.features.spec import FeatureSpec, extract_many, feature_names
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Server
from fedgate.models.time_units import NS

T0_NS = 1_700_000_000 * NS
ROOT = Path(__file__).resolve().parents[2]
SITE, GATEWAY, STREAM = "bench", "gateway-1", "deck"
CHANNELS, RATE_HZ, WINDOW_S, FRAME_S = 24, 600.0, 2.0, 1.0
VECTORS = 400  # of the model: three gateways' worth
ALGORITHM = "support-vector-election"

Rows = NDArray[np.float32]


def shipped_features() -> FeatureSpec:
    """Return the [features] of the settings that come with fedgate."""
    return load(ROOT / "config" / "gateway.toml", GatewaySettings).features


def features(*steps: Mapping[str, object]) -> FeatureSpec:
    """Return the shipped features, or those of other steps, measured on 24 channels at 600 Hz."""
    return FeatureSpec.model_validate(
        {
            "rate_hz": RATE_HZ,
            "window_s": WINDOW_S,
            "channels": [f"channel-{number:02d}" for number in range(CHANNELS)],
            "steps": steps or shipped_features().model_dump()["steps"],
        }
    )


def samples(spec: FeatureSpec, count: int, seed: int = 0) -> Floats:
    """Return healthy windows (n, T, C): white noise."""
    return np.random.default_rng(seed).normal(size=(count, spec.samples, len(spec.channels)))


def tables(spec: FeatureSpec) -> dict[str, Any]:
    """Return the tables that a settings file must have: one sensor node brings all channels."""
    source = {"name": STREAM, "kind": "frames", "channels": [{"role": role} for role in spec.channels]}
    return {"gateway": {"id": GATEWAY, "site": SITE}, "source": [source], "features": spec.model_dump(mode="json")}


def baseline(spec: FeatureSpec, count: int) -> Rows:
    """Return rows (n, F) as a commissioning of white noise leaves them, without waiting for it."""
    measured = extract_many(spec, samples(spec, 16))
    noise = np.random.default_rng(1).normal(size=(count, measured.shape[1]))
    return np.asarray(measured.mean(axis=0) + measured.std(axis=0) * noise, dtype=np.float32)


def own_of(rows: Array) -> Arrays:
    """Return the gateway's normalisation."""
    return {"center": rows.mean(axis=0, dtype=np.float64), "scale": rows.std(axis=0, dtype=np.float64)}


def released(spec: FeatureSpec, key: Ed25519PrivateKey, max_payload_bytes: int) -> tuple[Manifest, bytes]:
    """Return a signed model of `VECTORS` support vectors, as the aggregator would send it."""
    count = len(feature_names(spec))
    vectors = np.random.default_rng(2).normal(size=(VECTORS, count))
    shared = {
        "vectors": vectors,
        "coefficients": np.full(VECTORS, 1.0 / VECTORS),
        "gamma": np.array(1.0 / count),
        "offset": np.array(1.0),
    }
    manifest, body = make_model(
        build(ALGORITHM, count, {}),
        Server(global_state=shared, server_state={}),
        version=1,
        name=ALGORITHM,
        run="bench",
        features=spec,
        max_payload_bytes=max_payload_bytes,
        gateways=3,
        created_ns=T0_NS,
    )
    return sign_message(manifest, key, name_audience(SITE, "all"), T0_NS), body


def commissioned() -> State:
    """Return an agent that has its baseline, a model in force and a link, as after a restart."""
    short = {"baseline": {"windows": 60, "calibration_share": 0.5}}
    chosen, key = GatewaySettings.model_validate(tables(features()) | short), Ed25519PrivateKey.generate()
    rows = baseline(chosen.features, chosen.baseline.windows)
    manifest, body = released(chosen.features, key, chosen.limits.max_payload_bytes)
    model = save_model(Bundle(manifest, body, own_of(rows))).body
    slot = save(Models(current=SlotEntry.of(manifest)))
    blobs = {OWN: wire.encode(own_of(rows), {"answered": None}), MODEL: model, MODELS: slot.body}
    stored = Stored(tuple(FeatureRow(row, None) for row in rows), blobs)
    host = Host("bench", T0_NS, partial(verify, key.public_key()), lambda: bytes(32))
    state = restore(chosen, stored, host)
    state, effects = machine.begin(state, stored)
    assert state.deployment.manifest == manifest, effects
    return machine.step(state, T0_NS, Connection(True))[0]  # scores are told to those who listen


class Arrival(NamedTuple):
    """A message of the sensor node and when it comes."""

    now_ns: int
    event: Event
    windows: int  # that it completes


def arrivals(spec: FeatureSpec, windows: int) -> list[Arrival]:
    """Return the frames of so many windows, one frame a second."""
    values = samples(spec, windows, seed=3).reshape(-1, CHANNELS)
    topic, length = topic_of(Topic(SITE, GATEWAY, "sample", STREAM)), round(FRAME_S * RATE_HZ)
    made = []
    for sequence, first in enumerate(range(0, len(values), length)):
        t_ns, last = T0_NS + round(first / RATE_HZ * NS), first + length
        meta = FrameMeta(t_ns=t_ns, rate_hz=RATE_HZ, boot="bench", sequence=sequence)
        heard = Received(topic, Frame(meta, values[first:last]).to_bytes())
        made.append(Arrival(t_ns + round(FRAME_S * NS), heard, last // spec.samples - first // spec.samples))
    return made


def scores(effects: Sequence[Effect]) -> int:
    """Count the scores that a step publishes."""
    return sum(isinstance(effect, Publish) and "/score/" in effect.topic for effect in effects)
