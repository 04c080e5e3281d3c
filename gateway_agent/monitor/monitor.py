"""The record of what is watched: the pipeline, who spoke when, and which alarms are active."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from fedgate.config.protocol.messages import Manifest
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import Save
from fedgate.gateway_agent.monitor import decision, recurrence
from fedgate.gateway_agent.monitor.decision import SCORE
from fedgate.gateway_agent.monitor.pipeline import UNSEEN, Pipeline
from fedgate.gateway_agent.sources.frames import Offsets

MEMORY, ALARMS = "memory", "alarms"  # keys of stored blobs
ANOMALY = "anomaly"  # the cause of an alarm about the structure


class RaisedBy(NamedTuple):
    """What raised the active anomaly, and so is named when it clears."""

    rule: str = SCORE
    feature: str = ""


BY_SCORE = RaisedBy()


class RaisedIn(NamedTuple):
    """When an alarm was raised, by what no clock can repeat: the boot, and its number among all alarms of its store."""

    boot_id: str
    sequence: int


@dataclass(frozen=True)
class Monitor:
    """From samples to alarms."""

    pipeline: Pipeline
    received_ns: dict[str, int] = field(default_factory=dict)  # source -> when it last spoke
    offsets: Offsets = field(default_factory=dict)
    raised_by: RaisedBy = BY_SCORE
    sensor_alarms: dict[str, int] = field(default_factory=dict)  # cause -> onset
    raised_in: dict[str, RaisedIn] = field(default_factory=dict)  # by the cause of an active alarm
    alarms_raised: int = 0  # on this store
    lost_ns: dict[str, int] = field(default_factory=dict)  # channel -> start of its unbroken run of lost windows
    faulty_ns: dict[str, int] = field(default_factory=dict)  # channel -> its latest window with a fault
    remembered_ns: int = 0  # when the model's memory was stored last
    windows: int = 0  # whole, since the start
    windows_lost: int = 0
    values_filled: dict[str, int] = field(default_factory=dict)  # by channel

    def move_times(self, by_ns: int) -> Monitor:
        """Return the monitor after the timeline was moved."""
        alarm = replace(self.pipeline.alarm, run_ns=None, last_ns=None)  # its onset stays: it is in the alarm's id
        return replace(
            self,
            pipeline=replace(self.pipeline, alarm=alarm),
            received_ns=_moved(self.received_ns, by_ns),
            lost_ns=_moved(self.lost_ns, by_ns),
            faulty_ns=_moved(self.faulty_ns, by_ns),
            offsets={key: offset + by_ns for key, offset in self.offsets.items()},
            remembered_ns=self.remembered_ns + by_ns,
        )


def _moved(times_ns: Mapping[str, int], by_ns: int) -> dict[str, int]:
    return {key: at_ns + by_ns for key, at_ns in times_ns.items()}


def alarm_id(monitor: Monitor, context: Context, cause: str, onset_ns: int) -> str:
    """Return the id that the messages of one active alarm share, with the boot that raised it: where no clock is kept
    two boots begin at the same time.
    """
    named = f"{context.settings.gateway.id}.{cause}.{onset_ns}"
    return f"{named}.{monitor.raised_in[cause].boot_id}" if cause in monitor.raised_in else named


def active_alarms(monitor: Monitor, context: Context) -> dict[str, str]:
    """Return the ids of the alarms that are active, by cause."""
    anomaly = monitor.pipeline.alarm
    onsets_ns = monitor.sensor_alarms | ({ANOMALY: anomaly.onset_ns} if anomaly.active else {})
    return {cause: alarm_id(monitor, context, cause, onset_ns) for cause, onset_ns in onsets_ns.items()}


def save_alarms(monitor: Monitor) -> Save:
    """Return the effect that stores which alarms are active."""
    held = {
        "anomaly": asdict(monitor.pipeline.alarm),
        "sensors": monitor.sensor_alarms,
        "raised_by": monitor.raised_by,
        "raised_in": monitor.raised_in,
        "raised": monitor.alarms_raised,
    }
    return Save(ALARMS, json.dumps(held).encode())


def save_memory(pipeline: Pipeline, context: Context, manifest: Manifest | None) -> list[Save]:
    """Return the effect that stores what the model in force and the rules remember, none where that is nothing."""
    remembers = pipeline.memory.tensors or pipeline.watching != UNSEEN
    if manifest is None or not pipeline.commissioned or not remembers:
        return []
    watching = decision.dump_watching(pipeline.watching)
    return [Save(MEMORY, recurrence.to_bytes(pipeline.memory, watching, memory_owner(context, manifest)))]


def memory_owner(context: Context, manifest: Manifest) -> recurrence.Owner:
    """Return whose memory that of a model is now."""
    rules = context.settings.alarm.model_dump_json().encode()
    return recurrence.Owner(manifest.model.digest, context.boot_id, context.clock, hashlib.sha256(rules).hexdigest())
