"""The file of clips in the running agent: what the machine wants of it, and what comes of that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedgate.config.settings.samples import SamplesTable
from fedgate.gateway_agent.events import ClipRead, Event, KeepClip, Log, Outward, ReadClip
from fedgate.gateway_agent.storage.sample_ring import SampleRing

ENDING = ".samples"  # of the store's name, beside which the file is


class ClipFile:
    """The file of clips of a gateway whose settings want one."""

    def __init__(self, store: Path, table: SamplesTable) -> None:
        """Take the file beside a store."""
        self._ring = SampleRing(store.with_name(store.name + ENDING), table.max_bytes)

    def carry_out(self, effects: Sequence[Outward]) -> tuple[list[Outward], list[Event]]:
        """Keep and read clips; return the other effects, a line of the log for what failed, and what was read."""
        others, events = list[Outward](), list[Event]()
        for effect in effects:
            match effect:
                case KeepClip(alarm=alarm, body=body):
                    others.append(_keep(self._ring, alarm, body))
                case ReadClip():
                    events.append(_read(self._ring, effect))
                case _:
                    others.append(effect)
        return others, events

    def take_written_bytes(self) -> int:
        """Return what was written into the file since this was asked last."""
        written, self._ring.written_bytes = self._ring.written_bytes, 0
        return written

    def close(self) -> None:
        """Close the file."""
        self._ring.close()


def _keep(ring: SampleRing, alarm: str, body: bytes) -> Log:
    try:
        ring.keep(alarm, body)
    except OSError as error:
        return Log("warning", f"the samples of alarm {alarm} are not kept: {error}")
    return Log("info", f"the samples of alarm {alarm} are kept: {len(body)} bytes")


def _read(ring: SampleRing, wanted: ReadClip) -> ClipRead:
    try:
        body = ring.read(wanted.alarm)
    except OSError as error:
        return ClipRead(wanted.alarm, wanted.number, None, f"the file of clips cannot be read: {error}")
    problem = "" if body is not None else "this gateway has no samples of this alarm, or no more"
    return ClipRead(wanted.alarm, wanted.number, body, problem)
