"""The likely cause of an alarm, by rules from its evidence: damage, a sensor, works, the weather or the supply.

The rules ask how many channels are clearly outside of their baseline, what has become of the bands of each, how the
score rose, and what covariates did. They say what is likely and why, and know nothing of the place: they are no
diagnosis, and raise and clear nothing. How often they are right on prepared stories stands in docs/reference/alarms.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from fedgate.config.evidence.observation import Observed, find_channel, observe
from fedgate.config.evidence.signs import (
    CAUSES_BESIDE,
    MEAN,
    describe_bands,
    describe_channels,
    describe_covariates,
    describe_rise,
    describe_still_peaks,
    join_names,
    show_move,
)
from fedgate.config.protocol.evidence import AlarmEvidence, Standout

Kind = Literal["damage", "sensor", "work", "weather", "load", "power", "undetermined"]

BLOWS_SPREADS = 6.0  # that a crest lies off where there are blows: gusts reach 5
CREST = ".crest"  # how names of features end

DAMAGE = "Probably damage: the structure or a support has changed. Have it looked at."
SENSOR = "Probably a sensor: look at {}, at mounting and cable."
WORK = "Probably works or a machine and no damage: it should end with them."
WEATHER = "Probably weather and no damage: it should go back with the weather."
WIND = "Probably wind and no damage: it should go with the wind."
LOAD = "Probably works, traffic or wind and no damage: energy was added, and which of them did it cannot be seen."
POWER = "Probably the supply or a start and no damage: it should fade, or end when the supply is as usual."
ONE_CHANNEL = "The sensor or the structure: see whether other gateways have changed at that time."
MIXED = "Damage, or works, traffic or wind: energy was added, and a peak has moved down, too. Have it looked at."
UNDETERMINED = "The rules cannot say what it is: see the evidence below."

# What looks the same.
OTHER_THAN_PEAKS = "mass that was added, such as snow or traffic that stands"
OTHER_THAN_MEANS = "a load that stays, or the supply of the sensors"
OTHER_THAN_SENSOR = "damage where this sensor is"
OTHER_THAN_WIND = "works or traffic"
OTHER_THAN_WEATHER = "a fault of what measures the weather, or a change that came with it"
OTHER_THAN_BLOWS = "electrical pulses"


class LikelyCause(NamedTuple):
    """What an alarm looks like, as one sentence, the signs of it by what they are of, such as `channels`, and from when
    on the score rose to its level, where that took its time.
    """

    kind: Kind
    verdict: str
    signs: dict[str, str]
    rising_ns: int | None


class Found(NamedTuple):
    """What a rule says, the change that it rests on, and what looks the same."""

    kind: Kind
    verdict: str
    change: str = ""
    other: str = ""


def find_likely_cause(evidence: AlarmEvidence) -> LikelyCause:
    """Return what the evidence of an alarm looks like, by the first rule that says anything."""
    seen = observe(evidence)
    found = next(one for rule in RULES if (one := rule(seen)) is not None)
    beside = describe_covariates(seen, found.kind)
    signs = {
        "channels": describe_channels(seen, found.kind),
        **(beside if seen.covariates and found.kind in CAUSES_BESIDE else {}),
        "change": found.change,
        "fault": f"found in {join_names(seen.faulty)}" if seen.faulty else "",
        "rise": describe_rise(evidence, seen.onset),
        **beside,
        "or else": found.other,
    }
    known = {of: sign for of, sign in signs.items() if sign}
    rising_ns = None if seen.onset is None else seen.onset.rising_ns
    return LikelyCause(found.kind, found.verdict, known, rising_ns)


def _find_explained(seen: Observed) -> Found | None:
    if seen.evidence.power == "explained":
        return Found("power", POWER)
    return Found("weather", WEATHER, other=OTHER_THAN_WEATHER) if seen.evidence.weather == "explained" else None


def _find_moved_peaks(seen: Observed) -> Found | None:
    if seen.bands is None or not seen.bands.moved_down:
        return None
    names = seen.bands.moved_down
    change = f"peaks have moved down{show_move(seen, names)}, as where stiffness is lost"
    if len(names) >= min(2, len(seen.own)):
        return Found("damage", DAMAGE, change, OTHER_THAN_PEAKS)
    return Found("undetermined", UNDETERMINED, change) if len(seen.clear) == 1 else None


def _find_odd_weather(seen: Observed) -> Found | None:
    """A covariate that is news by itself: the structure is as usual, or nothing stands out as much and not one channel
    alone has changed.
    """
    first = seen.evidence.contributions[0].feature if seen.evidence.contributions else ""
    is_first = find_channel(first) in {one.channel for one in seen.covariates}
    if is_first and len(seen.clear) == 1 < len(seen.own):
        changed = () if seen.bands is None else (*seen.bands.raised, *seen.bands.lowered, *seen.bands.moved_up)
        is_first = any(name != seen.clear[0].channel for name in changed)
    is_of_supply = seen.evidence.power in ("unusual", "explained")
    if seen.evidence.weather != "unusual" or is_of_supply or not seen.covariates or (seen.clear and not is_first):
        return None
    return Found("weather", WEATHER, _describe_peaks_up(seen), OTHER_THAN_WEATHER)


def _find_line(seen: Observed) -> Found | None:
    if seen.bands is None or seen.bands.line_hz is None:
        return None
    change = f"energy at one frequency has risen, about {seen.bands.line_hz:.3g} Hz{describe_still_peaks(seen.bands)}"
    return Found("work", WORK, change)


def _find_one_sensor(seen: Observed) -> Found | None:
    if not seen.clear and seen.faulty:
        return Found("sensor", SENSOR.format(join_names(seen.faulty)), other=OTHER_THAN_SENSOR)
    if not len(seen.clear) == 1 < len(seen.own):
        return None
    return Found("sensor", SENSOR.format(seen.clear[0].channel), _describe_one_sensor(seen), OTHER_THAN_SENSOR)


def _describe_one_sensor(seen: Observed) -> str:
    """Return what the only channel that is clearly outside does."""
    one = seen.clear[0]
    crests = (known for known in seen.evidence.contributions if known.feature == f"{one.channel}{CREST}")
    if change := describe_bands(seen, [one.channel]):
        return f"{change}, with spikes" if any(map(_is_of_blows, crests)) else change
    if not one.farthest.endswith(MEAN):
        return ""
    is_still = seen.bands is not None and one.channel in seen.bands.still
    return f"its mean has shifted{', and few of its bands have changed' if is_still else ''}"


def _is_of_blows(crest: Standout) -> bool:
    return crest.deviation is None or crest.deviation >= BLOWS_SPREADS


def _find_shifted_means(seen: Observed) -> Found | None:
    bands, is_of_means = seen.bands, all(one.farthest.endswith(MEAN) for one in seen.clear)
    if len(seen.clear) < 2 or not is_of_means or bands is None or bands.raised or bands.lowered:
        return None
    if seen.onset is not None and seen.onset.word == "gradual":
        return Found("undetermined", UNDETERMINED, "means creep, as in weather or as it settles")
    are_still = all(one.channel in bands.still for one in seen.clear)
    change = f"means have shifted{', and few bands have changed' if are_still else ''}"
    return Found("damage", DAMAGE, change, OTHER_THAN_MEANS)


def _find_added_energy(seen: Observed) -> Found | None:
    """Blows come at once and with a high crest, wind comes by and by and with none."""
    if seen.bands is None or len(seen.bands.raised) < 2:
        return None
    change = f"{describe_bands(seen, seen.bands.raised)}{describe_still_peaks(seen.bands)}"
    if seen.bands.moved_down:
        return Found("undetermined", MIXED, f"{change}; peaks have moved down{show_move(seen, seen.bands.moved_down)}")
    word = "" if seen.onset is None else seen.onset.word
    crests = [one for one in seen.evidence.contributions if one.feature.endswith(CREST)]
    if any(map(_is_of_blows, crests)):
        blows = f"{change}; a crest factor is as high as blows make it"
        return Found("load", LOAD, change) if word == "gradual" else Found("work", WORK, blows, OTHER_THAN_BLOWS)
    if seen.onset is None or word == "abrupt":
        return Found("load", LOAD, change)
    unseen = "" if seen.covariates else "; nothing that is measured shows wind: compare a weather station"
    return Found("weather", WIND, f"{change}; no crest factor is as high as blows make it{unseen}", OTHER_THAN_WIND)


def _find_peaks_up(seen: Observed) -> Found | None:
    if seen.bands is None or len(seen.bands.moved_up) < 2 or seen.evidence.weather != "unusual":
        return None
    return Found("weather", WEATHER, _describe_peaks_up(seen), OTHER_THAN_WEATHER)


def _describe_peaks_up(seen: Observed) -> str:
    if seen.bands is None or not seen.bands.moved_up:
        return ""
    return f"peaks have moved up{show_move(seen, seen.bands.moved_up)}, as where it is colder"


def _give_up(seen: Observed) -> Found | None:
    names = [one.channel for one in seen.own]
    change = describe_bands(seen, names)
    if len(names) == 1 and seen.clear and seen.clear[0].farthest.endswith(MEAN) and not change:
        change = "its mean has shifted"
    return Found("undetermined", ONE_CHANNEL if len(names) == 1 and seen.clear else UNDETERMINED, change)


RULES: tuple[Callable[[Observed], Found | None], ...] = (
    _find_explained,
    _find_moved_peaks,
    _find_odd_weather,
    _find_line,
    _find_one_sensor,
    _find_shifted_means,
    _find_added_energy,
    _find_peaks_up,
    _give_up,
)
