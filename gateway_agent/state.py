"""Everything the agent knows, as one value; `start` makes it from what was stored."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field

import numpy as np

from fedgate.config.protocol.messages import SHORT_MAX, Device, Manifest, Status, Transfer, round_number
from fedgate.config.runtime.version import VERSION
from fedgate.gateway_agent import downloads
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.deployment.deployment import Deployment
from fedgate.gateway_agent.deployment.slots import told
from fedgate.gateway_agent.downloads import Downloads
from fedgate.gateway_agent.events import Effect, Item, Publish, Save
from fedgate.gateway_agent.monitor import decision
from fedgate.gateway_agent.monitor import pipeline as walk
from fedgate.gateway_agent.monitor import recurrence as recall
from fedgate.gateway_agent.monitor.monitor import Monitor
from fedgate.gateway_agent.monitor.recurrence import Seen
from fedgate.gateway_agent.outbox import queue
from fedgate.gateway_agent.outbox.item_size import held_bytes
from fedgate.gateway_agent.outbox.outbox import Outbox
from fedgate.gateway_agent.training.training import Training
from fedgate.gateway_agent.trust.trust import Trust
from fedgate.models.federated.algorithm import EPSILON
from fedgate.models.records import replace

# Keys of stored blobs.
MEMORY = "memory"
ALARMS, FEATURES, SECRET = "alarms", "features", "secret"
FLASH, RESCUED, NEWEST, SIGNER = "flash", "rescued", "newest", "signer"
ANOMALY = "anomaly"  # the cause of an alarm about the structure


class BaselineError(ValueError):
    """A stored baseline that cannot go on under the present settings; the message says what to do."""


@dataclass(frozen=True)
class Stored:
    """What the store held when the agent started."""

    baseline: tuple[Seen, ...] = ()
    blobs: dict[str, bytes] = field(default_factory=dict)
    outbox: dict[str, Item] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """The agent between two events."""

    context: Context
    monitor: Monitor
    trust: Trust
    outbox: Outbox = field(default_factory=Outbox)
    downloads: Downloads = field(default_factory=Downloads)
    training: Training = field(default_factory=Training)
    deployment: Deployment = field(default_factory=Deployment)
    counts: dict[str, int] = field(default_factory=dict)
    refusal: str = ""
    status_ns: int = 0


def alarm_id(state: State, cause: str, onset_ns: int) -> str:
    """Return the id that the messages of one active alarm share, with the boot that raised it: where no clock is kept
    two boots begin at the same time.
    """
    named = f"{state.context.settings.gateway.id}.{cause}.{onset_ns}"
    return (
        f"{named}.{state.monitor.raised_in[cause].boot_id}" if cause in state.monitor.raised_in else named
    )  # 0.5 named no boot


def active_alarms(state: State) -> dict[str, str]:
    """Return the ids of the alarms that are active, by cause."""
    anomaly = state.monitor.pipeline.alarm
    onsets_ns = state.monitor.sensor_alarms | ({ANOMALY: anomaly.onset_ns} if anomaly.active else {})
    return {cause: alarm_id(state, cause, onset_ns) for cause, onset_ns in onsets_ns.items()}


def deliver(state: State, name: str, item: Item) -> tuple[State, list[Effect]]:
    """Queue what must reach the aggregator."""
    outbox, effects = queue.queue(state.outbox, state.context, active_alarms(state), name, item)
    return replace(state, outbox=outbox), effects


def fetch(state: State, transfer: Transfer) -> State:
    """Begin to fetch a body, unless it is here or on its way."""
    return replace(state, downloads=downloads.want(state.downloads, state.context, transfer))


def counted(state: State, what: str, count: int = 1) -> State:
    """Return the state with one more of something counted, or so many."""
    return replace(state, counts={**state.counts, what: state.counts.get(what, 0) + count})


def _counts(state: State, group: str) -> dict[str, int]:
    """Return what was counted in a group, by what stands behind its name."""
    return {what.removeprefix(group): n for what, n in state.counts.items() if what.startswith(group)}


def _dropped(state: State) -> dict[str, int]:
    damaged = {"damaged_body": state.downloads.damaged} if state.downloads.damaged else {}
    return {**_counts(state, "dropped."), **state.outbox.dropped, **damaged}


def status(state: State) -> Status:
    """Return what this gateway tells the world of itself."""
    return Status(
        state="online",
        version=VERSION,
        boot_id=state.context.boot_id,
        clock=state.context.clock,
        can_train=state.training.can_train,
        libraries=state.training.libraries,
        baseline_windows=len(state.monitor.pipeline.baseline),
        baseline_needed=state.monitor.pipeline.baseline_needed,
        windows=state.counts.get("windows", 0),
        windows_lost=state.counts.get("windows_lost", 0),
        values_filled=_counts(state, "filled."),
        model_version=state.deployment.manifest.version if state.deployment.manifest else 0,
        model_digest=state.deployment.manifest.model.digest if state.deployment.manifest else "",
        settling=state.monitor.pipeline.settling,
        alarms_active=int(state.monitor.pipeline.alarm.active) + len(state.monitor.sensor_alarms),
        outbox=len(state.outbox.items),
        bytes_sent=state.context.bytes_sent,
        bytes_received=state.context.bytes_received,
        dropped=_dropped(state),
        refusal=state.refusal,
        refused_round=state.training.refused_round,
        training_remarks="; ".join(state.training.remarks.values())[:SHORT_MAX],
        answered="" if state.training.answered is None else round_number(*state.training.answered),
        device=None if (device := state.context.settings.gateway.device) is None else Device(**device.model_dump()),
        privacy_epsilon=None if (spent := float(state.training.own.get(EPSILON, np.inf))) == np.inf else spent,
        **told(
            state.deployment.models,
            state.context.settings,
            state.deployment.candidate,
            is_watched=state.deployment.trial is not None,
        ),
        store_id=state.context.store_id,
        starts=state.context.starts,
        sequence=state.outbox.sequence,
        t_ns=state.context.now_ns,
        monotonic_ns=state.context.monotonic_ns(state.context.now_ns),
        link=state.outbox.line.trouble,
        outbox_bytes=held_bytes(state.outbox.items),
        flash_bytes_written=state.context.store.flash.written_bytes,
        store_problem=state.context.store.problem,
        stale=state.trust.stale,
    )


def tell(state: State) -> tuple[State, list[Effect]]:
    """Publish the status, and remember when."""
    publish = Publish(state.context.topic("status", "agent"), status(state).to_bytes(), retain=True)
    return replace(state, status_ns=state.context.now_ns), [publish]


def save_features(state: State) -> Save:
    """Return the effect that stores what the baseline is measured with."""
    return Save(FEATURES, state.context.settings.features.model_dump_json().encode())


def save_memory(state: State) -> list[Effect]:
    """Return the effect that stores what the model and the rules in force remember, none where that is nothing."""
    pipeline = state.monitor.pipeline
    remembers = pipeline.memory.tensors or pipeline.watching != walk.UNSEEN
    if state.deployment.manifest is None or not pipeline.commissioned or not remembers:
        return []
    body = recall.to_bytes(pipeline.memory, decision.stored(pipeline.watching), owner(state, state.deployment.manifest))
    return [Save(MEMORY, body)]


def owner(state: State, manifest: Manifest) -> recall.Owner:
    """Return whose memory is that of a model now."""
    rules = state.context.settings.alarm.model_dump_json().encode()
    return recall.Owner(
        manifest.model.digest, state.context.boot_id, state.context.clock, hashlib.sha256(rules).hexdigest()
    )


def save_alarms(state: State) -> Save:
    """Return the effect that stores which alarms are active."""
    held = {
        "anomaly": asdict(state.monitor.pipeline.alarm),
        "sensors": state.monitor.sensor_alarms,
        "raised_by": state.monitor.raised_by,
    }
    return Save(ALARMS, json.dumps({**held, "raised_in": state.monitor.raised_in}).encode())
