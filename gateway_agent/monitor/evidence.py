"""What a gateway has measured beside an anomaly when it raises it: weather, load, supply, and a boot before it."""

from __future__ import annotations

from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.pipeline.pipeline import Pipeline, stack_rows
from fedgate.models.alarms.attribution import Columns, Evidence, evidence_of
from fedgate.models.alarms.threshold import Transition
from fedgate.models.features.spec import feature_names
from fedgate.models.time_units import NS

BOOT_S = 900.0  # within which the first windows after a boot end
CALENDAR = "calendar."  # begins the names of features that say what the hour or the day is


def measure_evidence(pipeline: Pipeline, context: Context, transition: Transition) -> tuple[Evidence, Evidence]:
    """Return what weather (with load) and power say of an anomaly that is raised now."""
    onset_ns, t_ns = transition.onset_ns, transition.t_ns
    since = [seen for seen in pipeline.recent if seen.end_ns is not None and onset_ns <= seen.end_ns <= t_ns]
    if not since:
        return "", ""
    baseline, is_from_boot = stack_rows(pipeline.baseline), _is_from_boot(pipeline, context, onset_ns)
    return evidence_of(_find_columns(context), baseline, stack_rows(since), is_from_boot=is_from_boot)


def _find_columns(context: Context) -> Columns:
    names, spec = feature_names(context.settings.features), context.settings.alarm.covariates
    weather, power = (tuple(names.index(name) for name in given) for given in (spec.weather, spec.power))
    return Columns(weather, power, tuple(place for place, name in enumerate(names) if name.startswith(CALENDAR)))


def _is_from_boot(pipeline: Pipeline, context: Context, onset_ns: int) -> bool | None:
    """Tell whether an anomaly began with the first window after a boot: what was calm first did not come with it."""
    after_ns = context.monotonic_ns(onset_ns)
    if after_ns < 0:
        return None
    return after_ns <= BOOT_S * NS and pipeline.recent[0].end_ns == onset_ns
