"""How wide the kernel of a one-class model should be where nobody says: the default against fixed widths.

Rows of the normal class train, dealt out to gateways that each take them in units of their own; other normal rows and
anomalies are scored. A width is γ in those units. The default is `narrowness / (2 d²)` with d the federated median
distance (`models.federated.kernel_width`); the narrowness is chosen on some tables and reported on others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from firmware_sim.metrics import roc_auc
from firmware_sim.studies.markdown import table
from firmware_sim.studies.study import Cell, Figures, Results, Study, StudyOptions
from firmware_sim.studies.svdd_trials import ALL_SCORES_EQUAL, Rows
from models.arrays import FEATURES, Arrays, Floats, generator
from models.detectors import DETECTORS, svdd
from models.detectors.random_map import WIDTH
from models.detectors.training import NARROW, WIDE, kernel_width
from models.federated import build
from models.federated.algorithm import normalise
from models.federated.run import run

IN_FORCE = {"svdd": NARROW, "support-vector-election": NARROW, "ensemble-svdd": WIDE, "fedavg": WIDE}


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param choose: tables on which the narrowness is chosen.
    :param report: tables that had no part in it.
    :param methods: settings by algorithm; `svdd` is the detector on all rows in one place.
    :param fixed: widths that are the same for all tables, as γ times the number of features.
    :param before: which of them was the default.
    :param narrowness: what may be chosen.
    :param most_rows: of each kind, to train, to score, and of anomalies.
    """

    choose: list[str]
    report: list[str]
    methods: dict[str, dict[str, Any]]
    fixed: list[float]
    before: float
    narrowness: list[float]
    seeds: int = Field(ge=2)
    clients: int = Field(ge=1)
    most_rows: int = Field(ge=4)
    within: float = 0.03
    loses: float = 0.01


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
    """Return the area under the ROC curve with every width, by `fixed.<γF>` and `times.<narrowness>`."""
    method, seed = cell["method"], options.seed + cell["seed"]
    gateways, x, y = _rows(options, data / "tabular" / f"{cell['set']}.csv", seed)
    ours = _default(options, method, gateways, seed) / IN_FORCE[method]
    widths = {f"fixed.{each:g}": each / x.shape[1] for each in options.fixed}
    widths |= {f"times.{each:g}": each * ours for each in options.narrowness}
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


def _default(options: Options, method: str, gateways: dict[str, Arrays], seed: int) -> float:
    """Return γ as a training finds it whose settings give none."""
    if method == "svdd":
        return kernel_width(None, _in_one_place(gateways)[1])
    algorithm = build(method, gateways["gateway-0"][FEATURES].shape[1], options.methods[method])
    shared = run(algorithm, gateways, seed=seed, rounds=0).server.shared
    return float(shared[WIDTH if WIDTH in shared else "gamma"])


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
    detector, shared = DETECTORS[algorithm.detector], outcome.server.shared
    if "vectors" not in shared and "weights" not in shared:
        return ALL_SCORES_EQUAL  # no gateway had anything to send: spheres too narrow for a row drawn anew
    return float(np.mean([roc_auc(y, detector.score({**shared, **own}, x)) for own in outcome.own.values()]))


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return the options that the measurement of a cell depends on."""
    names = ("fixed", "narrowness", "clients", "most_rows", "seed")
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
    return "\n\n".join(parts)


def _introduction(options: Options) -> str:
    return (
        f"Area under the ROC curve, mean of {options.seeds} draws. Half of the normal rows train, at most"
        f" {options.most_rows}, dealt to {options.clients} gateways that take them in units of their own; the other"
        f" half and the anomalies are scored, at most {options.most_rows} of each; rows with missing values are"
        f" left out. Fixed widths: γ F of {', '.join(f'{each:g}' for each in options.fixed)}; before, the default was"
        f" γ F = {options.before:g}. The default now is γ = narrowness / (2 d²), d the federated median distance."
        f"\n\nThe narrowness was chosen on {', '.join(options.choose)}, the first half of the alphabet, before the"
        f" other half was measured: of {', '.join(f'{each:g}' for each in options.narrowness)} and of those that lose"
        " no more than allowed there, the one whose largest loss to the best fixed width is smallest; methods"
        " that share a constant in the code take one value."
        " *Best* is the best of the fixed widths on each table, which no default can know. Wanted: at most"
        f" {options.within:g} below it, and at most {options.loses:g} and the standard error of the difference"
        " below the default before."
    )


def _of_method(options: Options, method: str, by_table: dict[str, dict[str, Floats]]) -> str:
    def behind(name: str, narrowness: float) -> float:
        found = by_table[name]
        best = max(float(found[f"fixed.{each:g}"].mean()) for each in options.fixed)
        return best - float(found[f"times.{narrowness:g}"].mean())

    def is_no_loss(name: str, narrowness: float) -> bool:
        change = by_table[name][f"times.{narrowness:g}"] - by_table[name][f"fixed.{options.before:g}"]
        return bool(-change.mean() <= options.loses + _error(change))

    allowed = [each for each in options.narrowness if all(is_no_loss(name, each) for name in options.choose)]
    chosen = min(allowed or options.narrowness, key=lambda each: max(behind(name, each) for name in options.choose))
    force = IN_FORCE[method]
    rows, missed = [], []
    for name, found in by_table.items():
        best = max(options.fixed, key=lambda each: float(found[f"fixed.{each:g}"].mean()))
        ours, before = found[f"times.{force:g}"], found[f"fixed.{options.before:g}"]
        change = ours - before
        error = _error(change)
        loss = behind(name, force)
        verdict = [f"{loss:.3f} below the best"] * (loss > options.within)
        verdict += [f"{-change.mean():.3f} below before"] * (-float(change.mean()) > options.loses + error)
        missed += [name] * bool(verdict)
        rows.append(
            [
                f"{name}{'' if name in options.choose else ' (reported)'}",
                f"{found[f'fixed.{best:g}'].mean():.3f} at {best:g}",
                f"{before.mean():.3f}",
                f"{ours.mean():.3f}",
                f"{change.mean():+.3f} ± {error:.3f}",
                "; ".join(verdict) or "as wanted",
            ]
        )
    losses = ", ".join(
        f"{each:g}: {max(behind(name, each) for name in options.choose):.3f}" for each in options.narrowness
    )
    head = ["table", "best, and its γ F", "before", "now", "change", "verdict"]
    said = (
        f"## {method}\n\nLargest loss on the choosing tables by narrowness: {losses}. By the rule {chosen:g};"
        f" in force is {force:g}. As wanted on {len(rows) - len(missed)} of {len(rows)} tables."
    )
    return f"{said}\n\n{table(head, rows)}"


def _error(values: Floats) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


STUDY = Study(Options, cells, measure, report, identity)
