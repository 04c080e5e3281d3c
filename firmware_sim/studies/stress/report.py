"""The report of the stress study: what the clock alone knows first, then what the signals add, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from fedgate.firmware_sim.studies.engine.markdown import table
from fedgate.firmware_sim.studies.engine.pictures import beside
from fedgate.firmware_sim.studies.engine.study import Results
from fedgate.firmware_sim.studies.stress.options import CLOCK, Normalisation, Options
from fedgate.firmware_sim.studies.stress.picture import draw
from fedgate.firmware_sim.studies.stress.rows import Row, listens, paired, rows_of, without_signal

UNITS: dict[Normalisation, str] = {
    "recording": "Mean and deviation of the subject's own whole recording (looks ahead)",
    "commissioning": "Mean and deviation of the subject's own first minutes, as a gateway has them",
    "moving": "Moving mean and deviation of the subject's own past",
}
NOTHING = "–"


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return the report and write its picture."""
    rows = rows_of(options, results)
    path = beside(prefix, "subjects")
    features, units = next(iter(options.feature_sets)), options.normalisations[0]
    shown = [
        row for row in rows if without_signal(options, row) or (row.features, row.normalisation) == (features, units)
    ]
    draw(shown, path)
    subjects = len(rows[0].of_subjects("auc"))
    parts = [_leak(options, rows), _targets(options, rows), _protocol(options, subjects)]
    parts.append(f"![AUC of every subject, features `{features}`, {units} units]({path.name})")
    parts += [f"## {UNITS[way]}\n\n{_table(options, rows, way)}" for way in options.normalisations]
    parts += [_comparisons(options, rows), _federation(options, rows), _choices(rows)]
    return "\n\n".join(part for part in parts if part)


def _leak(options: Options, rows: list[Row]) -> str:
    """Say before all else what the order of the protocol gives away."""
    clock = next((row for row in rows if options.methods[row.method].algorithm == CLOCK), None)
    heard = [row for row in rows if listens(options, row)]
    if clock is None or not heard:
        return ""
    best = max(heard, key=lambda row: row.mean("auc"))
    controls = [row for row in rows if options.methods[row.method].control]
    told = [
        f"**The protocol's order leaks: a clock that sees no signal has AUC {clock.told('auc')}.** Every subject does"
        " the same tasks in the same order at nearly the same minute, so the time since the start tells stress from"
        f" rest; the highest AUC of a method that sees signals is {best.told('auc')} ({_place(best)}). No figure here"
        " shows that stress would be found at another time of another day.",
        f"A second scoring therefore begins at minute {options.late_s / 60.0:.0f}, as if the wrist had been switched on"
        f" only then: on the same windows the clock goes from {_both(clock)}, {best.method} from {_both(best)}.",
    ]
    if controls:
        told.append("Controls, to show what a network knows of the time by itself:")
        told.append("\n".join(f"- {row.method}: AUC {row.told('auc')}, late from {_both(row)}." for row in controls))
    return "\n\n".join(told)


def _both(row: Row) -> str:
    return f"{row.mean('usual'):.3f} to {row.mean('late'):.3f}"


def _place(row: Row) -> str:
    return f"{row.method}, features `{row.features}`, {row.normalisation} units"


def _targets(options: Options, rows: list[Row]) -> str:
    clock = next((row for row in rows if options.methods[row.method].algorithm == CLOCK), None)
    lines = []
    for target in options.targets:
        found = next((r for r in rows if r[:3] == (target.method, target.feature_set, target.normalisation)), None)
        if found is None:
            continue
        verdict = "reached" if found.mean("auc") >= target.auc else "missed"
        beside_clock = f" The clock alone: {clock.told('auc')}." if clock else ""
        seeds = f", ± {found.of_seeds('auc'):.3f} over {len(found.seeds)} reservoirs" * (len(found.seeds) > 1)
        lines.append(
            f"- Target, AUC {target.auc:g} ({_place(found)}): {verdict}, {found.told('auc')} over subjects{seeds}."
            f"{beside_clock}"
        )
    return "\n".join(lines)


def _protocol(options: Options, subjects: int) -> str:
    return (
        f"Data: Stress-Predict (Iqbal et al., Sensors 22 (2022) 8135), Empatica E4, {subjects} subjects, about an hour"
        f" each. Raw streams go through the same windows and features as on a gateway: {options.features.window_s:g} s"
        f" every {options.features.hop_s:g} s, labelled by their last second. {options.folds} times a part of the"
        f" subjects is left out and scored; settings and thresholds are chosen by leaving out {options.inner_folds}"
        " parts of the remaining subjects in turn (settings: highest mean AUC; threshold: highest balanced accuracy),"
        " and the model then learns from all of them. Means and deviations are over subjects, of each the mean over"
        f" seeds; the standard error of a mean is {1.0 / math.sqrt(subjects):.2f} of the deviation. F1 takes stress as"
        " positive.\n\n"
        "There is no column for each subject alone: who is scored has one session, in which rest and tasks come in one"
        " order, so whoever trains on a part of it and scores the other learns the time of day. Figures within subjects"
        " are no skill, and none is given."
        f"{f'{chr(10)}{chr(10)}{options.note}' if options.note else ''}"
    )


def _table(options: Options, rows: list[Row], way: Normalisation) -> str:
    minute = f"{options.late_s / 60.0:.0f}"
    head = ["method", "features", "AUC", "balanced accuracy", "F1", f"AUC from minute {minute}", "switched on then"]
    lines = []
    for row in rows:
        if row.normalisation == way or without_signal(options, row):
            columns = [row.told(key) for key in ("auc", "ba", "f1")] + [_figure(row, key) for key in ("usual", "late")]
            lines.append([row.method, NOTHING if without_signal(options, row) else row.features, *columns])
    return table(head, lines)


def _figure(row: Row, key: str) -> str:
    value = row.mean(key)
    return NOTHING if math.isnan(value) else f"{value:.3f}"


def _comparisons(options: Options, rows: list[Row]) -> str:
    lines = []
    for name, other in options.compare:
        for row in (row for row in rows if row.method == name):
            for twin in (each for each in rows if each[:3] == (other, row.features, row.normalisation)):
                gain, error = paired(row, twin)
                verdict = "told apart" if abs(gain) > 2.0 * error else "not told apart"
                lines.append([name, other, row.features, row.normalisation, f"{gain:+.3f} ± {error:.3f}", verdict])
    if not lines:
        return ""
    head = ["method", "less the AUC of", "features", "units", "AUC ± standard error", "at two errors"]
    return f"## Differences, subject by subject\n\n{table(head, lines)}"


def _federation(options: Options, rows: list[Row]) -> str:
    lines = []
    for row in rows:
        method = options.methods[row.method]
        if method.data != "pooled":
            continue
        for other in rows:
            twin = options.methods[other.method]
            same = (twin.algorithm, twin.fixed, twin.grid) == (method.algorithm, method.fixed, method.grid)
            if same and other is not row and other[1:3] == row[1:3]:
                pairs = zip(other.seeds[: len(row.seeds)], row.seeds, strict=True)
                gap = max(abs(a[key] - b[key]) for a, b in pairs for key in a if key.startswith("auc."))
                told = f"- {other.method} is {row.method} of the same seed: no subject's AUC differs by more than"
                lines.append(f"{told} {gap:.1g}.")
    sent: dict[str, float] = {}
    for row in rows:
        if row.seeds[0]["bytes_up"] > 0 and row.features == next(iter(options.feature_sets)):
            sent.setdefault(row.method, row.seeds[0]["bytes_up"])
    lines += [f"- {name}: {count / 1e3:.0f} kB up from each gateway in all." for name, count in sent.items()]
    return "## What federation costs\n\n" + "\n".join(lines) if lines else ""


def _choices(rows: list[Row]) -> str:
    lines = [[row.method, row.features, row.normalisation, told] for row in rows if (told := ", ".join(_chosen(row)))]
    if not lines:
        return ""
    text = table(["method", "features", "units", "chosen, fold by fold, of the first seed"], lines)
    return f"## What was chosen on training subjects\n\n{text}"


def _chosen(row: Row) -> Iterator[str]:
    keys = dict.fromkeys(key.split(".", 1)[1].rpartition(".")[0] for key in row.seeds[0] if key.startswith("chosen."))
    for name in keys:
        values = [value for key, value in row.seeds[0].items() if key.rpartition(".")[0] == f"chosen.{name}"]
        yield f"{name} {' / '.join(f'{value:g}' for value in values)}"
