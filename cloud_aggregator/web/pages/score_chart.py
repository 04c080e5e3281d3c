"""Scores of a gateway as far as the store has them: the newest, of its last status, and of before those that were made
while it had no link, or around an alarm. The others are for whoever listens to MQTT, and nobody keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.messages import Status
from fedgate.config.protocol.scores import MS, Scores
from fedgate.config.web.charts import Facts, Point, draw_scores, list_points
from fedgate.models.time_units import DAY_NS

BATCHES, TRAILS, WINDOWS = 10, 5, 2_000  # the newest of each
PAST_NS, AHEAD_NS = 400 * DAY_NS, DAY_NS  # beyond which a clock was wrong, and the axis would show nothing else


def read_chart(store: Store, gateway: str, status: Status | None, hop_s: float, now_ns: int) -> Facts | None:
    """Return the newest scores of a gateway with their level, as a chart; None where there are none."""
    points = read_points(store, gateway, status)
    by_time = {one.t_ns: one for one in points if now_ns - PAST_NS < one.t_ns < now_ns + AHEAD_NS}
    out_of_time = len({one.t_ns for one in points} - by_time.keys())
    chosen = [by_time[t_ns] for t_ns in sorted(by_time)][-WINDOWS:]
    return draw_scores(chosen, hop_s) | {"out_of_time": out_of_time} if points else None


def read_points(store: Store, gateway: str, status: Status | None) -> list[Point]:
    """Return the windows of a gateway that are known, those of its last status at the end."""
    latest = [] if status is None or status.trail is None else list_points(status.trail)
    return [*_list_batched(store, gateway), *_list_trailed(store, gateway), *latest]


def _list_batched(store: Store, gateway: str) -> Iterable[Point]:
    for row in store.read_newest("scores", BATCHES, "body", gateway=gateway):
        batch = Scores.model_validate_json(row["body"])
        for after_ms, score in zip(batch.after_ms, batch.scores, strict=True):
            yield Point(batch.t_ns + after_ms * MS, score, batch.level)


def _list_trailed(store: Store, gateway: str) -> Iterable[Point]:
    for row in store.read_newest("evidence", TRAILS, "body", gateway=gateway):
        trail = AlarmEvidence.model_validate_json(row["body"]).trail
        if trail is not None:
            yield from list_points(trail)
