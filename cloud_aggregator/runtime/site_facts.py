"""What a store knows of a site at one moment, for its metrics: read in a few statements whose cost is that of what
stands, and of one row for each gateway, however long the site has been there.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.alarms.records import ALARMS_REFUSED
from fedgate.cloud_aggregator.alarms.workflow import AlarmCondition, AlarmKey, find_state, fold
from fedgate.cloud_aggregator.health import Health, describe_health, find_gateway_state
from fedgate.cloud_aggregator.metrics.facts import (
    FLEET,
    AlarmFacts,
    GatewayFacts,
    ServiceFacts,
    SiteFacts,
    StoreFacts,
    TrainingFacts,
    Waiting,
)
from fedgate.cloud_aggregator.notifications.post_queue import name_count
from fedgate.cloud_aggregator.pki.authority import CA, SERVER
from fedgate.cloud_aggregator.pki.quarantine import list_denied_names
from fedgate.cloud_aggregator.rounds.set_back import describe_set_back
from fedgate.cloud_aggregator.storage.store import AlarmRow, Store
from fedgate.config.identity import pki
from fedgate.config.protocol.messages import Status
from fedgate.config.protocol.topics import ALL
from fedgate.config.settings.notifications import WEBHOOK
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.models.time_units import DAY_NS, NS

PEAK_NS = 600 * NS  # in which EEMUA 191 counts alarms
KIND_OF_ALL = {ALL: FLEET}


def read_facts(settings: AggregatorSettings, now_ns: int) -> SiteFacts:
    """Return what the store of a site knows; raises `StoreError`, and `IdentityError` where a file of it is damaged."""
    with closing(Store(settings.aggregator.store, create=False, is_read_only=True)) as store:
        beats = store.read_rows("service")
        found = describe_health(beats[0] if beats else None, store.database.find_held_since_ns(), now_ns)
        counts = {row["name"]: row["value"] for row in store.read_rows("counts")}
        training = store.read_training_meta()
        raised = store.read_active_alarms()
        gateways, states = _read_gateways(store, settings, found, raised)
        return SiteFacts(
            site=settings.aggregator.site,
            service=ServiceFacts(found.work == "running", found.is_connected, found.began_ns, found.beat_ns),
            store=_read_store(store, gateways, training),
            gateways=gateways,
            states=states,
            alarms=_read_alarms(store, counts, raised, now_ns),
            training=_read_training(store, counts, training),
            notifications=_read_notifications(store, settings, counts),
            certificates_until_ns=_read_certificates(settings),
        )


def _read_certificates(settings: AggregatorSettings) -> dict[str, int]:
    """Return when the certificates end that the site itself has here."""
    own, folder = settings.broker.certificate_file, settings.identity.folder if settings.identity else None
    files = {"aggregator": own}
    files |= {"authority": folder / CA, "broker": folder / SERVER} if folder else {}
    return {
        whose: int(pki.load_certificate(file).not_valid_after_utc.timestamp()) * NS
        for whose, file in files.items()
        if file is not None and file.exists()
    }


def _read_store(store: Store, gateways: tuple[GatewayFacts, ...], training: Mapping[str, Any] | None) -> StoreFacts:
    backup = store.read_backup_note()
    answered = {one.name: one.status.answered for one in gateways if one.status is not None}
    return StoreFacts(
        store.schema_version,
        store.database.size_bytes(),
        store.database.find_free_bytes(),
        None if backup is None else backup.made_ns,
        bool(training and describe_set_back(answered, training["run"], training["round_index"])),
    )


def _read_gateways(
    store: Store, settings: AggregatorSettings, found: Health, raised: Sequence[AlarmRow]
) -> tuple[tuple[GatewayFacts, ...], Counter[Any]]:
    """Return the gateways that belong to the site, and how many are in which state."""
    rows, registry = {row["gateway"]: row for row in store.read_rows("gateways")}, store.read_registry()
    is_site = settings.identity is not None
    barred = registry.barred if is_site else frozenset[str]()
    denied = list_denied_names(settings.identity, registry) if registry.list_outlived() else frozenset[str]()
    until_ns = _find_certificate_ends(registry)
    active = defaultdict[str, Counter[str]](Counter)
    for alarm in raised:
        active[alarm.gateway][alarm.kind] += 1
    gateways = list[GatewayFacts]()
    states = Counter[Any](dict.fromkeys(("online", "offline", "revoked", "unknown"), 0))
    for name in sorted(rows.keys() | (registry.admitted if is_site else frozenset())):
        row = rows.get(name)
        status = None if row is None else Status.model_validate_json(row["status"])
        state = find_gateway_state("unknown" if status is None else status.state, found, is_barred=name in barred)
        state = "unknown" if name in denied else state
        states[state] += 1
        if state != "revoked":
            seen_ns = (row["seen_ns"] or None) if row else None
            gateways.append(GatewayFacts(name, state, status, seen_ns, active[name], until_ns.get(name)))
    return tuple(gateways), states


def _find_certificate_ends(registry: Registry) -> dict[str, int]:
    """Return when the certificate of each gateway ends that lasts longest, of those that count."""
    ends = dict[str, int]()
    for one in registry.certificates.values():
        if not one.reason:
            ends[one.gateway] = max(one.not_after_ns, ends.get(one.gateway, 0))
    return ends


def _read_alarms(store: Store, counts: Mapping[str, int], raised: Sequence[AlarmRow], now_ns: int) -> AlarmFacts:
    workflow = fold(store.read_active_events())
    states = Counter[str](
        find_state(workflow, AlarmKey(one.gateway, one.id), AlarmCondition(one.cause, one.onset_ns, True), now_ns)
        for one in raised
    )
    last_10_minutes, last_day = Counter[str](), Counter[str]()
    for (gateway, kind), (lately, of_day) in store.count_alarms(now_ns - PEAK_NS, now_ns - DAY_NS).items():
        last_10_minutes[KIND_OF_ALL.get(gateway, kind)] += lately
        last_day[KIND_OF_ALL.get(gateway, kind)] += of_day
    return AlarmFacts(
        active=Counter(KIND_OF_ALL.get(one.gateway, one.kind) for one in raised),
        states=states,
        last_10_minutes=last_10_minutes,
        last_day=last_day,
        messages_refused=counts.get(ALARMS_REFUSED, 0),
    )


def _read_training(store: Store, counts: Mapping[str, int], training: Mapping[str, Any] | None) -> TrainingFacts:
    versions = store.read_rows("models", "version", "released_ns")
    rollout = store.models.read_rollout()
    return TrainingFacts(
        totals=counts,
        model_version=max((row["version"] for row in versions if row["released_ns"] is not None), default=0),
        release_stage=json.loads(rollout)["rollout"]["stage"] if rollout else "none",
        round_index=training["round_index"] if training else None,
        answers=len(training["counted"]) if training else 0,
    )


def _read_notifications(store: Store, settings: AggregatorSettings, counts: Mapping[str, int]) -> tuple[Waiting, ...]:
    """Return what of the changes of alarms each receiver of the settings has not got."""
    waiting = Counter(row["channel"] for row in store.read_rows("posts", "channel"))
    channels = [*([WEBHOOK] if settings.webhook else []), *(one.name for one in settings.notify)]
    return tuple(
        Waiting(
            name,
            waiting[name],
            counts.get(name_count(name, "dropped"), 0),
            counts.get(name_count(name, "refused"), 0),
        )
        for name in channels
    )
