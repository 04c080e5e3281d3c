"""Everything the agent knows, as one value: a record for each component, made from what a store holds, and back.

A store that does not fit the settings is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fedgate.config.protocol import alarm_book, wire
from fedgate.config.protocol.messages import ClockQuality, MaintenanceWindows, Newest
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent.context import STARTS, Context, Verified, save_starts
from fedgate.gateway_agent.deployment import deployment
from fedgate.gateway_agent.deployment.deployment import Deployment, Examine, take_any
from fedgate.gateway_agent.downloads import Downloads
from fedgate.gateway_agent.events import Effect, Item, Save
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.monitor.maintenance import MAINTENANCE, set_maintenance
from fedgate.gateway_agent.monitor.monitor import ALARMS, Monitor, save_alarms
from fedgate.gateway_agent.outbox.outbox import SEQUENCE, Outbox, is_stored
from fedgate.gateway_agent.pipeline import pipeline as walk
from fedgate.gateway_agent.pipeline import spectra
from fedgate.gateway_agent.pipeline.memory import save_memory
from fedgate.gateway_agent.pipeline.spectra import SPECTRA
from fedgate.gateway_agent.samples.samples import SAMPLES, Samples, save_day
from fedgate.gateway_agent.training.training import (
    COUNTED,
    INVITED,
    OWN,
    PRIVACY,
    Training,
    read_counted,
    save_counted,
    save_invited,
    save_ledger,
    save_own,
)
from fedgate.gateway_agent.trust.trust import NEWEST, SIGNER, Take, Trust, save_newest, take_none
from fedgate.gateway_agent.write_budget import restore_day
from fedgate.models.alarms.threshold import AlarmState
from fedgate.models.arrays import Arrays
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.federated.wrappers.privacy_ledger import SPENT, ledger_of

FEATURES, SECRET, FLASH, RESCUED, LINK = "features", "secret", "flash", "rescued", "link"  # keys of stored blobs


class BaselineError(ValueError):
    """A stored baseline that cannot go on under the present settings; the message says what to do."""


@dataclass(frozen=True)
class Stored:
    """What the store held when the agent started."""

    baseline: tuple[FeatureRow, ...] = ()
    blobs: dict[str, bytes] = field(default_factory=dict)
    outbox: dict[str, Item] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """The agent between two events."""

    context: Context
    monitor: Monitor
    trust: Trust
    samples: Samples = field(default_factory=Samples)
    outbox: Outbox = field(default_factory=Outbox)
    downloads: Downloads = field(default_factory=Downloads)
    training: Training = field(default_factory=Training)
    deployment: Deployment = field(default_factory=Deployment)
    messages_dropped: int = 0  # that made no sense
    status_ns: int = 0  # when the status was published last, since the boot


@dataclass(frozen=True)
class Host:
    """What an agent finds on its machine as it starts, and what its process does for it."""

    boot_id: str
    uptime_ns: int
    verified: Verified
    random_bytes: Callable[[], bytes]  # 32 that nobody knows, each time others
    anchor_ns: int = 0
    clock: ClockQuality = "unknown"
    can_train: bool = False
    libraries: tuple[str, ...] = ()  # that are here, of those that only some algorithms need
    labelled: Arrays = field(default_factory=dict)
    stopwatch: Callable[[], int] = int
    examine: Examine = take_any
    take_keys: Take = take_none


def restore(settings: GatewaySettings, stored: Stored, host: Host) -> State:
    """Return the state of an agent that starts with what the store held; the model in force is loaded by
    `reloading.reload`.

    Raises `BaselineError` where the stored baseline does not fit the settings.
    """
    training = _restore_training(stored, host)
    _check_baseline(settings, stored, training.own)
    context = Context(
        settings=settings,
        boot_id=host.boot_id,
        uptime_ns=host.uptime_ns,
        verified=host.verified,
        clock=host.clock,
        anchor_ns=host.anchor_ns,
        stopwatch=host.stopwatch,
        secret=stored.blobs.get(SECRET, b""),
        starts=int(stored.blobs.get(STARTS, b"0")),
    )
    outbox = Outbox(
        items=dict(stored.outbox),
        sequence=int(stored.blobs.get(SEQUENCE, b"0")),
        tries={name: 1 for name, item in stored.outbox.items() if len(item.payloads) > 1},
    )
    trust = Trust(
        take_keys=host.take_keys,
        newest=Newest.from_bytes(stored.blobs[NEWEST]) if stored.blobs.get(NEWEST) else None,
        newest_ns=host.uptime_ns,
        signer=stored.blobs.get(SIGNER, b"").decode(),
    )
    models = Deployment(models=deployment.restore_models(stored.blobs), examine=host.examine)
    monitor = _monitor(settings, stored, host.uptime_ns)
    samples = Samples(day=restore_day(stored.blobs.get(SAMPLES), host.uptime_ns, host.anchor_ns))
    return State(context, monitor, trust, samples, outbox=outbox, training=training, deployment=models)


def _check_baseline(settings: GatewaySettings, stored: Stored, own: Arrays) -> None:
    """Raise `BaselineError` for a baseline of other features, or one that was whole and now would not be."""
    if stored.baseline and FEATURES in stored.blobs:
        before = FeatureSpec.model_validate_json(stored.blobs[FEATURES])
        if before != settings.features:
            raise BaselineError(
                f"{settings.gateway.store} holds a baseline of other [features]; restore that table, or remove the "
                "store to commission this gateway anew"
            )
    is_rescued = bool(stored.blobs.get(RESCUED))  # then it is the damage that took windows, and new ones fill it up
    if not is_rescued and "center" in own and 0 < len(stored.baseline) < settings.baseline.windows:
        raise BaselineError(
            f"baseline.windows is {settings.baseline.windows}, but this gateway was commissioned with "
            f"{len(stored.baseline)}; set it back, or remove {settings.gateway.store} to commission it anew"
        )


def _monitor(settings: GatewaySettings, stored: Stored, uptime_ns: int) -> Monitor:
    """Return the monitor with the stored baseline and the alarms as `state.save_alarms` stored them."""
    held = json.loads(stored.blobs.get(ALARMS, b'{"anomaly": {}, "active": [], "raised": 0}'))
    pipeline = walk.start(
        settings.features, settings.streams, settings.alarm, settings.baseline.windows, stored.baseline
    )
    known = MaintenanceWindows.from_bytes(stored.blobs[MAINTENANCE]) if stored.blobs.get(MAINTENANCE) else None
    healthy = spectra.restore(stored.blobs.get(SPECTRA), pipeline.healthy, pipeline.spec)
    monitor = Monitor(
        pipeline=replace(pipeline, alarm=AlarmState(**held["anomaly"]), healthy=healthy),
        received_ns={source.name: uptime_ns for source in settings.source},
        alarms=alarm_book.restore(held),
    )
    return set_maintenance(monitor, known, settings.gateway.id)


def restore_ledger(stored: Stored, own: Arrays) -> Arrays:
    """Return what was spent of this gateway's privacy, by that of its two copies which says more."""
    copies = [ledger_of(own), wire.decode(stored.blobs[PRIVACY])[0] if PRIVACY in stored.blobs else {}]
    return max(copies, key=lambda copy: float(copy.get(SPENT, 0.0)))


def _restore_training(stored: Stored, host: Host) -> Training:
    """Return the training as `training.save_own` and `save_counted` stored it."""
    own, meta = wire.decode(stored.blobs[OWN]) if OWN in stored.blobs else ({}, {})
    return Training(
        can_train=host.can_train,
        libraries=host.libraries,
        labelled=host.labelled,
        chain=host.random_bytes(),
        own=own | restore_ledger(stored, own),
        answered=tuple(meta["answered"]) if meta.get("answered") else None,
        answered_before=dict(meta.get("before", ())),
        remarks=dict(meta.get("remarks", ())),
        newest_training=int(stored.blobs.get(INVITED, b"0")),
        **read_counted(stored.blobs.get(COUNTED)),
    )


def save_features(context: Context) -> Save:
    """Return the effect that stores what the baseline is measured with."""
    return Save(FEATURES, context.settings.features.model_dump_json().encode())


def save_link(context: Context) -> Save:
    """Return the effect that stores that the link came or went now, in this start of the agent."""
    held = {"starts": context.starts, "is_up": context.is_connected, "uptime_ns": context.uptime_ns}
    return Save(LINK, json.dumps(held).encode())


def to_store(state: State) -> Stored:
    """Return what a store would hold of what the agent knows: for a new one, where the old one cannot be read."""
    context, monitor, training = state.context, state.monitor, state.training
    saved: list[Effect] = [
        save_own(training),
        *save_ledger(training),
        save_invited(training),
        save_counted(training),
        save_features(context),
        save_alarms(monitor),
        *spectra.save(monitor.pipeline.healthy._replace(saved=0))[1],
        *save_memory(monitor.pipeline, context, state.deployment.manifest),
        save_starts(context),
        Save(SEQUENCE, str(state.outbox.sequence).encode()),
        deployment.save(state.deployment.models),
        *save_newest(state.trust),
        *([save_day(state.samples, context)] if state.samples.day.written_bytes else []),
        *([Save(MAINTENANCE, monitor.maintenance.received_bytes())] if monitor.maintenance is not None else []),
        Save(SECRET, context.secret),
    ]
    blobs = {effect.key: effect.body for effect in saved if isinstance(effect, Save)}
    outbox = {name: item for name, item in state.outbox.items.items() if is_stored(item)}
    return Stored(tuple(monitor.pipeline.baseline), blobs, outbox)
