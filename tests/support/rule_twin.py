"""Alarm rules as a slow twin sees them: every statistic from its definition, over the whole past anew each time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedgate.models.alarms.expectation import BRIDGED_ROWS, FOLDS, LARGEST, RIDGE
from fedgate.models.alarms.rule_calibration import Baseline, calibrate
from fedgate.models.alarms.rule_statistics import CLIP, HIGHEST_SUM
from fedgate.models.alarms.rules import Calibrated, Height, RuleSpec, RulesState, Still, step
from fedgate.models.alarms.threshold import AlarmSpec
from fedgate.models.arrays import Floats, generator

HOP_S, NS = 60.0, 10**9
NAMES = ("a", "b", "c")
LAGS, HEAD, COUNT = 3, 500, 700
ALARM = AlarmSpec(false_alarms_per_day=20.0)
KINDS: dict[str, dict[str, object]] = {
    "point": {"kind": "point"},
    "sudden": {"kind": "point", "on": "values"},
    "collective": {"kind": "collective", "on": "values", "count": 3, "of": 5},
    "slow": {"kind": "slow", "time_s": 600.0},
    "slow score": {"kind": "slow", "on": "score", "time_s": 600.0},
    "level": {"kind": "slow", "on": "level", "time_s": 1_200.0},
    "cumulative": {"kind": "cumulative", "slack": 0.7},
    "noise": {"kind": "noise", "time_s": 300.0},
    "stuck": {"kind": "stuck", "least_s": 300.0},
    "context": {"kind": "given"},
}
JUDGING = tuple(name for name in KINDS if name != "stuck")  # rules with a height


def spec_of(*names: str, **more: object) -> RuleSpec:
    return RuleSpec.model_validate({"rules": {name: KINDS[name] for name in names}, "lags": LAGS, **more})


def recording(count: int = COUNT, seed: str = "rules") -> tuple[Floats, Floats]:
    """Scores (n,) and features (n, 3): two that follow each other slowly, and one of its own."""
    rng = generator(0, 0, seed)
    noise = rng.normal(size=(count, 3))
    x = np.zeros((count, 3))
    for row in range(1, count):
        x[row] = 0.9 * x[row - 1] + noise[row] + [0.0, 0.5 * noise[row, 0], 0.0]
    return rng.gumbel(size=count), 20.0 + x * [1.0, 3.0, 0.1]


SCORES, VALUES = recording()
MISSING = np.zeros(COUNT, dtype=np.int64)
MISSING[[0, 120, 300]] = -1, BRIDGED_ROWS, 40
EXTRA = np.abs(VALUES[:, 0] - 20.0)


def calibrated(spec: RuleSpec) -> Calibrated:
    head = slice(HEAD)
    extra = {"context": EXTRA[head]} if "context" in spec.rules else {}
    return calibrate(spec, ALARM, Baseline(SCORES[head], VALUES[head], MISSING[head], extra), NAMES, HOP_S)


def times_of(missing: Sequence[int]) -> list[int]:
    return [int(HOP_S * NS) * place for place in np.cumsum(np.maximum(missing, 0) + 1).tolist()]


def walked(
    known: Calibrated, rows: range, state: RulesState | None = None, values: Floats = VALUES
) -> tuple[list[Height | None], RulesState]:
    """Return the height of every row and the state after them."""
    told, state = walked_whole(known, rows, state, values)
    return [height for height, _ in told], state


def walked_whole(
    known: Calibrated, rows: range, state: RulesState | None = None, values: Floats = VALUES
) -> tuple[list[tuple[Height | None, Still]], RulesState]:
    """Return the height of every row and what is stuck after it, and the state after them all."""
    state, found, t_ns = state or RulesState(), [], times_of(MISSING.tolist())
    for row in rows:
        extra = {"context": float(EXTRA[row])}
        state, height, still = step(known, state, t_ns[row], float(SCORES[row]), values[row], extra)
        found.append((height, still))
    return found, state


class Twin:
    """Every statistic from its definition, of a series that begins at `start` and ends with a row."""

    def __init__(self, known: Calibrated, weights: Floats, spread: Floats) -> None:
        self.known, self.weights, self.spread = known, weights, spread
        head = VALUES[:HEAD]
        self.z = np.clip((VALUES - head.mean(axis=0)) / head.std(axis=0), -LARGEST, LARGEST)
        self.residuals = [self._residual(row) for row in range(COUNT)]

    def history(self, row: int) -> list[int]:
        """Rows of the unbroken series up to one, held ones repeated, oldest first."""
        found = [row]
        while 0 <= MISSING[found[-1]] <= BRIDGED_ROWS:
            found += [found[-1] - 1] * (int(MISSING[found[-1]]) + 1)
        return found[::-1]

    def _residual(self, row: int) -> Floats | None:
        past = self.history(row)[:-1][::-1]
        if len(past) < LAGS:
            return None
        found = []
        for feature in range(3):
            x = regressors(self.z, past[:LAGS], row, feature)
            found.append((self.z[row, feature] - x @ self.weights[feature]) / self.spread[feature])
        return np.array(found)

    def series(self, row: int, on: str) -> list[Floats]:
        """What a rule was shown since it last began."""
        found: list[Floats] = []
        for each in dict.fromkeys(self.history(row)):
            if on == "score":
                known = np.array([(SCORES[each] - self.known.score_median) / self.known.score_spread])
            else:
                residual = self.z[each] if on == "level" else self.residuals[each]
                if residual is None:
                    found = []
                    continue
                known = residual
            found.append(np.clip(known, -CLIP, CLIP))
        return found

    def mean(self, row: int, on: str, time_s: float, power: int = 1) -> Floats | None:
        shown, weight = self.series(row, on), 1.0 - math.exp(-HOP_S / time_s)
        if len(shown) * HOP_S < time_s:
            return None
        return np.asarray(
            np.sum([weight * (1.0 - weight) ** age * z**power for age, z in enumerate(shown[::-1])], axis=0)
        )

    def statistic(self, name: str, row: int) -> float | None:
        residual = self.residuals[row]
        if name == "sudden":
            return None if residual is None else float(np.abs(residual).max())
        if name == "collective":
            last = [self.residuals[each] for each in dict.fromkeys(self.history(row))][-5:]
            sizes = [float(np.abs(each).max()) for each in last if each is not None]
            return sorted(sizes)[-3] if len(sizes) == 5 else None
        if name == "cumulative":
            shown = self.series(row, "values")
            level = HIGHEST_SUM * self.known.by_rule["cumulative"].level
            total = np.zeros((2, 3))
            for z in shown:
                total = np.clip(total + np.array([z, -z]) - 0.7, 0.0, level)
            return float(total.max()) if shown else None
        of = {"slow": ("values", 600.0), "slow score": ("score", 600.0), "level": ("level", 1_200.0)}
        if name in of:
            mean = self.mean(row, *of[name])
            return None if mean is None else float(mean.max() if name == "slow score" else np.abs(mean).max())
        if name == "noise":
            mean = self.mean(row, "values", 300.0, power=2)
            return None if mean is None else math.sqrt(float(mean.max()))
        return float({"point": SCORES, "context": EXTRA}[name][row])


def runs_of(values: Floats, row: int) -> list[int]:
    """For how many windows each feature has not changed, in the series that ends with a row."""
    rows = list(dict.fromkeys(Twin.history(Twin.__new__(Twin), row)))[::-1]
    same = [[values[each, feature] == values[row, feature] for each in rows] for feature in range(3)]
    return [(each.index(False) if False in each else len(each)) - 1 for each in same]


def regressors(z: Floats, past: Sequence[int], row: int, feature: int) -> Floats:
    beside = [j for j in range(3) if j != feature]
    return np.concatenate([z[list(past), feature], z[row, beside], z[past[0], beside], [1.0]])


def solved(x: Floats, y: Floats) -> Floats:
    pull = math.sqrt(RIDGE * len(x)) * np.eye(x.shape[1])
    return np.asarray(np.linalg.lstsq(np.vstack([x, pull]), np.concatenate([y, np.zeros(len(pull))]), rcond=None)[0])


def ridge_twin() -> tuple[Floats, Floats]:
    """Weights and spreads by least squares with rows that pull to zero; the spread from the other folds' weights."""
    twin = Twin.__new__(Twin)
    head = VALUES[:HEAD]
    z = np.clip((VALUES - head.mean(axis=0)) / head.std(axis=0), -LARGEST, LARGEST)
    pasts = {row: twin.history(row)[:-1][::-1][:LAGS] for row in range(HEAD)}
    rows = [row for row, past in pasts.items() if len(past) == LAGS]
    weights, spread = [], []
    for feature in range(3):
        x = np.array([regressors(z, pasts[row], row, feature) for row in rows])
        y = z[rows, feature]
        fold = np.array([index * FOLDS // len(rows) for index in range(len(rows))])
        left = [y[fold == k] - x[fold == k] @ solved(x[fold != k], y[fold != k]) for k in range(FOLDS)]
        weights.append(solved(x, y))
        spread.append(1.4826 * np.median(np.abs(np.concatenate(left))))
    return np.array(weights), np.array(spread)
