"""An agent's state at its start: made from what the store held, or refused where that does not fit the settings."""

from __future__ import annotations

import json

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Newest
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent import store_identity
from fedgate.gateway_agent.deployment.slots import restored
from fedgate.gateway_agent.monitor import pipeline as walk
from fedgate.gateway_agent.outbox.connection import Line
from fedgate.gateway_agent.runtime.signature_worker import Verified
from fedgate.gateway_agent.state import (
    ALARMS,
    COUNTED,
    FEATURES,
    INVITED,
    NEWEST,
    OWN,
    PRIVACY,
    RESCUED,
    SECRET,
    SIGNER,
    BaselineError,
    RaisedBy,
    RaisedIn,
    State,
    Stored,
)
from fedgate.models.arrays import Arrays
from fedgate.models.features import FeatureSpec
from fedgate.models.federated.algorithm import SPENT, ledger_of
from fedgate.models.records import replace
from fedgate.models.threshold import AlarmState


def restore(
    settings: GatewaySettings,
    verified: Verified,
    stored: Stored,
    *,
    boot_id: str,
    can_train: bool,
    libraries: tuple[str, ...] = (),
    now_ns: int,
    anchor_ns: int | None = None,
    labelled: Arrays | None = None,
) -> State:
    """Return the state of an agent that starts with what the store held; the model in force is loaded by
    `candidate`.

    Raises `BaselineError` where the stored baseline does not fit the settings.
    """
    own, answered, before, remarks = _own(stored)
    _check_baseline(settings, stored, own)
    pipeline = walk.start(
        settings.features, settings.streams, settings.alarm, settings.baseline.windows, stored.baseline
    )
    awaited, is_counted, *last = json.loads(stored.blobs.get(COUNTED, b'["", true]'))  # 0.2 did not ask
    anomaly, sensors, raised_by, raised_in = _alarms(stored)
    return State(
        settings=settings,
        verified=verified,
        boot_id=boot_id,
        can_train=can_train,
        libraries=libraries,
        pipeline=replace(pipeline, alarm=anomaly),
        now_ns=now_ns,
        secret=stored.blobs.get(SECRET, b""),
        labelled=labelled or {},
        own=own,
        outbox=dict(stored.outbox),
        answered=answered,
        answered_before=before,
        newest_training=int(stored.blobs.get(INVITED, b"0")),
        remarks=remarks,
        awaited=awaited,
        is_counted=is_counted,
        last_counted=last[0] if last else awaited if is_counted else "",  # 0.4 kept the awaited one alone
        life=store_identity.restored(stored.blobs, anchor_ns),
        line=Line(tries={name: 1 for name, item in stored.outbox.items() if len(item.payloads) > 1}),
        heard_ns={source.name: now_ns for source in settings.source},
        raised_by=raised_by,
        sensor_alarms=sensors,
        raised_in=raised_in,
        models=restored(stored.blobs),
        newest=Newest.from_bytes(stored.blobs[NEWEST]) if stored.blobs.get(NEWEST) else None,
        newest_ns=now_ns,
        signer=stored.blobs.get(SIGNER, b"").decode(),
    )


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


def _alarms(stored: Stored) -> tuple[AlarmState, dict[str, int], RaisedBy, dict[str, RaisedIn]]:
    """Return the anomaly, the alarms of sensors, and what raised them and when, as `state.save_alarms` stored them."""
    held = json.loads(stored.blobs.get(ALARMS, b'{"anomaly": {}, "sensors": {}}'))
    raised_in = {cause: RaisedIn(*one) for cause, one in held.get("raised_in", {}).items()}
    raised_by = RaisedBy(*held.get("raised_by", ()))  # 0.3 knew one rule
    return AlarmState(**held["anomaly"]), held["sensors"], raised_by, raised_in


def ledger(stored: Stored, own: Arrays) -> Arrays:
    """Return what was spent of this gateway's privacy, by that of its two copies which says more."""
    copies = [ledger_of(own), wire.decode(stored.blobs[PRIVACY])[0] if PRIVACY in stored.blobs else {}]
    return max(copies, key=lambda copy: float(copy.get(SPENT, 0.0)))


def _own(stored: Stored) -> tuple[Arrays, tuple[str, int] | None, dict[str, int], dict[int, str]]:
    if OWN not in stored.blobs:
        return ledger(stored, {}), None, {}, {}
    own, meta = wire.decode(stored.blobs[OWN])
    own |= ledger(stored, own)
    answered = tuple(meta["answered"]) if meta["answered"] else None
    return own, answered, dict(meta.get("before", ())), dict(meta.get("remarks", ()))  # 0.5 kept neither
