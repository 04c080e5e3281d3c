"""What gateways did while they watched a replayed recording, and what that was worth against its ground truth.

The judge stands apart from the page and the picture so that a test can check every figure without drawing anything.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim import metrics


class OutcomeError(ValueError):
    """A trace that contradicts itself, so that no figure drawn from it would mean anything."""


@dataclass(frozen=True)
class AlarmSpan:
    """One alarm, in recording seconds.

    Attributes:
        onset_s: when the first of the windows that led to it ended.
        raised_s: when it was raised.
        cleared_s: when it was cleared, None while it stands.
    """

    alarm_id: str
    onset_s: float
    raised_s: float
    cleared_s: float | None


@dataclass(frozen=True, eq=False)
class Trace:
    """What one gateway did while it watched; windows it was commissioned or trained on are not in it.

    Attributes:
        sensor: name and unit, as in "FRC-01 [kN]".
        t_s: (n,) window end times in recording seconds, ascending.
        score: (n,) higher is more anomalous.
        level: (n,) raise level in force; nan where there was none yet.
        label: (n,) 0 healthy, 1 damaged, -1 neither, for instance a window that spans the change.
        alarmed: (n,) alarm state in force at that window.
        model_version: (n,) version of the model that scored it.
        alarms: in the order they were raised.
        window_s: length of every window.
        bytes_sent: from this gateway to the broker, over the whole run; None where there was no broker.
        trivial: (n,) score of a trivial detector for comparison, or None.
    """

    gateway: str
    sensor: str
    t_s: NDArray[np.float64]
    score: NDArray[np.float64]
    level: NDArray[np.float64]
    label: NDArray[np.int64]
    alarmed: NDArray[np.bool_]
    model_version: NDArray[np.int64]
    alarms: tuple[AlarmSpan, ...]
    window_s: float
    bytes_sent: int | None
    bytes_received: int | None
    trivial: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        for name in ("score", "level", "label", "alarmed", "model_version", "trivial"):
            column = getattr(self, name)
            if column is not None and column.shape != self.t_s.shape:
                raise OutcomeError(f"{self.gateway}: {name} has shape {column.shape}, expected {self.t_s.shape} as t_s")
        if np.any(np.diff(self.t_s) <= 0):
            raise OutcomeError(f"{self.gateway}: t_s does not ascend; give every window once, in order of time")
        if not np.isin(self.label, (-1, 0, 1)).all():
            raise OutcomeError(f"{self.gateway}: labels {np.unique(self.label).tolist()}, expected only -1, 0 and 1")
        if np.isnan(self.score).any():
            raise OutcomeError(f"{self.gateway}: {np.isnan(self.score).sum()} scores are nan; leave those windows out")


@dataclass(frozen=True)
class Scenario:
    """What was replayed, for the reader of the report.

    Attributes:
        data: one paragraph: which recording, its licence, what is damaged, really or by injection.
        damage: spans (start_s, end_s, what is damaged), ascending; empty when nothing is.
        commissioning: (start_s, end_s) during which the gateways learnt what normal is.
        notes: what the reader must know that the figures do not say.
    """

    title: str
    data: str
    damage: tuple[tuple[float, float, str], ...]
    commissioning: tuple[float, float]
    notes: tuple[str, ...] = ()

    @property
    def damage_start_s(self) -> float:
        """Infinity when nothing is damaged."""
        return self.damage[0][0] if self.damage else float("inf")


@dataclass(frozen=True)
class GatewayResult:
    """The figures of one gateway; nan means that nothing was measured, see `fedgate.firmware_sim.metrics`.

    Attributes:
        hours_healthy: time watched without damage: how much the false-alarm rate rests on.
        false_alarms: alarms raised outside of damage.
        false_alarms_per_hour_bound: where there were none, the rate that `hours_healthy` excludes at 95 %.
        detection_delay_s: from the first moment of damage to the first alarm raised while it lasts; None without one.
        recall, precision: of windows by alarm state, whole trace.
        auc, trivial_auc: of the score, and of the trivial detector's where there is one.
        model_version: the last one, None without a window.
    """

    gateway: str
    sensor: str
    windows: int
    windows_healthy: int
    windows_damaged: int
    hours_healthy: float
    false_alarms: int
    false_alarms_per_hour: float
    false_alarms_per_hour_bound: float | None
    detected: bool
    detection_delay_s: float | None
    recall: float
    precision: float
    auc: float
    trivial_auc: float | None
    bytes_sent: int | None
    bytes_received: int | None
    model_version: int | None

    @property
    def verdict(self) -> str:
        """One line that says how the gateway did."""
        if self.windows == 0:
            return "scored no window"
        if self.windows_damaged == 0:
            found = "saw nothing damaged"
        elif self.detection_delay_s is None:
            found = "not detected"
        else:
            found = f"detected after {round(self.detection_delay_s, 1):g} s"
        count = {0: "no false alarm", 1: "1 false alarm"}.get(self.false_alarms, f"{self.false_alarms} false alarms")
        area = "" if np.isnan(self.auc) else f"  ·  AUC {self.auc:.3f}"
        return f"{found}  ·  {count} in {duration(self.hours_healthy)}{area}"


def evaluate(trace: Trace, scenario: Scenario) -> GatewayResult:
    """Judge one gateway. Windows labelled -1 count for nothing but the total."""
    judged = trace.label >= 0  # (n,)
    label, alarmed = trace.label[judged], trace.alarmed[judged]
    healthy_s = metrics.watched_s(trace.t_s[trace.label == 0], trace.window_s)
    raised_s = np.array([alarm.raised_s for alarm in trace.alarms], dtype=np.float64)  # (k,)
    is_true = [any(start <= at_s <= end + trace.window_s for start, end, _ in scenario.damage) for at_s in raised_s]
    false_alarms = len(is_true) - sum(is_true)
    delay_s = metrics.detection_delay_s(raised_s, tuple((start, end) for start, end, _ in scenario.damage))
    return GatewayResult(
        gateway=trace.gateway,
        sensor=trace.sensor,
        windows=trace.t_s.size,
        windows_healthy=int((label == 0).sum()),
        windows_damaged=int((label == 1).sum()),
        hours_healthy=healthy_s / metrics.SECONDS_PER_HOUR,
        false_alarms=false_alarms,
        false_alarms_per_hour=metrics.per_hour(false_alarms, healthy_s),
        false_alarms_per_hour_bound=metrics.rate_bound_per_hour(false_alarms, healthy_s),
        detected=delay_s is not None,
        detection_delay_s=delay_s,
        recall=metrics.recall(label, alarmed),
        precision=metrics.precision(label, alarmed),
        auc=metrics.roc_auc(label, trace.score[judged]),
        trivial_auc=None if trace.trivial is None else metrics.roc_auc(label, trace.trivial[judged]),
        bytes_sent=trace.bytes_sent,
        bytes_received=trace.bytes_received,
        model_version=int(trace.model_version[-1]) if trace.t_s.size else None,
    )


def duration(hours: float) -> str:
    """A length of time in the largest unit that leaves a figure above one."""
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{hours * 60:.1f} min" if hours * 60 >= 1 else f"{hours * 3600:.0f} s"
