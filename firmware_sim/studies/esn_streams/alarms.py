"""From scores to what a watch was worth: areas, and alarms at a level that only healthy rows before it have set.

An alarm counts for where it begins: inside an anomaly it finds it, elsewhere it is false. One that stood already when
the anomaly began finds nothing. A level is taken for a promised number of false alarms a day
(`fedgate.models.alarms.threshold`), and the state machine of the gateway raises and clears.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.studies.engine.study import Figures
from fedgate.firmware_sim.studies.esn_streams.rows import CALIBRATE, SECONDS_PER_DAY, WATCHED, Judged, Streams
from fedgate.models.alarms.threshold import AlarmSpec, AlarmState, Levels, calibrate, update
from fedgate.models.arrays import Floats

Span = tuple[int, int]
TO_DEVIATION = 1.4826  # of a normal distribution's median absolute deviation
LEAST_SPREAD = 1e-3


class Found(NamedTuple):
    """Of one anomaly: its kind, and after how many windows an alarm began inside it, None where none did."""

    kind: str
    after: int | None


class Watch(NamedTuple):
    """What one gateway's alarms were: of every anomaly whether it was found, false alarms, and healthy days watched."""

    found: list[Found]
    false_alarms: int
    days: float


def areas(windows: dict[str, list[Judged]]) -> Figures:
    """Return the area under the ROC curve over windows, by kind of anomaly and over all of them, `auc`; means over
    gateways. A gateway without an anomaly has none.
    """
    by_kind: dict[str, list[float]] = {}
    for each in windows.values():
        healthy = _healthy(each)
        for kind in dict.fromkeys(part.kind for part in each if part.kind):
            wrong = np.concatenate([_anomalous(part) for part in each if part.kind == kind])
            if len(wrong) and len(healthy):
                by_kind.setdefault(kind, []).append(area(healthy, wrong))
    figures = {f"auc.{kind}": float(np.mean(found)) for kind, found in by_kind.items()}
    return {"auc": float(np.mean(list(figures.values()))), **figures}


def area(healthy: Floats, anomalous: Floats) -> float:
    label = np.repeat([0, 1], [len(healthy), len(anomalous)])
    return metrics.roc_auc(label, np.concatenate([healthy, anomalous]))


def _healthy(windows: list[Judged]) -> Floats:
    return np.concatenate([w.score[(w.role == WATCHED) & (w.label == 0)] for w in windows if not w.copy])


def _anomalous(window: Judged) -> Floats:
    return np.asarray(window.score[(window.role == WATCHED) & (window.label == 1)])


def fleet(windows: dict[str, list[Judged]]) -> Figures:
    """Return the area of the mean over gateways that watch the same, each in units of its healthy spread."""
    together: list[list[Judged]] = []
    for each in windows.values():
        quiet = np.concatenate([part.score[part.role == CALIBRATE] for part in each])
        middle = float(np.median(quiet))
        spread = max(TO_DEVIATION * float(np.median(np.abs(quiet - middle))), LEAST_SPREAD)
        watched = [part for part in each if (part.role == WATCHED).any()]
        together.append([part._replace(score=(part.score - middle) / spread) for part in watched])
    mean = [parts[0]._replace(score=np.mean([p.score for p in parts], axis=0)) for parts in zip(*together, strict=True)]
    wrong = np.concatenate([_anomalous(part) for part in mean])
    return {"fleet.auc": area(_healthy(mean), wrong)}


def watch(streams: Streams, windows: list[Judged], false_alarms_per_day: float) -> Watch:
    """Return what the alarms of one gateway were, at a level from its own windows that calibrate.

    Raises `fedgate.models.alarms.threshold.CalibrationError` where these are too few.
    """
    spec = AlarmSpec(false_alarms_per_day=false_alarms_per_day)
    quiet = np.concatenate([part.score[part.role == CALIBRATE] for part in windows])
    levels = calibrate(spec, quiet, streams.windows_per_day)
    found, false_alarms, healthy = [], 0, 0
    for part in windows:
        seen = part.role == WATCHED
        label, spans = part.label[seen], alarms(part.score[seen], levels, spec, streams)
        for start, stop in runs(label == 1):
            begun = next((first for first, _ in spans if start <= first < stop), None)
            found.append(Found(part.kind, None if begun is None else begun - start + 1))
        if not part.copy:
            false_alarms += sum(label[first] == 0 for first, _ in spans)
            healthy += int((label == 0).sum())
    return Watch(found, int(false_alarms), healthy * streams.window_s / SECONDS_PER_DAY)


def alarms(scores: Floats, levels: Levels, spec: AlarmSpec, streams: Streams) -> list[Span]:
    """Return first and last window of every alarm, those with less than `merge` windows between them as one."""
    state, spans = AlarmState(), list[Span]()
    for index, score in enumerate(scores.tolist()):
        state, changed = update(levels, spec, state, index, score)
        if changed is not None and changed.kind == "raised":
            first = spans.pop()[0] if spans and index - spans[-1][1] <= streams.merge else index
            spans.append((first, index))
        elif state.active:
            spans[-1] = (spans[-1][0], index)
    return spans


def runs(flags: NDArray[np.bool_]) -> list[Span]:
    """Return start and stop of every run of true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int64)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def worth(streams: Streams, watches: list[Watch]) -> Figures:
    """Return recall, over all anomalies and by kind, false alarms a day, and the median delay in seconds."""
    found = [each for one in watches for each in one.found]
    days = sum(one.days for one in watches)
    delays = [each.after * streams.window_s for each in found if each.after is not None]
    figures = {
        f"recall.{kind}": _recall([f for f in found if f.kind == kind]) for kind in dict.fromkeys(f.kind for f in found)
    }
    return {
        "recall": _recall(found),
        **figures,
        "anomalies": float(len(found)),
        "false_alarms": float(sum(one.false_alarms for one in watches)),
        "days": days,
        "delay_s": float(np.median(delays)) if delays else float("nan"),
    }


def _recall(found: list[Found]) -> float:
    return float(np.mean([each.after is not None for each in found])) if found else float("nan")
