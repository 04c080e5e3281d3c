"""How wide the kernel of a one-class model should be where nobody says: the default against fixed widths.

Rows of the normal class train, dealt out to gateways that each take them in units of their own; other normal rows and
anomalies are scored. A width is γ in those units. Rules find one from quantiles of the distances of rows over all
gateways (`fedgate.models.federated.protocol.kernel_width`); rule and factor are chosen on some tables and reported on
others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedgate.firmware_sim.metrics import roc_auc
from fedgate.firmware_sim.studies.engine.markdown import table
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Results, Study, StudyOptions
from fedgate.firmware_sim.studies.federated_svdd.trials import ALL_SCORES_EQUAL, Rows
from fedgate.models.arrays import FEATURES, Arrays, Floats, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.base.checks import (
    LEAST_SPREAD,
    NARROW,
    WIDE,
    Quantile,
    exact_width,
    map_width,
    quantile_of,
    squared_pair_distances,
)
from fedgate.models.detectors.svm import svdd
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import normalise
from fedgate.models.federated.protocol.kernel_width import FULL, counted, quantile, scaled
from fedgate.models.federated.protocol.run import run

RULES: dict[str, Callable[[Quantile, float], float]] = {"median": exact_width, "quartiles": map_width}
IN_FORCE = {
    "svdd": ("median", NARROW),
    "support-vector-election": ("median", NARROW),
    "ensemble-svdd": ("quartiles", WIDE),
    "fedavg": ("quartiles", WIDE),
}


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param choose: tables on which rule and factor are chosen.
    :param report: tables that had no part in it.
    :param methods: settings by algorithm; `svdd` is the detector on all rows in one place.
    :param fixed: widths that are the same for all tables, as γ times the number of features.
    :param before: which of them was the default.
    :param rules: what may be chosen: factors by the name of the rule that takes them.
    :param most_rows: of each kind, to train, to score, and of anomalies.
    :param note: what else a reader must know.
    """

    choose: list[str]
    report: list[str]
    methods: dict[str, dict[str, Any]]
    fixed: list[float]
    before: float
    rules: dict[Literal["median", "quartiles"], list[float]]
    seeds: int = Field(ge=2)
    clients: int = Field(ge=1)
    most_rows: int = Field(ge=4)
    within: float = 0.03
    loses: float = 0.01
    note: str = ""


def cells(options: Options) -> list[Cell]:
    """Return every method on every table, for every way to draw its rows."""
    names = [*options.choose, *options.report]
    return [
        {"method": method, "set": name, "seed": seed}
        for method in options.methods
        for name in names
        for seed in range(options.seeds)
    ]


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return the area under the ROC curve with every width, by `fixed <γF>` and `<rule> <factor>`."""
    method, seed = cell["method"], options.seed + cell["seed"]
    gateways, x, y = _rows(options, data / "tabular" / f"{cell['set']}.csv", seed)
    known = quantiles(method, gateways)
    widths = {f"fixed {each:g}": each / x.shape[1] for each in options.fixed}
    widths |= {f"{rule} {each:g}": RULES[rule](known, each) for rule, each in _choices(options)}
    return {name: _area(options, method, gateways, x, y, seed, width) for name, width in widths.items()}


def _rows(options: Options, path: Path, seed: int) -> tuple[dict[str, Arrays], Floats, Rows]:
    """Return what each gateway trains on, and the rows (n, F) and labels (n,) that are scored, of complete rows."""
    values = np.genfromtxt(path, delimiter=",", skip_header=1)
    values = values[np.isfinite(values).all(axis=1)]
    x, is_anomaly = values[:, :-1], values[:, -1] > 0
    rng, most = generator(seed, 0, path.stem), options.most_rows
    normal, anomalies = (rng.permutation(np.flatnonzero(kind)) for kind in (~is_anomaly, is_anomaly))
    half = len(normal) // 2
    train, scored = normal[:half][:most], np.concatenate([normal[half:][:most], anomalies[:most]])
    dealt = [train[place :: options.clients] for place in range(options.clients)]
    gateways = {f"gateway-{place}": {FEATURES: x[rows]} for place, rows in enumerate(dealt)}
    return gateways, x[scored], is_anomaly[scored].astype(np.int64)


def _choices(options: Options) -> list[tuple[str, float]]:
    return [(rule, each) for rule, factors in options.rules.items() for each in factors]


def quantiles(method: str, gateways: dict[str, Arrays]) -> Quantile:
    """Return the quantiles of squared distances that the default of a method is found from."""
    if method == "svdd":
        return quantile_of(_in_one_place(gateways)[1])
    squares = [squared_pair_distances(normalise({}, rows, "own")[1]) for rows in gateways.values()]
    return partial(quantile, np.sum([scaled(counted(each), FULL) for each in squares], axis=0))


def _in_one_place(gateways: dict[str, Arrays]) -> tuple[Arrays, Floats]:
    own, z = normalise({}, {FEATURES: np.concatenate([rows[FEATURES] for rows in gateways.values()])}, "own")
    return own, z


def _area(
    options: Options, method: str, gateways: dict[str, Arrays], x: Floats, y: Rows, seed: int, width: float
) -> float:
    if method == "svdd":
        own, z = _in_one_place(gateways)
        return roc_auc(y, svdd.SVDD.score({**svdd.fit(z, gamma=width, **options.methods[method]), **own}, x))
    algorithm = build(method, x.shape[1], {**options.methods[method], "gamma": width})
    outcome = run(algorithm, gateways, seed=seed)
    detector, shared = DETECTORS[algorithm.detector], outcome.server.global_state
    if "vectors" not in shared and "weights" not in shared:
        return ALL_SCORES_EQUAL  # no gateway had anything to send: spheres too narrow for a row drawn anew
    return float(np.mean([roc_auc(y, detector.score({**shared, **own}, x)) for own in outcome.local_states.values()]))


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return the options that the measurement of a cell depends on."""
    names = ("fixed", "rules", "clients", "most_rows", "seed")
    return {name: getattr(options, name) for name in names} | {"settings": options.methods[cell["method"]]}


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return what was chosen and how the default does on every table."""
    del prefix
    parts = [_introduction(options)]
    for method in options.methods:
        by_table: dict[str, dict[str, Floats]] = {}
        for name in (*options.choose, *options.report):
            found = [figures for cell, figures in results if (cell["method"], cell["set"]) == (method, name)]
            by_table[name] = {key: np.array([figures[key] for figures in found]) for key in found[0]}
        parts.append(_of_method(options, method, by_table))
    parts += [options.note.strip()] * bool(options.note)
    return "\n\n".join(parts)


def _introduction(options: Options) -> str:
    return (
        f"Area under the ROC curve, mean of {options.seeds} draws. Half of the normal rows train, at most"
        f" {options.most_rows}, dealt to {options.clients} gateways that take them in units of their own; the other"
        f" half and the anomalies are scored, at most {options.most_rows} of each; rows with missing values are"
        f" left out. Fixed widths: γ F of {', '.join(f'{each:g}' for each in options.fixed)}; before, the default was"
        f" γ F = {options.before:g}. The default follows from quantiles of the squared distances of two rows of one"
        " gateway, q, over all gateways, by a rule with a factor k:"
        "\n\n- **median**: γ = k / (2 q50);"
        f"\n- **quartiles**: γ = k / (q75 - q25), the difference taken as {LEAST_SPREAD:g} q50 at least."
        f"\n\nRule and factor were chosen on {', '.join(options.choose)}, the first half of the alphabet: of those that"
        " lose no more than allowed there, the one whose largest loss to the best fixed width is smallest; methods"
        " that share a constant in the code take one value."
        " *Best* is the best of the fixed widths on each table, which no default can know. Wanted: at most"
        f" {options.within:g} below it, and at most {options.loses:g} and the standard error of the difference"
        " below the default before."
    )


def _of_method(options: Options, method: str, by_table: dict[str, dict[str, Floats]]) -> str:
    def behind(name: str, choice: str) -> float:
        found = by_table[name]
        best = max(float(found[f"fixed {each:g}"].mean()) for each in options.fixed)
        return best - float(found[choice].mean())

    def is_no_loss(name: str, choice: str) -> bool:
        change = by_table[name][choice] - by_table[name][f"fixed {options.before:g}"]
        return bool(-change.mean() <= options.loses + _error(change))

    choices = [f"{rule} {each:g}" for rule, each in _choices(options)]
    largest = {each: max(behind(name, each) for name in options.choose) for each in choices}
    allowed = [each for each in choices if all(is_no_loss(name, each) for name in options.choose)]
    chosen = min(allowed or choices, key=lambda each: largest[each])
    force = "{} {:g}".format(*IN_FORCE[method])
    rows, missed = [], []
    for name, found in by_table.items():
        best = max(options.fixed, key=lambda each: float(found[f"fixed {each:g}"].mean()))
        ours, before = found[force], found[f"fixed {options.before:g}"]
        change = ours - before
        error = _error(change)
        loss = behind(name, force)
        verdict = [f"{loss:.3f} below the best"] * (loss > options.within)
        verdict += [f"{-change.mean():.3f} below before"] * (-float(change.mean()) > options.loses + error)
        missed += [name] * bool(verdict)
        rows.append(
            [
                f"{name}{'' if name in options.choose else ' (reported)'}",
                f"{found[f'fixed {best:g}'].mean():.3f} at {best:g}",
                f"{before.mean():.3f}",
                f"{ours.mean():.3f}",
                f"{change.mean():+.3f} ± {error:.3f}",
                "; ".join(verdict) or "as wanted",
            ]
        )
    marked = {each: f"{largest[each]:.3f}{'' if each in allowed else ' *'}" for each in choices}
    losses = [
        f"**{rule}** " + ", ".join(f"{each:g}: {marked[f'{rule} {each:g}']}" for each in factors)
        for rule, factors in options.rules.items()
    ]
    head = ["table", "best, and its γ F", "before", "now", "change", "verdict"]
    said = (
        f"## {method}\n\nLargest loss on the choosing tables, * where more is lost than allowed against before:"
        f" {'; '.join(losses)}. The choice is {chosen}; in force is {force}."
        f" As wanted on {len(rows) - len(missed)} of {len(rows)} tables."
    )
    return f"{said}\n\n{table(head, rows)}"


def _error(values: Floats) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


STUDY = Study(Options, cells, measure, report, identity)
