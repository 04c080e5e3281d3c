"""The record of what is watched: the pipeline, who spoke when, and which alarms are active."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fedgate.gateway_agent.monitor.decision import SCORE
from fedgate.gateway_agent.monitor.pipeline import Pipeline
from fedgate.gateway_agent.sources.frames import Offsets
from fedgate.models.records import replace


class RaisedBy(NamedTuple):
    """What raised the active anomaly, and so is named when it clears."""

    rule: str = SCORE
    feature: str = ""


BY_SCORE = RaisedBy()


class RaisedIn(NamedTuple):
    """When an alarm was raised, by what no clock can repeat: the boot, and its number among all items of its store."""

    boot_id: str
    sequence: int


@dataclass(frozen=True)
class Monitor:
    """From samples to alarms."""

    pipeline: Pipeline
    heard_ns: dict[str, int] = field(default_factory=dict)  # source -> when it last spoke
    offsets: Offsets = field(default_factory=dict)
    raised_by: RaisedBy = BY_SCORE
    sensor_alarms: dict[str, int] = field(default_factory=dict)  # cause -> onset
    raised_in: dict[str, RaisedIn] = field(default_factory=dict)  # by the cause of an active alarm
    lost_ns: dict[str, int] = field(default_factory=dict)  # channel -> start of its unbroken run of lost windows
    faulty_ns: dict[str, int] = field(default_factory=dict)  # channel -> its latest window with a fault
    remembered_ns: int = 0  # when the model's memory was stored last

    def move_times(self, by_ns: int) -> Monitor:
        """Return the monitor after the timeline was moved."""
        alarm = replace(self.pipeline.alarm, run_ns=None, last_ns=None)  # its onset stays: it is in the alarm's id
        return replace(
            self,
            pipeline=replace(self.pipeline, alarm=alarm),
            heard_ns=_moved(self.heard_ns, by_ns),
            lost_ns=_moved(self.lost_ns, by_ns),
            faulty_ns=_moved(self.faulty_ns, by_ns),
            offsets={key: offset + by_ns for key, offset in self.offsets.items()},
            remembered_ns=self.remembered_ns + by_ns,
        )


def _moved(times_ns: Mapping[str, int], by_ns: int) -> dict[str, int]:
    return {key: at_ns + by_ns for key, at_ns in times_ns.items()}
