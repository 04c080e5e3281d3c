"""What became of features in a month, as far as the aggregator knows: values leave a gateway with its alarms alone."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web.pages.month import Month
from fedgate.config.protocol.evidence import AlarmEvidence, Standout
from fedgate.config.web.charts import Facts, make_chart, make_series
from fedgate.models.time_units import NS

EVIDENCE_SEARCHED = 300  # the newest: each may have 16 KiB
FEATURES_SHOWN, POINTS_LEAST = 4, 3
SPREADS = 3.0  # beside the healthy median


class Named(NamedTuple):
    """A feature of a gateway."""

    gateway: str
    feature: str


def read_trends(store: Store, month: Month) -> Facts:
    """Return the features that stood out most often in the evidence of a month, each with its values as a chart beside
    what is healthy there; and how much evidence that is of.
    """
    found, count = defaultdict[Named, list[tuple[int, Standout]]](list), 0
    for row in store.months.read_evidence(month.from_ns, month.until_ns, EVIDENCE_SEARCHED):
        count += 1
        named = {one.feature: one for one in AlarmEvidence.model_validate_json(row.body).contributions}
        for one in named.values():
            found[Named(row.gateway, one.feature)].append((row.t_ns, one))
    often = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    features = [
        describe_feature(*named, points) for named, points in often[:FEATURES_SHOWN] if len(points) >= POINTS_LEAST
    ]
    return {"evidence": count, "is_cut": count == EVIDENCE_SEARCHED, "features": features}


def describe_feature(gateway: str, feature: str, points: list[tuple[int, Standout]]) -> Facts:
    """Return the values of a feature at alarms, in their order."""
    ordered = sorted(points, key=lambda one: one[0])
    values = [one for _, one in ordered]
    series = [
        make_series("value", "now", [one.value for one in values]),
        make_series("healthy median", "usual", [one.median for one in values]),
        make_series("3 spreads below", "low", [one.median - SPREADS * one.spread for one in values]),
        make_series("3 spreads above", "high", [one.median + SPREADS * one.spread for one in values]),
    ]
    return {
        "gateway": gateway,
        "feature": feature,
        "text": values[-1].text,
        "alarms": len(values),
        "chart": make_chart("time", [t_ns / NS for t_ns, _ in ordered], series),
    }
