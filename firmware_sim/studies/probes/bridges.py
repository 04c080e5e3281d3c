"""Bridges: what a method is worth where it is chosen, and where it is reported (PC-FedAvg, Table 2, Figures 2 and 4).

The paper's recordings are confidential, so others are measured (Z24, CWRU, Munich). Settings are chosen on training
setups, one of them left out in turn, and reported on setups that took no part in any choice. Every gateway scores the
same windows with its own sensors. Scores of several gateways are put on one scale by healthy windows that took no part
in training: the last part of every training recording is held out, a model of the rest scores it, and median and spread
of those scores calibrate the gateway. What is tested calibrates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from fedgate.config.settings import settings
from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.engine.spec import Figures, StudyError
from fedgate.firmware_sim.evaluate.methods import Method, Rows, Scores, score_method
from fedgate.firmware_sim.recordings.shipped import shipped
from fedgate.firmware_sim.studies.datasets.series.bridges import (
    DAMAGED,
    HEALTHY,
    Bridge,
    DataSet,
    Spectrum,
    Windows,
    load,
)
from fedgate.firmware_sim.studies.literal.aligned_events import aligned_events
from fedgate.models.arrays import Floats
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.federated.wrappers.whitening import validated
from fedgate.models.units import median_spread

MUNICH = shipped("munich_bridge/ref_load_01").parent
View = Literal["sensors", "setups", "sensor x setup"]
ALIGNED = "aligned-events"
EVERY = "all"
HELD_OUT_FROM = 0.6  # of each training recording: what ends before trains the calibrating model, what starts later is
LEAST_SPREAD = 1e-3  # scores are logarithms; one that never moves must not divide by zero
ALARM_Z = 3.0  # healthy spreads above the healthy median, where no other level can be chosen
LEVELS = 101  # alarm levels that are tried, quantiles of the scores
RECALL = 0.9


class BridgeMethod(Method):
    """A method of the study: the paper's form for events that all gateways saw is one more."""

    @classmethod
    def others(cls) -> Mapping[str, Callable[..., Any]]:
        return {ALIGNED: aligned_events}


class Case(settings.Table):
    """What is measured.

    :param train_setups: healthy windows of these train; settings are chosen by leaving one of them out in turn.
    :param test_setups: these are reported and choose nothing.
    :param chooses: whether settings and alarm level are chosen on the training setups.
    """

    data_set: DataSet
    folder: str = ""
    view: View
    method: BridgeMethod
    spectrum: Spectrum
    train_setups: list[int]
    test_setups: list[int]
    chooses: bool = True
    seed: int = 0

    @model_validator(mode="after")
    def _tests_what_did_not_train(self) -> Self:
        overlap = sorted(set(self.train_setups) & set(self.test_setups))
        if overlap:
            raise ValueError(f"test_setups: setup {overlap[0]} trains as well; expected setups that choose nothing")
        return self


def reads(case: Case, data: Path) -> list[Path]:
    """Return the folder of the recordings; those of Munich come with the package."""
    return [MUNICH if case.data_set == "munich" else data / case.folder]


def measure(case: Case, data: Path) -> Figures:
    """Return what a method is worth on the training setups, `choice`, and on the reported ones, all the others.

    The alarm level too is chosen on the training setups, where there are several.
    """
    bridge = load(case.data_set, data / case.folder, case.spectrum)
    inner = []
    for left_out in case.train_setups if case.chooses and len(case.train_setups) > 1 else []:
        split = task(bridge, case.view, [setup for setup in case.train_setups if setup != left_out], [left_out])
        inner.append((split.label, calibrated(case.method, split, case.seed)))
    choice = float(np.mean([metrics.roc_auc(label, fleet(scored)) for label, scored in inner])) if inner else 0.0
    split = task(bridge, case.view, case.train_setups, case.test_setups)
    scored = calibrated(case.method, split, case.seed)
    return {"choice": choice, **_figures(split, scored, case.spectrum.window_s, _levels(inner))}


class Task(NamedTuple):
    """One split: what gateways train on, which of those windows are held out for calibration, and what is scored."""

    train: Rows
    early: dict[str, NDArray[np.bool_]]
    held: dict[str, NDArray[np.bool_]]
    test: Rows
    label: NDArray[np.int64]
    state: NDArray[np.str_]


class Scored(NamedTuple):
    """Scores (m,) of the tested windows by gateway, in units of the gateway's healthy spread, and bytes it sent."""

    z: dict[str, Floats]
    bytes_up: float


def task(bridge: Bridge, view: View, train_setups: list[int], test_setups: list[int]) -> Task:
    """Return the split of a view: gateways see healthy windows of the training setups, all windows of others test."""
    fine, apart = bridge.fine, bridge.apart
    tested = np.isin(apart.setup, test_setups)
    trained = np.isin(fine.setup, train_setups) & (fine.label == HEALTHY)
    chosen = Windows(*(column[trained] for column in fine))
    members: dict[str, tuple[NDArray[np.bool_], slice]] = {}
    for setup in train_setups if view != "sensors" else [0]:
        rows = chosen.setup == setup if view != "sensors" else np.ones(len(chosen.setup), dtype=bool)
        if view == "setups":
            members[f"setup {setup}"] = rows, slice(None)
            continue
        for index, sensor in enumerate(bridge.sensors):
            name = sensor if view == "sensors" else f"{sensor}, setup {setup}"
            members[name] = rows, slice(index, index + 1)
    return Task(
        {name: _flat(chosen.x[rows][:, sensors]) for name, (rows, sensors) in members.items()},
        {name: chosen.end[rows] <= HELD_OUT_FROM for name, (rows, _) in members.items()},
        {name: chosen.start[rows] >= HELD_OUT_FROM for name, (rows, _) in members.items()},
        {name: _flat(apart.x[tested][:, sensors]) for name, (_, sensors) in members.items()},
        apart.label[tested],
        apart.state[tested],
    )


def _flat(x: Floats) -> Floats:
    return x.reshape(len(x), -1)


def calibrated(method: BridgeMethod, split: Task, seed: int) -> Scored:
    """Return the scores of a method on a split, each gateway's in units of its healthy spread.

    Raises:
        StudyError: a gateway has no windows to hold out.
    """
    early = {name: rows[split.early[name]] for name, rows in split.train.items()}
    held = {name: rows[split.held[name]] for name, rows in split.train.items()}
    for name in split.train:
        if len(early[name]) < 2 or len(held[name]) < 2:
            counts = f"{len(early[name])} early and {len(held[name])} late windows"
            raise StudyError(f"{name}: {counts} to train and calibrate on; expected 2 of each, so shorter windows")
    quiet = _score(method, early, held, seed).by_gateway
    found = _score(method, split.train, split.test, seed)
    z = {}
    for name, healthy in quiet.items():
        middle = float(np.median(healthy))
        spread = max(float(median_spread(healthy, middle)), LEAST_SPREAD)
        z[name] = (found.by_gateway[name] - middle) / spread
    return Scored(z, float(np.mean(list(found.bytes_up.values()))))


def _score(method: BridgeMethod, train: Rows, test: Rows, seed: int) -> Scores:
    """Score as every comparison does; `events = "all"` means each of the gateways' rows."""
    count = len(next(iter(train.values())))
    given = {key: count if value == EVERY else value for key, value in method.settings.items()}
    return score_method(method.model_copy(update={"settings": given}), train, test, seed, _build)


def _build(name: str, count: int, given: dict[str, Any]) -> Algorithm:
    return validated(aligned_events)(count, **given) if name == ALIGNED else build(name, count, given)


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


def _figures(split: Task, scored: Scored, window_s: float, levels: Levels) -> Figures:
    together = fleet(scored)
    damaged, healthy = int((split.label == DAMAGED).sum()), int((split.label == HEALTHY).sum())
    single = [_rates(split.label, z, levels.gateway, window_s) for z in scored.z.values()]
    figures = {f"gateway.{key}": float(np.mean([each[key] for each in single])) for key in single[0]}
    figures |= {f"fleet.{key}": value for key, value in _rates(split.label, together, levels.fleet, window_s).items()}
    for who in ("gateway", "fleet"):
        figures[f"{who}.error"] = metrics.auc_error(figures[f"{who}.auc"], damaged, healthy)
    for name, z in scored.z.items():
        figures[f"auc.{name}"] = metrics.roc_auc(split.label, z)
    for state in dict.fromkeys(split.state[split.label == DAMAGED].tolist()):
        rows = (split.label == HEALTHY) | (split.state == state)
        figures[f"state.{state}"] = metrics.roc_auc(split.label[rows], together[rows])
    counts = {"damaged": float(damaged), "healthy": float(healthy), "always": 2.0 * damaged / (2.0 * damaged + healthy)}
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
