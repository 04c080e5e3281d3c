"""The report of the study of smart buildings: every table with the paper's figures beside, and what beats what."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedgate.firmware_sim.studies.building_tables.figures import OF_CLASSES, OF_VALUES
from fedgate.firmware_sim.studies.building_tables.options import Options, TableOptions, Target
from fedgate.firmware_sim.studies.building_tables.pictures import draw_curves, draw_roc
from fedgate.firmware_sim.studies.building_tables.rows import Row, best, by_gradient, closed_form, lead, rows_of
from fedgate.firmware_sim.studies.engine.markdown import deviation, table
from fedgate.firmware_sim.studies.engine.pictures import beside
from fedgate.firmware_sim.studies.engine.study import Results

NAMES = {
    **{"precision": "precision", "recall": "recall", "f1": "F1", "ba": "balanced accuracy", "auc": "AUC"},
    **{"mae": "MAE", "mse": "MSE", "rmse": "RMSE"},
}
BA_GAP, RMSE_GAP = 0.02, 0.05  # a federated method is near the same in one place
DATA = {
    "keti": "rooms of an office building (Hong, Gu and Whitehouse, AISTATS 2017), eight days, means of 15 min; every"
    " third room never trains, of the others the first 80 % of the time; reported is the last 20 % of all rooms."
    " Values are in deviations of the room's own first 80 %.",
    "room climate": "nine sensor nodes in two rooms (Morgner et al., ESORICS 2017), steps of 30 s; even recordings"
    " train, odd ones are reported.",
    "three rooms": "the same nodes and an office (Candanedo and Feldheim, Energy and Buildings 112 (2016) 28), by the"
    " temperature, humidity and light that all have, steps of 1 min; each room is left out in turn and reported.",
    "air handlers": "two air handling units (Granderson, Lin et al., Scientific Data (2020),"
    " doi 10.1038/s41597-020-0398-6), their twelve common points, steps of 3 min; a window is faulty where its day is."
    " Of the days of each class every other one trains.",
    "air handlers by day": "the same windows; every day that trains is a gateway, and so has seen one class alone.",
}


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return the report and write its pictures."""
    found = {name: rows_of(options, results, name) for name in options.tables}
    parts = [_protocol(options), "## Targets and what beats what", _targets(options, found), _verdicts(options, found)]
    for name, rows in found.items():
        each = options.tables[name]
        parts += [f"## {name}", _data(each, rows), _table(options, each, rows), each.note]
        parts += ["Each sensor by itself:", _places(each, rows), _near(each, rows), _chosen(rows)]
    drawn = [(name, rows) for name, rows in found.items() if options.tables[name].curve]
    if drawn:
        path = beside(prefix, "curves")
        draw_curves(options, drawn, path)
        shown = "Of the first seed, on one reported window in four; the levels of the others are those of the tables."
        parts += ["## Learning curves", shown, f"![Error after each round]({path.name})"]
    drawn = [(name, rows) for name, rows in found.items() if options.tables[name].roc]
    if drawn:
        path = beside(prefix, "roc")
        draw_roc(options, drawn, path)
        parts += ["## Receiver operating characteristics", f"![ROC curves]({path.name})"]
    return "\n\n".join(part for part in parts if part)


def _protocol(options: Options) -> str:
    return (
        "The paper (Abdel Sater and Ben Hamza, ACM Transactions on Internet of Things 2 (2021) 28, Tables 2 and 4)"
        " measured on recordings that are not public; its figures stand beside for their order only. Its F1 is not the"
        " harmonic mean of its precision and recall. Figures here are over all windows of the gateways together, ± the"
        " standard deviation over seeds; a room counts for as much as it has windows. RMSE is the root of the pooled"
        " MSE; F1, precision and recall are of the class 1 (somebody there, a fault).\n\n"
        "Settings and the number of rounds are those that were best, with the first seed, on two inner folds of what"
        " trains, a round taken together with its neighbours; no window that is reported chose anything. Methods that"
        " go by another's choice say so."
        f"{f'{chr(10)}{chr(10)}{options.note}' if options.note else ''}"
    )


def _targets(options: Options, found: dict[str, list[Row]]) -> str:
    lines = []
    for name, rows in found.items():
        each = options.tables[name]
        lines += [f"- {name}: {_target(rows, target)}" for target in each.targets]
    return "\n".join(lines)


def _target(rows: list[Row], target: Target) -> str:
    by_name = {row.name: row for row in rows}
    least = target.least is not None
    wanted = (
        f"{NAMES[target.figure]} of {'at least' if least else 'at most'} {target.least if least else target.most:g}"
    )
    figures = {name: by_name[name].of_group(target.figure) for name in target.methods}
    reached = [
        name for name, v in figures.items() if (v >= (target.least or 0.0) if least else v <= (target.most or 0.0))
    ]
    told = ", ".join(f"{name} {figures[name]:.3f}" for name in reached or figures)
    against = ", ".join(f"{name} {by_name[name].of_group(target.figure):.3f}" for name in target.beside)
    verdict = f"reached by {told}" if reached else f"missed: {told}"
    return f"{wanted}, {verdict}{f'; beside it {against}' if against else ''}."


def _verdicts(options: Options, found: dict[str, list[Row]]) -> str:
    """Say for each table whether a closed form or a trained network is better, and than what trivial one."""
    lines = []
    for name, rows in found.items():
        each = options.tables[name]
        kinds = [[row for row in rows if is_kind(row)] for is_kind in (closed_form, by_gradient)]
        if not all(kinds):
            continue
        exact, trained = (best(each, kind) for kind in kinds)
        winner = best(each, [exact, trained])
        figure = lead(each)
        trivial = best(each, [row for row in rows if not row.method.seeded and row.method.model != "lags"])
        lines.append(
            f"- {name}: the better is {winner.name}. Closed form, one exchange: {exact.name} {exact.told(figure)};"
            f" recurrent networks, by averaging: {trained.name} {trained.told(figure)}; {trivial.name}"
            f" {trivial.told(figure)} ({NAMES[figure]})."
        )
    return "\n".join(lines)


def _data(each: TableOptions, rows: list[Row]) -> str:
    ahead = f"CO2 {each.horizon} steps later" if each.horizon else "the class of the last step"
    return (
        f"Data: {DATA[each.data]} A window has {each.window} steps and is to tell {ahead}; of those that train one in"
        f" {each.every} does. {len(rows[0].of_places())} sensors are reported. Networks are drawn"
        f" {each.seeds} time{'s' * (each.seeds > 1)}, some fewer."
    )


def _table(options: Options, each: TableOptions, rows: list[Row]) -> str:
    names = OF_VALUES if each.horizon else OF_CLASSES
    both = each.group == "all" and not np.isnan(rows[0].mean(f"unseen.{lead(each)}"))
    head = ["method", *(NAMES[name] for name in names)]
    head += [f"{NAMES[lead(each)]}, gateways that trained", "others"] * both
    head += ["rounds", "kB up", "numbers", *(f"paper's {NAMES[name]}" for name in names[:4])]
    lines = []
    for row in rows:
        line = [row.name, *(row.told(name) for name in names)]
        line += [_figure(row.mean(f"{group}.{lead(each)}")) for group in ("seen", "unseen")] * both
        sent, numbers = row.mean("bytes_up"), row.mean("numbers")
        line += [f"{row.mean('rounds'):.0f}" if row.method.model == "recurrent" else "–"]
        line += [f"{sent / 1e3:.0f}" if sent else "–", f"{numbers:.0f}" if numbers else "–"]
        paper = options.paper.get(row.name, {})
        lines.append([*line, *(f"{paper[name]:g}" if name in paper else "–" for name in names[:4])])
    return table(head, lines)


def _figure(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3f}"


def _places(each: TableOptions, rows: list[Row]) -> str:
    """Return mean, worst and spread of a method over sensors, which a pooled figure hides."""
    figure, sign = lead(each), 1.0 if each.horizon else -1.0
    lines = []
    for row in rows:
        places = {name: value for name, value in row.of_places().items() if not np.isnan(value)}
        if places:
            values = np.array(list(places.values()))
            worst = max(places, key=lambda name: sign * places[name])
            spread = deviation(values)
            lines.append(
                [row.name, str(len(values)), f"{values.mean():.3f}", f"{places[worst]:.3f} ({worst})", _figure(spread)]
            )
    return table(["method", "sensors", f"mean {NAMES[figure]}", "worst", "standard deviation"], lines)


def _near(each: TableOptions, rows: list[Row]) -> str:
    """Say of every federated method whether it is as good as the same in one place."""
    by_name = {row.name: row for row in rows}
    lines = []
    for ours, central in each.near:
        if each.horizon:
            gap = by_name[ours].of_group("rmse") / by_name[central].of_group("rmse") - 1.0
            told, reached = f"RMSE {gap:+.1%}, at most {RMSE_GAP:+.0%} wanted", gap <= RMSE_GAP
        else:
            gap = by_name[ours].of_group("ba") - by_name[central].of_group("ba")
            told, reached = f"balanced accuracy {gap:+.3f}, no worse than {-BA_GAP:+.2f} wanted", gap >= -BA_GAP
        lines.append(f"- {ours} beside {central}: {told}: {'reached' if reached else 'missed'}.")
    return "\n".join(lines)


def _chosen(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        keys = [key for key in row.seeds[0][0] if key.startswith("chosen.")]
        if keys:
            each = [", ".join(f"{key.removeprefix('chosen.')} {of[key]:g}" for key in keys) for of in row.seeds[0]]
            rounds = [f"{of['rounds']:.0f} rounds" for of in row.seeds[0]] if row.method.model == "recurrent" else []
            told = [" with ".join(parts) for parts in zip(each, rounds, strict=True)] if rounds else each
            inner = " / ".join(f"{abs(of['inner']):.3f}" for of in row.seeds[0])
            lines.append([row.name, " / ".join(told), row.method.like or "itself", inner])
    return "Chosen:\n\n" + table(["method", "settings", "by", "worth on the inner folds"], lines) if lines else ""
