"""Sensor nodes that send fedgate's binary frames, with the time of the node's own clock."""

from __future__ import annotations

from fedgate.config.protocol.frames import Frame
from fedgate.config.protocol.messages import MessageError
from fedgate.config.settings.settings import Source
from fedgate.models.time_units import NS
from fedgate.models.windows.grid import Block

LATEST = 2**63
Offsets = dict[tuple[str, str], int]  # (stream, boot id of the node) -> the gateway's uptime minus the node's, ns


def read(source: Source, frame: Frame, uptime_ns: int, anchor_ns: int, offsets: Offsets) -> tuple[Block, Offsets]:
    """Return a frame as a block of values as they came, and the clock offsets with this node's; raises `MessageError`.

    A node whose clock only counts from its start is placed within the uptime of the gateway by the frame that took the
    least time to arrive, so that neither delays of the network nor a backlog that a broker kept bend its time.
    """
    if frame.values.shape[1] != len(source.channels):
        raise MessageError(
            f"source {source.name}: a frame has {frame.values.shape[1]} channels, the settings {len(source.channels)}"
        )
    key, t_ns = (source.name, frame.meta.boot), frame.meta.t_ns
    if frame.meta.clock == "boot":
        duration_ns = round(len(frame.values) / frame.meta.rate_hz * NS)
        offset = min(offsets.get(key, LATEST), uptime_ns - t_ns - duration_ns)
        offsets = {**{other: value for other, value in offsets.items() if other[0] != source.name}, key: offset}
        t_ns += offset + anchor_ns
    return Block(source.name, t_ns, frame.meta.rate_hz, frame.values), offsets
