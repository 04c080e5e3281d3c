"""Features in plain words: what each kind measures, in hertz and units, and what a value says beside the healthy one.

Energies are told as factors of what is usual, whether a feature is their logarithm, an amplitude or a share; all else
as two values, and where these say nothing, as a distance in healthy spreads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal, NamedTuple, assert_never

from fedgate.models.features.calendar import NAMES, Calendar
from fedgate.models.features.kinds import (
    Bands,
    Electrodermal,
    Moving,
    Pulse,
    Samples,
    Spectrum,
    Statistic,
    Step,
    Welch,
)
from fedgate.models.features.shape import block_of
from fedgate.models.features.spec import FeatureSpec

ENERGY, SHARE, AMPLITUDES = "energy", "share of the energy", "share of the amplitudes"
SAME = 0.05  # how far from 1 a factor must be to say anything
BEYOND = 1e6  # from which factor on there was next to nothing before, or is now
STATISTICS = {
    "level": "mean",
    "deviation": "standard deviation",
    "rms": "root mean square",
    "peak": "peak",
    "crest": "crest factor",
    "skewness": "skewness",
    "kurtosis": "excess kurtosis",
}
OF_CHANNEL = "unit of the channel"
WITHOUT_UNIT = ("crest", "skewness", "kurtosis")
MOMENTS = {
    "hour": "hour of the day",
    "weekday": "day of the week",
    "workday": "working day or not",
    "year": "time of the year",
}


class Meaning(NamedTuple):
    """What a feature is."""

    channel: str  # whose it is; empty where it is of the window itself
    what: str  # such as "3.1-3.4 Hz" or "mean"
    compares: Literal["value", "ratio", "log10", "moment"] = "value"
    power: int = 1  # of a ratio, to become one of energies
    quantity: str = ""  # that a ratio is of
    unit: str = ""


def describe_features(spec: FeatureSpec, units: Mapping[str, str]) -> dict[str, Meaning]:
    """Return what every feature of a specification is, by its name; `units` are those of its channels."""
    units = {**{name: units.get(axes[0], "") for name, axes in spec.magnitude.items()}, **units}
    found: dict[str, Meaning] = {}
    for step in spec.steps:
        names, meanings = step.names(spec, spec.channels), _describe_step(step, spec)
        channels = ("",) if isinstance(step, Calendar) else step.channels or spec.channels
        of_all = [one._replace(channel=channel) for channel in channels for one in meanings]
        for name, one in zip(names, of_all, strict=True):
            found[name] = one._replace(unit=units.get(one.channel, "")) if one.unit == OF_CHANNEL else one
    return found


def _describe_step(step: Step, spec: FeatureSpec) -> list[Meaning]:
    """Return what the features of one channel are, in their order."""
    match step:
        case Statistic(kind=kind):
            return [Meaning("", STATISTICS[kind], unit="" if kind in WITHOUT_UNIT else OF_CHANNEL)]
        case Bands(edges_hz=edges_hz):
            return [Meaning("", f"{low:g}-{high:g} Hz", "log10", 1, ENERGY) for low, high in pairwise(edges_hz)]
        case Spectrum():
            return [Meaning("", f"{hz:.4g} Hz", "ratio", 2, SHARE) for hz in _list_frequencies(step, spec)]
        case Welch(log=is_log, normalise=is_share):
            power, quantity = (1, AMPLITUDES) if is_share else (2, ENERGY)
            compares: Literal["log10", "ratio"] = "log10" if is_log else "ratio"
            return [Meaning("", f"{hz:.4g} Hz", compares, power, quantity) for hz in _list_frequencies(step, spec)]
        case Samples(rate_hz=rate_hz):
            block_s = block_of(spec, rate_hz) / spec.rate_hz
            count = len(step.labels(spec))
            return [Meaning("", f"value {k * block_s:.4g} s into the window", unit=OF_CHANNEL) for k in range(count)]
        case Moving(latest_s=latest_s):
            return [Meaning("", f"last {latest_s:g} s beside the window", unit="deviations")]
        case Electrodermal():
            return [Meaning("", f"{part} part of the skin conductance", unit=OF_CHANNEL) for part in ("slow", "fast")]
        case Pulse():
            return [
                Meaning("", "heart rate", unit="beats a minute"),
                Meaning("", "heart rate variability (RMSSD)", unit="ms"),
            ]
        case Calendar(values=values):
            per_name = len(step.labels(spec))
            return [
                Meaning("", MOMENTS[what], "moment") for what in values for _ in NAMES[what] for _ in range(per_name)
            ]
        case _:
            assert_never(step)


def _list_frequencies(step: Spectrum | Welch, spec: FeatureSpec) -> list[float]:
    bins, resolution_hz = step.bins(spec), spec.rate_hz / step.length(spec)
    return [(k + 1) * resolution_hz for k in range(bins.start, bins.stop)]


def describe_value(meaning: Meaning, value: float, median: float, spread: float) -> str:
    """Return what a value of a feature says beside its healthy median and spread, without its channel."""
    if meaning.compares == "moment":
        return f"the {meaning.what} stands out"
    if meaning.compares != "value" and (factor := _describe_factor(meaning, value, median)):
        return factor
    now, before = f"{value:.4g}", f"{median:.4g}"
    unit = f" {meaning.unit}" if meaning.unit else ""
    if meaning.compares == "value" and now != before:
        never = "and never left" if spread == 0.0 else "usually"
        return f"{meaning.what} is {now}{unit}, {never} {before}{unit}" + " in the baseline" * (spread == 0.0)
    of_what = meaning.what if meaning.compares == "value" else f"{meaning.quantity} at {meaning.what}"
    if spread == 0.0:
        return f"{of_what} has moved, as it never did in the baseline"
    side = "above" if value > median else "below"
    return f"{of_what} is {abs(value - median) / spread:.3g} healthy spreads {side} its median"


def _describe_factor(meaning: Meaning, value: float, median: float) -> str:
    """Return by what factor an energy or a share differs from the usual one; nothing where it hardly does."""
    if meaning.compares == "log10":
        exponent = meaning.power * (value - median)
    elif median > 0.0 and value > 0.0:
        exponent = meaning.power * (math.log10(value) - math.log10(median))
    else:
        exponent = math.inf if value > median else -math.inf if value < median else 0.0
    if abs(exponent) < math.log10(1.0 + SAME):
        return ""
    if exponent > math.log10(BEYOND):
        return f"{meaning.what} carries {meaning.quantity}, and usually next to none"
    if exponent < -math.log10(BEYOND):
        return f"{meaning.what} carries next to none of its usual {meaning.quantity}"
    return f"{meaning.what} carries {_format_factor(10.0**exponent)} times its usual {meaning.quantity}"


def _format_factor(factor: float) -> str:
    return f"{factor:.0f}" if factor >= 10.0 else f"{factor:.2g}"
