"""What the evidence of an alarm shows, as the rules of its likely cause go by it: channels that are clearly outside of
their baseline, what has become of the bands of each, and how the score rose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple

import numpy as np

from fedgate.config.protocol.evidence import AlarmEvidence, BandChange, ChannelHealth
from fedgate.models.arrays import Array, Floats
from fedgate.models.time_units import NS

# Chosen on the stories of seeds 11, 21 to 25, 31 to 36, 41 to 46 and 51 to 53, and reported on those of others.
STRONG_DB = 10  # of a band that says something by itself
ROSE_DB, FELL_DB = 6, -8  # from where on a band that rose beside one that fell is a peak that moved
REACH = 0.25  # of the frequency: how far it may have moved
BINS_LEAST = 4  # of a band: one of fewer falls so far in noise, too
LINE_BANDS = 4  # at most, that one frequency reaches
MANY, ONE_WAY = 1.0 / 3.0, 0.8  # of the bands: a floor that rose or fell; of those that changed, to one side
ABRUPT, GRADUAL = 4.0, 6.0  # lengths of a window within which, and from which on, a score rose
QUARTER = 0.25  # of its way, from where on a score rises
WINDOWS_LEAST = 8  # before the onset, to say how it came
GAP_WINDOWS = 3.0  # without a window, behind which the scores begin anew


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
    line_hz: float | None  # of energy at one frequency that rose in several channels
    raised: list[str]
    lowered: list[str]


class Onset(NamedTuple):
    """How long the score took for the way from a quarter of the height of the level above what is ordinary, which is
    the median of the first half of those before it, to the level; and since when, where it took its time.
    """

    rise_s: float
    rising_ns: int | None
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


def find_channel(feature: str) -> str:
    """Return whose a feature is by its name: "deck" of "deck.level" and of "deck.band[3.1-3.4Hz]"."""
    return re.sub(r"\.[^.\[]+(\[.*\])?$", "", feature)


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
    rise_s = onset_s - last_s
    lengths = rise_s / evidence.window_s
    if lengths <= ABRUPT:
        return Onset(rise_s, None, "abrupt")
    return Onset(rise_s, evidence.onset_ns - round(rise_s * NS), "gradual" if lengths >= GRADUAL else "")
