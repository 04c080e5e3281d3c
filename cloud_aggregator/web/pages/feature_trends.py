"""How features that gateways chose to publish changed from day to day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from fedgate.cloud_aggregator.web.pages.month import Month
from fedgate.cloud_aggregator.web.pages.page import Context
from fedgate.config.protocol.feature_summary import FeatureSummary, Spread, join
from fedgate.config.web.charts import Facts, make_chart, make_series
from fedgate.models.features.describe import describe_features
from fedgate.models.time_units import DAY_NS, NS

SUMMARIES_SEARCHED = 2_000  # of a gateway, the newest: a month has 744 hours
GATEWAYS_SHOWN = 6
COMPARED_DAYS = 7  # at either end
LATEST_DAYS = 31  # on the page of a gateway
Days = Mapping[int, Spread]  # by the day since 1970


def read_trends(context: Context, month: Month, anomalies: Mapping[str, int]) -> Facts:
    """Return the trends of a month at the gateways that publish features, those with the most anomalies first, and
    which others there are.
    """
    names = context.store.months.list_summarised(month.from_ns, month.until_ns)
    names.sort(key=lambda name: (-anomalies.get(name, 0), name))
    shown = [
        {"gateway": name, "features": read_features(context, name, month.from_ns, month.until_ns)}
        for name in names[:GATEWAYS_SHOWN]
    ]
    return {"gateways": shown, "others": names[GATEWAYS_SHOWN:]}


def read_features(context: Context, gateway: str, from_ns: int, until_ns: int) -> list[Facts]:
    """Return the features that a gateway published last within a time, in the unit that they had last, and how each was
    from day to day by its clock; in `unsynchronised` windows that clock was known to be wrong.
    """
    summaries = context.store.months.read_summaries(gateway, from_ns, until_ns, SUMMARIES_SEARCHED)
    if not summaries:
        return []
    right = [one for one in summaries if one.clock != "unsynchronised"]
    newest, meanings = (right or summaries)[-1], describe_features(context.settings.features, {})
    found = []
    for name, unit in zip(newest.features, newest.units, strict=True):
        own = [one for one in summaries if (name, unit) in zip(one.features, one.units, strict=True)]
        wrong = sum(one.windows for one in own if one.clock == "unsynchronised")
        meaning = meanings.get(name)
        text = "" if meaning is None else ", ".join(filter(None, (meaning.channel, meaning.what)))
        facts = {"feature": name, "text": text, "unit": unit, "unsynchronised": wrong}
        found.append(facts | describe_days(gather_days(own, name)))
    return found


def gather_days(summaries: Iterable[FeatureSummary], name: str) -> Days:
    """Return what a feature was on each day that has windows of it, in their order."""
    found = defaultdict[int, list[Spread]](list)
    for summary in summaries:
        found[summary.t_ns // DAY_NS].append(summary.by_feature()[name])
    return {day: join(spreads) for day, spreads in found.items()}


def describe_days(days: Days) -> Facts:
    """Return the chart of a feature, and its first and last days beside one another: up to a week each, without a day
    in both; by how many standard deviations of the first the mean has moved, None where it never moved or of one day.
    """
    spreads = list(days.values())
    compared = min(COMPARED_DAYS, len(spreads) // 2)
    first, last = join(spreads[:compared] or spreads), join(spreads[-compared:])
    is_known = compared > 0 and first.deviation > 0.0
    return {
        "days": len(spreads),
        "whole": join(spreads)._asdict(),
        "compared_days": compared,
        "first": first._asdict(),
        "last": last._asdict(),
        "moved": (last.mean - first.mean) / first.deviation if is_known else None,
        "chart": draw_days(days),
    }


def draw_days(days: Days) -> Facts:
    """Return the mean of each day with a standard deviation on both sides, with a hole where days are missing."""
    x, spreads = list[float](), list[Spread | None]()
    before: int | None = None
    for day, one in days.items():
        if before is not None and day > before + 1:
            x.append((before + 1.5) * DAY_NS / NS)
            spreads.append(None)
        x.append((day + 0.5) * DAY_NS / NS)
        spreads.append(one)
        before = day
    return make_chart("time", x, [_draw(label, role, side, spreads) for label, role, side in LINES])


LINES = (
    ("mean of the day", "now", 0.0),
    ("standard deviation below", "low", -1.0),
    ("standard deviation above", "high", 1.0),
)


def _draw(label: str, role: str, side: float, spreads: Sequence[Spread | None]) -> Facts:
    values = [None if one is None else one.mean + side * one.deviation for one in spreads]
    return make_series(label, role, values)
