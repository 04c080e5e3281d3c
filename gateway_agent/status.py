"""What this gateway publishes of itself, from the records of all its components."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedgate.config.protocol.evidence import make_trail
from fedgate.config.protocol.messages import (
    FARTHEST,
    NAME_MAX,
    SENSORS_MAX,
    SHORT_MAX,
    Device,
    SourceReport,
    Status,
    round_number,
)
from fedgate.config.protocol.scores import DIGITS
from fedgate.config.runtime.version import VERSION
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent.deployment.deployment import Deployment, compute_probation_left_s
from fedgate.gateway_agent.outbox.outbox import count_held_bytes
from fedgate.gateway_agent.state import State
from fedgate.models.federated.wrappers.privacy_ledger import EPSILON
from fedgate.models.time_units import NS

TRAIL_SHOWN = 30  # windows


def status(state: State) -> Status:
    """Return what this gateway publishes of itself."""
    deployment, exchange = state.deployment, state.context.settings.exchange
    return Status(
        state="online",
        version=VERSION,
        boot_id=state.context.boot_id,
        clock=state.context.clock,
        can_train=state.training.can_train,
        libraries=state.training.libraries,
        baseline_windows=len(state.monitor.pipeline.baseline),
        baseline_needed=state.monitor.pipeline.baseline_needed,
        windows=state.monitor.windows,
        windows_lost=state.monitor.windows_lost,
        values_filled=state.monitor.values_filled,
        settling=state.monitor.pipeline.settling,
        alarms_active=len(state.monitor.alarms.active),
        outbox=len(state.outbox.items),
        bytes_sent=state.context.bytes_sent,
        bytes_received=state.context.bytes_received,
        dropped=_count_dropped(state),
        refusal=state.context.refusal,
        refused_round=state.training.refused_round,
        training_remarks="; ".join(state.training.remarks.values())[:SHORT_MAX],
        answered="" if state.training.answered is None else round_number(*state.training.answered),
        device=_describe_device(state),
        privacy_epsilon=_find_epsilon(state),
        promised_alarms_per_day=state.context.settings.alarm.false_alarms_per_day,
        **_describe_models(deployment, state.context.settings),
        store_id=state.context.store_id,
        starts=state.context.starts,
        challenge=state.context.challenge,
        sequence=state.outbox.sequence,
        t_ns=state.context.now_ns,
        monotonic_ns=state.context.uptime_ns,
        link=state.outbox.conflict,
        outbox_bytes=count_held_bytes(state.outbox.items),
        flash_bytes_written=state.context.store.written_bytes,
        store_problem=state.context.store.problem,
        stale=state.trust.stale,
        score_over_level=_find_score_over_level(state),
        trail=make_trail(state.monitor.trail[-TRAIL_SHOWN:]) if exchange.publish_scores else None,
        sources=describe_sources(state, with_values=exchange.publish_values),
    )


def _describe_models(deployment: Deployment, settings: GatewaySettings) -> dict[str, Any]:
    """Return what a status says of the models, by its names."""
    models = deployment.models
    return {
        "model_version": deployment.version,
        "model_digest": deployment.manifest.model.digest if deployment.manifest else "",
        "candidate_version": deployment.candidate.version if deployment.candidate else 0,
        "previous_version": models.previous.version,
        "probation_s": compute_probation_left_s(models, settings) if deployment.trial else 0.0,
        "model_windows": models.windows,
        "model_alarms": models.alarms,
        "rejected": {str(one.version): one.why for one in models.rejected},
        "compared_windows": models.compared,
        "differing_windows": models.differing,
    }


def describe_sources(state: State, *, with_values: bool) -> dict[str, SourceReport]:
    """Return how each source was received last, as far as its channels are among the first `SENSORS_MAX`."""
    found, left, context = dict[str, SourceReport](), SENSORS_MAX, state.context
    for source in context.settings.source:
        latest = state.monitor.latest.get(source.name)
        channels = source.channels[:left]
        left -= len(channels)
        shown = channels if with_values and latest is not None else ()
        if channels:
            found[source.name] = SourceReport(
                age_s=None if latest is None else round((context.uptime_ns - latest.uptime_ns) / NS, 1),
                rate_hz=None if latest is None or latest.rate_hz is None else _round(latest.rate_hz),
                channels=tuple(one.role for one in channels),
                units=tuple(one.unit[:NAME_MAX] for one in shown),
                values=tuple(_round(value) for value, _ in zip(latest.values if latest else (), shown, strict=False)),
            )
    return found


def _round(value: float) -> float | None:
    """Return a number with as many digits as anybody reads; None where it is not finite or beyond what is measured."""
    return float(f"{value:.{DIGITS}g}") if abs(value) <= FARTHEST else None


def _describe_device(state: State) -> Device | None:
    device = state.context.settings.gateway.device
    return None if device is None else Device(**device.model_dump())


def _find_epsilon(state: State) -> float | None:
    """Return what was spent of this gateway's privacy; None where it keeps no account of that."""
    spent = float(state.training.own.get(EPSILON, np.inf))
    return spent if math.isfinite(spent) else None


def _find_score_over_level(state: State) -> float | None:
    """Return how near to its level the score of the last window was that was judged; None where that is not known, or
    not for others.
    """
    if not state.context.settings.exchange.publish_scores or not state.monitor.trail:
        return None
    _, height, level = state.monitor.trail[-1]
    if level <= 0:
        return None
    ratio = float(f"{float(height) / float(level):.{DIGITS}g}")
    return ratio if math.isfinite(ratio) else None


def _count_dropped(state: State) -> dict[str, int]:
    dropped = {
        "message": state.messages_dropped,
        **state.outbox.dropped,
        "damaged_body": state.downloads.receiver.damaged,
    }
    return {what: count for what, count in dropped.items() if count}
