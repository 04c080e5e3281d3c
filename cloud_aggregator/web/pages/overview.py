"""The first page: is all well, what is not, and where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedgate.cloud_aggregator.health import describe_health, is_silent
from fedgate.cloud_aggregator.names import list_first
from fedgate.cloud_aggregator.rounds.set_back import describe_set_back
from fedgate.cloud_aggregator.storage.database import StoreError
from fedgate.cloud_aggregator.web.pages.alarm_list import (
    MASKED_STATES,
    OF_A_GATEWAY,
    STATE_RANKS,
    Groups,
    Listed,
    count_states,
    list_asking,
    list_worst,
    shorten,
)
from fedgate.cloud_aggregator.web.pages.page import Context, Page
from fedgate.config.protocol.messages import Status
from fedgate.config.settings.notifications import SEVERITIES
from fedgate.config.web.charts import Facts
from fedgate.config.web.status_facts import list_problems
from fedgate.models.time_units import NS

SHOWN, TILES = 50, 100  # open alarms, gateways; those with something wrong come first
DENIED_SHOWN = 50
OF_STATUS = (
    *("state", "version", "model_version", "baseline_windows", "baseline_needed", "clock", "alarms_active", "answered"),
    "promised_alarms_per_day",
)


class Seen(NamedTuple):
    """What is shown of the status of a gateway, and when it was seen last; 0: never."""

    status: Facts
    seen_ns: int


def read_overview(context: Context, _address: Mapping[str, str]) -> Facts:
    """Return the state of the service, the open alarms, the worst first, and the gateways."""
    context.alarms.read(context.store, context.now_ns)
    service, groups = read_service(context), context.alarms.groups
    gateways = read_gateways(context, list_asking(groups), service=service)
    denied = [row["gateway"] for row in context.store.read_rows("denied")]
    counts, set_back = count_states(groups), describe_older(context, gateways)
    return {
        "site": context.settings.aggregator.site,
        "sentence": say(service, gateways, counts, set_back, denied),
        "is_well": service["is_live"] and not any(list_wrong(gateways, counts, set_back, denied)),
        "service": service,
        "seen_ns": max((one["seen_ns"] or 0 for one in gateways), default=0) or None,
        "alarm_counts": counts,
        "alarms": show_worst(context, groups),
        "gateway_counts": count_gateways(gateways),
        "gateways": gateways,
        "denied": denied[:DENIED_SHOWN],
        "denied_count": len(denied),
        "tiles": TILES,
        "of_a_gateway": OF_A_GATEWAY,
        "has_plan": context.settings.web.plan is not None,
    }


def show_worst(context: Context, groups: Groups) -> list[Facts]:
    """Return the alarms that ask for somebody, the worst first: in each state likely damage, since a severity is of a
    score, and a loose sensor has a high one.
    """
    shown = context.alarms.show(context.store, shorten(list_worst(groups), SHOWN))
    return sorted(shown, key=lambda one: (STATE_RANKS[one["state"]], one["likely"] != "damage"))


def read_service(context: Context) -> Facts:
    """Return whether the service works, and until when it is known how gateways are."""
    rows = context.store.read_rows("service")
    try:
        held_ns = context.store.database.find_held_since_ns()
    except (OSError, StoreError):  # of another user, whose lock may not be looked at
        held_ns = None
    found = describe_health(rows[0] if rows else None, held_ns, context.now_ns)
    age_s = None if found.as_of_ns is None else max(context.now_ns - found.as_of_ns, 0) / NS
    return {
        "state": found.work,
        "since_ns": found.began_ns,
        "is_connected": found.is_connected,
        "broker_since_ns": found.link_ns,
        "is_live": found.is_live,
        "as_of_ns": found.as_of_ns,
        "age_s": age_s,
    }


def read_gateways(context: Context, alarms: Iterable[Listed], *, service: Facts) -> list[Facts]:
    """Return the gateways, those with something wrong first, by the alarms that stand and that nothing masks."""
    registry = context.store.read_registry()
    by_gateway: dict[str, list[Listed]] = {}
    for alarm in alarms:
        by_gateway.setdefault(alarm.gateway, []).append(alarm)
    known = _read_statuses(context)
    admitted = registry.admitted if context.settings.identity is not None else frozenset()
    barred = registry.barred if context.settings.identity is not None else frozenset()
    positions, found = context.settings.web.positions, list[Facts]()
    for name in sorted({*known, *admitted}):
        seen, its = known.get(name, NEVER_SEEN), by_gateway.get(name, ())
        one = describe_gateway(name, seen, its, context.now_ns, service=service)
        one["position"] = positions.get(name)
        if name in barred:
            one["state"] = "revoked"
        found.append(one)
    return sorted(found, key=lambda one: (-one["worst"], is_well(one), one["gateway"]))


def is_well(one: Facts) -> bool:
    """Tell whether a gateway is there, judges its windows and reports no problem."""
    return one["state"] == "online" and one["watches"] and not one["problems"]


def _read_statuses(context: Context) -> dict[str, Seen]:
    """Return what is shown of the status of each gateway, and when it was seen. Of all gateways few have spoken since
    statuses were read last: a status is parsed where its text is another one.
    """
    before, found = context.statuses, dict[str, Seen]()
    for row in context.store.read_rows("gateways", "gateway", "status", "seen_ns"):
        name, text = row["gateway"], hash(row["status"])
        known = before.get(name)
        if known is None or known[0] != text:
            before[name] = (text, show_status(Status.model_validate_json(row["status"])))
        found[name] = Seen(before[name][1], row["seen_ns"])
    for name in before.keys() - found.keys():
        del before[name]
    return found


def show_status(status: Status) -> Facts:
    """Return what is shown of a status."""
    shown = {name: getattr(status, name) for name in OF_STATUS}
    return {**shown, "watches": status.watching, "problems": sum(1 for _ in list_problems(status))}


def describe_gateway(name: str, seen: Seen, asking: Iterable[Listed], now_ns: int, *, service: Facts) -> Facts:
    """Return how a gateway is, by its status and its alarms that stand and that nothing masks."""
    severities = [SEVERITIES.index(one.severity) for one in asking]
    worst = max(severities, default=-1)
    state = seen.status["state"] if service["is_live"] else "unknown"
    state = "silent" if is_silent(state, seen.seen_ns, service["broker_since_ns"], now_ns) else state
    return {
        **seen.status,
        "gateway": name,
        "state": state,
        "seen_ns": seen.seen_ns or None,
        "alarms": len(severities),
        "worst": worst + 1,
        "severity": SEVERITIES[worst] if severities else "",
    }


NEVER_SEEN = Seen({**dict.fromkeys(OF_STATUS), "state": "never seen", "watches": False, "problems": 0}, 0)


def count_gateways(gateways: Iterable[Facts]) -> dict[str, int]:
    """Return how many gateways are in each state."""
    counts: dict[str, int] = {}
    for one in gateways:
        counts[one["state"]] = counts.get(one["state"], 0) + 1
    return counts


def describe_older(context: Context, gateways: Iterable[Facts]) -> str:
    """Return what is wrong where the store is of before what gateways have answered; else nothing."""
    training = context.store.read_training_meta()
    if training is None:
        return ""
    answered = {one["gateway"]: one["answered"] or "" for one in gateways}
    return describe_set_back(answered, training["run"], training["round_index"])


def list_wrong(
    gateways: Sequence[Facts], counts: Mapping[str, int], set_back: str, denied: Sequence[str]
) -> Iterable[str]:
    """Yield what is wrong, the worst first."""
    if count := counts["unacknowledged"]:
        yield f"{count} alarm{'s stand' if count > 1 else ' stands'} that nobody has acknowledged"
    if count := counts["acknowledged"]:
        yield f"{count} acknowledged alarm{'s stand' if count > 1 else ' stands'}"
    away = [one["gateway"] for one in gateways if one["state"] in ("offline", "silent", "never seen")]
    idle = [one["gateway"] for one in gateways if one["state"] == "online" and not one["watches"]]
    reporting = [one["gateway"] for one in gateways if one["state"] == "online" and one["problems"]]
    if away:
        yield f"{away[0]} does not speak" if len(away) == 1 else f"{len(away)} gateways do not speak"
    if idle:
        yield f"{idle[0]} does not watch yet" if len(idle) == 1 else f"{len(idle)} gateways do not watch yet"
    if reporting:
        yield (
            f"{reporting[0]} reports a problem" if len(reporting) == 1 else f"{len(reporting)} gateways report problems"
        )
    if denied:
        names = list_first(denied)
        yield f"the broker denies {names} until it is restarted"
    if set_back:
        yield set_back
    if count := counts["returned-unacknowledged"]:
        yield f"{count} alarm{'s are' if count > 1 else ' is'} over and not acknowledged"


def say(
    service: Facts, gateways: Sequence[Facts], counts: Mapping[str, int], set_back: str, denied: Sequence[str]
) -> str:
    """Return in one sentence whether all is well, and else what is not."""
    not_live = {
        "never ran": "The service has never run on this store.",
        "stopped": "The service does not run: nothing here is newer than its end.",
        "hangs": "The service hangs: its process is there and does nothing.",
    }
    if service["state"] in not_live:
        return not_live[service["state"]]
    if not service["is_connected"]:
        return "The broker is not connected: nobody knows how the gateways are."
    wrong = list(list_wrong(gateways, counts, set_back, denied))
    if not wrong:
        masked = [
            f"{counts[state]} alarm{'s are' if counts[state] > 1 else ' is'} {state}"
            for state in MASKED_STATES
            if counts[state]
        ]
        return f"{'; '.join(['All is well', *masked])}."
    text = "; ".join(wrong)
    return f"{text[0].upper()}{text[1:]}."


PAGE = Page("/", "overview.html", "Overview", read_overview)
