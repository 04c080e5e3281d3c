"""The report of the bridges study: for every method what its choice led to, states of damage, and targets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.studies.bridges.introduction import introduction
from fedgate.firmware_sim.studies.bridges.options import Options
from fedgate.firmware_sim.studies.bridges.pictures import ALWAYS, draw_setups
from fedgate.firmware_sim.studies.bridges.rows import (
    VIEWS,
    Row,
    always_in_alarm,
    chooses,
    chosen_rows,
    with_error,
)
from fedgate.firmware_sim.studies.bridges.sweeps import sweeps
from fedgate.firmware_sim.studies.bridges.verdicts import verdicts
from fedgate.firmware_sim.studies.engine.markdown import table
from fedgate.firmware_sim.studies.engine.study import Figures, Results

LEVELS = ("gateway", "fleet")
SHORT_S = 1.0  # of windows below, false alarms an hour are numbers nobody can picture: their share stands beside


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return the report in Markdown and write its pictures as `<prefix>-...png`."""
    parts = [introduction(options, results)]
    if options.sweep:
        return "\n\n".join([*parts, *sweeps(options, results, prefix)])
    for view in options.views:
        rows = chosen_rows(options, results, view)
        parts += [f"## {VIEWS[view]}", _table(options, rows), _settings(options, rows), _states(options, rows)]
        if view == "setups":
            parts.append(_setups(options, rows, prefix))
        parts.append(verdicts(options, results, view))
    return "\n\n".join(part for part in parts if part)


def _table(options: Options, rows: list[Row]) -> str:
    local = next((row for row in rows if row.name == options.local), None)
    lines = [{"method": row.name, **_line(options, row, local)} for row in rows]
    lines.append(_always(rows[0].figures, lines[0]))
    return table(lines[0], ([line[name] for name in lines[0]] for line in lines))


def _line(options: Options, row: Row, local: Row | None) -> dict[str, str]:
    """Return the cells of a method by column."""
    figures, line = row.figures, {}
    if options.paper:
        line["F in the paper"] = " / ".join(f"{value:.2f}" for value in options.paper.get(row.name, [])) or "-"
    if chooses(options):
        line |= {"tried": str(row.tried), "choice": f"{figures['choose']:.3f}"}
    line |= {f"AUC {who}": with_error(figures, f"{who}.auc") for who in LEVELS}
    for what, key in (("F damage", "f_damage"), ("F healthy", "f_healthy")):
        line |= {f"{what} {who}": f"{figures[f'{who}.{key}']:.2f}" for who in LEVELS}
    line |= {f"false/h {who}": f"{figures[f'{who}.false_per_hour']:.1f}" for who in LEVELS}
    if any(spectrum.window_s < SHORT_S for spectrum in options.spectra):
        windows_per_hour = metrics.per_hour(1, options.spectra[row.cell["spectrum"]].window_s)
        line |= {f"false share {who}": f"{figures[f'{who}.false_per_hour'] / windows_per_hour:.3f}" for who in LEVELS}
    sent = f"{figures['bytes_up'] / 1e3:.1f}" if figures["bytes_up"] else "-"
    return {**line, f"AUC fleet beside {options.local}": _beside(row, local), "kB up": sent}


def _beside(row: Row, local: Row | None) -> str:
    if local is None or row.name == local.name:
        return "-"
    return f"{row.auc - local.auc:+.3f} ± {math.hypot(row.error, local.error):.3f}"


def _always(figures: Figures, columns: Iterable[str]) -> dict[str, str]:
    """Return the line of a gateway that is always in alarm."""
    known = {f"F damage {who}": f"{always_in_alarm(figures):.2f}" for who in LEVELS}
    known |= {f"F healthy {who}": "0.00" for who in LEVELS}
    return {name: known.get(name, "-") for name in columns} | {"method": ALWAYS}


def _settings(options: Options, rows: list[Row]) -> str:
    lines = []
    for row in rows:
        spectrum = options.spectra[row.cell["spectrum"]]
        cut = f"{spectrum.low_hz:g}-{spectrum.high_hz:g} Hz, segments of {spectrum.segment_s:g} s"
        given = ", ".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in row.cell["settings"].items()
        )
        lines.append([row.name, f"{spectrum.window_s:g} s", cut, given or "defaults"])
    return "What was chosen:\n\n" + table(["method", "window", "spectrum", "settings"], lines)


def _states(options: Options, rows: list[Row]) -> str:
    states = sorted({key.removeprefix("state.") for row in rows for key in row.figures if key.startswith("state.")})
    if len(states) < 2:
        return ""
    head = ["AUC of the fleet", *(f"{state} {options.states.get(state, '')}".strip() for state in states)]
    lines = [[row.name, *(f"{row.figures[f'state.{state}']:.2f}" for state in states)] for row in rows]
    healthy, each = int(rows[0].figures["healthy"]), round(rows[0].figures["damaged"] / len(states))
    told = (
        f"By state of damage, each against the same {healthy} healthy windows; with {each} damaged ones, as a state has"
        f" on average, an AUC of 0.9 is ± {metrics.auc_error(0.9, each, healthy):.2f}:"
    )
    return f"{told}\n\n{table(head, lines)}"


def _setups(options: Options, rows: list[Row], prefix: Path) -> str:
    compared = [row for name in (options.local, options.shown) for row in rows if row.name == name]
    path = prefix.with_name(f"{prefix.name}-setups.png")
    draw_setups({row.name: row.figures for row in compared}, path)
    lines = [
        [row.name, *(with_error(row.figures, key) for key in row.figures if key.startswith("auc."))] for row in compared
    ]
    names = [key.removeprefix("auc.") for key in compared[0].figures if key.startswith("auc.")]
    told = "What each gateway makes of the same windows, alone and together (AUC):"
    return f"{told}\n\n{table(['method', *names], lines)}\n\n![healthy and damaged scores]({path.name})"
