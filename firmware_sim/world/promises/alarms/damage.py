"""Whether damage raises an alarm in a simulated world, where a gateway could see it.

What is damaged, and when, is drawn with the recordings. Models of so small a world do not see all of it, and gateways
do not hear all: an alarm is asked for where the model's own score of a damaged window reaches its level, and the model
had seen enough before it. Alarms count when they are committed, by the time of the world, as the clocks of gateways and
nodes may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.world.environment.setup import FRAME_S, SHIFT
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.pipeline.decision import ScoringModel
from fedgate.gateway_agent.pipeline.pipeline import stack_rows
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.time_units import NS


class Under(NamedTuple):
    """Under what a gateway judges what it hears; where that changes, what was heard before may be judged otherwise."""

    process: int
    version: int  # of the model
    timeline_ns: int


@dataclass
class Watched:
    """A gateway whose structure is damaged now and then."""

    spans: Sequence[tuple[float, float]]  # s of the recording
    delay_s: float  # of the node, behind its recording
    under: Under | None = None  # as of the last frame
    reported: list[tuple[float, str]] = field(default_factory=list)  # when an anomaly was raised or cleared


class Damages:
    """The damages of a world, by gateway."""

    def __init__(self, violate: Callable[[str], None], elapsed_s: Callable[[], float]) -> None:
        self._violate, self._elapsed_s = violate, elapsed_s
        self._watched: dict[str, Watched] = {}
        self.counts = {"damaged": 0}  # frames in which damage had to be seen

    def known(self, device: str, spans: Sequence[tuple[float, float]], delay_s: float) -> None:
        """Take note of when the structure at a gateway will be damaged."""
        self._watched[device] = Watched(spans, delay_s)

    def note_alarm(self, device: str, state: str) -> None:
        """Take note that a gateway has committed an anomaly as raised or cleared."""
        if device in self._watched:
            self._watched[device].reported.append((self._elapsed_s(), state))

    def note_frame(
        self, device: str, until_s: float, under: Under | None, reaches: Callable[[], bool], *, is_handled: bool
    ) -> None:
        """Take note of what became of a frame, whole `until_s` into the recording, and look for an alarm.

        `under` is None where the frame was lost, or the gateway has no model; `reaches` tells whether a damaged window
        that just came reaches the level. One that was handled may have forgotten, or remember anew, what it told.
        """
        one = self._watched.get(device)
        if one is None:
            return
        is_same, one.under = under is not None and under == one.under, under
        first_s = next((first for first, last in one.spans if first < until_s and until_s - FRAME_S < last), None)
        if not is_same or is_handled or first_s is None or not reaches():
            return
        self.counts["damaged"] += 1
        from_s = first_s + one.delay_s
        before = [state for time_s, state in one.reported if time_s < from_s]
        is_raised = any(state == "raised" for time_s, state in one.reported if time_s >= from_s)
        if not is_raised and before[-1:] != ["raised"]:
            self._violate(f"{device} heard damage from {first_s:.0f} s on, and raised no alarm until {until_s:.0f} s")


def reaches_level(judge: ScoringModel, recent: Sequence[FeatureRow], spec: FeatureSpec) -> bool:
    """Tell whether a damaged window among those of the last frame reaches the level of a model that can be asked of it:
    one that remembers says nothing yet of the first windows after a gap that its memory does not outlive.
    """
    if not recent:
        return False
    ends_ns = np.array([seen.end_ns or 0 for seen in recent])
    hops = np.diff(ends_ns) / (spec.hop_s * NS)  # 1 where no window is missing between
    breaks = np.flatnonzero((hops < 0.5) | (hops > judge.model.max_gap_rows + 1.5))
    rows = stack_rows(recent[breaks[-1] + 1 if len(breaks) else 0 :])  # since its memory began
    first = max(judge.model.washout_rows, len(rows) - round(FRAME_S / spec.window_s))
    is_damaged = rows[first:, 0] > SHIFT / 2  # by the level of the load
    return bool((judge.model(rows)[first:][is_damaged] >= judge.levels.raise_level).any())
