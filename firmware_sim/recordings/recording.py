"""What every reader returns, so that the simulator need not know where samples came from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.recordings.errors import ChoiceError, DamagedError, FileAccessError
from fedgate.firmware_sim.recordings.gaps import GAPLESS, Gaps

HEALTHY, DAMAGED, UNKNOWN = 0, 1, -1
LABEL_TEXT = {HEALTHY: "healthy", DAMAGED: "damaged", UNKNOWN: "unknown"}
MAX_VALUES = 2**27  # of all channels together: 1 GiB


@dataclass(frozen=True)
class Channel:
    """One measured quantity; `unit` is as written in the file, "" when the file does not say."""

    name: str
    unit: str = ""


@dataclass(frozen=True)
class State:
    """What was true of the structure from `start_s` up to `end_s`, in seconds since the recording's first sample, those
    of gaps among them.
    """

    start_s: float
    end_s: float
    label: int  # HEALTHY, DAMAGED or UNKNOWN
    text: str


@dataclass(frozen=True, eq=False)
class Recording:
    """Samples of several channels on one regular clock, which goes on in the gaps between them.

    Args:
        name: the file's name without its endings.
        channels: C of them, with distinct names.
        rate_hz: samples per second, above 0.
        values: shape (T, C), in the channels' units; NaN where nothing was recorded.
        t0_ns: time of the first sample in nanoseconds since 1970 (UTC), None when the file does not say.
        states: in order of time, not overlapping.
        found: what the reader detected or decided, one sentence each.
        gaps: where rows do not follow one another; no window may span one.

    Raises:
        DamagedError: no samples, a channel name twice, a rate that is no positive number.
    """

    name: str
    channels: tuple[Channel, ...]
    rate_hz: float
    values: NDArray[np.float64]  # (T, C)
    t0_ns: int | None = None
    states: tuple[State, ...] = ()
    found: tuple[str, ...] = ()
    gaps: Gaps = GAPLESS

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != len(self.channels):
            shape = f"values of shape {self.values.shape} for {len(self.channels)} channels"
            raise DamagedError("values", f"found {shape}, expected (samples, channels)", "check the file's layout")
        if self.values.size == 0:
            raise DamagedError("values", f"found {self.values.shape} samples x channels", "the file holds no data")
        if not (math.isfinite(self.rate_hz) and self.rate_hz > 0):
            raise DamagedError("sampling rate", f"found {self.rate_hz} Hz, expected a positive number", "set rate_hz")
        names = [channel.name for channel in self.channels]
        repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if repeated:
            raise DamagedError("channel names", f"{repeated[0]!r} occurs more than once", "rename one of them")

    @property
    def length_s(self) -> float:
        """Duration in seconds: T samples last T / rate, the last one included, and the gaps between them."""
        return self.gaps.end_s(len(self.values), self.rate_hz)

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Names of the C channels, in the order of the columns of `values`."""
        return tuple(channel.name for channel in self.channels)

    def noting(self, *sentences: str) -> Recording:
        """The same recording with more sentences in `found`."""
        return replace(self, found=(*self.found, *sentences))

    def select(self, channels: Sequence[str]) -> Recording:
        """The same recording with only these channels, in this order.

        Raises:
            ChoiceError: a name is not a channel of this recording, or none was given.
        """
        chosen = positions(self.channel_names, channels)
        return replace(self, channels=tuple(self.channels[i] for i in chosen), values=self.values[:, chosen])

    def cut(self, start_s: float, end_s: float) -> Recording:
        """The samples from `start_s` up to, not including, `end_s` (seconds since the first sample).

        Both are rounded to the sampling clock; start time and states move along.

        Raises:
            ChoiceError: the piece is empty or reaches outside the recording.
        """
        if not 0 <= start_s < end_s <= self.length_s * (1 + 1e-9):
            asked = f"asked for {start_s:g} s to {end_s:g} s of {self.length_s:g} s"
            raise ChoiceError("cut", asked, "choose 0 <= start < end <= length")
        first, last = (self.gaps.row_at(at_s, self.rate_hz, len(self.values)) for at_s in (start_s, end_s))
        if first == last:
            asked = f"no sample from {start_s:g} s to {end_s:g} s at {self.rate_hz:g} Hz"
            raise ChoiceError("cut", asked, "choose a longer piece")
        return self.rows(first, last)

    def rows(self, first: int, last: int) -> Recording:
        """The rows from `first` up to, not including, `last`; start time, states and gaps move along."""
        span_s = self.gaps.start_s(first, self.rate_hz), self.gaps.end_s(last, self.rate_hz)
        return replace(
            self,
            values=self.values[first:last],
            t0_ns=None if self.t0_ns is None else self.t0_ns + self.gaps.stamp_ns(first, self.rate_hz),
            states=clip_states(self.states, *span_s),
            gaps=self.gaps.between(first, last),
        )


def clip_states(states: Sequence[State], start_s: float, end_s: float) -> tuple[State, ...]:
    """The parts of `states` between two times, counted from the first of them."""
    clipped = (replace(s, start_s=max(s.start_s, start_s), end_s=min(s.end_s, end_s)) for s in states)
    kept = [state for state in clipped if state.start_s < state.end_s]
    return tuple(replace(s, start_s=s.start_s - start_s, end_s=s.end_s - start_s) for s in kept)


def positions(names: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Where each wanted name stands in `names`.

    Raises:
        ChoiceError: nothing is wanted, a name is absent, or is wanted twice.
    """
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ChoiceError("columns", f"no channel {missing[0]!r}", f"choose among {shortened(names)}")
    if not wanted or len(set(wanted)) < len(wanted):
        raise ChoiceError("columns", f"chose {list(wanted)}", f"choose one or more, each once, of {shortened(names)}")
    return [list(names).index(name) for name in wanted]


def as_float64(array: NDArray[Any]) -> NDArray[np.float64]:
    """Any numbers as float64, without numpy's warnings: what becomes infinite or NaN is counted when reading ends.

    Raises `FileAccessError` for more than `MAX_VALUES`: a byte in a file may become eight here.
    """
    if array.size > MAX_VALUES:
        remedy = f"cut the recording into pieces below {MAX_VALUES} values"
        raise FileAccessError("values", f"{array.size} values", remedy)
    with np.errstate(all="ignore"):
        return array.astype(np.float64)


def shortened(names: Sequence[str], at_most: int = 30) -> str:
    """The names for an error message, without flooding the screen."""
    shown = ", ".join(repr(name) for name in names[:at_most])
    return shown + (f" and {len(names) - at_most} more" if len(names) > at_most else "")
