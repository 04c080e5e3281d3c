"""What an alarm of the structure rests on, as one message that follows it: the features that stand out, the latest
scores, the spectrum of the worst window, and how the sensors are.

The alarm leaves first and is small; its evidence is an item of its own, at most `EVIDENCE_BYTES` long. Every text, list
and number is bounded, so whoever sends more is refused before it is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, StringConstraints, model_validator

from fedgate.config.protocol.messages import (
    CONTROLS,
    FARTHEST,
    Count,
    Id,
    Message,
    MessageError,
    Moment,
    Name,
    NotNegative,
    Number,
    Part,
    Trail,
    escape_text,
)
from fedgate.models.alarms.attribution import Evidence

EVIDENCE_BYTES = 16 * 1024
DIGITS = 4  # significant ones of every measured number
CONTRIBUTIONS_MAX, BANDS_MAX, CHANNELS_MAX = 5, 64, 64
TRAIL_LEAST, BANDS_LEAST, CHANNELS_LEAST = 25, 16, 16  # what `fit` leaves of each
CHANGES_MAX, DECIBELS_MAX = 12, 99  # channels whose bands are compared, and how far they are told apart
LABEL_MAX, SENTENCE_MAX = 120, 400  # characters
CLEAR_SPREADS = 3.0  # from the healthy median on, a channel is clearly outside
Label = Annotated[str, StringConstraints(pattern=f"^[^{CONTROLS}]*$", max_length=LABEL_MAX)]
Sentence = Annotated[str, StringConstraints(pattern=f"^[^{CONTROLS}]*$", max_length=SENTENCE_MAX)]


class Standout(Part):
    """A feature that stands out: what it adds to the score, and its value beside its healthy median and spread; no
    deviation where it stood still all through the baseline.
    """

    feature: Label
    text: Label  # in plain words
    amount: Number
    value: Number
    median: Number
    spread: NotNegative
    deviation: Number | None


class BandSpectrum(Part):
    """Mean square of one channel by frequency band, in its unit squared: of the worst window behind the transition, and
    quantiles of the healthy windows of the baseline. Band i lies between edges i and i + 1.
    """

    channel: Label
    t_ns: Moment  # end of the window
    edges_hz: Annotated[tuple[NotNegative, ...], Field(min_length=2, max_length=BANDS_MAX + 1)]
    worst: Annotated[tuple[NotNegative, ...], Field(max_length=BANDS_MAX)]
    healthy_5: Annotated[tuple[NotNegative, ...], Field(max_length=BANDS_MAX)]
    healthy_50: Annotated[tuple[NotNegative, ...], Field(max_length=BANDS_MAX)]
    healthy_95: Annotated[tuple[NotNegative, ...], Field(max_length=BANDS_MAX)]
    healthy_windows: Count

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        lengths = {len(one) for one in (self.worst, self.healthy_5, self.healthy_50, self.healthy_95)}
        if lengths != {len(self.edges_hz) - 1}:
            raise ValueError(f"expected {len(self.edges_hz) - 1} values of each kind, one between two edges")
        return self


class BandChange(Part):
    """How far each band of a channel, in the same window as the spectrum, is from its healthy median: 0 within the
    healthy 5 to 95 %.
    """

    channel: Label
    decibels: Annotated[
        tuple[Annotated[int, Field(ge=-DECIBELS_MAX, le=DECIBELS_MAX)], ...], Field(max_length=BANDS_MAX)
    ]


class ChannelHealth(Part):
    """How a channel is: values of it that were bridged and windows lost for it since the agent started, whether it has
    a fault now, and how many of its features lie `outside` of all that they were in the baseline, with the farthest.

    A covariate is a channel that no change of the structure moves.
    """

    channel: Label
    filled: Count = 0
    windows_lost: Count = 0
    is_faulty: bool = False
    is_covariate: bool = False
    features: Count = 0
    outside: Count = 0
    farthest: Label = ""  # feature
    deviation: Number | None = None  # of it, in healthy spreads; none where it stood still all through the baseline

    @property
    def is_clear(self) -> bool:
        """Whether it is so far outside of its baseline that no other channel's news can have moved it there."""
        return self.outside > 0 and (self.deviation is None or abs(self.deviation) >= CLEAR_SPREADS)


class AlarmEvidence(Message):
    """What an alarm rests on."""

    version: Annotated[int, Field(ge=1, le=1_000)] = 1
    alarm: Name  # its id
    cause: Id
    t_ns: Moment
    onset_ns: Moment
    window_s: NotNegative
    model_version: Count
    model_digest: Name
    rule: Label
    score: Number  # the height of a rule that is not of the score
    level: Number
    level_of: Literal["own baseline", "site"]
    text: Sentence  # of the alarm
    contributions: Annotated[tuple[Standout, ...], Field(max_length=CONTRIBUTIONS_MAX)] = ()
    trail: Trail | None = None
    spectrum: BandSpectrum | None = None
    no_spectrum: Label = ""  # why there is none
    changes: Annotated[tuple[BandChange, ...], Field(max_length=CHANGES_MAX)] = ()  # in the bands of the spectrum
    health: Annotated[tuple[ChannelHealth, ...], Field(max_length=CHANNELS_MAX)] = ()
    weather: Evidence = ""  # what the covariates say of it, as in its alarm
    power: Evidence = ""
    cut: Annotated[tuple[Label, ...], Field(max_length=8)] = ()  # what was cut for its length

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        bands = 0 if self.spectrum is None else len(self.spectrum.worst)
        if any(len(one.decibels) != bands for one in self.changes):
            raise ValueError(f"expected {bands} bands of each channel, as the spectrum has")
        return self

    @property
    def item(self) -> str:
        """The name under which the aggregator acknowledges it; short enough for a topic whatever the id."""
        return name_item(self.alarm)

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """Return the evidence in `payload`; raises `MessageError`, for one that is too long before it is read."""
        if len(payload) > EVIDENCE_BYTES:
            raise MessageError(f"{cls.__name__}: {len(payload)} bytes given, expected {EVIDENCE_BYTES} at most")
        return super().from_bytes(payload)


def name_item(alarm: str) -> str:
    """Return the name of the item that holds the evidence of an alarm."""
    return f"{hashlib.sha256(alarm.encode()).hexdigest()[:32]}.evidence"


def round_number(value: float) -> float:
    """Return a number with the digits that evidence has, within the bounds of one."""
    return float(f"{min(max(value, -FARTHEST), FARTHEST):.{DIGITS}g}")


def cut_text(text: str, most: int) -> str:
    """Return a text of so many characters at most that may be shown anywhere."""
    shown = escape_text(text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def count_json_bytes(text: str) -> int:
    """Return how many bytes a text takes in a message."""
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2


def fit_text(text: str, most: int) -> str:
    """Return as much of a text as takes so many bytes of a message at most, and may be shown anywhere."""
    shown = escape_text(text)
    while shown and (excess := count_json_bytes(shown) - most) > 0:
        left = len(shown) - 1 - excess // 4  # a character takes four bytes at most
        shown = cut_text(shown, left) if left > 1 else ""
    return shown


def make_trail(seen: Sequence[tuple[int, float, float]]) -> Trail | None:
    """Return time in ns, score and level of windows as a trail; None of none."""
    if not seen:
        return None
    first_ns = seen[0][0]
    levels = [round_number(level) for _, _, level in seen]
    level_from = [place for place, level in enumerate(levels) if place == 0 or level != levels[place - 1]]
    return Trail(
        first_ns=first_ns,
        offsets_s=tuple(round(min(max((t_ns - first_ns) / 1e9, -FARTHEST), FARTHEST), 3) for t_ns, _, _ in seen),
        scores=tuple(round_number(score) for _, score, _ in seen),
        level_from=tuple(level_from),
        levels=tuple(levels[place] for place in level_from),
    )


class Cut(NamedTuple):
    """A way to make evidence shorter, by one step; None where nothing is left to be cut so."""

    what: str
    step: Callable[[AlarmEvidence], AlarmEvidence | None]


def _halve_trail(evidence: AlarmEvidence) -> AlarmEvidence | None:
    trail = evidence.trail
    if trail is None or len(trail.scores) <= TRAIL_LEAST:
        return None
    first = len(trail.scores) // 2
    times = [trail.first_ns + round(offset_s * 1e9) for offset_s in trail.offsets_s]
    seen = list(zip(times, trail.scores, trail.list_levels(), strict=True))[first:]
    return evidence.model_copy(update={"trail": make_trail(seen)})


def _halve_bands(evidence: AlarmEvidence) -> AlarmEvidence | None:
    """Join neighbouring bands. Of quantiles the sum is no quantile, but for bands that rise and fall together."""
    spectrum = evidence.spectrum
    if spectrum is None or len(spectrum.worst) <= BANDS_LEAST:
        return None

    def join(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(round_number(sum(values[at : at + 2])) for at in range(0, len(values), 2))

    changed = {name: join(getattr(spectrum, name)) for name in ("worst", "healthy_5", "healthy_50", "healthy_95")}
    edges_hz = (*spectrum.edges_hz[:-1:2], spectrum.edges_hz[-1])
    changes = tuple(one.model_copy(update={"decibels": _keep_farther(one.decibels)}) for one in evidence.changes)
    spectrum = spectrum.model_copy(update={**changed, "edges_hz": edges_hz})
    return evidence.model_copy(update={"spectrum": spectrum, "changes": changes})


def _keep_farther(decibels: tuple[int, ...]) -> tuple[int, ...]:
    """Return of two neighbours the one farther from 0, and what has none as it is."""
    return tuple(max(decibels[at : at + 2], key=abs) for at in range(0, len(decibels), 2))


def keep_worst(health: Sequence[ChannelHealth], most: int) -> tuple[ChannelHealth, ...]:
    """Return so many channels: all of them, or those with the worst health, the worst first."""
    if len(health) <= most:
        return tuple(health)
    return tuple(sorted(health, key=_rank_health)[:most])


def _rank_health(one: ChannelHealth) -> tuple[bool, float, int, int]:
    share = one.outside / max(one.features, 1)
    return (not one.is_faulty, -share, -one.windows_lost, -one.filled)


def _halve_changes(evidence: AlarmEvidence) -> AlarmEvidence | None:
    """Keep the channels with the most bands out of the ordinary."""
    if not evidence.changes:
        return None
    ranked = sorted(evidence.changes, key=lambda one: one.decibels.count(0))
    return evidence.model_copy(update={"changes": tuple(ranked[: len(ranked) // 2])})


def _cut_health(evidence: AlarmEvidence) -> AlarmEvidence | None:
    if len(evidence.health) <= CHANNELS_LEAST:
        return None
    return evidence.model_copy(update={"health": keep_worst(evidence.health, CHANNELS_LEAST)})


CUTS = (
    Cut("older scores", _halve_trail),
    Cut("well channels", _cut_health),
    Cut("narrow bands", _halve_bands),
    Cut("bands of channels", _halve_changes),
)


def fit(evidence: AlarmEvidence, most: int = EVIDENCE_BYTES) -> AlarmEvidence:
    """Return evidence of so many bytes at most: cut are, in this order and as far as it takes, older scores, channels
    that are well, narrow bands, the bands of channels; then the whole spectrum, all scores, and the contributions from
    the least on.
    """
    for cut in CUTS:
        while len(evidence.to_bytes()) > most and (shorter := cut.step(evidence)) is not None:
            evidence = shorter.model_copy(update={"cut": tuple(dict.fromkeys((*evidence.cut, cut.what)))})
    last: list[dict[str, Any]] = [
        {"spectrum": None, "no_spectrum": "cut for its length", "changes": ()},
        {"trail": None},
        {"health": ()},
    ]
    last += [
        {"contributions": evidence.contributions[:count]} for count in range(len(evidence.contributions) - 1, -1, -1)
    ]
    for update in last:
        if len(evidence.to_bytes()) <= most:
            break
        evidence = evidence.model_copy(update=update)
    return evidence
