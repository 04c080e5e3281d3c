"""What the evidence of an alarm looks like, by rules: a sensor, the structure, works, the weather or the supply.

The rules ask how many channels are clearly outside of their baseline, what has become of the bands of each, how the
score rose, and what covariates did. They say what is likely and why, and know nothing of the place: they are no
diagnosis, and raise and clear nothing. How often they are right on prepared stories stands in docs/reference/alarms.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import median
from typing import Literal, NamedTuple

import numpy as np

from fedgate.config.protocol.evidence import CLEAR_SPREADS, AlarmEvidence, BandChange, ChannelHealth
from fedgate.models.arrays import Array, Floats
from fedgate.models.time_units import NS, format_duration

Kind = Literal["sensor", "structure", "works", "weather", "power", "undetermined"]

# Chosen on the stories of seeds 11 and 21 to 25, and reported on those of others.
STRONG_DB = 10  # of a band that says something by itself
PAIR_DB = (6, -8)  # from where on a band that rose beside one that fell is a peak that moved
PAIR_REACH = 0.25  # of the frequency: how far it may have moved
LINE_BANDS = 4  # at most, that one frequency reaches
MANY = 1.0 / 3.0  # of the bands: a floor that rose or fell
ABRUPT, GRADUAL = 4.0, 6.0  # lengths of a window within which, and beyond which, a score rose
QUARTER = 0.25
WINDOWS_LEAST = 8  # before the onset, to say how it came
NAMED_MAX = 5  # channels
MEAN, CREST = ".level", ".crest"  # how names of features end

VERDICTS: dict[Kind, str] = {
    "sensor": "Probably a sensor and not the structure: look at {channel}, its mounting and its cable.",
    "structure": "Probably real: the structure has changed, or what holds it. Somebody should look at it.",
    "works": "Probably works or a machine and no damage: energy was added. It should end with them.",
    "weather": "Probably weather and no damage: it should go back with the weather.",
    "power": "Probably the supply or a start and no damage: it should fade, or end with the supply's trouble.",
    "undetermined": "The rules cannot tell: read the evidence below.",
}
WEATHER = {
    "": "No weather is measured here.",
    "usual": "The weather, as far as it is measured here, is as in the baseline.",
    "unusual": "The weather is out of the ordinary; what the baseline shows of its effect does not account for all.",
    "explained": "The weather is out of the ordinary, and accounts for the alarm.",
}
POWER = {  # which is also said of what began with a start of the gateway
    "": "",
    "usual": "The supply is as in the baseline.",
    "unusual": "The supply is out of the ordinary or was just switched on, which does not account for the alarm.",
    "explained": "The supply is out of the ordinary or was just switched on, which accounts for the alarm.",
}


class Reading(NamedTuple):
    """What an alarm looks like, as one sentence, and the signs of it."""

    kind: Kind
    verdict: str
    signs: tuple[str, ...]


class Bands(NamedTuple):
    """Of the channels that are known by bands, the names of those in which something became of these."""

    moved_down: list[str]
    moved_up: list[str]
    line_hz: float | None  # one frequency that rose in several channels
    raised: list[str]
    lowered: list[str]


class Onset(NamedTuple):
    """How long the score took for the way from a quarter of the height of the level above what is ordinary, which is
    the median of the first half of those before it, to the level.
    """

    rise_s: float
    word: Literal["abrupt", "gradual", ""]


def read_evidence(evidence: AlarmEvidence) -> Reading:
    """Return what the evidence of an alarm looks like."""
    own = [one for one in evidence.health if one.features and not one.is_covariate]
    clear = [one for one in own if one.is_clear]
    covariates = [one for one in evidence.health if one.is_covariate and one.is_clear]
    bands, onset = read_bands(evidence, {one.channel for one in clear}, min(2, len(own))), measure_onset(evidence)
    kind = _decide(evidence, own, clear, covariates, bands, onset)
    signs = (
        _describe_channels(own, clear),
        _describe_bands(bands, clear),
        describe_onset(evidence),
        *(f"{_describe_far(one)}." for one in covariates),
        *describe_covariates(evidence),
    )
    verdict = VERDICTS[kind].format(channel=clear[0].channel if clear else "")
    return Reading(kind, verdict, tuple(filter(None, signs)))


def _decide(
    evidence: AlarmEvidence,
    own: Sequence[ChannelHealth],
    clear: Sequence[ChannelHealth],
    covariates: Sequence[ChannelHealth],
    bands: Bands,
    onset: Onset | None,
) -> Kind:
    """Return what it is, by the first rule that holds."""
    first = evidence.contributions[0].feature if evidence.contributions else ""
    is_of_covariate = any(first.startswith(f"{one.channel}.") for one in covariates)
    is_news = evidence.weather == "unusual" and bool(covariates) and (is_of_covariate or not clear)
    rules: tuple[tuple[bool, Kind], ...] = (
        (evidence.power == "explained", "power"),
        (evidence.weather == "explained" or is_news, "weather"),
        (not own, "undetermined"),
        (len(bands.moved_down) >= min(2, len(own)), "structure"),
        (bands.line_hz is not None, "works"),
        (len(clear) == 1 < len(own), "sensor"),
        (len(clear) < 2, "undetermined"),
        (all(one.farthest.endswith(MEAN) for one in clear) and not bands.raised and not bands.lowered, "structure"),
        (len(bands.raised) >= 2, _split_blows(evidence, onset)),
        (evidence.weather == "unusual" and bool(bands.moved_up), "weather"),
    )
    return next((kind for holds, kind in rules if holds), "undetermined")


def _split_blows(evidence: AlarmEvidence, onset: Onset | None) -> Kind:
    """Return what raised all bands: blows come at once, wind rises; between the two blows have a higher crest."""
    if onset is not None and onset.word:
        return "works" if onset.word == "abrupt" else "weather"
    crests = [one for one in evidence.contributions if one.feature.endswith(CREST)]
    has_blows = any(one.deviation is None or one.deviation >= CLEAR_SPREADS for one in crests)
    return "works" if has_blows else "weather"


def _describe_far(one: ChannelHealth) -> str:
    if one.deviation is None:
        return f"{one.channel} has moved, which it never did in its baseline"
    return f"{one.channel} is {abs(one.deviation):.3g} healthy spreads off, outside of its baseline"


def _describe_channels(own: Sequence[ChannelHealth], clear: Sequence[ChannelHealth]) -> str:
    """Return how many channels of the structure are clearly outside of their baseline."""
    if len(own) < 2:
        return "There is one channel, and no other that tells a sensor from the structure." if own else ""
    if not clear:
        return f"None of {len(own)} channels is clearly outside of its baseline."
    if len(clear) == 1:
        return f"One of {len(own)} channels alone: {_describe_far(clear[0])}."
    farthest = max(clear, key=lambda one: math.inf if one.deviation is None else abs(one.deviation))
    return f"{len(clear)} of {len(own)} channels, not one sensor alone; the farthest: {_describe_far(farthest)}."


def _describe_bands(bands: Bands, clear: Sequence[ChannelHealth]) -> str:
    """Return what became of the bands, and where these are as usual, of the means."""
    if bands.moved_down:
        return f"Peaks have moved down in frequency ({_name(bands.moved_down)}): less stiffness, or more mass."
    if bands.line_hz is not None:
        return f"One frequency, about {bands.line_hz:.3g} Hz, has risen, and the peaks are where they were."
    if bands.raised:
        return f"Most bands have risen ({_name(bands.raised)}), and the peaks are where they were."
    if bands.lowered:
        return f"Most bands have fallen ({_name(bands.lowered)}), and the peaks are where they were."
    if bands.moved_up:
        return f"Peaks have moved up in frequency ({_name(bands.moved_up)}): stiffer, as in the cold."
    shifted = [one.channel for one in clear if one.farthest.endswith(MEAN)]
    return f"The mean has shifted ({_name(shifted)}), and the bands are about as usual." if shifted else ""


def _name(channels: Sequence[str]) -> str:
    more = f" and {len(channels) - NAMED_MAX} more" if len(channels) > NAMED_MAX else ""
    return f"{', '.join(channels[:NAMED_MAX])}{more}"


def describe_onset(evidence: AlarmEvidence) -> str:
    """Return how the alarm came; nothing where too few windows are known."""
    onset = measure_onset(evidence)
    if onset is None:
        return ""
    duration = format_duration(max(onset.rise_s, evidence.window_s))
    how = {"abrupt": "abruptly, within", "gradual": "gradually, over", "": "within"}[onset.word]
    return f"It came {how} {duration}."


def describe_covariates(evidence: AlarmEvidence) -> list[str]:
    """Return what was measured beside the structure."""
    return list(filter(None, (WEATHER[evidence.weather], POWER[evidence.power])))


def read_bands(evidence: AlarmEvidence, clear: Collection[str], several: int) -> Bands:
    """Return what became of the bands of the channels, of which some are clearly outside of their baseline.

    :param several: channels in which one frequency must have risen.
    """
    if evidence.spectrum is None or not evidence.changes:
        return Bands([], [], None, [], [])
    edges_hz = np.array(evidence.spectrum.edges_hz)
    middle_hz = (edges_hz[1:] + edges_hz[:-1]) / 2.0
    moves = {one.channel: _count_moves(one, middle_hz) for one in evidence.changes}
    decibels = {one.channel: np.array(one.decibels) for one in evidence.changes}
    return Bands(
        moved_down=[name for name, (down, up) in moves.items() if down > up],
        moved_up=[name for name, (down, up) in moves.items() if up > down],
        line_hz=_find_line([one for one in evidence.changes if one.channel in clear], middle_hz, several),
        raised=[name for name, found in decibels.items() if _is_most(found, found > 0)],
        lowered=[name for name, found in decibels.items() if _is_most(found, found < 0)],
    )


def _is_most(decibels: Array, is_so: Array) -> bool:
    """Tell whether bands changed to one side, and hardly any to the other."""
    changed = np.count_nonzero(decibels)
    return bool(is_so.mean() >= MANY and is_so.sum() >= 0.8 * changed)


def _count_moves(change: BandChange, middle_hz: Floats) -> tuple[int, int]:
    """Return how many peaks moved down and up: of the bands that fell, those beside which, within reach, one rose below
    and those beside which one rose above, by the one that rose more.
    """
    rise, fall = PAIR_DB
    decibels = np.array(change.decibels)
    down = up = 0
    for hz in middle_hz[decibels <= fall]:
        below = decibels[(middle_hz < hz) & (middle_hz > hz * (1.0 - PAIR_REACH))].max(initial=0)
        above = decibels[(middle_hz > hz) & (middle_hz < hz * (1.0 + PAIR_REACH))].max(initial=0)
        down += int(below >= rise and below > above)
        up += int(above >= rise and above > below)
    return down, up


def _find_line(changes: Sequence[BandChange], middle_hz: Floats, several: int) -> float | None:
    """Return the frequency that alone rose in several channels; None where none did: few bands are strong, and no peak
    has come there from beside.
    """
    if len(changes) < max(several, 1):
        return None
    decibels = np.array([one.decibels for one in changes])  # (C, B)
    strong = (decibels >= STRONG_DB) & ((decibels >= STRONG_DB).sum(axis=1) <= LINE_BANDS)[:, None]
    fell = (decibels <= PAIR_DB[1]).any(axis=0)
    is_moved = [bool((fell & (np.abs(middle_hz - one) < PAIR_REACH * one)).any()) for one in middle_hz]
    strong &= ~np.array(is_moved)
    near = strong.copy()
    near[:, 1:] |= strong[:, :-1]
    near[:, :-1] |= strong[:, 1:]
    shared = np.where(near.sum(axis=0) >= several, np.where(strong, decibels, 0).sum(axis=0), 0)
    place = int(np.argmax(shared))
    return float(middle_hz[place]) if shared[place] > 0 else None


def measure_onset(evidence: AlarmEvidence) -> Onset | None:
    """Return how the score rose; None where too few windows are known."""
    trail = evidence.trail
    if trail is None or evidence.window_s <= 0.0:
        return None
    onset_s = (evidence.onset_ns - trail.first_ns) / NS
    before = [place for place, at_s in enumerate(trail.offsets_s) if at_s < onset_s - 1e-3]
    if len(before) < WINDOWS_LEAST:
        return None
    scores = [trail.scores[place] for place in before]
    ordinary = median(scores[: len(scores) // 2])
    low = ordinary + QUARTER * (trail.list_levels()[before[-1]] - ordinary)
    last = next((place for place in reversed(before) if trail.scores[place] <= low), before[0])
    rise_s = onset_s - trail.offsets_s[last]
    lengths = rise_s / evidence.window_s
    return Onset(rise_s, "abrupt" if lengths <= ABRUPT else "gradual" if lengths >= GRADUAL else "")
