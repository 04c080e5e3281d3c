"""Batches of scores, read as whoever wants the single windows reads them."""

from __future__ import annotations

from fedgate.config.protocol.messages import Score
from fedgate.config.protocol.scores import MS, Scores


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
