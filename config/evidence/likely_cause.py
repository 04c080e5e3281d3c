"""The likely cause of an alarm, by rules from its evidence: damage, a sensor, works, the weather or the supply.

The rules ask how many channels are clearly outside of their baseline, what has become of the bands of each, how the
score rose, and what covariates did. They say what is likely and why, and know nothing of the place: they are no
diagnosis, and raise and clear nothing. How often they are right on prepared stories stands in docs/reference/alarms.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple

import numpy as np

from fedgate.config.protocol.evidence import AlarmEvidence, BandChange, ChannelHealth, Standout
from fedgate.models.arrays import Array, Floats
from fedgate.models.features.describe import STATISTICS
from fedgate.models.time_units import NS, format_duration, format_moment

Kind = Literal["damage", "sensor", "work", "weather", "load", "power", "undetermined"]

# Chosen on the stories of seeds 11, 21 to 25, 31 to 36, 41 to 46 and 51 to 53, and reported on those of others.
STRONG_DB = 10  # of a band that says something by itself
ROSE_DB, FELL_DB = 6, -8  # from where on a band that rose beside one that fell is a peak that moved
REACH = 0.25  # of the frequency: how far it may have moved
BINS_LEAST = 4  # of a band: one of fewer falls so far in noise, too
LINE_BANDS = 4  # at most, that one frequency reaches
MANY, ONE_WAY = 1.0 / 3.0, 0.8  # of the bands: a floor that rose or fell; of those that changed, to one side
ABRUPT, GRADUAL = 4.0, 6.0  # lengths of a window within which, and from which on, a score rose
BLOWS_SPREADS = 6.0  # that a crest lies off where there are blows: gusts reach 5
QUARTER = 0.25  # of its way, from where on a score rises
WINDOWS_LEAST = 8  # before the onset, to say how it came
GAP_WINDOWS = 3.0  # without a window, behind which the scores begin anew
NAMED_MAX = 5  # channels
MEAN, CREST = ".level", ".crest"  # how names of features end

DAMAGE = "Probably damage: the structure or its support has changed. Somebody should look at it."
SENSOR = "Probably a sensor: look at {}, its mounting and cable."
WORK = "Probably works or a machine and no damage: it should end with them."
WEATHER = "Probably weather and no damage: it should go back with the weather."
WIND = "Probably wind and no damage: it should go with the wind."
LOAD = "Probably works, traffic or wind and no damage: energy was added, and which of them did it cannot be seen."
POWER = "Probably the supply or a start and no damage: it should fade, or end when the supply is as usual."
ONE_CHANNEL = "The sensor or the structure: see whether other gateways have changed at that time."
UNDETERMINED = "The rules cannot say what it is: see the evidence below."

OTHER_THAN_PEAKS = "mass that was added, or a clock that runs wrong"  # of all channels alike
OTHER_THAN_MEANS = "a load that stays, or the supply of the sensors"
OTHER_THAN_SENSOR = "the structure at its place"
OTHER_THAN_WIND = "works or traffic"
OTHER_THAN_WEATHER = "a fault of what measures the weather, or a change that came with it"
OTHER_THAN_BLOWS = "pulses on the supply"
OTHER_THAN_LINE = "hum on the cables"

OF_COVARIATES = {
    "usual": "within the baseline",
    "unusual": "{}, which does not account for the alarm",
    "explained": "{}, which accounts for the alarm",
}
ODD_WEATHER, ODD_SUPPLY = "out of the ordinary", "out of the ordinary or just switched on"
BEYOND = "beyond all of the baseline"
NO_ANEMOMETER = "; nothing measures the wind: compare a weather station"


class LikelyCause(NamedTuple):
    """What an alarm looks like, as one sentence, the signs of it by what they are of, such as `channels`, what else
    looks the same, and from when on the score rose to its level, where that took its time.
    """

    kind: Kind
    verdict: str
    signs: dict[str, str]
    other: str
    rising_ns: int | None


class Found(NamedTuple):
    """What a rule says, the change that it rests on, and what looks the same."""

    kind: Kind
    verdict: str
    change: str = ""
    other: str = ""


class Move(NamedTuple):
    """A band that fell and the one beside it that rose, as where a peak has moved, and by how many decibels in all."""

    from_hz: float
    to_hz: float
    decibels: int


class Bands(NamedTuple):
    """Of the channels that are known by bands, the names of those in which something became of these."""

    moved_down: list[str]  # of channels that are clearly outside
    moved_up: list[str]
    moves: dict[str, Move]  # the clearest of each channel in which peaks moved to one side
    have_no_moves: bool  # known of each channel that is known by bands
    still: list[str]  # in which few bands changed
    line_hz: float | None  # one frequency that rose in several channels
    raised: list[str]
    lowered: list[str]


class Onset(NamedTuple):
    """How long the score took for the way from a quarter of the height of the level above what is ordinary, which is
    the median of the first half of those before it, to the level.
    """

    rise_s: float
    word: Literal["abrupt", "gradual", ""]


@dataclass(frozen=True)
class Observed:
    """What the rules go by: channels of the structure, which of them are clearly outside of their baseline and have no
    fault that is known, covariates that are; bands, None where they are not known; and how the score rose.
    """

    evidence: AlarmEvidence
    own: list[ChannelHealth]
    clear: list[ChannelHealth]
    faulty: list[str]
    covariates: list[ChannelHealth]
    bands: Bands | None
    onset: Onset | None


def find_likely_cause(evidence: AlarmEvidence) -> LikelyCause:
    """Return what the evidence of an alarm looks like, by the first rule that says anything."""
    seen = observe(evidence)
    found = next(one for rule in RULES if (one := rule(seen)) is not None)
    rising_ns = None
    if seen.onset is not None and seen.onset.rise_s > ABRUPT * evidence.window_s:
        rising_ns = evidence.onset_ns - round(seen.onset.rise_s * NS)
    beside = _describe_covariates(seen, found)
    signs = {
        "channels": _describe_channels(seen, found),
        **(beside if seen.covariates and found.kind in ("weather", "power") else {}),
        "change": found.change,
        "fault": f"found in {_name(seen.faulty)}" if seen.faulty else "",
        "score": _describe_score(evidence, seen.onset, rising_ns),
        **beside,
    }
    return LikelyCause(
        found.kind, found.verdict, {of: sign for of, sign in signs.items() if sign}, found.other, rising_ns
    )


def observe(evidence: AlarmEvidence) -> Observed:
    """Return what the rules go by."""
    own = [one for one in evidence.health if one.features and not one.is_covariate]
    clear = [one for one in own if one.is_clear and not one.is_faulty]
    return Observed(
        evidence=evidence,
        own=own,
        clear=clear,
        faulty=[one.channel for one in own if one.is_faulty],
        covariates=[one for one in evidence.health if one.is_covariate and one.is_clear],
        bands=measure_bands(evidence, own, clear),
        onset=measure_onset(evidence),
    )


def _find_explained(seen: Observed) -> Found | None:
    if seen.evidence.power == "explained":
        return Found("power", POWER)
    return Found("weather", WEATHER, other=OTHER_THAN_WEATHER) if seen.evidence.weather == "explained" else None


def _find_moved_peaks(seen: Observed) -> Found | None:
    if seen.bands is None or not seen.bands.moved_down:
        return None
    names = seen.bands.moved_down
    change = f"peaks have moved down{_show_move(seen, names)}, as where stiffness is lost"
    if len(names) >= min(2, len(seen.own)):
        return Found("damage", DAMAGE, change, OTHER_THAN_PEAKS)
    return Found("undetermined", UNDETERMINED, change) if len(seen.clear) == 1 else None


def _find_odd_weather(seen: Observed) -> Found | None:
    """A covariate that is news by itself: the structure is as usual, or nothing stands out as much and not one channel
    alone has changed.
    """
    first = seen.evidence.contributions[0].feature if seen.evidence.contributions else ""
    is_first = first.rpartition(".")[0] in {one.channel for one in seen.covariates}
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
    change = f"one frequency has risen, about {seen.bands.line_hz:.3g} Hz{_describe_peaks(seen.bands)}"
    return Found("work", WORK, change, OTHER_THAN_LINE)


def _find_one_sensor(seen: Observed) -> Found | None:
    if not seen.clear and seen.faulty:
        return Found("sensor", SENSOR.format(_name(seen.faulty)), other=OTHER_THAN_SENSOR)
    if not len(seen.clear) == 1 < len(seen.own):
        return None
    return Found("sensor", SENSOR.format(seen.clear[0].channel), _describe_one_sensor(seen), OTHER_THAN_SENSOR)


def _describe_one_sensor(seen: Observed) -> str:
    """Return what the only channel that is clearly outside does."""
    one = seen.clear[0]
    crests = (known for known in seen.evidence.contributions if known.feature == f"{one.channel}{CREST}")
    if change := _describe_bands(seen, [one.channel]):
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
    change = f"{_describe_bands(seen, seen.bands.raised)}{_describe_peaks(seen.bands)}"
    word = "" if seen.onset is None else seen.onset.word
    crests = [one for one in seen.evidence.contributions if one.feature.endswith(CREST)]
    if any(map(_is_of_blows, crests)):
        blows = f"{change}; a crest factor is as high as blows make it"
        return Found("load", LOAD, change) if word == "gradual" else Found("work", WORK, blows, OTHER_THAN_BLOWS)
    if seen.onset is None or word == "abrupt":
        return Found("load", LOAD, change)
    return Found("weather", WIND, f"{change}; no crest factor is as high as blows make it", OTHER_THAN_WIND)


def _describe_peaks(bands: Bands) -> str:
    return "; no peak has moved" if bands.have_no_moves else ""


def _find_peaks_up(seen: Observed) -> Found | None:
    if seen.bands is None or len(seen.bands.moved_up) < 2 or seen.evidence.weather != "unusual":
        return None
    return Found("weather", WEATHER, _describe_peaks_up(seen), OTHER_THAN_WEATHER)


def _describe_peaks_up(seen: Observed) -> str:
    if seen.bands is None or not seen.bands.moved_up:
        return ""
    return f"peaks have moved up{_show_move(seen, seen.bands.moved_up)}, as where it is colder"


def _show_move(seen: Observed, names: Sequence[str]) -> str:
    """Return in which channels peaks moved, and the clearest of the moves."""
    moves = {} if seen.bands is None else seen.bands.moves
    clearest = max((moves[name] for name in names), key=lambda one: one.decibels)
    hertz = f"from about {clearest.from_hz:.3g} to {clearest.to_hz:.3g} Hz"
    return (
        f"{_say_where(seen, names)}, most clearly {hertz}" if len(names) > 1 else f"{_say_where(seen, names)} {hertz}"
    )


def _say_where(seen: Observed, names: Sequence[str]) -> str:
    """Return in which channels of the structure something is so; nothing where there is one alone."""
    if len(seen.own) == 1:
        return ""
    return f" in all {len(names)}" if len(names) == len(seen.own) else f" in {_name(names)}"


def _give_up(seen: Observed) -> Found | None:
    names = [one.channel for one in seen.own]
    change = _describe_bands(seen, names)
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


def _describe_bands(seen: Observed, channels: Sequence[str]) -> str:
    if seen.bands is None:
        return ""
    for word, names in (("risen", seen.bands.raised), ("fallen", seen.bands.lowered)):
        if shown := [one for one in names if one in channels]:
            return f"many bands have {word}{_say_where(seen, shown)}"
    return ""


def _describe_far(one: ChannelHealth, evidence: AlarmEvidence) -> str:
    """Return how far a channel is off, in plain words where its farthest feature is one that stands out."""
    if text := next((known.text for known in evidence.contributions if known.feature == one.farthest), ""):
        return text
    feature = one.farthest.removeprefix(f"{one.channel}.")
    name = f"{one.channel}: {STATISTICS.get(feature) or feature.replace('[', ' ').replace(']', '')}"
    if one.deviation is None:
        return f"{name} has moved, as it never did in the baseline"
    side = "above" if one.deviation > 0 else "below"
    return f"{name} is {abs(one.deviation):.3g} healthy spreads {side} its median"


def _describe_channels(seen: Observed, found: Found) -> str:
    """Return which channels are clearly outside of their baseline, and by what: each by its mean, or the first that
    stands out; covariates too, where these are the likely cause.
    """
    own, clear = seen.own, seen.clear
    far = [_describe_far(one, seen.evidence) for one in clear]
    foremost = _find_foremost(seen) or next(iter(far), "")
    if len(own) < 2:
        alone = "one, and no other to compare it with" if own else ""
        return f"{alone}: {foremost}" if far else alone
    of_how_many = f"{len(own)}{' that are listed' if 'well channels' in seen.evidence.cut else ''}"
    if not clear:
        structure = f"no feature of {of_how_many} is clearly outside of the baseline"
    elif len(clear) == 1:
        structure = f"one of {of_how_many}{' alone' if found.kind == 'sensor' else ' is clearly outside'} ({foremost})"
    else:
        structure = f"all {of_how_many}" if len(clear) == len(own) else f"{len(clear)} of {of_how_many}"
        if all(one.farthest.endswith(MEAN) for one in clear):
            structure += f": {_name(far, '; ')}"
        else:
            structure += f" ({_name([one.channel for one in clear])}), foremost {foremost}"
    if seen.covariates and found.kind in ("weather", "power"):
        covariates = _name([_describe_far(one, seen.evidence) for one in seen.covariates], "; ")
        return f"{covariates}; of the structure {structure}"
    return structure


def _find_foremost(seen: Observed) -> str:
    """Return what stands out first of the channels that are clearly outside; nothing where none of them does."""
    names = {one.channel for one in seen.clear}
    return next((one.text for one in seen.evidence.contributions if one.feature.rpartition(".")[0] in names), "")


def _name(channels: Sequence[str], joint: str = ", ") -> str:
    more = f" and {len(channels) - NAMED_MAX} more" if len(channels) > NAMED_MAX else ""
    return f"{joint.join(channels[:NAMED_MAX])}{more}"


def _describe_score(evidence: AlarmEvidence, onset: Onset | None, rising_ns: int | None) -> str:
    """Return how the score rose to its level, and since when it was over that now and then."""
    rose = ""
    if onset is not None and rising_ns is None:
        rose = f"rose to its level within {format_duration(max(onset.rise_s, evidence.window_s))}"
    elif onset is not None and rising_ns is not None:
        return f"rose to its level over {format_duration(onset.rise_s)}, from {format_moment(rising_ns)} on"
    return "; ".join(filter(None, (rose, _describe_earlier(evidence))))


def _describe_earlier(evidence: AlarmEvidence) -> str:
    trail = evidence.trail
    if trail is None:
        return ""
    onset_s = (evidence.onset_ns - trail.first_ns) / NS
    rows = zip(trail.offsets_s, trail.scores, trail.list_levels(), strict=True)
    over_s = [at_s for at_s, score, level in rows if score >= level and at_s < onset_s - 1e-3]
    if not over_s:
        return ""
    windows = f"{len(over_s)} window{'s' if len(over_s) > 1 else ''}"
    first = format_moment(trail.first_ns + round(over_s[0] * NS))
    known = " of those known" if "older scores" in evidence.cut else ""
    return f"was over it before, in {windows}{known}, first {first}"


def _describe_covariates(seen: Observed, found: Found) -> dict[str, str]:
    """Return what was measured beside the structure: of the weather, and of the supply where that is known."""
    weather, power = seen.evidence.weather, seen.evidence.power
    covariates = [one for one in seen.evidence.health if one.is_covariate]
    unknown = "not known" if covariates else "not measured here"
    if not weather and not power:
        return {"weather and supply": unknown}
    are_out = not {weather, power} <= {"", "usual"}
    is_cause = seen.covariates and found.kind in ("weather", "power")  # then `channels` has what they are
    names = [] if is_cause else [_describe_far(one, seen.evidence) if are_out else one.channel for one in covariates]
    shown = f" ({_name(names, '; ')})" if names else ""
    of_supply = OF_COVARIATES.get(power, unknown).format(ODD_SUPPLY)
    of_weather = OF_COVARIATES.get(weather, unknown).format(ODD_WEATHER)
    if found.kind == "weather" and weather == "unusual":
        of_weather = BEYOND if seen.covariates else ODD_WEATHER
    more = NO_ANEMOMETER if found.verdict == WIND else _describe_share(seen) if found.kind == "weather" else ""
    if not power:
        return {"weather": f"{of_weather}{shown}{more}", "supply": of_supply}
    return {"weather": f"{of_weather}{more}", "supply": of_supply, "measured beside it": shown[2:-1]}


def _describe_share(seen: Observed) -> str:
    """Return what the score would be without the covariate that stands out most; nothing where that is none."""
    evidence, names = seen.evidence, {one.channel for one in seen.covariates}
    first = next(iter(evidence.contributions), None)
    if first is None or first.feature.rpartition(".")[0] not in names:
        return ""
    rest = evidence.score - first.amount
    side = "below" if rest < evidence.level else "still above"
    return f"; without it the score would be {rest:.3g}, {side} the level of {evidence.level:.3g}"


def measure_bands(
    evidence: AlarmEvidence, own: Sequence[ChannelHealth], clear: Sequence[ChannelHealth]
) -> Bands | None:
    """Return what became of the bands of channels of the structure; None where that is not known."""
    names = {one.channel for one in own}
    changes = [one for one in evidence.changes if one.channel in names]
    if evidence.spectrum is None or not changes:
        return None
    edges_hz, are_clear = np.array(evidence.spectrum.edges_hz), {one.channel for one in clear}
    middle_hz = (edges_hz[1:] + edges_hz[:-1]) / 2.0
    is_fine = edges_hz[1] - edges_hz[0] >= BINS_LEAST * 2.0 * edges_hz[0]  # which is half a bin
    moves = {one.channel: _find_moves(one, middle_hz) if is_fine else [] for one in changes}
    clearest = {name: one for name, its in moves.items() if (one := _find_clearest(its)) is not None}
    decibels = {one.channel: np.array(one.decibels) for one in changes}
    return Bands(
        moved_down=[name for name, one in clearest.items() if one.to_hz < one.from_hz and name in are_clear],
        moved_up=[name for name, one in clearest.items() if one.to_hz > one.from_hz],
        moves=clearest,
        have_no_moves=bool(is_fine) and not any(moves.values()),
        still=[name for name, found in decibels.items() if np.count_nonzero(found) < MANY * len(found)],
        line_hz=_find_shared_line([one for one in changes if one.channel in are_clear], middle_hz, min(2, len(own))),
        raised=[name for name, found in decibels.items() if _are_many(found, found > 0)],
        lowered=[name for name, found in decibels.items() if _are_many(found, found < 0)],
    )


def _are_many(decibels: Array, have_changed: Array) -> bool:
    """Tell whether many bands changed to one side, and hardly any to the other."""
    is_one_way = have_changed.sum() >= ONE_WAY * np.count_nonzero(decibels)
    return bool(have_changed.mean() >= MANY and is_one_way)


def _find_moves(change: BandChange, middle_hz: Floats) -> list[Move]:
    """Return the bands that fell and beside which, within reach, one rose: to the side on which one rose more."""
    decibels, moves = np.array(change.decibels), list[Move]()
    for place in np.flatnonzero(decibels <= FELL_DB):
        hz = middle_hz[place]
        near = np.where(np.abs(middle_hz - hz) < REACH * hz, decibels, 0)
        below, above = near[middle_hz < hz].max(initial=0), near[middle_hz > hz].max(initial=0)
        if max(below, above) >= ROSE_DB and below != above:
            highest = np.flatnonzero(near == near.max())
            to = highest[np.argmin(np.abs(middle_hz[highest] - hz))]  # of some as high the nearest
            moves.append(Move(float(hz), float(middle_hz[to]), int(near[to] - decibels[place])))
    return moves


def _find_clearest(moves: Sequence[Move]) -> Move | None:
    """Return the clearest of the moves to the side to which most went; None where as many went to either."""
    down, up = [one for one in moves if one.to_hz < one.from_hz], [one for one in moves if one.to_hz > one.from_hz]
    if len(down) == len(up):
        return None
    return max(down if len(down) > len(up) else up, key=lambda one: one.decibels)


def _find_shared_line(changes: Sequence[BandChange], middle_hz: Floats, least: int) -> float | None:
    """Return the frequency that alone rose, in so many channels at least; None where none did: few bands are strong,
    not all have risen, and no peak has come there from beside.
    """
    quiet = [one for one in changes if not _are_many(np.array(one.decibels), np.array(one.decibels) > 0)]
    if len(quiet) < max(least, 1):
        return None
    decibels = np.array([one.decibels for one in quiet])  # (C, B)
    strong = (decibels >= STRONG_DB) & ((decibels >= STRONG_DB).sum(axis=1) <= LINE_BANDS)[:, None]
    is_near = np.abs(middle_hz[:, None] - middle_hz) < REACH * middle_hz[:, None]  # (B, B)
    strong &= ~((decibels <= FELL_DB)[:, None] & is_near).any(axis=2)
    near = strong.copy()
    near[:, 1:] |= strong[:, :-1]
    near[:, :-1] |= strong[:, 1:]
    shared = np.where(near.sum(axis=0) >= least, np.where(strong, decibels, 0).sum(axis=0), 0)
    place = int(np.argmax(shared))
    return float(middle_hz[place]) if shared[place] > 0 else None


def measure_onset(evidence: AlarmEvidence) -> Onset | None:
    """Return how the score rose; None where too few windows are known since the last gap, or none of them is low."""
    trail = evidence.trail
    if trail is None or evidence.window_s <= 0.0:
        return None
    onset_s = (evidence.onset_ns - trail.first_ns) / NS
    seen = [(at_s, score) for at_s, score in zip(trail.offsets_s, trail.scores, strict=True) if at_s < onset_s - 1e-3]
    gaps = [place for place, (one, other) in enumerate(pairwise([*(at_s for at_s, _ in seen), onset_s]), start=1)
            if other - one > GAP_WINDOWS * evidence.window_s]  # fmt: skip
    before = seen[gaps[-1] :] if gaps else seen
    if len(before) < WINDOWS_LEAST:
        return None
    ordinary = median(score for _, score in before[: len(before) // 2])
    low = ordinary + QUARTER * (trail.list_levels()[len(seen) - 1] - ordinary)
    last_s = next((at_s for at_s, score in reversed(before) if score <= low), None)
    if last_s is None:
        return None
    lengths = (onset_s - last_s) / evidence.window_s
    return Onset(onset_s - last_s, "abrupt" if lengths <= ABRUPT else "gradual" if lengths >= GRADUAL else "")
