"""The report of the study of alarm rules: targets, the paper's table beside ours, whether promises hold, all else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.building_alarms.options import Options, Paper, Target
from fedgate.firmware_sim.studies.building_alarms.pictures import draw_promises, draw_recall
from fedgate.firmware_sim.studies.engine.markdown import table
from fedgate.firmware_sim.studies.engine.pictures import beside
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Results

INTRODUCTION = """\
Rules turn what a gateway knows of a window into one height, and the largest raises the alarm
(`models/alarms/rules.py`).
Here each sensor has a gateway of its own, calibrated on the healthy head of its recording and watched on the rest.
Faults are put into copies of a recording (`firmware_sim/demo/faults.py`); documented ones are those of the recordings.
An alarm counts for where it begins: one that stood already when the fault began, or that the sensor would have had
without it, has found nothing. `standing` also counts documented anomalies during which an alarm stands that began
before. False alarms are those that begin in no anomaly; `apart` leaves out those that reach into one. Near alarms
are one. Recall is the mean over kinds of anomalies; ± beside it is its standard error over draws of sensors, as far
as there are several. `standing` and `apart` are for reading, and no target is judged by them: an alarm that always
stands would reach the best of both.

`sudden` is how far a window is from what ridge regression on the windows before it, the other channels and the hour
lets expect, cross-fitted over the baseline; `slow` its weighted mean with its sign; `stuck` a run of equal values.
All run in the agent's main process, need numpy alone and take no training round. `network's score` is the residual
of an echo state network that all sensors train together (`incfed`), on the watched channel, scored on the days that
trained nothing."""


class Line(NamedTuple):
    """One measurement and where it belongs."""

    cell: Cell
    figures: Figures

    @property
    def rate(self) -> float:
        """False alarms per sensor and day."""
        return self.figures["false_alarms"] / self.figures["days"]


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return the report in Markdown; the pictures become `<prefix>-recall.png` and `<prefix>-promises.png`."""
    lines = [Line(cell, figures) for cell, figures in results]
    pictures = []
    for name, draw, words in (
        ("recall", draw_recall, "recall beside false alarms, by method"),
        ("promises", draw_promises, "promised and measured false alarms"),
    ):
        path = beside(prefix, name)
        draw(options, [(line.cell, line.figures) for line in lines if line.cell["part"] == "reported"], path)
        pictures.append(f"![{words}]({path.name})")
    instances = sum(max(_anomalies(lines, name), 0) for name in options.sets)
    parts = [
        INTRODUCTION,
        f"{instances:.0f} instances in all on the reported parts. {options.note}",
        "## Targets",
        _targets(options, lines),
        pictures[0],
        "## Beside the paper's table",
        _paper(options, lines),
        "## Whether the promise is kept",
        _promises(options, lines),
        pictures[1],
    ]
    for name, each in options.sets.items():
        parts += [f"## {name}", each.note, *(_set_table(lines, name, part) for part in ("reported", "development"))]
    return "\n\n".join(part for part in parts if part)


def _anomalies(lines: list[Line], name: str) -> float:
    found = [x.figures["anomalies"] for x in lines if x.cell["set"] == name and x.cell["part"] == "reported"]
    return max(found, default=0.0)


def _at(lines: list[Line], name: str, part: str, method: str, promised: float) -> Line | None:
    wanted = {"set": name, "part": part, "method": method, "promised": promised}
    return next((line for line in lines if line.cell == wanted), None)


def _targets(options: Options, lines: list[Line]) -> str:
    rows = []
    for target in options.targets:
        found = {part: _at(lines, target.set, part, target.method, target.promised) for part in _PARTS}
        if found["reported"] is not None:
            words = [_told(target, found[part]) for part in ("reported", "development")]
            rows.append(
                [target.words, target.method, f"{target.promised:g}", *words, _verdict(target, found["reported"])]
            )
    if not rows:
        return "None in this profile."
    return table(["target", "method", "promised a day", "reported", "development", ""], rows)


_PARTS = ("reported", "development")


def _told(target: Target, line: Line | None) -> str:
    if line is None:
        return "-"
    error = line.figures.get(f"error.{target.figure}", math.nan)
    spread = "" if math.isnan(error) else f" ± {error:.2f}"
    return f"{line.figures[target.figure]:.2f}{spread} at {line.rate:.3g} a day"


def _verdict(target: Target, line: Line) -> str:
    missed = []
    if line.figures[target.figure] < target.least:
        missed.append(f"recall is {target.least - line.figures[target.figure]:.2f} too low")
    if line.rate > target.false_alarms_per_day:
        missed.append(f"{line.rate:.3g} false alarms a day are too many")
    return f"missed: {', '.join(missed)}" if missed else "met"


def _paper(options: Options, lines: list[Line]) -> str:
    if not options.paper:
        return ""
    kinds = {"collective": options.collective, "contextual": options.contextual}
    head = ["method", *(f"{kind}, {what}" for kind in kinds for what in ("correct", "false"))]
    rows = [[f"paper: {each.method}", *_paper_row(each)] for each in options.paper]
    for line in lines:
        known = all(f"recall.{kind}" in line.figures for kind in (*options.collective, *options.contextual))
        if line.cell["part"] == "reported" and known:
            correct = [float(np.mean([line.figures[f"recall.{kind}"] for kind in of])) for of in kinds.values()]
            said = f"{line.cell['set']}: {line.cell['method']}, {line.cell['promised']:g} a day"
            rows.append(
                [said, *(cell for each in correct for cell in (f"{100 * each:.0f} %", f"{line.rate:.2f} a day"))]
            )
    what = (
        f"Collective are here {', '.join(options.collective)}: many rows wrong together; contextual is"
        f" {', '.join(options.contextual)}: values of the same channel half a day away."
    )
    return f"{options.paper_note} {what}\n\n{table(head, rows)}"


def _paper_row(each: Paper) -> list[str]:
    return [f"{value:g} %" for value in (*each.collective, *each.contextual)]


def _promises(options: Options, lines: list[Line]) -> str:
    rows = []
    for name, methods in options.checked.items():
        for line in lines:
            if line.cell["set"] == name and line.cell["method"] in methods:
                count, days = line.figures["false_alarms"], line.figures["days"]
                promised = line.cell["promised"]
                ratio = line.rate / promised
                spread = math.sqrt(max(count, 1.0)) / days / promised
                where = f"{name}, {line.cell['part']}"
                told = [
                    f"{promised:g}",
                    f"{line.rate:.3f}",
                    f"{count:.0f} in {days:.0f}",
                    f"{ratio:.2f} ± {spread:.2f}",
                ]
                rows.append([where, line.cell["method"], *told, _held(ratio, spread, options.held_within)])
    words = (
        f"Healthy data after the baseline; the promise is to be kept within a factor {options.held_within:g}. `rarer`"
        " means fewer alarms than that: safe, but a level higher than need be. ± is what so few alarms leave open."
    )
    return f"{words}\n\n{table(['data', 'method', 'promised a day', 'measured', 'alarms in days', 'ratio', ''], rows)}"


def _held(ratio: float, spread: float, factor: float) -> str:
    if ratio > factor:
        return "exceeded" if ratio - spread > factor else "exceeded, within its spread"
    return "held" if ratio >= 1.0 / factor else "rarer"


def _set_table(lines: list[Line], name: str, part: str) -> str:
    chosen = [line for line in lines if line.cell["set"] == name and line.cell["part"] == part]
    if not chosen:
        return ""
    kinds = list(dict.fromkeys(key for line in chosen for key in line.figures if key.startswith("recall.")))
    head = ["method", "promised", "false alarms a day", "apart", "recall", "standing", *(k[7:] for k in kinds), "delay"]
    rows = []
    for line in chosen:
        each = line.figures
        silent = f" ({each['silent']:.0f} sensors without a level)" if each["silent"] else ""
        numbers = [f"{line.rate:.3g}", f"{each['apart'] / each['days']:.3g}", f"{each['recall']:.3f}"]
        recalls = [f"{each['standing']:.2f}", *(f"{each[kind]:.2f}" for kind in kinds)]
        delay = "-" if math.isnan(each["delay_s"]) else _duration(each["delay_s"])
        rows.append([f"{line.cell['method']}{silent}", f"{line.cell['promised']:g}", *numbers, *recalls, delay])
    first = chosen[0].figures
    amount = f"{first['anomalies']:.0f} anomalies, {first['days']:.3g} healthy days watched."
    return f"{part.capitalize()}: {amount}\n\n{table(head, rows)}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
