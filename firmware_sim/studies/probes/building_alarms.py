"""Alarm rules on building sensors: what they find, what they cost, and whether the promised rate is kept.

Everything is calibrated on the healthy head of each sensor's recording and measured on the rest. Settings were chosen
on the development part, whose figures stand beside those of the reported one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedgate.config.settings import settings
from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.studies.datasets.sensors import Part, Sensor, SensorSet, load_sensors
from fedgate.firmware_sim.studies.probes.building_watch import Method, Watched, make_scores, watch
from fedgate.models.arrays import generator

DRAWS = 1_000  # of sensors, for the standard error of a recall
COLLECTIVE = ["stuck", "drift", "offset", "noise"]  # many rows wrong together
CONTEXTUAL = "other time"  # values of the same channel half a day away


class Case(settings.Table):
    """What is measured."""

    sensors: SensorSet
    part: Part
    method: Method
    seed: int = 0


def measure(case: Case, data: Path) -> Figures:
    """Return what a way of watching finds and costs on all sensors of one part of a data set.

    Of a documented anomaly `recall` counts those in which an alarm begins, `standing` also those during which one
    stands. `false_alarms` are those that begin elsewhere, `apart` of them those that no anomaly touches. A sensor on
    which no rule has a level finds nothing, and is counted as `silent`. `error.` and the name of a figure is its
    standard error.
    """
    sensors = load_sensors(case.sensors, data, case.part, case.seed)
    scores = make_scores(case.method, sensors, case.seed)
    each = [watch(case.method, sensor, case.sensors.merge_s, scores.get(sensor.name)) for sensor in sensors]
    found = [watched or Watched((), [None] * len(sensor.events)) for sensor, watched in zip(sensors, each, strict=True)]
    costs = count_false(sensors, found, case.method.alarm.false_alarms_per_day)
    return {**costs, "silent": float(each.count(None)), **count_found(sensors, found, case.seed)}


def count_false(sensors: Sequence[Sensor], found: Sequence[Watched], promised: float) -> Figures:
    """Return false alarms in all and a day, beside what was promised; the error is what so few of them leave open."""
    days, false, apart = sum(sensor.days for sensor in sensors), 0, 0
    for sensor, watched in zip(sensors, found, strict=True):
        documented = [event for event in sensor.events if event.x is None]
        for alarm in watched.alarms:
            is_false = not any(event.start <= alarm.first < event.stop for event in documented)
            false += is_false
            apart += is_false and not any(alarm.touches(event) for event in documented)
    error = math.sqrt(max(false, 1)) / days / promised
    rates = {"rate": false / days, "apart": apart / days, "ratio": false / days / promised, "error.ratio": error}
    return {"false_alarms": float(false), "days": days, **rates}


def count_found(sensors: Sequence[Sensor], found: Sequence[Watched], seed: int) -> Figures:
    """Return recalls by kind of anomaly and their mean, with standard errors, and how long it took."""
    lines = [
        {
            "sensor": index,
            "kind": event.kind,
            "found": first is not None,
            "standing": event.x is None and any(alarm.touches(event) for alarm in watched.alarms),
            "delay_s": math.nan if first is None else (first - event.start + 1) * sensor.hop_s,
        }
        for index, (sensor, watched) in enumerate(zip(sensors, found, strict=True))
        for event, first in zip(sensor.events, watched.firsts, strict=True)
    ]
    events = pd.DataFrame(lines)
    kinds = events.groupby("kind", sort=False)["found"].mean().to_dict()
    figures = {
        "recall": float(np.mean(list(kinds.values()))),
        "standing": float((events["found"] | events["standing"]).mean()),
        "anomalies": float(len(events)),
        "delay_s": float(events["delay_s"].median()),
        **{f"recall.{kind}": each for kind, each in kinds.items()},
    }
    if kinds.keys() >= {*COLLECTIVE, CONTEXTUAL}:
        figures |= {"collective": float(np.mean([kinds[kind] for kind in COLLECTIVE])), "contextual": kinds[CONTEXTUAL]}
    return {**figures, **_errors(events, len(sensors), seed)}


def _errors(events: pd.DataFrame, count: int, seed: int) -> Figures:
    """Return the standard error of every recall: its deviation over draws of as many sensors, with replacement
    (Efron, Bootstrap methods: another look at the jackknife, 1979). Of one sensor nothing can be told.
    """
    kinds = list(dict.fromkeys(events["kind"]))
    if count < 2:
        return {f"error.{name}": math.nan for name in ("recall", *(f"recall.{kind}" for kind in kinds))}
    by_sensor = events.pivot_table(index="sensor", columns="kind", values="found", aggfunc=["sum", "count"])
    whole = by_sensor.reindex(range(count)).fillna(0.0)  # a sensor may have no anomaly
    drawn = generator(seed, 0, "bootstrap").integers(count, size=(DRAWS, count))
    found, every = (whole[name][kinds].to_numpy()[drawn].sum(axis=1) for name in ("sum", "count"))  # (DRAWS, k)
    known = (every > 0).all(axis=1)
    recalls = found[known] / every[known]
    errors = dict(zip(kinds, recalls.std(axis=0).tolist(), strict=True))
    return {
        "error.recall": float(recalls.mean(axis=1).std()),
        **{f"error.recall.{kind}": each for kind, each in errors.items()},
    }
