"""A sensor node that replays a recording over MQTT, as fast as wanted, in fedgate's binary frames.

The frames carry the time of the recording, so a gateway cuts the same windows at any speed.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator

from fedgate.config.protocol.frames import Frame, FrameMeta
from fedgate.config.protocol.topics import Topic, topic_of
from fedgate.config.settings.settings import Broker
from fedgate.config.transport.mqtt import Link
from fedgate.firmware_sim.recordings import Recording

CONNECT_S = 10.0
DRAIN_S = 60.0
PROGRESS_S = 2.0


class ReplayError(OSError):
    """The replay could not be finished; the message says how far it came."""


def frames(recording: Recording, frame_s: float, t0_ns: int, boot: str) -> Iterator[tuple[float, Frame]]:
    """Yield (seconds into the recording at which the frame is whole, frame), frame after frame; none spans a gap."""
    samples, gaps, rate_hz = max(round(frame_s * recording.rate_hz), 1), recording.gaps, recording.rate_hz
    parts = gaps.parts(len(recording.values))
    edges = [(row, min(row + samples, end)) for first, end in parts for row in range(first, end, samples)]
    for sequence, (first, end) in enumerate(edges):
        t_ns = t0_ns + gaps.stamp_ns(first, rate_hz)
        meta = FrameMeta(t_ns=t_ns, rate_hz=rate_hz, clock="utc", boot=boot, sequence=sequence)
        yield gaps.end_s(end, rate_hz), Frame(meta, recording.values[first:end])  # values (T, C)


def replay(
    recording: Recording,
    broker: Broker,
    *,
    site: str,
    gateway: str,
    stream: str,
    speed: float,
    frame_s: float,
    t0_ns: int,
    progress: bool,
) -> int:
    """Publish the recording as the node of `stream` at `gateway`, `speed` times as fast as it was recorded.

    Returns the number of frames the broker acknowledged; raises `ReplayError` where there is no broker.
    """
    where = topic_of(Topic(site, gateway, "sample", stream))
    boot = uuid.uuid4().hex[:12]
    connected = threading.Event()
    link = Link(broker, f"node.{gateway}.{stream}.{boot}", [], _ignore, lambda up: connected.set() if up else None)
    link.start()
    try:
        if not connected.wait(CONNECT_S):
            raise ReplayError(f"no broker at {broker.host}:{broker.port} within {CONNECT_S:g} s{_reason(broker)}")
        count, started_s, reported_s = 0, time.monotonic(), 0.0
        for due_s, frame in frames(recording, frame_s, t0_ns, boot):
            time.sleep(max(started_s + due_s / speed - time.monotonic(), 0.0))
            while not link.publish(where, frame.to_bytes()):
                time.sleep(0.1)  # a node has no store: it waits for the link and goes on where it was
            count += 1
            if progress and time.monotonic() - reported_s >= PROGRESS_S:
                reported_s = time.monotonic()
                sys.stderr.write(f"{gateway}/{stream}: {due_s:.0f} of {recording.length_s:.0f} s\n")
        if not link.drain(DRAIN_S):
            raise ReplayError(f"the broker acknowledged not all of {count} frames within {DRAIN_S:g} s")
        return count
    finally:
        link.stop()


def _reason(broker: Broker) -> str:
    """Return what keeps a node out where somebody does listen at the address; empty where nobody does."""
    try:
        socket.create_connection((broker.host, broker.port), CONNECT_S).close()
    except OSError:
        return ""
    if broker.ca_file is None:
        return "; what listens there ends the connection: it may want certificates, see --gateway-config"
    return "; what listens there does not take this certificate, or the broker's own is not of this site"


def _ignore(_topic: str, _payload: bytes) -> None:
    """A node only speaks."""
