"""The raw samples of the last while, in memory; around an anomaly they become a clip, and leave when the site asks.

While all is well nothing is written. Samples stay as they came, in the blocks in which they came, so that a clip has
the times that the gateway knew and nothing is computed on its way. Every length is bounded: of memory, of a clip, of
what is written in a day. What times a source sends is its own affair: nothing is held longer for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import MessageError
from fedgate.config.protocol.samples import (
    PIECE_BYTES,
    Clip,
    ClipChannel,
    ClipMeta,
    ClipSource,
    Piece,
    SampleRefusal,
    SampleRequest,
    encode_clip,
    name_clip,
    name_refusal,
)
from fedgate.config.protocol.transfer import split
from fedgate.config.settings.samples import SamplesTable
from fedgate.gateway_agent.context import Context, check_signed, why_no_telemetry
from fedgate.gateway_agent.events import (
    SAMPLES_PRIORITY,
    ClipRead,
    Deliver,
    Item,
    KeepClip,
    Log,
    ReadClip,
    RecordSamples,
    Save,
    Wanted,
)
from fedgate.gateway_agent.samples.ring_layout import count_written_bytes
from fedgate.gateway_agent.write_budget import WriteBudget
from fedgate.models.time_units import NS

SAMPLES = "samples"  # key of a stored blob
RECORDINGS_MAX = 4  # at a time; an anomaly seldom ends and begins again within a minute
LATE_S = 30.0  # how long a source is waited for, behind the end of a clip
ANSWERED_KEPT = 64


class HeldPiece(NamedTuple):
    """Samples in memory, and when they came, by the uptime."""

    received_ns: int
    piece: Piece

    @property
    def size_bytes(self) -> int:
        """What it takes of the memory."""
        return self.piece.values.nbytes + PIECE_BYTES


@dataclass(frozen=True)
class Recording:
    """A clip that is not whole yet."""

    wanted: RecordSamples
    begun_ns: int  # by the uptime


@dataclass(frozen=True)
class Samples:
    """What is held of raw samples, and what was done with them."""

    held: dict[str, tuple[HeldPiece, ...]] = field(default_factory=dict)  # by source, in the order of arrival
    held_bytes: int = 0
    recordings: tuple[Recording, ...] = ()
    day: WriteBudget = field(default_factory=WriteBudget)  # of the file of clips
    answered: tuple[tuple[str, int], ...] = ()  # alarms and numbers of requests, the newest last


Result = tuple[Samples, list[Wanted]]


def note_piece(samples: Samples, context: Context, source: str, piece: Piece) -> Result:
    """Hold one more piece of a source, and end the clips that are whole with it."""
    table = context.settings.samples
    if table is None:
        return samples, []
    piece = piece._replace(values=piece.values.copy())  # or all of the message that it came in would stay
    received_ns, t_ns = _find_horizons_ns(samples, context, table, piece.end_ns)
    pieces, first = (*samples.held.get(source, ()), HeldPiece(context.uptime_ns, piece)), 0
    while pieces[first].received_ns < received_ns or pieces[first].piece.end_ns < t_ns:
        first += 1
    grown = pieces[-1].size_bytes - _count_bytes(pieces[:first])
    samples = replace(samples, held={**samples.held, source: pieces[first:]}, held_bytes=samples.held_bytes + grown)
    samples, effects = _end_whole(samples, context, table)
    most = table.max_clip_bytes
    if samples.recordings and samples.held_bytes > most:
        samples, more = end_all(samples, context, f"longer than max_clip_bytes = {most}")
        effects = [*effects, *more]
    if not samples.recordings:  # what is to follow an alarm has its part
        most = round(most * _share_before(table))
    return (samples if samples.held_bytes <= most else _drop_oldest(samples, context, most)), effects


def _share_before(table: SamplesTable) -> float:
    whole_s = table.before_s + table.after_s
    return table.before_s / whole_s if whole_s > 0 else 1.0


def _find_horizons_ns(samples: Samples, context: Context, table: SamplesTable, newest_ns: int) -> tuple[int, int]:
    """Return before which arrival, by the uptime, and before which time of its own nothing of a source is held: an
    anomaly is found a window later at most.

    Both, since what comes late comes at once, and since a time that a source sends may be any.
    """
    before_ns, kept_ns = (
        round(table.before_s * NS),
        round((table.before_s + context.settings.features.window_s) * NS),
    )
    received_ns = min([context.uptime_ns, *(one.begun_ns for one in samples.recordings)]) - kept_ns
    return received_ns, min([newest_ns - kept_ns, *(one.wanted.t_ns - before_ns for one in samples.recordings)])


def _count_bytes(pieces: Iterable[HeldPiece]) -> int:
    return sum(one.size_bytes for one in pieces)


def _drop_oldest(samples: Samples, context: Context, most: int) -> Samples:
    """Return the samples that fit: whichever source holds most by its channels loses what came first of it, so that
    none loses anything for another that sends more than it does.
    """
    channels = {source.name: len(source.channels) for source in context.settings.source}
    held, size = {source: list(pieces) for source, pieces in samples.held.items()}, samples.held_bytes
    sizes = {source: _count_bytes(pieces) for source, pieces in held.items()}
    dropped = dict.fromkeys(held, 0)
    while size > most:
        largest = max(held, key=lambda source: sizes[source] / channels[source])
        freed = held[largest][dropped[largest]].size_bytes
        dropped[largest], sizes[largest], size = dropped[largest] + 1, sizes[largest] - freed, size - freed
    kept = {source: tuple(pieces[dropped[source] :]) for source, pieces in held.items()}
    return replace(samples, held=kept, held_bytes=size)


def begin_recording(samples: Samples, context: Context, wanted: RecordSamples) -> Result:
    """Begin the clip of an anomaly that was raised now; nothing where the settings want none."""
    table = context.settings.samples
    if table is None:
        return samples, []
    if len(samples.recordings) >= RECORDINGS_MAX:
        return samples, [
            Log("warning", f"{wanted.cause}: {RECORDINGS_MAX} clips are not whole yet; this one is not kept")
        ]
    samples = replace(samples, recordings=(*samples.recordings, Recording(wanted, context.uptime_ns)))
    return _end_whole(samples, context, table)


def end_due(samples: Samples, context: Context) -> Result:
    """End the clips for which no source is waited any more."""
    table = context.settings.samples
    return (samples, []) if table is None or not samples.recordings else _end_whole(samples, context, table)


def _end_whole(samples: Samples, context: Context, table: SamplesTable) -> Result:
    effects = list[Wanted]()
    for one in samples.recordings:
        if _is_whole(samples, context, table, one):
            samples, more = _end(samples, context, table, one, "")
            effects += more
    return samples, effects


def _is_whole(samples: Samples, context: Context, table: SamplesTable, one: Recording) -> bool:
    end_ns, until_ns = one.wanted.t_ns + round(table.after_s * NS), one.begun_ns + round((table.after_s + LATE_S) * NS)
    seen = [samples.held.get(source.name, ()) for source in context.settings.source]
    return context.uptime_ns >= until_ns or all(pieces and pieces[-1].piece.end_ns >= end_ns for pieces in seen)


def end_all(samples: Samples, context: Context, cut: str) -> Result:
    """End all clips as they are, and say in them why."""
    table, effects = context.settings.samples, list[Wanted]()
    if table is None:
        return samples, []
    for one in samples.recordings:
        samples, more = _end(samples, context, table, one, cut)
        effects += more
    return samples, effects


def begin_anew(samples: Samples, context: Context) -> Result:
    """Forget the samples after the wall clock was set: they have no common time with what follows."""
    samples, effects = end_all(samples, context, "the wall clock was set")
    saved = [save_day(samples, context)] if samples.day.written_bytes else []
    return replace(samples, held={}, held_bytes=0), [*effects, *saved]


def save_day(samples: Samples, context: Context) -> Save:
    """Return the effect that stores how much was written in the day at hand."""
    return Save(SAMPLES, samples.day.dump(context.anchor_ns))


def _end(samples: Samples, context: Context, table: SamplesTable, one: Recording, cut: str) -> Result:
    """Return the samples without a recording, and what keeps it as a clip; or says why it is not kept."""
    samples = replace(samples, recordings=tuple(other for other in samples.recordings if other is not one))
    alarm, day = one.wanted.alarm, samples.day.move_to(context.uptime_ns)
    try:
        body = encode_clip(_make_clip(samples, context, table, one.wanted, cut))
    except (wire.WireError, ValueError) as error:
        return samples, [Log("warning", f"no samples are kept of alarm {alarm}: {error}")]
    written_bytes, reason = count_written_bytes(alarm, len(body)), str(why_no_telemetry(context) or "")
    if not reason and day.written_bytes + written_bytes > table.bytes_per_day:
        reason = f"{day.written_bytes} bytes are written today, and samples.bytes_per_day is {table.bytes_per_day}"
    if reason:
        return samples, [Log("warning", f"{len(body)} bytes of samples are not kept of alarm {alarm}: {reason}")]
    samples = replace(samples, day=day.add(written_bytes))
    return samples, [KeepClip(alarm, body), save_day(samples, context)]


def _make_clip(samples: Samples, context: Context, table: SamplesTable, wanted: RecordSamples, cut: str) -> Clip:
    """Return the pieces of a recording, whole, that share time with it."""
    settings = context.settings
    from_ns, to_ns = wanted.t_ns - round(table.before_s * NS), wanted.t_ns + round(table.after_s * NS)
    sources = tuple(
        ClipSource(
            name=source.name,
            channels=tuple(
                ClipChannel(name=one.role, unit=one.unit, gain=one.gain, bias=one.bias) for one in source.channels
            ),
        )
        for source in settings.source
    )
    meta = ClipMeta(
        gateway=settings.gateway.id,
        alarm=wanted.alarm,
        cause=wanted.cause,
        onset_ns=wanted.onset_ns,
        t_ns=wanted.t_ns,
        clock=context.clock,
        cut=cut,
        sources=sources,
    )
    pieces = tuple(
        tuple(
            one.piece
            for one in samples.held.get(source.name, ())
            if one.piece.t_ns <= to_ns and one.piece.end_ns >= from_ns
        )
        for source in settings.source
    )
    return Clip(meta, pieces)


def receive_request(samples: Samples, context: Context, payload: bytes) -> Result:
    """Take in a request of the site for the samples around an alarm; the same request again does nothing.

    Raises `MessageError` where the site's key has not signed it for this gateway.
    """
    request = SampleRequest.from_bytes(payload)
    if (request.alarm, request.number) in samples.answered:
        return samples, []
    if reason := check_signed(context, request, context.settings.gateway.id):
        raise MessageError(f"request for samples: {reason}")
    if any(one.wanted.alarm == request.alarm for one in samples.recordings):
        return samples, [Log("info", f"samples of alarm {request.alarm} are asked for, and still come in")]
    if context.settings.samples is None:
        reason = "this gateway keeps no raw samples: its settings have no table [samples]"
        return _refuse(samples, context, request.alarm, request.number, reason)
    return _note_answer(samples, request.alarm, request.number), [ReadClip(request.alarm, request.number)]


def _note_answer(samples: Samples, alarm: str, number: int) -> Samples:
    return replace(samples, answered=(*samples.answered, (alarm, number))[-ANSWERED_KEPT:])


def _refuse(samples: Samples, context: Context, alarm: str, number: int, reason: str) -> Result:
    refusal, name = SampleRefusal(alarm=alarm, number=number, reason=reason), name_refusal(alarm, number)
    item = Item(context.topic("samples", name), (refusal.to_bytes(),), retain=False, priority=SAMPLES_PRIORITY)
    log = Log("info", f"samples of alarm {alarm} are asked for and not sent: {reason}")
    return _note_answer(samples, alarm, number), [Deliver(name, item), log]


def queue_clip(samples: Samples, context: Context, read: ClipRead) -> Result:
    """Queue a clip that the site asks for, behind everything else; or the reason why there is none."""
    if read.body is None:
        return _refuse(samples, context, read.alarm, read.number, read.problem)
    name = name_clip(read.alarm, read.number)
    payloads = tuple(split(read.body, context.payload_bytes))
    item = Item(context.topic("samples", name), payloads, retain=False, priority=SAMPLES_PRIORITY)
    log = Log(
        "info", f"samples of alarm {read.alarm} are queued for the site, which asks for them: {len(read.body)} bytes"
    )
    return samples, [Deliver(name, item), log]
