"""Sensor streams: is the residual of an echo state network, trained together, worth more than what is simpler?

A cell trains with one setting twice: on the development half of the data, where `choice` says what it is worth, and on
the other half (other files, rooms, setups), of which all other figures are.

An alarm counts for where it begins: inside an anomaly it finds it, elsewhere it is false. One that stood already when
the anomaly began finds nothing. A level is taken for a promised number of false alarms a day, from healthy windows
before those that are watched, and the state machine of the gateway raises and clears.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedgate.config.settings import settings
from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.studies.datasets.series.streams import (
    CALIBRATE,
    WATCHED,
    Part,
    Source,
    Streams,
    Stretch,
    load,
    training_data,
)
from fedgate.firmware_sim.studies.probes.bridges import MUNICH
from fedgate.firmware_sim.studies.probes.networks.residuals import Method, fit
from fedgate.models.alarms.threshold import AlarmSpec, AlarmState, CalibrationError, Levels, calibrate, update
from fedgate.models.arrays import Floats
from fedgate.models.units import median_spread

Span = tuple[int, int]
LEAST_SPREAD = 1e-3
LEAST = 1e-9  # of a mean square; differences of sums may round to less than nothing
SECONDS_PER_DAY = 86_400.0
STUCK = "stuck"


class Stream(Source):
    """One data set.

    :param targets: columns that task `reconstruct` tells from the others.
    :param false_alarms_per_day: what each gateway's alarm level is promised to give.
    :param most_per_day: with more false alarms than these the figure `recall_wanted` is 0, else the recall.
    :param smooth: how many of the last scores are averaged; part of the names of figures.
    :param choice: which figure settings are chosen by; `none` where there is no development half.
    """

    targets: tuple[int, ...] = ()
    false_alarms_per_day: float = Field(gt=0)
    most_per_day: float | None = Field(default=None, gt=0)
    smooth: tuple[int, ...] = Field(default=(1,), min_length=1)
    choice: Literal["recall", "auc", "none"] = "auc"


class Case(settings.Table):
    """What is measured."""

    stream: Stream
    method: Method
    seed: int = 0

    @model_validator(mode="after")
    def _has_what_is_reconstructed(self) -> Self:
        if self.method.task == "reconstruct" and not self.stream.targets:
            raise ValueError("stream.targets: expected the columns that are reconstructed, got none")
        return self


def reads(case: Case, data: Path) -> list[Path]:
    """Return the folder of the data set; the recordings of Munich come with the package."""
    return [MUNICH if case.stream.data_set == "munich" else data / case.stream.folder]


def measure(case: Case, data: Path) -> Figures:
    """Return what a method is worth, `figure|smooth` for each number of scores that are averaged."""
    found = _measure_half(case, data, "reported")
    tried = {} if case.stream.choice == "none" else _measure_half(case, data, "development")
    return found | {f"choice|{count}": tried.get(f"decides|{count}", 0.0) for count in case.stream.smooth}


def _measure_half(case: Case, data: Path, part: Part) -> Figures:
    stream = case.stream
    half = load(stream, data, part)
    rows = {name: training_data(stretches) for name, stretches in half.gateways.items()}
    scorers, bytes_up = fit(case.method, rows, stream.targets, case.seed)
    windows = [
        [judge(half, each, scorers[name](each.values, each.missing)) for each in stretches]
        for name, stretches in half.gateways.items()
    ]
    figures = {"bytes_up": bytes_up, "gateways": float(len(rows))}
    for count in stream.smooth:
        even = [[smooth(each, count) for each in gateway] for gateway in windows]
        try:
            found = areas(even) | watch(half, even, stream.false_alarms_per_day)
        except CalibrationError:  # no level tells such scores apart: what the alarms were worth is not known
            found = areas(even) | dict.fromkeys(("recall", "recall_error", "false_per_day"), float("nan"))
        if half.fleet:
            found["fleet.auc"] = fleet_area(even)
        if stream.most_per_day is not None:
            found["recall_wanted"] = found["recall"] if found["false_per_day"] <= stream.most_per_day else 0.0
        by_recall = stream.choice == "recall"
        found["decides"] = found["recall" if by_recall else "auc"]
        found["decides_error"] = found["recall_error"] if by_recall else float("nan")
        figures |= {f"{name}|{count}": value for name, value in found.items()}
    return figures


def judge(streams: Streams, stretch: Stretch, scores: Floats) -> Stretch:
    """Return a stretch with scores, labels and roles (m,) of its windows instead of rows, which have scores (n,).

    A score is a logarithm; that of a window is the logarithm of the mean.
    """
    size = streams.window_rows
    count = len(scores) // size
    parts = scores[: count * size].reshape(count, size)[:, streams.skipped_rows :]
    whole = parts[:, 0] if size == 1 else np.log(np.exp(parts).mean(axis=1))
    firsts = slice(0, count * size, size)
    return stretch._replace(values=whole, label=stretch.label[firsts], role=stretch.role[firsts])


def smooth(judged: Stretch, count: int) -> Stretch:
    """Return windows with the logarithm of the mean over the last `count` of them, fewer at the start."""
    if count == 1:
        return judged
    total = np.concatenate([[0.0], np.cumsum(np.exp(judged.values))])
    stop = np.arange(1, len(total))
    start = np.maximum(stop - count, 0)
    return judged._replace(values=np.log(np.maximum(total[stop] - total[start], LEAST) / (stop - start)))


def areas(gateways: list[list[Stretch]]) -> Figures:
    """Return the area under the ROC curve over windows, by kind of anomaly and over all of them, `auc`; means over the
    gateways that have such an anomaly.
    """
    by_kind: dict[str, list[float]] = {}
    for windows in gateways:
        for kind in dict.fromkeys(part.kind for part in windows if part.kind):
            by_kind.setdefault(kind, []).append(_area(windows, [part for part in windows if part.kind == kind]))
    figures = {f"auc.{kind}": float(np.mean(found)) for kind, found in by_kind.items()}
    return {"auc": float(np.mean(list(figures.values()))), **figures}


def _area(windows: list[Stretch], anomalous: list[Stretch]) -> float:
    healthy = np.concatenate([w.values[(w.role == WATCHED) & (w.label == 0)] for w in windows if not w.copy])
    wrong = np.concatenate([w.values[(w.role == WATCHED) & (w.label == 1)] for w in anomalous])
    return metrics.roc_auc(np.repeat([0, 1], [len(healthy), len(wrong)]), np.concatenate([healthy, wrong]))


def fleet_area(gateways: list[list[Stretch]]) -> float:
    """Return the area of the mean over gateways that watch the same, each in units of its healthy spread."""
    together = []
    for windows in gateways:
        quiet = _quiet(windows)
        middle = float(np.median(quiet))
        spread = max(float(median_spread(quiet, middle)), LEAST_SPREAD)
        watched = [part for part in windows if (part.role == WATCHED).any()]
        together.append([part._replace(values=(part.values - middle) / spread) for part in watched])
    mean = [same[0]._replace(values=np.mean([w.values for w in same], axis=0)) for same in zip(*together, strict=True)]
    return _area(mean, mean)


def _quiet(windows: list[Stretch]) -> Floats:
    return np.concatenate([part.values[part.role == CALIBRATE] for part in windows])


def watch(streams: Streams, gateways: list[list[Stretch]], false_alarms_per_day: float) -> Figures:
    """Return what the alarms of all gateways were, each at a level from its own windows that calibrate: recall with its
    standard error, by kind, and as the mean over kinds without sensors that are stuck; false alarms a day, and the
    median delay in seconds, nan where nothing was found.

    Raises:
        CalibrationError: a gateway has too few windows.
    """
    spec, anomalies, false_alarms, healthy = AlarmSpec(false_alarms_per_day=false_alarms_per_day), [], 0, 0
    for windows in gateways:
        levels = calibrate(spec, _quiet(windows), SECONDS_PER_DAY / streams.window_s)
        for part in windows:
            label, scores = part.label[part.role == WATCHED], part.values[part.role == WATCHED]
            begun = np.array([first for first, _ in alarms(scores, levels, spec, streams.merge)], dtype=np.int64)
            anomalies += [(part.kind, _delay(begun, *run) * streams.window_s) for run in runs(label == 1)]
            false_alarms += 0 if part.copy else int((label[begun] == 0).sum())
            healthy += 0 if part.copy else int((label == 0).sum())
    days = healthy * streams.window_s / SECONDS_PER_DAY
    found = pd.DataFrame(anomalies, columns=["kind", "delay_s"])
    by_kind = found["delay_s"].notna().groupby(found["kind"], sort=False).mean()
    recall = float(found["delay_s"].notna().mean())
    return {
        "recall": recall,
        "recall_error": float(np.sqrt(recall * (1.0 - recall) / len(found))),
        "recall_moving": float(by_kind.drop(STUCK, errors="ignore").mean()),
        **{f"recall.{kind}": float(value) for kind, value in by_kind.items()},
        "anomalies": float(len(found)),
        "days": days,
        "false_per_day": false_alarms / days,
        "delay_s": float(found["delay_s"].median()),
    }


def _delay(begun: NDArray[np.int64], start: int, stop: int) -> float:
    """Return after how many windows of an anomaly an alarm began in it, nan where none did."""
    inside = begun[(start <= begun) & (begun < stop)]
    return float(inside[0] - start + 1) if len(inside) else float("nan")


def alarms(scores: Floats, levels: Levels, spec: AlarmSpec, merge: int) -> list[Span]:
    """Return first and last window of every alarm, those with less than `merge` windows between them as one."""
    state, spans = AlarmState(), list[Span]()
    for index, score in enumerate(scores.tolist()):
        state, changed = update(levels, spec, state, index, score)
        if changed is not None and changed.kind == "raised":
            first = spans.pop()[0] if spans and index - spans[-1][1] <= merge else index
            spans.append((first, index))
        elif state.active:
            spans[-1] = (spans[-1][0], index)
    return spans


def runs(flags: NDArray[np.bool_]) -> list[Span]:
    """Return start and stop of every run of true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int64)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
