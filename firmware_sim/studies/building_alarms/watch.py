"""One sensor under watch, as a gateway would: scores, profile, rules, and the state machine that raises and clears.

A sensor that is stuck has an alarm of its own, from then until it moves; what is near another alarm is one with it.
The state of the rules is a value, so the clean recording is walked once, and a copy with a fault goes on from the state
right before the fault: what follows is what the gateway would have said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.building_alarms.data import Event, Sensor
from fedgate.firmware_sim.studies.building_alarms.options import CONTEXT, Method
from fedgate.firmware_sim.studies.esn_streams import options
from fedgate.firmware_sim.studies.esn_streams.methods import scorers
from fedgate.firmware_sim.studies.esn_streams.rows import TRAIN, WATCHED, Gateway, Streams, Stretch
from fedgate.models.alarms import profile, rules, threshold
from fedgate.models.alarms.profile import Profile
from fedgate.models.alarms.rule_calibration import Baseline, calibrate
from fedgate.models.alarms.rules import Calibrated, Height, RulesState
from fedgate.models.alarms.threshold import AlarmSpec, AlarmState
from fedgate.models.arrays import NEW_SERIES, Floats
from fedgate.models.time_units import NS

LATER_S = 2_700 * 7 * 86_400  # whole weeks: a profile takes no time before 2020 for a clock that was set
WARM_ROWS = 288  # before a fault, for the state of a network to settle

Scores = Callable[
    [Floats, NDArray[np.int64]], Floats
]  # rows (n, F) and missing (n,) -> (n,), NaN where nothing can be said


STUCK = "stuck"


class Alarm(NamedTuple):
    """First and last row of an alarm, and the rule that raised it, or `stuck`."""

    first: int
    last: int
    rule: str


class Context(NamedTuple):
    """The profile of the watched columns, and the units it is in."""

    profile: Profile
    centre: Floats
    scale: Floats


class Guard(NamedTuple):
    """All that judges one sensor."""

    method: Method
    spec: AlarmSpec
    scores: Scores | None
    context: Context | None
    rules: Calibrated
    merge_rows: float


class State(NamedTuple):
    """What is remembered between rows."""

    rules: RulesState = RulesState()
    alarm: AlarmState = AlarmState()
    is_stuck: bool = False

    def raised_by(self, height: Height | None) -> str | None:
        """Return the rule of the alarm that stands; None where none does."""
        if self.alarm.active and height is not None:
            return height.rule
        return STUCK if self.is_stuck else None


def scores_of(method: Method, sensors: list[Sensor], seed: int) -> dict[str, Scores]:
    """Return how each sensor's rows are scored by its name; empty where no rule asks. A network is trained by all
    sensors together (`incfed`) on the rows that may train, and predicts the watched columns alone.
    """
    if method.score == "none":
        return {}
    if method.score == "last value":
        return {sensor.name: _last_value(sensor) for sensor in sensors}
    gateways = []
    for sensor in sensors:
        role = np.where(np.arange(len(sensor.x)) < sensor.trained, TRAIN, WATCHED)
        x = sensor.x[:, sensor.columns]
        gateways.append(Gateway(sensor.name, (Stretch(x, sensor.missing, np.zeros_like(role), role),)))
    known = options.Method(model="esn", data="federated")
    found, _ = scorers(known, method.network, Streams(tuple(gateways), 1.0, 1), (), seed)
    return {sensor.name: _watched_only(sensor, found[sensor.name]) for sensor in sensors}


def _watched_only(sensor: Sensor, scorer: Scores) -> Scores:
    columns = sensor.columns
    return lambda x, missing: scorer(x[:, columns], missing)


def _last_value(sensor: Sensor) -> Scores:
    columns = sensor.columns
    scale = np.maximum(sensor.x[: sensor.trained, columns].std(axis=0), 1e-9)

    def score(x: Floats, missing: NDArray[np.int64]) -> Floats:
        changes = np.abs(np.diff(x[:, columns], axis=0, prepend=x[:1, columns])) / scale
        return np.asarray(np.where(missing == NEW_SERIES, np.nan, changes.max(axis=1)))

    return score


def guarded(
    method: Method, sensor: Sensor, false_alarms_per_day: float, merge_s: float, scores: Scores | None
) -> Guard:
    """Return what judges a sensor, calibrated on its baseline; a score only on the rows that did not train it.

    Raises `fedgate.models.alarms.threshold.CalibrationError` where no rule has a level.
    """
    spec, head = AlarmSpec(false_alarms_per_day=false_alarms_per_day), slice(sensor.begin)
    x, missing = sensor.x[head], sensor.missing[head]
    found = np.full(len(x), np.nan)
    if scores is not None:
        found[sensor.trained :] = scores(x, missing)[sensor.trained :]
    context = _context(method, sensor)
    extra = np.full(len(x), np.nan)
    for row in range(sensor.trained, len(x)) if context is not None else ():
        said = _deviation(method, sensor, context, row, x[row])
        extra[row] = np.nan if said is None else said
    settings = method.rules.model_copy(update={"watched": sensor.watched, "merge_s": merge_s})
    baseline = Baseline(found, x, missing, {CONTEXT: extra})
    known = calibrate(settings, spec, baseline, sensor.names, sensor.hop_s)
    if method.times_largest is not None:
        levels = {
            name: each._replace(level=method.times_largest * each.largest) for name, each in known.by_rule.items()
        }
        known = replace(known, by_rule=levels)
    return Guard(method, spec, scores, context, known, merge_s / sensor.hop_s)


def _context(method: Method, sensor: Sensor) -> Context | None:
    if method.profile is None:
        return None
    x = sensor.x[: sensor.trained, sensor.columns]
    centre, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
    places = profile.cells(method.profile, _times_ns(sensor, slice(len(x))), np.zeros((len(x), 0)))
    own = profile.sums(method.profile, places, (x - centre) / scale)
    return Context(profile.made(method.profile, own), centre, scale)


def _times_ns(sensor: Sensor, rows: slice) -> NDArray[np.int64]:
    return np.asarray((sensor.seconds[rows] + LATER_S) * NS, dtype=np.int64)


def _deviation(method: Method, sensor: Sensor, context: Context | None, row: int, x: Floats) -> float | None:
    if method.profile is None or context is None:
        return None
    place = int(profile.cells(method.profile, _times_ns(sensor, slice(row, row + 1)), np.zeros((1, 0)))[0])
    return profile.deviation(context.profile, place, (x[sensor.columns] - context.centre) / context.scale)


def watched(guard: Guard, sensor: Sensor) -> tuple[list[Alarm], list[State], list[Height | None]]:
    """Return the alarms of the clean recording after its baseline, and state and height after every row."""
    scores = None if guard.scores is None else guard.scores(sensor.x, sensor.missing)
    state, states, heights = State(), list[State](), list[Height | None]()
    for row in range(len(sensor.x)):
        state, height = _step(guard, sensor, state, row, sensor.x[row], scores)
        if row < sensor.begin:
            state = State(state.rules)  # commissioning: nothing is raised
        states.append(state)
        heights.append(height)
    return _alarms(states, heights, sensor.begin, guard.merge_rows), states, heights


def begun(guard: Guard, sensor: Sensor, states: list[State], event: Event) -> Alarm | None:
    """Return the first alarm that a fault which was put in raises."""
    if event.x is None:
        raise ValueError(f"event {event.kind!r} at row {event.start}: expected the rows with the fault in them")
    first = max(event.start - WARM_ROWS, 0)
    scores = None
    if guard.scores is not None:
        x, missing = sensor.x[first : event.stop].copy(), sensor.missing[first : event.stop].copy()
        x[event.start - first :], missing[0] = event.x, NEW_SERIES
        scores = np.concatenate([np.full(first, np.nan), guard.scores(x, missing)])
    state = states[event.start - 1]
    if state.alarm.active or state.is_stuck:
        return None
    for row, values in enumerate(event.x, start=event.start):
        state, height = _step(guard, sensor, state, row, values, scores)
        by = state.raised_by(height)
        if by is not None:
            return Alarm(row, row, by)
    return None


def _step(
    guard: Guard, sensor: Sensor, state: State, row: int, values: Floats, scores: Floats | None
) -> tuple[State, Height | None]:
    score = None if scores is None or np.isnan(scores[row]) else float(scores[row])
    extra = {} if guard.context is None else {CONTEXT: _deviation(guard.method, sensor, guard.context, row, values)}
    t_ns = int(sensor.seconds[row]) * NS
    remembered, height, still = rules.step(guard.rules, state.rules, t_ns, score, values, extra)
    is_stuck = bool(still.stuck) or (state.is_stuck and not still.moved)
    if height is None:
        return State(remembered, state.alarm, is_stuck), None
    alarm, _ = threshold.update(guard.rules.levels, guard.spec, state.alarm, t_ns, height.value)
    return State(remembered, alarm, is_stuck), height


def _alarms(states: list[State], heights: list[Height | None], begin: int, merge_rows: float) -> list[Alarm]:
    """Return the alarms from row `begin` on, those less than `merge_rows` apart as one."""
    found: list[Alarm] = []
    for row in range(begin, len(states)):
        by = states[row].raised_by(heights[row])
        if by is None:
            continue
        if found and row - found[-1].last <= merge_rows:
            found[-1] = found[-1]._replace(last=row)
        else:
            found.append(Alarm(row, row, by))
    return found
