"""Alarm rules on building sensors: what they find, what they cost, and whether the promised rate is kept.

A cell is a data set, a part of it, a way of watching and a promised number of false alarms. Everything is calibrated on
the healthy head of each sensor's recording and measured on the rest. Settings were chosen on the development part,
whose figures stand beside those of the reported one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedgate.firmware_sim.studies.building_alarms.data import Event, Sensor, load
from fedgate.firmware_sim.studies.building_alarms.options import Options
from fedgate.firmware_sim.studies.building_alarms.report import report
from fedgate.firmware_sim.studies.building_alarms.watch import Alarm, begun, guarded, scores_of, watched
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Study
from fedgate.models.alarms.threshold import CalibrationError
from fedgate.models.arrays import generator

PARTS = ("development", "reported")
DRAWS = 1_000  # of sensors, for the standard error of a recall
ONE_PART = {"hvac"}  # of which nothing is chosen on a part of its own


def cells(options: Options) -> list[Cell]:
    """Return data set x part x method x promise; a level that promises nothing is measured once."""
    found: list[Cell] = []
    for name, each in options.sets.items():
        for part in PARTS[each.data in ONE_PART :]:
            for method in each.methods:
                promises = options.promises(name, method)
                found += [{"set": name, "part": part, "method": method, "promised": rate} for rate in promises]
    return found


class _Count:
    """What the alarms of all sensors came to."""

    def __init__(self) -> None:
        self.found: dict[str, list[bool]] = {}
        self.by_sensor: list[dict[str, list[bool]]] = []
        self.standing: list[bool] = []
        self.delays_s: list[float] = []
        self.rules: dict[str, int] = {}
        self.false = self.apart = self.silent = 0
        self.days = 0.0

    def sensor(self, sensor: Sensor, alarms: list[Alarm], firsts: list[tuple[Event, Alarm | None]]) -> None:
        documented = [each for each in sensor.events if each.x is None]
        inside = {alarm for alarm in alarms for each in documented if each.start <= alarm.first < each.stop}
        false = [alarm for alarm in alarms if alarm not in inside]
        self.false += len(false)
        self.apart += sum(not any(_touch(alarm, each) for each in documented) for alarm in false)
        self.days += sensor.days
        for alarm in false:
            self.rules[alarm.rule] = self.rules.get(alarm.rule, 0) + 1
        self.by_sensor.append({})
        for event, first in firsts:
            self.found.setdefault(event.kind, []).append(first is not None)
            self.by_sensor[-1].setdefault(event.kind, []).append(first is not None)
            self.standing.append(first is not None or (event.x is None and any(_touch(a, event) for a in alarms)))
            if first is not None:
                self.delays_s.append((first.first - event.start + 1) * sensor.hop_s)

    def errors(self, seed: int) -> Figures:
        """Return the standard error of every recall: its deviation over draws of as many sensors, with replacement
        (Efron, Bootstrap methods: another look at the jackknife, 1979). Of one sensor nothing can be told.
        """
        kinds, count = list(self.found), len(self.by_sensor)
        if count < 2 or not kinds:
            return {"error.recall": float("nan")}
        found = np.array([[sum(each.get(kind, [])) for kind in kinds] for each in self.by_sensor])  # (s, k)
        every = np.array([[len(each.get(kind, [])) for kind in kinds] for each in self.by_sensor])
        drawn = generator(seed, 0, "bootstrap").integers(count, size=(DRAWS, count))
        total = every[drawn].sum(axis=1)  # (DRAWS, k)
        recalls = found[drawn].sum(axis=1)[(total > 0).all(axis=1)] / total[(total > 0).all(axis=1)]
        errors = dict(zip(kinds, recalls.std(axis=0).tolist(), strict=True))
        return {
            "error.recall": float(recalls.mean(axis=1).std()),
            **{f"error.recall.{kind}": each for kind, each in errors.items()},
        }

    def figures(self, seed: int) -> Figures:
        kinds = {kind: float(np.mean(each)) for kind, each in self.found.items()}
        every = [one for each in self.found.values() for one in each]
        return {
            "recall": float(np.mean(list(kinds.values()))) if kinds else float("nan"),
            "standing": float(np.mean(self.standing)) if self.standing else float("nan"),
            "anomalies": float(len(every)),
            "found": float(sum(every)),
            "false_alarms": float(self.false),
            "apart": float(self.apart),
            "days": self.days,
            "delay_s": float(np.median(self.delays_s)) if self.delays_s else float("nan"),
            "silent": float(self.silent),
            **{f"recall.{kind}": each for kind, each in kinds.items()},
            **{f"false.{rule}": float(count) for rule, count in self.rules.items()},
            **self.errors(seed),
        }


def _touch(alarm: Alarm, event: Event) -> bool:
    return alarm.first < event.stop and alarm.last >= event.start


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return what a way of watching finds and costs on all sensors of one part of a data set.

    Of an anomaly that was put in, an alarm counts that begins in it and that the same sensor would not have had without
    it. Of a documented one `recall` counts those in which an alarm begins, `standing` also those during which one
    stands. `false_alarms` are those that begin elsewhere, `apart` of them those that no anomaly touches. A sensor on
    which no rule has a level finds nothing, and is counted as `silent`. `error.` and the name of a recall is its
    standard error.
    """
    chosen = options.sets[cell["set"]]
    method, count = chosen.methods[cell["method"]], _Count()
    sensors = load(chosen, data, cell["part"], options.seed)
    scores = scores_of(method, sensors, options.seed)
    for sensor in sensors:
        try:
            guard = guarded(method, sensor, float(cell["promised"]), chosen.merge_s, scores.get(sensor.name))
        except CalibrationError:
            count.silent += 1
            count.sensor(sensor, [], [(event, None) for event in sensor.events])
            continue
        alarms, states, _ = watched(guard, sensor)
        firsts: list[tuple[Event, Alarm | None]] = []
        for event in sensor.events:
            inside = [alarm for alarm in alarms if event.start <= alarm.first < event.stop]
            if event.x is None:
                firsts.append((event, inside[0] if inside else None))
            else:
                hidden = any(_touch(alarm, event) for alarm in alarms)
                firsts.append((event, None if hidden else begun(guard, sensor, states, event)))
        count.sensor(sensor, alarms, firsts)
    return count.figures(options.seed)


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return what of the options a measurement depends on, beside its cell."""
    chosen = options.sets[cell["set"]].model_dump(mode="json", exclude={"methods", "note", "false_alarms_per_day"})
    method = options.sets[cell["set"]].methods[cell["method"]].model_dump(mode="json", exclude={"false_alarms_per_day"})
    return {"set": chosen, "method": method, "seed": options.seed}


STUDY = Study(Options, cells, measure, report, identity)
