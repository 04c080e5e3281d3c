"""Bridges: PC-FedAvg's Table 2 and Figures 2 and 4 on recordings that are open to research, with baselines beside them.

Its own recordings are confidential, so the table is measured on others (Z24, CWRU, Munich) and says so. A method is
measured once for every way to cut windows and every combination of its settings, both where it is chosen (training
setups, one of them left out in turn) and where it is reported (setups that took no part in any choice); the report
shows, for each method, what the choice led to.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.studies.bridges.data import DAMAGED, HEALTHY, load
from fedgate.firmware_sim.studies.bridges.methods import Method, Scored, Task, View, calibrated, task
from fedgate.firmware_sim.studies.bridges.options import QUANTILES, Options
from fedgate.firmware_sim.studies.bridges.report import report
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Study
from fedgate.models.arrays import Floats

ALARM_Z = 3.0  # healthy spreads above the healthy median, where no other level can be chosen
LEVELS = 101  # alarm levels that are tried, quantiles of the scores
RECALL = 0.9


def cells(options: Options) -> list[Cell]:
    """Return view x method x spectrum x settings, or view x method x value of a sweep."""
    found = []
    for view, (name, method) in product(options.views, options.methods.items()):
        if view in method.views:
            for spectrum, chosen in product(range(len(options.spectra)), _combinations(options, method)):
                found.append({"view": view, "method": name, "spectrum": spectrum, "settings": chosen})
    return found


def _combinations(options: Options, method: Method) -> Iterator[dict[str, Any]]:
    for values in product(*method.grid.values()):
        chosen = {**method.fixed, **dict(zip(method.grid, values, strict=True))}
        if not options.sweep:
            yield chosen
        for key, many in options.sweep.items():
            yield from ({**chosen, key: value} for value in many)


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return what a method is worth on the training setups, `choose`, and on the reported ones, all the others.

    The alarm level too is chosen on the training setups, where there are several.
    """
    bridge = load(options.data_set, data / options.folder, options.spectra[cell["spectrum"]])
    method, chosen, view = options.methods[cell["method"]], cell["settings"], cell["view"]
    inner = []
    for left_out in options.train_setups if len(options.train_setups) > 1 and not options.sweep else []:
        rest = [setup for setup in options.train_setups if setup != left_out]
        split = task(bridge, view, rest, [left_out])
        inner.append((split.label, calibrated(method, chosen, split, options.seed)))
    choice = float(np.mean([metrics.roc_auc(label, fleet(scored)) for label, scored in inner])) if inner else 0.0
    split = task(bridge, view, options.train_setups, options.test_setups)
    scored = calibrated(method, chosen, split, options.seed)
    figures = _figures(split, scored, options.spectra[cell["spectrum"]].window_s, view, _levels(inner))
    return {"choose": choice, **figures}


class Levels(NamedTuple):
    """From where on a gateway, and the fleet, alarms; in healthy spreads."""

    gateway: float = ALARM_Z
    fleet: float = ALARM_Z


def _levels(inner: list[tuple[NDArray[np.int64], Scored]]) -> Levels:
    """Return the levels with the best mean of both F-scores over all splits of the training setups."""
    if not inner:
        return Levels()
    single = [(label, z) for label, scored in inner for z in scored.z.values()]
    return Levels(_best_level(single), _best_level([(label, fleet(scored)) for label, scored in inner]))


def _best_level(scored: list[tuple[NDArray[np.int64], Floats]]) -> float:
    label, z = (np.concatenate(parts) for parts in zip(*scored, strict=True))
    levels = np.unique(np.quantile(z, np.linspace(0.0, 1.0, LEVELS)))
    return float(max(levels, key=lambda level: sum(_both_f(label, z > level))))


def _both_f(label: NDArray[np.int64], alarmed: NDArray[np.bool_]) -> tuple[float, float]:
    """Return F with damage as positive and with healthy as positive, 0 where nothing is found."""
    from sklearn.metrics import f1_score

    damage, healthy = f1_score(label, alarmed, labels=[1, 0], average=None, zero_division=0.0).tolist()
    return damage, healthy


def fleet(scored: Scored) -> Floats:
    """Return the mean over gateways of the calibrated scores (m,)."""
    return np.asarray(np.mean(list(scored.z.values()), axis=0))


def _figures(split: Task, scored: Scored, window_s: float, view: View, levels: Levels) -> Figures:
    together = fleet(scored)
    single = [_rates(split.label, z, levels.gateway, window_s) for z in scored.z.values()]
    figures = {f"gateway.{key}": float(np.mean([each[key] for each in single])) for key in single[0]}
    figures |= {f"fleet.{key}": value for key, value in _rates(split.label, together, levels.fleet, window_s).items()}
    for name, z in scored.z.items():
        figures[f"auc.{name}"] = metrics.roc_auc(split.label, z)
    for state in dict.fromkeys(split.state[split.label == DAMAGED].tolist()):
        rows = (split.label == HEALTHY) | (split.state == state)
        figures[f"state.{state}"] = metrics.roc_auc(split.label[rows], together[rows])
    if view == "setups":
        for name, z in scored.z.items():
            for label in (HEALTHY, DAMAGED):
                places = np.quantile(z[split.label == label], QUANTILES)
                figures |= {f"box.{name}.{label}.{q:g}": float(at) for q, at in zip(QUANTILES, places, strict=True)}
    counts = {"damaged": float((split.label == DAMAGED).sum()), "healthy": float((split.label == HEALTHY).sum())}
    return {**figures, **counts, "bytes_up": scored.bytes_up, "level": levels.fleet}


def _rates(label: NDArray[np.int64], z: Floats, alarm_z: float, window_s: float) -> Figures:
    """Return AUC, F-score at the alarm level both ways round, and false alarms an hour where 90 % are found."""
    f_damage, f_healthy = _both_f(label, z > alarm_z)
    level = np.quantile(z[label == DAMAGED], 1.0 - RECALL, method="lower")
    false_alarms = int((z[label == HEALTHY] >= level).sum())
    return {
        "auc": metrics.roc_auc(label, z),
        "f_damage": f_damage,
        "f_healthy": f_healthy,
        "false_per_hour": metrics.per_hour(false_alarms, window_s * int((label == HEALTHY).sum())),
    }


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return what of the options a measurement depends on, beside its cell."""
    method = options.methods[cell["method"]]
    return {
        "data_set": options.data_set,
        "folder": options.folder,
        "train_setups": options.train_setups,
        "test_setups": options.test_setups,
        "spectrum": options.spectra[cell["spectrum"]].model_dump(mode="json"),
        "algorithm": method.algorithm,
        "data": method.data,
        "seed": options.seed,
        "sweep": bool(options.sweep),  # then nothing is chosen, and alarms have a level of their own
    }


STUDY = Study(Options, cells, measure, report, identity)
