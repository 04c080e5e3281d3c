"""What is learned together: the training at hand, its rounds, the models side by side, and who gets which."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from fedgate.cloud_aggregator.events import CHANGE
from fedgate.cloud_aggregator.releases import rollout
from fedgate.cloud_aggregator.releases.releases import Releases, restore
from fedgate.cloud_aggregator.storage.models_table import state_of
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web.pages.buttons import SHARES
from fedgate.cloud_aggregator.web.pages.orders import describe_order
from fedgate.cloud_aggregator.web.pages.page import Context, Page, read_first
from fedgate.config.protocol.messages import Manifest, Status
from fedgate.config.web.charts import Facts, make_chart, make_series
from fedgate.models.time_units import DAY_S

ROUNDS_SHOWN, ROUNDS_DRAWN, ROUNDS_LEAST, MODELS_SHOWN, ORDERS_SHOWN, GATEWAYS_SHOWN = 20, 200, 3, 10, 30, 50
FIGURES_DRAWN, DECADES = 4, 30.0  # charts; from one value to another, from when on an axis is logarithmic
Statuses = Mapping[str, Status]


def read_learning(context: Context, address: Mapping[str, str]) -> Facts:
    """Return how learning stands; `first` is of the rounds, the newest of which comes first."""
    store, first = context.store, read_first(address)
    gateways = store.read_statuses()
    known = store.read_newest("rounds", first + ROUNDS_SHOWN + 1)
    return {
        "training": read_training(context),
        "rounds": [describe_round(row) for row in known[first : first + ROUNDS_SHOWN]],
        "round_chart": draw_rounds(store),
        "convergence": draw_convergence(store),
        "first": first,
        "next": first + ROUNDS_SHOWN if len(known) > first + ROUNDS_SHOWN else None,
        "before": max(first - ROUNDS_SHOWN, 0) if first else None,
        "refusals": list_refusals(gateways),
        "models": read_models(context, gateways),
        "release": read_release(context, gateways),
        "shares": SHARES,
        "privacy": read_privacy(context, gateways),
        "orders": [describe_order(row) for row in store.read_newest("orders", ORDERS_SHOWN)],
    }


def read_training(context: Context) -> Facts | None:
    """Return where the training at hand is, with the numbers that its algorithm keeps; None where there is none."""
    stored = context.store.read_training(only_numbers=True)
    if stored is None:
        return None
    from fedgate.cloud_aggregator.rounds.figures import list_figures  # imports the models, which no other page needs

    figures = list_figures(stored, context.settings)
    return {
        "run": stored.meta["run"],
        "round": stored.meta["round_index"],
        "phase": stored.meta["phase"],
        "answers": len(stored.meta["counted"]),
        "refused": stored.meta["refused"],
        "algorithm": context.settings.algorithm.name,
        "quorum": context.settings.rounds.quorum,
        "figures": {name: value if math.isfinite(value) else None for name, value in figures.items()},
    }


def describe_round(row: Mapping[str, Any]) -> Facts:
    """Return a closed round: who took part, late and in vain, and what it took to send."""
    late = [one.rpartition(":") for one in (row["late"] or "").split()]
    sizes = (row["update_bytes"], row["uncompressed_bytes"])
    return {
        **{name: row[name] for name in ("id", "run", "round_index", "phase", "closed_ns", "algorithm", "refused")},
        "gateways": row["gateways"].split(),
        "empty": (row["empty"] or "").split(),
        "late": [{"gateway": name, "round": int(index)} for name, _, index in late],
        "refusals": [{"gateway": gateway, "why": why} for gateway, why in json.loads(row["refusals"] or "[]")],
        "figures": json.loads(row["figures"] or "{}"),
        "bytes_received": row["bytes_received"],
        "update_bytes": row["update_bytes"],
        "compression": sizes[1] / sizes[0] if sizes[0] and sizes[1] else None,
    }


def draw_rounds(store: Store) -> Facts | None:
    """Return what came in updates in each of the newest rounds, as a chart; None where they are too few."""
    rows = store.read_newest("rounds", ROUNDS_DRAWN, "id", "bytes_received")[::-1]
    if len(rows) < ROUNDS_LEAST:
        return None
    series = [make_series("bytes received", "now", [row["bytes_received"] for row in rows])]
    return make_chart("round", [row["id"] for row in rows], series)


def draw_convergence(store: Store) -> list[Facts]:
    """Return how figures went over the newest rounds of the training at hand, a chart each: how much a round changed
    first, then those that changed at all, in the order of their names. Of rounds of several exchanges the last exchange
    is drawn.
    """
    rows = store.read_newest("rounds", ROUNDS_DRAWN, "id", "run", "phase", "figures")[::-1]
    own = [row for row in rows if row["run"] == rows[-1]["run"]]
    last = max((row["phase"] or 0 for row in own), default=0)
    closed = [(row["id"], json.loads(row["figures"] or "{}")) for row in own if (row["phase"] or 0) == last]
    names = sorted({name for _, figures in closed for name in figures}, key=lambda name: (name != CHANGE, name))
    charts = [draw_figure(name, [(x, one[name]) for x, one in closed if name in one]) for name in names]
    return [one for one in charts if one is not None][:FIGURES_DRAWN]


def draw_figure(name: str, points: list[tuple[int, float]]) -> Facts | None:
    """Return a figure over rounds; None where the rounds are too few, or it is always the same."""
    values = [value for _, value in points]
    if len(points) < ROUNDS_LEAST or len(set(values)) == 1:
        return None
    is_log = min(values) > 0 and max(values) > DECADES * min(values)
    chart = make_chart("round", [x for x, _ in points], [make_series(name, "now", values)], is_log=is_log)
    return {"name": name, "last": values[-1], "chart": chart}


def list_refusals(gateways: Statuses) -> list[Facts]:
    """Return which gateways refuse something, or remark something of their training."""
    found = [
        {"gateway": name, "refusal": one.refusal, "remarks": one.training_remarks}
        for name, one in sorted(gateways.items())
        if one.refusal or one.training_remarks
    ]
    return found[:GATEWAYS_SHOWN]


def read_models(context: Context, gateways: Statuses) -> list[Facts]:
    """Return the newest models, the last first, each beside what gateways that have it in force tell of it."""
    store = context.store
    columns = ("version", "manifest", "canary_ns", "released_ns", "stopped_ns")
    rows, release = store.read_newest("models", MODELS_SHOWN, *columns), store.models.read_rollout()
    return [
        describe_model(row, state_of(row, release, rows[0]["version"]))
        | compare(row["version"], gateways.values(), context.settings.features.hop_s)
        for row in rows
    ]


def describe_model(row: Mapping[str, Any], state: str) -> Facts:
    """Return what a model is, and how far its release has come."""
    manifest: dict[str, Any] = json.loads(row["manifest"])
    named = ("algorithm", "detector", "run", "round_index", "gateways", "created_ns")
    return {
        "state": state,
        "size_bytes": manifest["model"]["size_bytes"],
        **{name: row[name] for name in ("version", "canary_ns", "released_ns", "stopped_ns")},
        **{name: manifest[name] for name in named},
    }


def compare(version: int, gateways: Iterable[Status], hop_s: float) -> Facts:
    """Return what came of a model where it is in force: for how long it was watched with, alarms beside those that were
    promised, and the median of the shares of windows of its probation on which it and the one before differed, None
    where no window was judged by both; and how many gateways did not take it.
    """
    known = list(gateways)
    having = [one for one in known if one.model_version == version]
    days = sum(one.model_windows for one in having) * hop_s / DAY_S
    shares = [one.differing_windows / one.compared_windows for one in having if one.compared_windows]
    return {
        "compared_at": len(shares),
        "differing": median(shares) if shares else None,
        "in_force": len(having),
        "watched_days": days,
        "alarms": sum(one.model_alarms for one in having),
        "promised": sum(one.promised_alarms_per_day * one.model_windows for one in having) * hop_s / DAY_S,
        "rejected": sum(str(version) in one.rejected for one in known),
    }


def read_release(context: Context, gateways: Statuses) -> Facts:
    """Return how the release at hand stands, canary by canary."""
    table, hop_s = context.settings.release, context.settings.features.hop_s
    summary = rollout.summarise(read_releases(context.store), gateways, table, hop_s)
    canaries = summary["canaries"]
    return summary | {"canaries": canaries[:GATEWAYS_SHOWN], "canary_count": len(canaries)}


def read_releases(store: Store) -> Releases:
    """Return the release at hand, its models without their bodies, which may be megabytes."""

    def find(version: int) -> tuple[Manifest, bytes] | None:
        return _as_model(store.read_newest("models", 1, "manifest", version=version))

    return restore(store.models.read_rollout(), find, _as_model(store.read_newest("models", 1, "manifest")))


def _as_model(rows: list[dict[str, Any]]) -> tuple[Manifest, bytes] | None:
    return (Manifest.model_validate_json(rows[0]["manifest"]), b"") if rows else None


def read_privacy(context: Context, gateways: Statuses) -> Facts:
    """Return what gateways have spent of their privacy budget, the most first; the budget is None without one."""
    spent = {name: one.privacy_epsilon for name, one in gateways.items() if one.privacy_epsilon is not None}
    most_first = sorted(spent.items(), key=lambda one: (-one[1], one[0]))
    budget = (context.settings.algorithm.settings.get("privacy") or {}).get("epsilon")
    return {
        "budget": budget,
        "count": len(spent),
        "spent": [{"gateway": name, "epsilon": value} for name, value in most_first[:GATEWAYS_SHOWN]],
    }


PAGE = Page("/learning", "learning.html", "Learning", read_learning)
