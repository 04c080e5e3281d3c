"""One gateway: how it is, what it measures and judges by, its promise beside what came of it, and what it lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.alarms.workflow import LABELS, Workflow
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web.pages.alarm_list import ASKING_STATES, Listed
from fedgate.cloud_aggregator.web.pages.feature_trends import LATEST_DAYS, read_features
from fedgate.cloud_aggregator.web.pages.orders import describe_order
from fedgate.cloud_aggregator.web.pages.overview import NEVER_SEEN, Seen, describe_gateway, read_service, show_status
from fedgate.cloud_aggregator.web.pages.page import Context, NotThereError, Page
from fedgate.cloud_aggregator.web.pages.score_chart import read_chart
from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.messages import Status
from fedgate.config.protocol.topics import ALL
from fedgate.config.web.charts import Facts
from fedgate.config.web.status_facts import (
    compare_promise,
    describe_channels,
    describe_doing,
    describe_status,
    list_problems,
)
from fedgate.models.time_units import DAY_NS

ALARMS_SHOWN, LOSSES_SHOWN, ORDERS_SHOWN, WINDOWS_SHOWN = 20, 20, 10, 10
ORDERS_SEARCHED = 500  # the newest
CERTIFICATES_SHOWN = 5
SOON_NS = 14 * DAY_NS  # before its end a certificate is due


def read_gateway(context: Context, address: Mapping[str, str]) -> Facts:
    """Return a gateway by its name; raises `NotThereError`."""
    name, store, hop_s = address["gateway"], context.store, context.settings.features.hop_s
    alarms = [one for one in context.alarms.read(store, context.now_ns) if one.gateway == name]
    row = next(iter(store.read_newest("gateways", 1, "gateway", "status", "seen_ns", gateway=name)), None)
    registry = store.read_registry() if context.settings.identity is not None else Registry()
    if name == ALL or (row is None and name not in registry.names):
        raise NotThereError(f"there is no gateway {name[:64]}")
    status = None if row is None else Status.model_validate_json(row["status"])
    active = [one for one in alarms if one.is_active]
    asking = [one for one in active if one.state in ASKING_STATES]
    service = read_service(context)
    seen = NEVER_SEEN if row is None or status is None else Seen(show_status(status), row["seen_ns"])
    summary = describe_gateway(name, seen, asking, context.now_ns, service=service)
    summary |= {"state": "revoked"} if name in registry.barred else {}
    problems = [] if status is None else list(list_problems(status))
    return {
        "gateway": summary,
        "sentence": say(summary, status, len(problems)),
        "is_well": summary["state"] == "online" and not problems and not summary["alarms"] and is_watching(status),
        "problems": problems,
        "reported": None if status is None else describe_status(status),
        "channels": [] if status is None else read_channels(context, name, status, active),
        "promise": None if status is None else compare_promise(status, hop_s),
        "labels": count_labels(alarms),
        "chart": read_chart(store, name, status, hop_s, context.now_ns),
        "features": read_features(context, name, context.now_ns - LATEST_DAYS * DAY_NS, context.now_ns),
        "models": [] if status is None else read_models(store, status),
        "release": read_role(store, name),
        "alarms": context.alarms.show(context.store, choose_alarms(alarms)),
        "alarm_count": len(alarms),
        "windows": list_windows(context.alarms.workflow, name, context.now_ns),
        "out_of_service": sorted(cause for gateway, cause in context.alarms.workflow.out if gateway == name),
        "losses": store.read_newest("losses", LOSSES_SHOWN, gateway=name),
        "certificates": list_certificates(registry, name, context.now_ns),
        "can_be_revoked": context.settings.identity is not None and name in registry.admitted,
        "has_identity": context.settings.identity is not None,
        "orders": list_orders(store, name),
    }


def is_watching(status: Status | None) -> bool:
    """Tell whether a gateway judges its windows, by its last word."""
    return status is not None and status.watching


def say(summary: Facts, status: Status | None, problems: int) -> str:
    """Return in one sentence how a gateway is."""
    state = summary["state"]
    away = {
        "never seen": "Enrolled, and has never spoken.",
        "revoked": "Shut out: it belongs to the site no more.",
        "offline": "Offline: nobody watches there as far as the aggregator knows.",
        "silent": "Silent: it counts as online, and has not spoken for a long time.",
        "unknown": "Nobody knows how it is now: the service does not run, or has no broker.",
    }
    if state in away:
        return away[state]
    doing = "online" if status is None else describe_doing(status)
    count = summary["alarms"]
    alarms = f"; {count} alarm{'s stand' if count > 1 else ' stands'}" if count else ""
    more = f"; it reports {problems} problem{'s' if problems > 1 else ''}" if problems else ""
    return f"Online, {doing}{alarms}{more}."


def read_channels(context: Context, gateway: str, status: Status, active: Sequence[Listed]) -> list[Facts]:
    """Return what is known of the sensors: by the status, by the alarms that stand, and by the newest evidence."""
    rows = context.store.read_newest("evidence", 1, "body", "received_ns", gateway=gateway)
    evidence = AlarmEvidence.model_validate_json(rows[0]["body"]) if rows else None
    faults = {one.cause: one.text for one in active if one.kind == "sensor"}
    seen_ns = rows[0]["received_ns"] if rows else None  # its own clock may be wrong
    return describe_channels(context.settings.features.channels, status, status.sources, faults, evidence, seen_ns)


def count_labels(alarms: Iterable[Listed]) -> Facts:
    """Return how many alarms have each label, and the share of damage in damage and false; None where neither is."""
    counts = Counter(one.label for one in alarms)
    judged = counts["damage"] + counts["false"]
    return {name: counts[name] for name in LABELS} | {"precision": counts["damage"] / judged if judged else None}


def read_models(store: Store, status: Status) -> list[Facts]:
    """Return the models of a gateway: in force, on its way there, and to go back to."""
    named = (
        ("in force", status.model_version),
        ("candidate", status.candidate_version),
        ("before", status.previous_version),
    )
    found = []
    for role, version in named:
        rows = store.read_newest("models", 1, "manifest", "digest", version=version) if version else []
        manifest: dict[str, Any] = json.loads(rows[0]["manifest"]) if rows else {}
        known = {key: manifest.get(key) for key in ("detector", "algorithm", "created_ns", "gateways")}
        if version:
            is_other = role == "in force" and bool(rows) and status.model_digest not in ("", rows[0]["digest"])
            found.append({"role": role, "version": version, "is_known": bool(rows), "is_other": is_other} | known)
    return found


def read_role(store: Store, gateway: str) -> str:
    """Return what a gateway is in the release at hand; empty where it has what all have."""
    body = store.models.read_rollout()
    stage: dict[str, Any] = json.loads(body)["rollout"] if body else {"stage": "none"}
    if stage["stage"] in ("watching", "paused") and gateway in stage["canaries"]:
        return f"It is a canary of model {stage['version']} ({stage['stage']})."
    if stage["stage"] == "stopped" and gateway in stage["recalled"]:
        return f"It was given back what all have, as model {stage['recall']}: model {stage['version']} was stopped."
    return ""


def choose_alarms(alarms: Iterable[Listed]) -> list[Listed]:
    """Return the alarms to show: those that ask for somebody, then the newest."""
    return sorted(alarms, key=lambda one: one.rank)[:ALARMS_SHOWN]


def list_windows(workflow: Workflow, gateway: str, now_ns: int) -> list[Facts]:
    """Return the maintenance windows of a gateway and of all, the last first."""
    own = [one for one in workflow.windows if one.gateway in (ALL, gateway) and one.from_ns < one.to_ns]
    own.sort(key=lambda one: (-one.to_ns, one.number))
    return [vars(one) | {"is_now": one.from_ns <= now_ns < one.to_ns} for one in own[:WINDOWS_SHOWN]]


def list_certificates(registry: Registry, gateway: str, now_ns: int) -> list[Facts]:
    """Return the certificates of a gateway, the newest first, and whether the one that counts is soon over."""
    found = registry.list_certificates(gateway)[: -CERTIFICATES_SHOWN - 1 : -1]
    return [
        {name: getattr(one, name) for name in ("serial", "issued_ns", "not_after_ns", "reason", "ended_ns")}
        | {"is_due": not one.reason and one.not_after_ns - now_ns < SOON_NS}
        for one in found
    ]


def list_orders(store: Store, gateway: str) -> list[Facts]:
    """Return the newest orders about a gateway, the last first."""
    rows = store.read_newest("orders", ORDERS_SEARCHED)
    return list(islice((describe_order(row) for row in rows if is_about(row, gateway)), ORDERS_SHOWN))


def is_about(row: Mapping[str, Any], gateway: str) -> bool:
    """Tell whether an order names a gateway, or an alarm of it."""
    body: dict[str, Any] = json.loads(row["body"])
    alarms, gateways = body.get("alarms"), body.get("gateways")
    of_alarms = [str(one).partition("/")[0] for one in alarms] if isinstance(alarms, list) else []
    return gateway in (body.get("gateway"), *of_alarms, *(gateways if isinstance(gateways, list) else ()))


PAGE = Page("/gateways/{gateway}", "gateway.html", "Gateway", read_gateway)
