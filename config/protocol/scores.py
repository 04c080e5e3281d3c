"""Scores of windows that were made while there was no link, gathered into batches that are kept and acknowledged.

A score that is received live is worth a QoS 0 message and no more. What a structure did during an outage is another
matter: somebody will ask. So a gateway without a link keeps its scores, many to a message, since each message costs a
commit on its flash and a receipt on the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from fedgate.config.protocol.messages import ClockQuality, Count, Message, Moment, Name, Score

WINDOWS_MAX = 1_000  # in one batch; more is no batch of ours
DIGITS = 6  # of a score: float32 holds 7, and nobody reads as many
MS = 1_000_000


class Scores(Message):
    """Consecutive windows of one model and one level; the window ends of `after_ms` count from `t_ns`."""

    t_ns: Moment
    after_ms: Annotated[tuple[Count, ...], Field(min_length=1, max_length=WINDOWS_MAX)]
    scores: Annotated[tuple[float, ...], Field(max_length=WINDOWS_MAX)]
    alarms: Annotated[tuple[Count, ...], Field(max_length=WINDOWS_MAX)] = ()  # which windows, by index, lay in an alarm
    level: float
    # Of others than `score`: in which windows.
    rules: Annotated[dict[Name, tuple[Count, ...]], Field(max_length=WINDOWS_MAX)] = Field(default_factory=dict)
    model_version: Count
    clock: ClockQuality = "unknown"
    boot_id: Name = ""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        count = len(self.after_ms)
        if len(self.scores) != count:
            raise ValueError(f"scores: {len(self.scores)} for {count} windows")
        named = [*self.alarms, *(index for indices in self.rules.values() for index in indices)]
        if any(index >= count for index in named):
            raise ValueError(f"window {max(named)} of {count} is named")
        return self


def gather(scores: Sequence[Score], clock: ClockQuality, boot: str) -> Scores:
    """Return scores of one model and level, times rising, as one batch; the first has its level and model."""
    first = scores[0]
    rules: dict[str, tuple[int, ...]] = {}
    for index, one in enumerate(scores):
        if one.rule != "score":
            rules[one.rule] = (*rules.get(one.rule, ()), index)
    return Scores(
        t_ns=first.t_ns,
        after_ms=tuple(round((one.t_ns - first.t_ns) / MS) for one in scores),
        scores=tuple(float(f"{one.score:.{DIGITS}g}") for one in scores),
        alarms=tuple(index for index, one in enumerate(scores) if one.alarm),
        level=first.level,
        rules=rules,
        model_version=first.model_version,
        clock=clock,
        boot_id=boot,
    )
