"""Recordings as one, in the roles of a gateway's features, with what is known of the structure."""

from __future__ import annotations

import argparse
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.evaluate.datasets import DataError
from fedgate.firmware_sim.evaluate.folders import in_roles
from fedgate.firmware_sim.recordings import Recording, reading
from fedgate.firmware_sim.recordings.gaps import Gaps
from fedgate.firmware_sim.recordings.recording import DAMAGED, HEALTHY, UNKNOWN, State
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.time_units import NS

ROUNDING = 1e-6  # of a window's length


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the settings of a gateway, recordings, and what is known of the structure in them."""
    text = "gateway.toml: its features, and its baseline and alarm rules"
    command.add_argument("--config", "-c", type=Path, required=True, metavar="FILE", help=text)
    text = "which play the roles of features.channels, in order (default: those of the same names)"
    command.add_argument("--channels", metavar="NAME,NAME", help=text)
    text = "when the structure was damaged, in seconds from the beginning; may be repeated (default: as recorded)"
    command.add_argument("--damaged", action="append", default=[], type=_span, metavar="START:END[:WHAT]", help=text)
    reading.add_arguments(command, several=True)


def _span(text: str) -> State:
    start, _, rest = text.partition(":")
    end, _, what = rest.partition(":")
    try:
        state = State(float(start), float(end), DAMAGED, what or "damaged")
    except ValueError:
        state = State(0.0, 0.0, DAMAGED, "")
    if not 0 <= state.start_s < state.end_s:
        raise argparse.ArgumentTypeError(f"expected START:END or START:END:WHAT with START before END, got {text!r}")
    return state


class Inputs(NamedTuple):
    """Recordings as one, in whose time each of `names` begins at one of `begin_s`; where nothing `is_known` of the
    structure, all of it counts as healthy.
    """

    recording: Recording
    is_known: bool
    names: tuple[str, ...]
    begin_s: tuple[float, ...]

    def place_of(self, at_s: float) -> int:
        """Return which of the recordings a time lies in, or in the pause behind which."""
        return bisect_right(self.begin_s, at_s) - 1


def read_inputs(arguments: argparse.Namespace, spec: FeatureSpec) -> Inputs:
    """Return the recordings in the roles of the features as one.

    Raises:
        DataError, RecordingError, ValueError: one line that says what cannot be used.
    """
    channels = arguments.channels.split(",") if arguments.channels else list(spec.channels)
    if len(channels) != len(spec.channels):
        raise DataError(f"--channels: {len(channels)} given; expected one for each of {', '.join(spec.channels)}")
    roles = dict(zip(spec.channels, channels, strict=True))
    read = [(str(path), reading.read_recording(path, arguments.read)) for path in arguments.recordings]
    whole = join([in_roles(path, each, spec, roles) for path, each in read], spec.window_s)
    is_known = bool(arguments.damaged) or any(each.states for _, each in read)
    if arguments.damaged:
        whole = replace(whole, states=_between(arguments.damaged, whole.length_s))
    elif not is_known:
        whole = replace(whole, states=(State(0.0, whole.length_s, HEALTHY, "healthy"),))
    return Inputs(whole, is_known, tuple(path for path, _ in read), begins_s([each for _, each in read], spec.window_s))


def _between(damaged: Sequence[State], end_s: float) -> tuple[State, ...]:
    """Return damage with what is healthy between; raises `DataError` where spans overlap."""
    states, reached_s = list[State](), 0.0
    for state in sorted(damaged, key=lambda one: one.start_s):
        if state.start_s < reached_s or state.end_s > end_s:
            found = f"--damaged {state.start_s:g}:{state.end_s:g}"
            raise DataError(f"{found}: expected spans that do not overlap, within the {end_s:g} s of the recordings")
        states += [State(reached_s, state.start_s, HEALTHY, "healthy"), state]
        reached_s = state.end_s
    states.append(State(reached_s, end_s, HEALTHY, "healthy"))
    return tuple(state for state in states if state.start_s < state.end_s)


def begins_s(recordings: Sequence[Recording], pause_s: float) -> tuple[float, ...]:
    """Return when each of recordings begins that are played one behind the other."""
    return tuple(accumulate((each.length_s + pause_s for each in recordings[:-1]), initial=0.0))


def join(recordings: Sequence[Recording], pause_s: float) -> Recording:
    """Return recordings as one, each so long behind the one before, whose time goes on; what is not known of one is
    unknown. No window of up to this length spans a seam.

    Raises `DataError` where they have other channels or another rate.
    """
    first, states, count = recordings[0], list[State](), 0
    rows, lost_ns = list[int](), list[int]()
    for each, start_s in zip(recordings, begins_s(recordings, pause_s), strict=True):
        if (each.channel_names, each.rate_hz) != (first.channel_names, first.rate_hz):
            found = f"{', '.join(each.channel_names)} at {each.rate_hz:g} Hz"
            expected = f"{', '.join(first.channel_names)} at {first.rate_hz:g} Hz as {first.name} has"
            raise DataError(f"{each.name}: {found}; expected {expected}")
        if count:
            rows, lost_ns = [*rows, count], [*lost_ns, round(pause_s * NS)]
        known = each.states or (State(0.0, each.length_s, UNKNOWN, "unknown"),)
        states += [replace(one, start_s=one.start_s + start_s, end_s=one.end_s + start_s) for one in known]
        rows += (each.gaps.rows + count).tolist()
        lost_ns += each.gaps.lost_ns.tolist()
        count += len(each.values)
    return replace(
        first,
        values=np.concatenate([each.values for each in recordings]),
        states=tuple(states),
        gaps=Gaps(np.array(rows, dtype=np.int64), np.array(lost_ns, dtype=np.int64)),
    )


def label_of(states: Sequence[State], start_s: float, end_s: float) -> int:
    """Return what is known of the structure between two times: HEALTHY or DAMAGED where it was that all the while."""
    parts = [state for state in states if state.start_s < end_s and state.end_s > start_s]
    covered_s = sum(min(state.end_s, end_s) - max(state.start_s, start_s) for state in parts)
    is_covered = covered_s >= (end_s - start_s) * (1.0 - ROUNDING)
    return parts[0].label if is_covered and len({state.label for state in parts}) == 1 else UNKNOWN
