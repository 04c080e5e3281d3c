"""A month of the site for the owner of the structure: made to be printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from fedgate.cloud_aggregator.alarms import rates
from fedgate.cloud_aggregator.alarms.workflow import LABELS, AlarmKey, Handled, Workflow
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web.pages.alarm_list import Listed, list_asking
from fedgate.cloud_aggregator.web.pages.availability import read_availability
from fedgate.cloud_aggregator.web.pages.feature_trends import read_trends
from fedgate.cloud_aggregator.web.pages.month import Month, find_month, read_alarms
from fedgate.cloud_aggregator.web.pages.overview import read_gateways, read_service
from fedgate.cloud_aggregator.web.pages.page import Context, Page
from fedgate.config.protocol.topics import ALL
from fedgate.config.settings.notifications import SEVERITIES
from fedgate.config.web.charts import Facts, make_chart, make_series
from fedgate.models.time_units import DAY_NS, DAY_S, NS

ALARMS_SHOWN, GATEWAYS_SHOWN, MODELS_SEARCHED, WINDOWS_SHOWN = 100, 1_000, 1_000, 100
BATCHES_SEARCHED, LOSSES_SEARCHED, ROUNDS_SEARCHED = 10_000, 10_000, 10_000  # the newest
NOTHING = Handled()


def read_report(context: Context, address: Mapping[str, str]) -> Facts:
    """Return a month, `month` of the query such as 2026-11, without it the present one; raises `NotThereError`."""
    month = find_month(address.get("month", ""), context.now_ns)
    listed, store = context.alarms.read(context.store, context.now_ns), context.store
    alarms, workflow, left_out = read_alarms(context, month, listed)
    own = [one for one in alarms if month.has_moment(one.begun_ns)]
    own.sort(key=lambda one: (one.label != "damage", -SEVERITIES.index(one.severity), one.begun_ns))
    service = read_service(context)
    gateways = read_gateways(context, list_asking(context.alarms.groups), service=service)
    unlinked = sum_unlinked(context, month)
    availability = read_availability(context, month, service, unlinked)
    watched = {one["gateway"]: one["watched_s"] for one in availability["gateways"]}
    known_s = max(availability["known_s"], *watched.values(), 0.0)  # what was watched without the service is known, too
    return {
        "month": month._asdict() | {"days": month.days, "known_s": known_s, "is_over": month.until_ns == month.to_ns},
        "counts": count(own),
        "alarms_left_out": left_out,
        "times": measure_times(follow(one, workflow, month) for one in own),
        "alarms": [one._asdict() | follow(one, workflow, month)._asdict() for one in own[:ALARMS_SHOWN]],
        "rates": measure_rates(alarms, month, known_s),
        "availability": availability | {"gateways": availability["gateways"][:GATEWAYS_SHOWN]},
        "gateways": describe_gateways(store, gateways, own, month, unlinked, watched),
        "trends": read_trends(context, month, count_anomalies(own)),
        "models": list_models(store, month),
        "windows": list_windows(workflow, month),
        "rounds": sum_rounds(store, month),
        "chart": draw_days(own, month) if own else None,
    }


class Outcome(NamedTuple):
    """What became of an alarm; None where it was not acknowledged, or where nobody knows for how long it stood."""

    acknowledged_by: str
    acknowledged_s: float | None  # after it began
    stood_s: float | None


def follow(one: Listed, workflow: Workflow, month: Month) -> Outcome:
    """Return what became of an alarm: who acknowledged it, how long after it began, and for how long it stood."""
    handled = workflow.handled.get(AlarmKey(one.gateway, one.id), NOTHING)
    end_ns = one.cleared_ns if one.cleared_ns is not None else month.until_ns
    # A clock that was not set says nothing of how long it stood.
    stood_s = max(end_ns - one.begun_ns, 0) / NS if one.is_clock_set else None
    if handled.acknowledged_ns is None:
        return Outcome("", None, stood_s)
    return Outcome(handled.acknowledged_by, max(handled.acknowledged_ns - one.begun_ns, 0) / NS, stood_s)


def count(alarms: Sequence[Listed]) -> Facts:
    """Return how many alarms there are of each severity, state, kind and label."""
    labels = Counter(one.label for one in alarms)
    return {
        "alarms": len(alarms),
        "severities": {name: sum(one.severity == name for one in alarms) for name in SEVERITIES[::-1]},
        "states": dict(sorted(Counter(one.state for one in alarms).items())),
        "kinds": dict(sorted(Counter(one.kind for one in alarms).items())),
        "labels": {name: labels[name] for name in LABELS} | {"none": labels[""]},
    }


def measure_times(outcomes: Iterable[Outcome]) -> Facts:
    """Return how long it took until alarms were acknowledged, and for how long they stood; None of none."""
    acknowledged, stood = list[float](), list[float]()
    for one in outcomes:
        acknowledged += () if one.acknowledged_s is None else (one.acknowledged_s,)
        stood += () if one.stood_s is None else (one.stood_s,)
    return {
        "acknowledged": len(acknowledged),
        "acknowledged_median_s": median(acknowledged) if acknowledged else None,
        "acknowledged_longest_s": max(acknowledged, default=None),
        "stood_median_s": median(stood) if stood else None,
        "stood_longest_s": max(stood, default=None),
    }


def measure_rates(alarms: Iterable[Listed], month: Month, known_s: float) -> Facts:
    """Return the rates of EEMUA 191 in the time of a month of which anything is known, None where that is none of it,
    with what stood at its end.
    """
    facts = (
        rates.Fact(*(one.gateway, one.cause, one.rule, one.begun_ns, _stood_at_end(one, month), one.state, one.label))
        for one in alarms
        if one.begun_ns < month.until_ns
    )
    found = rates.measure(facts, month.until_ns, month.until_ns - month.from_ns)
    days = known_s / DAY_S
    per_day = found["alarms"] / days if days else None
    return found | {"days": days, "per_day": per_day, "per_10_min": per_day and per_day * rates.PEAK_NS / DAY_NS}


def _stood_at_end(one: Listed, month: Month) -> bool:
    return one.is_active or (one.cleared_ns is not None and one.cleared_ns >= month.until_ns)


def describe_gateways(
    store: Store,
    gateways: Iterable[Facts],
    alarms: Iterable[Listed],
    month: Month,
    unlinked: Mapping[str, float],
    watched: Mapping[str, float],
) -> list[Facts]:
    """Return of each gateway how it is now, what it did without a link and lost, and what it promised for the time
    that it is known to have watched, and what came; `unlinked` and `watched` are in seconds.
    """
    lost, alarms = sum_losses(store, month), list(alarms)
    anomalies = count_anomalies(alarms)
    false = count_anomalies(one for one in alarms if one.label == "false")
    found = [
        {
            **{name: one[name] for name in ("gateway", "state", "seen_ns", "model_version", "version")},
            "unlinked_s": unlinked.get(one["gateway"], 0.0),
            "lost": lost.get(one["gateway"], 0),
            "watched_s": watched.get(one["gateway"], 0.0),
            "promised": (one["promised_alarms_per_day"] or 0.0) * watched.get(one["gateway"], 0.0) / DAY_S,
            "anomalies": anomalies[one["gateway"]],
            "false": false[one["gateway"]],
        }
        for one in gateways
    ]
    return sorted(found, key=lambda one: one["gateway"])


def count_anomalies(alarms: Iterable[Listed]) -> Counter[str]:
    """Return how many anomalies each gateway raised."""
    return Counter(one.gateway for one in alarms if one.kind == "anomaly" and one.gateway != ALL)


def sum_unlinked(context: Context, month: Month) -> dict[str, float]:
    """Return for how many seconds each gateway judged windows without a link."""
    rows = context.store.read_newest("scores", BATCHES_SEARCHED, "gateway", "t_ns", "windows")
    windows = Counter[str]()
    for row in rows:
        if month.has_moment(row["t_ns"]):
            windows[row["gateway"]] += row["windows"]
    return {name: number * context.settings.features.hop_s for name, number in windows.items()}


def sum_losses(store: Store, month: Month) -> Counter[str]:
    """Return how many items each gateway reported as lost whose times reach into a month."""
    lost = Counter[str]()
    for row in store.read_newest("losses", LOSSES_SEARCHED, "gateway", "items", "first_ns", "last_ns"):
        if row["first_ns"] < month.until_ns and row["last_ns"] >= month.from_ns:
            lost[row["gateway"]] += row["items"]
    return lost


def list_models(store: Store, month: Month) -> list[Facts]:
    """Return what was done with models, in its order."""
    columns = {"canary_ns": "given to some first", "released_ns": "released to all", "stopped_ns": "stopped"}
    rows = store.read_newest("models", MODELS_SEARCHED, "version", *columns)
    done = [
        {"t_ns": row[column], "version": row["version"], "what": what}
        for row in rows
        for column, what in columns.items()
        if month.has_moment(row[column])
    ]
    return sorted(done, key=lambda one: (one["t_ns"], one["version"]))


def list_windows(workflow: Workflow, month: Month) -> list[Facts]:
    """Return the maintenance windows that reach into a month, in their order."""
    own = [one for one in workflow.windows if one.from_ns < min(one.to_ns, month.to_ns) and one.to_ns > month.from_ns]
    return [vars(one) | {"is_now": False} for one in sorted(own, key=lambda one: one.from_ns)[:WINDOWS_SHOWN]]


def sum_rounds(store: Store, month: Month) -> Facts:
    """Return how many rounds were closed, what they received, and how many updates were refused."""
    rows = store.read_newest("rounds", ROUNDS_SEARCHED, "closed_ns", "bytes_received", "refused")
    own = [row for row in rows if month.has_moment(row["closed_ns"])]
    return {
        "closed": len(own),
        "bytes_received": sum(row["bytes_received"] or 0 for row in own),
        "refused": sum(row["refused"] for row in own),
    }


def draw_days(alarms: Iterable[Listed], month: Month) -> Facts:
    """Return how many alarms began on each day, and how many of them were anomalies, as a chart."""
    days = range(1, -(-(month.until_ns - month.from_ns) // DAY_NS) + 1)
    of_all, anomalies = Counter[int](), Counter[int]()
    for one in alarms:
        day = (one.begun_ns - month.from_ns) // DAY_NS + 1
        of_all[day] += 1
        anomalies[day] += one.kind == "anomaly"
    series = [
        make_series("alarms", "now", [of_all[day] for day in days]),
        make_series("of the structure", "limit", [anomalies[day] for day in days]),
    ]
    return make_chart("day", list(days), series)


PAGE = Page("/report", "report.html", "Report", read_report)
