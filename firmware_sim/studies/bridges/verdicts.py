"""What a view of the bridges study shows, method against method: nothing that rests on less than its error."""

from __future__ import annotations

from collections.abc import Iterable

from fedgate.firmware_sim.studies.bridges.methods import View
from fedgate.firmware_sim.studies.bridges.options import Options
from fedgate.firmware_sim.studies.bridges.rows import Row, apart, chosen_rows
from fedgate.firmware_sim.studies.engine.study import Results

WHITENED = ", whitened"
NORMALISATION = "normalisation"
UNCLEAR = "not told apart"


def verdicts(options: Options, results: Results, view: View) -> str:
    """Return the list of what a view shows."""
    rows = chosen_rows(options, results, view)
    lines = _best(options, rows)
    if view in options.targets:
        lines.append(_target(options, options.targets[view], rows))
    for raw, whitened in _pairs(rows):
        lines.append(f"- {_lifted(raw, whitened)}{_at_equal_normalisation(options, results, view, raw.name)}")
    local = next((row for row in rows if row.name == options.local), None)
    if local is not None:
        others = [row for row in rows if row.name != local.name]
        below = _named(row.name for row in others if apart(row, local) < 0)
        unclear = _named(row.name for row in others if apart(row, local) == 0)
        lines.append(f"- Below {local.told}, as a fleet: {below}. {UNCLEAR.capitalize()} from it: {unclear}.")
    return "\n".join(lines)


def _named(names: Iterable[str]) -> str:
    """Return names of methods, which may hold commas, with semicolons between them, or `none`."""
    return "; ".join(names) or "none"


def _federated(options: Options, rows: list[Row]) -> list[Row]:
    return [row for row in rows if options.methods[row.name].data == "federated"]


def _best(options: Options, rows: list[Row]) -> list[str]:
    """Name the highest figures of the view: they are found among those reported, so they flatter a little."""
    federated = _federated(options, rows)
    if not federated:
        return []
    first, of_all = max(federated, key=lambda row: row.auc), max(rows, key=lambda row: row.auc)
    close = _named(row.name for row in rows if row.name != first.name and apart(first, row) == 0)
    beside = "also the highest of all" if of_all == first else f"the highest of all has {of_all.told}"
    return [f"- Highest AUC of a federated fleet: {first.told}; {beside}. {UNCLEAR.capitalize()} from it: {close}."]


def _target(options: Options, wanted: float, rows: list[Row]) -> str:
    """Say which federated methods reach a target, and whether the one does that the training setups would choose."""
    federated = _federated(options, rows)
    first = max(federated, key=lambda row: row.figures["choose"])
    reached = [row.told for row in federated if row.auc - wanted > row.error]
    unclear = [row.told for row in federated if abs(row.auc - wanted) <= row.error]
    told = f"reached by {_named(reached)}" if reached else "missed by all others" if unclear else "missed by all"
    near = f" {UNCLEAR.capitalize()} from it: {_named(unclear)}." if unclear else ""
    choice = f"{first.told}, which did best on the training setups"
    return f"- Target, a federated method at {wanted:.2f} or above: {told}.{near} Choosing among methods too: {choice}."


def _pairs(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Return each method that is there without whitening and with it, in this order."""
    named = {row.name: row for row in rows}
    return [(row, named[name + WHITENED]) for name, row in named.items() if name + WHITENED in named]


def _lifted(raw: Row, whitened: Row) -> str:
    return f"{raw.told} on the spectrum, {whitened.auc:.3f} ± {whitened.error:.3f} whitened: {_verdict(raw, whitened)}."


def _verdict(raw: Row, whitened: Row) -> str:
    lift = apart(whitened, raw)
    return "raised" if lift > 0 else "lowered" if lift < 0 else UNCLEAR


def _at_equal_normalisation(options: Options, results: Results, view: View, name: str) -> str:
    """Hold a method and its whitened twin together once more, each with its best settings of either normalisation."""
    told = []
    modes = dict.fromkeys(cell["settings"].get(NORMALISATION) for cell, _ in results if cell["method"] == name)
    for mode in (mode for mode in modes if mode is not None):
        same = [(cell, figures) for cell, figures in results if cell["settings"].get(NORMALISATION) == mode]
        rows = [row for row in chosen_rows(options, same, view) if row.name in (name, name + WHITENED)]
        told += [f"`{mode}` {raw.auc:.3f}, {white.auc:.3f}: {_verdict(raw, white)}" for raw, white in _pairs(rows)]
    return f" At equal normalisation {'; '.join(told)}." if told else ""
