"""What comes over the network, before a machine sees it: wire messages, JSON messages, topics, chunks, samples."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil

import numpy as np

from fedgate import config
from fedgate.config.protocol import topics, wire
from fedgate.config.protocol.frames import Frame
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Message, MessageError, Signed, Transfer
from fedgate.config.protocol.scores import Scores
from fedgate.config.protocol.transfer import Assembly, parse_chunk, split
from fedgate.config.settings.settings import Source
from fedgate.firmware_sim.mutation import resealed
from fedgate.gateway_agent.sources import json_values
from tests.fuzz.target import Target
from tests.support.message_samples import MESSAGES
from tests.support.sites import T0_NS, frame, samples, topic

LIMIT = 1_024
SIZE_MAX = 2**20
BODY = np.random.default_rng(0).bytes(3_000)
WIRE = (
    wire.encode({"a": np.eye(3), "b": np.arange(4), "c": np.zeros((0, 2))}, {"round": 1, "x": [1.5, None]}),
    wire.encode({"half": np.ones(3, np.float16), "bytes": np.zeros((2, 2), np.uint8)}),
    wire.encode({}),
)  # fmt: skip
FRAMES = (frame(samples(0, 1)), frame(samples(1, 1), clock="boot", boot="b", sequence=3))
READING = Source.model_validate(
    {
        "name": "climate",
        "kind": "json",
        "topic": "zigbee/deck",
        "channels": ({"role": "t", "path": "a.b"}, {"role": "u", "path": "c"}),
        "time_path": "at",
    }
)
READINGS = (b'{"a":{"b":1.5},"c":2,"at":"2026-01-01T00:00:00Z"}', b'{"a":{"b":true},"c":1e3,"at":1767225600.5}')
OF_LOSS = (
    Tombstone(id="a", kind="telemetry", items=3, size_bytes=10, first_ns=1, last_ns=2, why=("outbox-full",)),
    Scores(
        t_ns=T0_NS, after_ms=(0, 5), scores=(0.5, 1.5), alarms=(1,), level=1.0, rules={"slow": (0,)}, model_version=1
    ),
)


def kinds() -> dict[str, type[Message]]:
    """Return every message there is, also those that a later version adds."""
    for module in pkgutil.walk_packages(config.__path__, "fedgate.config."):
        importlib.import_module(module.name)
    found: dict[str, type[Message]] = {}
    waiting: list[type[Message]] = [Message]
    while waiting:
        waiting += (below := waiting.pop().__subclasses__())
        found |= {
            kind.__name__: kind
            for kind in below
            if kind.__module__.startswith("fedgate.config.") and kind is not Signed
        }
    return {name: found[name] for name in sorted(found)}


def _decoded(data: bytes) -> None:
    arrays, meta = wire.decode(data, SIZE_MAX)
    try:
        again = wire.encode(arrays, meta)
    except wire.WireError as error:  # escapes make a header longer than it came
        assert "header" in str(error)
        return
    assert wire.encode(*wire.decode(again, len(again))) == again


def message(kind: type[Message]) -> Target:
    """Return the target of one kind of message: what is taken can be said again."""

    def take(data: bytes) -> None:
        taken = kind.from_bytes(data)
        assert kind.from_bytes(taken.to_bytes()) == taken
        if isinstance(taken, Signed):
            taken.signed_bytes()

    own = tuple(sample.to_bytes() for sample in (*MESSAGES, *OF_LOSS) if isinstance(sample, kind))
    return Target(take, (MessageError,), own or (b"{}",), examples=60)


def _topic(data: bytes) -> None:
    text = data.decode("utf-8", errors="surrogateescape")
    assert topics.topic_of(topics.parse(text)) == text


def _assembled(data: bytes) -> None:
    assembly = Assembly(Transfer(digest=hashlib.sha256(BODY).hexdigest(), size_bytes=len(BODY), chunks=4))
    for piece in (*split(BODY, LIMIT)[:3], data):
        assembly = assembly.add(*parse_chunk(piece))
    assert assembly.join() == BODY  # what has the digest is the body


def targets() -> dict[str, Target]:
    """Return the targets of this file by name."""
    topic_seeds = (topic("north", "alarm", "anomaly").encode(), topic("all", "round", "open").encode())
    chunks = tuple(split(BODY, LIMIT))
    return {
        "wire": Target(_decoded, (wire.WireError,), WIRE),
        "wire-sealed": Target(lambda data: _decoded(resealed(data)), (wire.WireError,), WIRE, examples=400),
        "topics": Target(_topic, (topics.TopicError,), topic_seeds),
        "chunks": Target(_assembled, (MessageError,), chunks),
        "frames": Target(lambda data: Frame.from_bytes(resealed(data)), (MessageError,), FRAMES, examples=300),
        "json-values": Target(lambda data: json_values.read(READING, data, T0_NS), (MessageError,), READINGS, 300),
        **{f"message-{name}": message(kind) for name, kind in kinds().items()},
    }
