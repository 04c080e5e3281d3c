"""The record of what is watched: the pipeline, who spoke when, and which alarms are active."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace

from fedgate.config.protocol.alarm_book import AlarmBook
from fedgate.config.protocol.evidence import TRAIL_MAX
from fedgate.config.protocol.messages import MaintenanceWindows
from fedgate.gateway_agent.events import Save
from fedgate.gateway_agent.pipeline.pipeline import Pipeline
from fedgate.gateway_agent.sources.frames import Offsets

ALARMS = "alarms"  # key of a stored blob
ANOMALY = "anomaly"  # the cause of an alarm about the structure


@dataclass(frozen=True)
class Monitor:
    """From samples to alarms."""

    pipeline: Pipeline
    received_ns: dict[str, int] = field(default_factory=dict)  # source -> when it last spoke, since the boot
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

    def note_height(self, t_ns: int, height: float) -> Monitor:
        """Return the monitor with a window more in its trail."""
        level = 0.0 if self.pipeline.judge is None else self.pipeline.judge.levels.raise_level
        return replace(self, trail=(*self.trail[1 - TRAIL_MAX :], (t_ns, height, level)))

    def begin_anew(self) -> Monitor:
        """Return the monitor after the wall clock was set: a run of windows has no common time with what follows."""
        alarm = replace(self.pipeline.alarm, run_ns=None, last_ns=None)  # its onset stays: it is in the alarm's id
        return replace(self, trail=(), pipeline=replace(self.pipeline, alarm=alarm))


def save_alarms(monitor: Monitor) -> Save:
    """Return the effect that stores which alarms are active."""
    held = {"anomaly": asdict(monitor.pipeline.alarm), **monitor.alarms.dump()}
    return Save(ALARMS, json.dumps(held).encode())
