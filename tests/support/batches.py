"""Batches of scores, read as whoever wants the single windows reads them, and summaries of features."""

from __future__ import annotations

from typing import Any

from fedgate.config.protocol.feature_summary import FeatureSummary
from fedgate.config.protocol.messages import Score
from fedgate.config.protocol.scores import MS, Scores
from fedgate.models.time_units import NS


def spread(batch: Scores) -> list[Score]:
    """Return the windows of a batch as they would have been published one by one."""
    rules = {index: name for name, found in batch.rules.items() for index in found}
    return [
        Score(
            t_ns=batch.t_ns + after_ms * MS,
            score=score,
            level=batch.level,
            alarm=index in batch.alarms,
            model_version=batch.model_version,
            rule=rules.get(index, "score"),
        )
        for index, (after_ms, score) in enumerate(zip(batch.after_ms, batch.scores, strict=True))
    ]


def make_summary(
    t_ns: int, mean: float = 1.0, deviation: float = 0.5, windows: int = 10, **more: Any
) -> FeatureSummary:
    """Return what one feature was in windows of an hour."""
    given = {
        "t_ns": t_ns,
        "last_ns": t_ns + 600 * NS,
        "windows": windows,
        "features": ("load.level",),
        "units": ("kN",),
    }
    values = {"means": (mean,), "deviations": (deviation,), "least": (mean - 2.0,), "most": (mean + 2.0,)}
    return FeatureSummary.model_validate({**given, **values, "clock": "synchronised", **more})
