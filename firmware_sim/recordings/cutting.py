"""Recordings to windows, cut by the code that cuts a gateway's live streams: no window spans a gap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fedgate.firmware_sim.recordings import Recording
from fedgate.gateway_agent.pipeline.recurrence import count_missing_rows
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.windows.grid import Block, Lost, StreamSpec, Window, Windower, push, rest, start

BEGINNING_NS = 0  # of a recording that does not say when it began


def begin_of(recording: Recording) -> int:
    """Return when the windows of a recording begin to be counted, in ns."""
    return BEGINNING_NS if recording.t0_ns is None else recording.t0_ns


def cut_windows(spec: FeatureSpec, streams: Sequence[StreamSpec], recording: Recording) -> Iterator[Window | Lost]:
    """Yield the windows of a recording, oldest first, and in the place of those that lack samples why they are lost.

    The recording's channels play the roles of `spec.channels`, in their order. As on a gateway a short gap is bridged
    as its stream says. Behind one of more than ten windows, or where the time stamps go back so far, the windows begin
    anew; one event stands for all that are lost there (`count_lost`).

    Raises `SignalError` for streams that do not bring these channels or not at this rate.
    """
    state = start(spec, streams)
    for jump_ns, block in cut_blocks(spec, streams, recording):
        if (lost := find_jump(state, spec, jump_ns)) is not None:
            yield lost
            state = start(spec, streams)
        state, events = push(state, block)
        yield from events
    yield from rest(state)


def find_jump(state: Windower, spec: FeatureSpec, jump_ns: int) -> Lost | None:
    """Return what stands for all windows that a jump of time passes over, behind which windows begin anew; None for a
    jump that is bridged or loses windows one by one.
    """
    if not state.has_origin or abs(jump_ns) < state.duration_ns(state.far - 1):
        return None
    reason = f"time jumped by {jump_ns / 1e9:+.3f} s: the windows begin anew"
    return Lost(state.time_ns(state.next), spec.channels, reason)


def cut_blocks(spec: FeatureSpec, streams: Sequence[StreamSpec], recording: Recording) -> Iterator[tuple[int, Block]]:
    """Yield the samples of a recording as its streams bring them, a hop at a time, each block with the time in ns that
    is missing before it: 0 but behind a gap, negative where the time stamps go back.
    """
    begin_ns = begin_of(recording)
    jumps_ns = [0, *recording.gaps.lost_ns.tolist()]
    for (first, end), jump_ns in zip(recording.gaps.parts(len(recording.values)), jumps_ns, strict=True):
        missing_ns = jump_ns
        for row in range(first, end, spec.hop_samples):
            t_ns = begin_ns + recording.gaps.stamp_ns(row, recording.rate_hz)
            values = recording.values[row : min(row + spec.hop_samples, end)]  # (T, C)
            for stream in streams:
                columns = [spec.channels.index(channel) for channel in stream.channels]
                yield missing_ns, Block(stream.name, t_ns, recording.rate_hz, values[:, columns])
                missing_ns = 0


def count_lost(spec: FeatureSpec, events: Iterable[Window | Lost]) -> int:
    """Return how many windows of a recording are lost to gaps, those that a long gap passed over among them; time
    stamps that go back pass over none.
    """
    starts_ns, lost = [], 0
    for event in events:  # none is kept: each window holds its values
        starts_ns.append(event.t_ns)
        lost += isinstance(event, Lost)
    return lost + int(np.maximum(count_missing_rows(starts_ns, spec.hop_s), 0).sum())
