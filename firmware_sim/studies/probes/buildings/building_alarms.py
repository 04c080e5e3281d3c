"""Alarm rules on building sensors: what they find, what they cost, and whether the promised rate is kept.

Everything is calibrated on the healthy head of each sensor's recording and measured on the rest, by the functions by
which a gateway decides. Settings were chosen on the development part, whose figures stand beside those of the reported
one. A sensor that is stuck has an alarm of its own, from then until it moves; what is near another alarm is one with
it. The state of the rules is a value, so the clean recording is walked once, and a copy with a fault goes on from the
state right before the fault: what follows is what the gateway would have said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
from pydantic import Field

from fedgate.config.settings import settings
from fedgate.config.settings.alarm import AlarmTable
from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.evaluate.training import train_fleet
from fedgate.firmware_sim.studies.datasets.series.files import Whole
from fedgate.firmware_sim.studies.datasets.series.sensors import Event, Part, Sensor, SensorSet, load_sensors
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.pipeline.decision import Commissioned, DecisionState, ScoringModel, calibrate, judge_window
from fedgate.gateway_agent.pipeline.recurrence import Model
from fedgate.models.alarms import threshold
from fedgate.models.alarms.threshold import AlarmState, CalibrationError
from fedgate.models.arrays import FEATURES, MISSING, NEW_SERIES, Arrays, Floats, generator
from fedgate.models.detectors.esn import esn
from fedgate.models.federated import build
from fedgate.models.time_units import NS

LATER_S = 2_700 * 7 * 86_400  # whole weeks: a profile takes no time before 2020 for a clock that was set
WARM_ROWS = 288  # before a fault, for the state of a network to settle
LEAST_SCALE = 1e-9
NO_MODEL = cast(Model, None)  # scores are handed over, so none is asked

DRAWS = 1_000  # of sensors, for the standard error of a recall
COLLECTIVE = ["stuck", "drift", "offset", "noise"]  # many rows wrong together
CONTEXTUAL = "other time"  # values of the same channel half a day away

# Rows (n, F) and how many are missing before each -> (n,), NaN where nothing can be said.
Scores = Callable[[Floats, Whole], Floats]


class Method(settings.Table):
    """One way of watching.

    :param alarm: as a gateway has it in [alarm]; the watched features are those of the sensor.
    :param score: whose score the rules on the score judge.
    :param settings: of the echo state network (`incfed`).
    :param times_largest: the level of every rule is so often the largest of its baseline, whatever was promised.
    """

    alarm: AlarmTable
    score: Literal["none", "last value", "esn"] = "none"
    settings: dict[str, Any] = Field(default_factory=dict)
    times_largest: Annotated[float, Field(gt=1)] | None = None


class Case(settings.Table):
    """What is measured."""

    sensors: SensorSet
    part: Part
    method: Method
    seed: int = 0


def reads(case: Case, data: Path) -> list[Path]:
    """Return the folder of the data set."""
    return [data / case.sensors.folder]


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


class Alarm(NamedTuple):
    """First and last row of an alarm."""

    first: int
    last: int

    def touches(self, event: Event) -> bool:
        """Tell whether it stands at any time of an event."""
        return self.first < event.stop and self.last >= event.start


class Guard(NamedTuple):
    """All that judges one sensor."""

    sensor: Sensor
    table: AlarmTable
    judge: ScoringModel
    scores: Scores | None
    merge_rows: float


class State(NamedTuple):
    """What is remembered between rows."""

    watching: DecisionState = DecisionState()
    alarm: AlarmState = AlarmState()
    is_stuck: bool = False


class Watched(NamedTuple):
    """The alarms of the clean recording, and of each event the row at which the first alarm begins in it. Of an event
    that was put in, an alarm counts that the same sensor would not have had without it.
    """

    alarms: Sequence[Alarm]
    firsts: Sequence[int | None]


def watch(method: Method, sensor: Sensor, merge_s: float, scores: Scores | None) -> Watched | None:
    """Return what a way of watching says of a sensor; None where no rule has a level."""
    try:
        guard = make_guard(method, sensor, merge_s, scores)
    except CalibrationError:
        return None
    alarms, states = walk(guard)
    return Watched(alarms, [_find_first(guard, alarms, states, event) for event in sensor.events])


def _find_first(guard: Guard, alarms: list[Alarm], states: list[State], event: Event) -> int | None:
    if event.x is None:
        return next((alarm.first for alarm in alarms if event.start <= alarm.first < event.stop), None)
    return None if any(alarm.touches(event) for alarm in alarms) else find_begun(guard, states, event, event.x)


def make_scores(method: Method, sensors: list[Sensor], seed: int) -> dict[str, Scores]:
    """Return how each sensor's rows are scored by its name; empty where no rule asks. A network is trained by all
    sensors together (`incfed`) on the rows that may train, and predicts the watched columns alone.
    """
    if method.score == "none":
        return {}
    if method.score == "last value":
        return {sensor.name: _score_by_last_value(sensor) for sensor in sensors}
    data = {each.name: {FEATURES: _trained(each), MISSING: each.missing[: each.trained]} for each in sensors}
    network = {"task": "predict", "targets": (), **method.settings.get("network", {})}
    algorithm = build("incfed", len(sensors[0].watched), {**method.settings, "network": network})
    fit = train_fleet(algorithm, data, seed=seed)
    return {each.name: _score_by_network({**fit.shared, **fit.own[each.name]}, each.columns) for each in sensors}


def _trained(sensor: Sensor) -> Floats:
    return sensor.x[: sensor.trained, sensor.columns]


def _score_by_network(params: Arrays, columns: list[int]) -> Scores:
    return lambda x, missing: esn.carried(params, x[:, columns], missing)[0]


def _score_by_last_value(sensor: Sensor) -> Scores:
    columns = sensor.columns
    scale = np.maximum(_trained(sensor).std(axis=0), LEAST_SCALE)

    def score(x: Floats, missing: Whole) -> Floats:
        changes = np.abs(np.diff(x[:, columns], axis=0, prepend=x[:1, columns])) / scale
        return np.asarray(np.where(missing == NEW_SERIES, np.nan, changes.max(axis=1)))

    return score


def make_guard(method: Method, sensor: Sensor, merge_s: float, scores: Scores | None) -> Guard:
    """Return what judges a sensor, calibrated on its baseline; a score only on the rows that did not train it.

    Raises:
        CalibrationError: no rule has a level.
    """
    watched = {"watched": sensor.watched, "merge_s": merge_s}
    rules = method.alarm.rules and method.alarm.rules.model_copy(update=watched)
    table, merge_rows = method.alarm.model_copy(update={"rules": rules}), merge_s / sensor.hop_s
    x, missing, head = sensor.x[: sensor.begin], sensor.missing[: sensor.begin], sensor.x[: sensor.trained]
    scored = _score(scores, x, missing), np.ones(len(x), dtype=bool)
    ends_ns = _ends_ns(sensor)[: len(x)]
    baseline = Commissioned(x, ends_ns, missing, *scored, sensor.trained, sensor.names, sensor.hop_s)
    scale = np.maximum(head.std(axis=0), LEAST_SCALE)
    scale[np.setdiff1d(np.arange(len(scale)), sensor.columns)] = np.inf  # a profile is of the watched columns alone
    judge, _ = calibrate(table, NO_MODEL, baseline, {"center": head.mean(axis=0), "scale": scale}, {})
    if method.times_largest is not None and judge.rules is not None:
        by_rule = judge.rules.by_rule.items()
        levels = {name: each._replace(level=method.times_largest * each.largest) for name, each in by_rule}
        judge = judge._replace(rules=replace(judge.rules, by_rule=levels))
    return Guard(sensor, table, judge, scores, merge_rows)


def _score(scores: Scores | None, x: Floats, missing: Whole) -> Floats:
    return np.full(len(x), np.nan) if scores is None else scores(x, missing)


def _ends_ns(sensor: Sensor) -> Whole:
    return np.asarray((sensor.seconds + LATER_S) * NS, dtype=np.int64)


def walk(guard: Guard) -> tuple[list[Alarm], list[State]]:
    """Return the alarms of the clean recording after its baseline, near ones as one, and the state after every row."""
    sensor = guard.sensor
    scores = _score(guard.scores, sensor.x, sensor.missing)
    states, is_alarm = zip(*_step_through(guard, State(), 0, sensor.x, scores), strict=True)
    rows = np.flatnonzero(is_alarm)
    groups = np.split(rows, np.flatnonzero(np.diff(rows) > guard.merge_rows) + 1) if len(rows) else []
    return [Alarm(int(each[0]), int(each[-1])) for each in groups], list(states)


def find_begun(guard: Guard, states: list[State], event: Event, x: Floats) -> int | None:
    """Return the row of the first alarm that an event raises whose rows are x (stop - start, F); none where one stands
    before.
    """
    state, first = states[event.start - 1], max(event.start - WARM_ROWS, 0)
    if state.alarm.active or state.is_stuck:
        return None
    missing = guard.sensor.missing[first : event.stop]
    missing[0] = NEW_SERIES
    scores = _score(guard.scores, np.concatenate([guard.sensor.x[first : event.start], x]), missing)
    steps = _step_through(guard, state, event.start, x, scores[event.start - first :])
    return next((event.start + index for index, (_, is_alarm) in enumerate(steps) if is_alarm), None)


def _step_through(guard: Guard, state: State, start: int, x: Floats, scores: Floats) -> Iterator[tuple[State, bool]]:
    """Yield the state after each row, and whether an alarm stands."""
    ends_ns = _ends_ns(guard.sensor).tolist()
    for row, (values, score) in enumerate(zip(x, scores.tolist(), strict=True), start=start):
        seen, shown = FeatureRow(values, ends_ns[row]), None if math.isnan(score) else score
        watching, height, still = judge_window(guard.table, guard.judge, state.watching, seen, shown, is_calm=True)
        alarm, is_stuck = state.alarm, bool(still.stuck) or (state.is_stuck and not still.moved)
        if height is not None:
            alarm, _ = threshold.update(guard.judge.levels, guard.table, alarm, ends_ns[row], height.value)
        # Nothing is raised while the baseline is taken.
        state = State(watching, alarm, is_stuck) if row >= guard.sensor.begin else State(watching)
        yield state, state.is_stuck or (state.alarm.active and height is not None)


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
