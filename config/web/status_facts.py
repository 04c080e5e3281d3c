"""What pages say of a gateway by its status, be it the newest that came or that of this moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.messages import SourceReport, Status
from fedgate.config.web.charts import Facts
from fedgate.models.time_units import DAY_S

NAMES_SHOWN = 50  # of what a gateway says by name: it may say ten thousand
NOT_RECEIVED: Facts = {"source": "", "age_s": None, "rate_hz": None, "value": None, "unit": ""}


def describe_doing(status: Status) -> str:
    """Return what a gateway that is online does."""
    if status.baseline_windows < status.baseline_needed:
        return f"learns what is normal there: {status.baseline_windows} of {status.baseline_needed} windows"
    if status.model_version == 0:
        return "waits for its first model"
    if status.settling:
        return f"lets model {status.model_version} see its first windows"
    return f"watches with model {status.model_version}"


def list_problems(status: Status) -> Iterable[str]:
    """Yield what a gateway itself says is not as it should be."""
    named = {
        "store": status.store_problem,
        "link": status.link,
        "may not know the newest": status.stale,
        "refused": status.refusal,
        "training": status.training_remarks,
    }
    yield from (f"{what}: {text}" for what, text in named.items() if text)
    if status.clock == "unsynchronised":
        yield "clock: not synchronised, so its times are its own"


def describe_status(status: Status) -> Facts:
    """Return a status as it is shown: of what may be ten thousand names the first."""
    facts = status.model_dump(mode="json")
    for name in ("dropped", "rejected", "values_filled"):
        facts[name] = dict(islice(facts[name].items(), NAMES_SHOWN))
    return facts | {"libraries": facts["libraries"][:NAMES_SHOWN]}


def describe_channels(
    channels: Iterable[str],
    status: Status,
    sources: Mapping[str, SourceReport],
    faults: Mapping[str, str],
    evidence: AlarmEvidence | None,
    seen_ns: int | None,
) -> list[Facts]:
    """Return what is known of the sensors: how they were received, what was bridged, what is faulty by the `faults` by
    cause, and how the newest evidence, of the moment `seen_ns`, found them.
    """
    health = {one.channel: one for one in evidence.health} if evidence is not None else {}
    received = list_received(sources)
    found = []
    for name in islice(dict.fromkeys((*received, *channels, *status.values_filled)), NAMES_SHOWN):
        seen, cause = health.get(name), f"faulty-{name}"
        found.append(
            {
                "channel": name,
                **received.get(name, NOT_RECEIVED),
                "filled": status.values_filled.get(name, 0),
                "fault": (faults[cause] or cause) if cause in faults else None,
                "outside": None if seen is None else seen.outside,
                "features": None if seen is None else seen.features,
                "seen_ns": None if seen is None else seen_ns,
            }
        )
    return found


def list_received(sources: Mapping[str, SourceReport]) -> dict[str, Facts]:
    """Return by channel from which source it comes and how it was received last."""
    found = {}
    for name, one in sources.items():
        for place, channel in enumerate(one.channels):
            last = {"value": one.values[place], "unit": one.units[place]} if one.values else {}
            found[channel] = NOT_RECEIVED | {"source": name, "age_s": one.age_s, "rate_hz": one.rate_hz} | last
    return found


def compare_promise(status: Status, hop_s: float) -> Facts:
    """Return how many alarms a gateway promised for the time that it watched with its model, and how many came."""
    days = status.model_windows * hop_s / DAY_S
    return {
        "days": days,
        "promised_per_day": status.promised_alarms_per_day,
        "promised": status.promised_alarms_per_day * days,
        "raised": status.model_alarms,
    }
