"""The report of the study of sensor streams: every method beside the simpler ones, and where the network loses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.engine.markdown import deviation, spread, table
from fedgate.firmware_sim.studies.engine.pictures import beside
from fedgate.firmware_sim.studies.engine.study import Figures, Results
from fedgate.firmware_sim.studies.esn_streams.options import Method, Options, StreamSet, combinations
from fedgate.firmware_sim.studies.esn_streams.pictures import draw_methods

KINDS_SHOWN = 20
STUCK = "stuck"


class Row(NamedTuple):
    """What a method is worth on a data set: means over its reservoirs, their deviation, and what each chose."""

    name: str
    method: Method
    mean: Figures
    spread: Figures
    settings: list[int]

    @property
    def is_network(self) -> bool:
        """Whether it is an echo state network, not one of the simpler methods."""
        return self.method.model == "esn"


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return the report in Markdown; the picture becomes `<prefix>-methods.png`."""
    found = {name: _rows(options, results, name) for name in options.sets}
    path = beside(prefix, "methods")
    draw_methods({name: _marks(options.sets[name], rows) for name, rows in found.items()}, path)
    parts = [_introduction(options), _summary(options, found), f"![recall and areas of all methods]({path.name})"]
    for name, rows in found.items():
        each = options.sets[name]
        target = _target(rows, *options.targets[name]) if name in options.targets else ""
        parts += [f"## {name}", _told(each, rows), _table(each, rows), target, _chosen(each, rows), _kinds(rows)]
        parts.append(each.note)
    return "\n\n".join(part for part in parts if part)


def _rows(options: Options, results: Results, name: str) -> list[Row]:
    rows = []
    for method in options.sets[name].methods:
        each = [figures for cell, figures in results if (cell["set"], cell["method"]) == (name, method)]
        keys = [key for key in each[0] if all(key in one for one in each)]
        mean = {key: float(np.mean([one[key] for one in each])) for key in keys}
        deviations = {key: deviation([one[key] for one in each]) for key in keys}
        rows.append(Row(method, options.methods[method], mean, deviations, [int(one["setting"]) for one in each]))
    return rows


def measured(each: StreamSet, row: Row) -> float:
    """Return the figure that settings are chosen by: recall, or the area."""
    return row.mean["recall" if each.choose == "recall" else "auc"]


def _error(each: StreamSet, row: Row) -> float:
    """Return the standard error of a recall over so many anomalies, and the spread over reservoirs beside it."""
    over_seeds = row.spread["recall" if each.choose == "recall" else "auc"]
    over_seeds = 0.0 if np.isnan(over_seeds) else over_seeds
    if each.choose != "recall":
        return over_seeds
    recall, count = row.mean["recall"], row.mean["anomalies"]
    return math.hypot(over_seeds, math.sqrt(recall * (1.0 - recall) / count))


def _marks(each: StreamSet, rows: list[Row]) -> list[tuple[str, bool, Figures]]:
    return [(row.name, row.is_network, {**row.mean, "promised": each.false_alarms_per_day}) for row in rows]


def _introduction(options: Options) -> str:
    return (
        "What an echo state network did not expect, as an alarm, beside simpler expectations. Every method scores a"
        " row by the logarithm of its squared residual against that of healthy rows; rows are time steps. `federated`"
        " solves the sum of what all gateways send (IncFed; of a ridge on lags the sum is as exact), `local` every"
        " gateway's own. Centre and scale are each gateway's own. `last value` expects what was there before, `level`"
        " the healthy mean: they are the trivial baselines.\n\n"
        "A gateway trains on the head of its stream, takes its alarm level from the healthy rows after it for the"
        " promised false alarms a day, and is watched on the rest. Settings are chosen on other files, rooms or setups"
        " than those reported (`choice`: the figure there), for each reservoir anew. An alarm counts for where it"
        " begins: one that stood when the anomaly began has found nothing. ± is the deviation over reservoirs,"
        " and for a recall also what so few anomalies leave open; of an area the few files or setups are no part of it."
        " Recalls are compared as they come out at each method's own level, so read the false alarms beside them: a"
        " level that came out low wins recall.\n\n"
        f"{options.note}"
    ).strip()


def _summary(options: Options, found: Mapping[str, list[Row]]) -> str:
    head = ["data", "figure", "ESN, the best", "the best without", "difference", "federated beside local"]
    lines = []
    for name, rows in found.items():
        each = options.sets[name]
        key = measured
        network = max((row for row in rows if row.is_network), key=lambda row: key(each, row))
        other = max((row for row in rows if not row.is_network), key=lambda row: key(each, row))
        error = math.hypot(_error(each, network), _error(each, other))
        difference = f"{key(each, network) - key(each, other):+.3f}" + (f" ± {error:.3f}" if error > 0 else "")
        lines.append(
            [
                name,
                "recall" if each.choose == "recall" else "AUC",
                f"{network.name}: {key(each, network):.3f}",
                f"{other.name}: {key(each, other):.3f}",
                difference,
                _beside_local(each, rows),
            ]
        )
    return "## In short\n\n" + table(head, lines) + "\n\n" + _verdict(options, found)


def _beside_local(each: StreamSet, rows: list[Row]) -> str:
    networks = [row for row in rows if row.is_network]
    pairs = [
        measured(each, one) - measured(each, two)
        for one in networks
        for two in networks
        if (one.method.data, two.method.data) == ("federated", "local") and one.method.task == two.method.task
    ]
    return " / ".join(f"{difference:+.3f}" for difference in pairs) or "-"


def _verdict(options: Options, found: Mapping[str, list[Row]]) -> str:
    lost, won, even = list[str](), list[str](), list[str]()
    for name, rows in found.items():
        each = options.sets[name]
        network = max((row for row in rows if row.is_network), key=lambda row: measured(each, row))
        other = max((row for row in rows if not row.is_network), key=lambda row: measured(each, row))
        difference = measured(each, network) - measured(each, other)
        error = math.hypot(_error(each, network), _error(each, other))
        (even if abs(difference) <= error else won if difference > 0 else lost).append(name)
    told = [
        f"The best network {what} the best of the simpler methods on {', '.join(names)}."
        for what, names in (("is ahead of", won), ("is behind", lost), ("is within its own error of", even))
        if names
    ]
    return " ".join(told) + " The best of several methods is named after the figures were seen, on both sides."


def _told(each: StreamSet, rows: list[Row]) -> str:
    mean = rows[0].mean
    days, count = mean["days"], int(mean["anomalies"])
    watched = f"{days:.1f} healthy days" if days >= 1 else f"{24 * days:.1f} healthy hours"
    chosen = {
        "recall": "Settings are those with the best recall on the development half.",
        "auc": "Settings are those with the best AUC on the development half.",
        "nothing": "There is no development half: the first of what is tried elsewhere is taken.",
    }[each.choose]
    return (
        f"{int(mean['gateways'])} gateways, {count} anomalies, {watched} watched in all. Promised false alarms:"
        f" {each.false_alarms_per_day:g} a day. {chosen}"
    )


def _table(each: StreamSet, rows: list[Row]) -> str:
    fleet = "fleet.auc" in rows[0].mean
    head = ["method", "tried", "choice", "AUC", *["AUC fleet"] * fleet, "recall", "false alarms/day", "delay", "kB up"]
    lines = []
    for row in rows:
        mean, sent = row.mean, row.mean["bytes_up"]
        rate = mean["false_alarms"] / mean["days"]
        lines.append(
            [
                row.name,
                str(len(combinations(row.method, each))) if each.choose != "nothing" else "-",
                f"{mean['choose']:.3f}" if each.choose != "nothing" else "-",
                spread(mean["auc"], row.spread["auc"]),
                *[spread(mean[key], row.spread[key]) for key in ("fleet.auc",) if fleet],
                spread(mean["recall"], row.spread["recall"]),
                f"{rate:.2f}" if rate < 10 else f"{rate:.0f}",
                _seconds(mean["delay_s"]),
                f"{sent / 1e3:.1f}" if sent else "-",
            ]
        )
    return table(head, lines)


def _target(rows: list[Row], recall: float, per_day: float) -> str:
    """Return which methods have the recall that is wanted at the false alarms that are allowed, or what comes next."""
    wanted = f"Target, recall {recall:g} at {per_day:g} false alarms a day or fewer"
    allowed = [row for row in rows if row.mean["false_alarms"] / row.mean["days"] <= per_day]
    reached = [f"{row.name} {row.mean['recall']:.3f}" for row in allowed if row.mean["recall"] >= recall]
    if reached:
        return f"{wanted}: reached by {', '.join(reached)}."
    if not allowed:
        return f"{wanted}: missed, since every method gives more false alarms."
    best = max(allowed, key=lambda row: row.mean["recall"])
    return f"{wanted}: missed. The highest recall of those with so few is {best.mean['recall']:.3f}, {best.name}."


def _seconds(delay_s: float) -> str:
    if np.isnan(delay_s):
        return "-"
    return f"{delay_s:.0f} s" if delay_s < 120 else f"{delay_s / 60:.1f} min"


def _chosen(each: StreamSet, rows: list[Row]) -> str:
    if each.choose == "nothing":
        return ""
    lines = []
    for row in rows:
        tried = combinations(row.method, each)
        told = dict.fromkeys(", ".join(f"{k}={v:g}" for k, v in tried[index].items()) for index in row.settings)
        lines.append([row.name, "; ".join(told)])
    return "What was chosen, by reservoir where it differs:\n\n" + table(["method", "settings"], lines)


def _kinds(rows: list[Row]) -> str:
    kinds = [key.removeprefix("recall.") for key in rows[0].mean if key.startswith("recall.")]
    if not 1 < len(kinds) <= KINDS_SHOWN:
        return ""
    parts = []
    for title, key in (("Recall", "recall"), ("AUC", "auc")):
        lines = [[row.name, *(f"{row.mean[f'{key}.{kind}']:.2f}" for kind in kinds)] for row in rows]
        parts.append(f"{title} by kind of anomaly:\n\n{table(['method', *kinds], lines)}")
    if STUCK in kinds:
        others = [kind for kind in kinds if kind != STUCK]
        each = [f"{row.name} {np.mean([row.mean[f'recall.{kind}'] for kind in others]):.2f}" for row in rows]
        parts.append(
            "A value that does not move is well predicted, so no residual finds it; gateways have a check of their own"
            f" for stuck sensors, which is not counted here. Recall of the other kinds: {', '.join(each)}."
        )
    return "\n\n".join(parts)
