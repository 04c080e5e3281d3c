"""The record of what is watched: the pipeline, who spoke when, and which alarms are active."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from fedgate.config.protocol.alarm_book import AlarmBook
from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.messages import TRAIL_MAX, MaintenanceWindows
from fedgate.gateway_agent.events import Save
from fedgate.gateway_agent.pipeline.pipeline import Pipeline
from fedgate.gateway_agent.sources.frames import Offsets
from fedgate.models.time_units import NS
from fedgate.models.windows.grid import Block

ALARMS = "alarms"  # key of a stored blob
ANOMALY = "anomaly"  # the cause of an alarm about the structure


class Latest(NamedTuple):
    """The newest sample of a source, in the units of its channels and in their order."""

    uptime_ns: int  # when it was received
    t_ns: int
    rate_hz: float | None  # as the source says or, of single readings, between the last two
    values: tuple[float, ...]


@dataclass(frozen=True)
class Monitor:
    """From samples to alarms."""

    pipeline: Pipeline
    received_ns: dict[str, int] = field(default_factory=dict)  # source -> when it last spoke, since the boot
    latest: dict[str, Latest] = field(default_factory=dict)  # source -> its newest sample
    offsets: Offsets = field(default_factory=dict)
    alarms: AlarmBook = field(default_factory=AlarmBook)
    lost_ns: dict[str, int] = field(default_factory=dict)  # channel -> start of its run of lost windows, since the boot
    faulty_ns: dict[str, int] = field(default_factory=dict)  # channel -> its latest window with a fault, since the boot
    remembered_ns: int = 0  # when the model's memory was stored last
    windows: int = 0  # whole, since the start
    windows_lost: int = 0
    maintenance: MaintenanceWindows | None = None  # as they were announced last
    values_filled: dict[str, int] = field(default_factory=dict)  # by channel
    lost_by_channel: dict[str, int] = field(default_factory=dict)  # windows, since the start
    trail: tuple[tuple[int, float, float], ...] = ()  # end, height and level of the latest windows that were judged
    evidence: AlarmEvidence | None = None  # of the latest anomaly that was raised since the start

    def note_block(self, uptime_ns: int, now_ns: int, block: Block) -> Monitor:
        """Return the monitor after a block, values (T, C) in the units of the settings; one that comes late changes
        nothing of the newest sample, unless that one claims to be of the future.
        """
        received_ns, name = {**self.received_ns, block.stream: uptime_ns}, block.stream
        before, last = self.latest.get(name), len(block.values) - 1
        t_ns = block.t_ns + (round(last / block.rate_hz * NS) if block.rate_hz else 0)
        if last < 0 or (before is not None and t_ns <= before.t_ns <= now_ns):
            return replace(self, received_ns=received_ns)
        is_after = before is not None and t_ns > before.t_ns
        rate_hz = block.rate_hz or (NS / (t_ns - before.t_ns) if before is not None and is_after else None)
        newest = Latest(uptime_ns, t_ns, rate_hz, tuple(block.values[last].tolist()))
        return replace(self, received_ns=received_ns, latest={**self.latest, name: newest})

    def note_height(self, t_ns: int, height: float) -> Monitor:
        """Return the monitor with a window more in its trail."""
        level = 0.0 if self.pipeline.judge is None else self.pipeline.judge.levels.raise_level
        return replace(self, trail=(*self.trail[1 - TRAIL_MAX :], (t_ns, height, level)))

    def begin_anew(self) -> Monitor:
        """Return the monitor after the wall clock was set: a run of windows has no common time with what follows."""
        alarm = replace(self.pipeline.alarm, run_ns=None, last_ns=None)  # its onset stays: it is in the alarm's id
        return replace(self, trail=(), latest={}, pipeline=replace(self.pipeline, alarm=alarm))


def save_alarms(monitor: Monitor) -> Save:
    """Return the effect that stores which alarms are active."""
    held = {"anomaly": asdict(monitor.pipeline.alarm), **monitor.alarms.dump()}
    return Save(ALARMS, json.dumps(held).encode())
