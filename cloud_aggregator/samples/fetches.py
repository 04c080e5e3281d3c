"""Raw samples around alarms: asked of a gateway by an operator's order, and taken where they were asked for.

A request is repeated whenever its gateway reports, until the samples or a refusal are here, or `ASKED_S` are over. What
nobody asked for is refused before a byte of it is kept; of what comes, no more is in memory than one clip may have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fedgate.cloud_aggregator.context import SET_NS, Context
from fedgate.cloud_aggregator.events import Effect, Log, Ordered, OrderError, Publish, RecordFetch, RecordFetched
from fedgate.config.protocol.messages import MessageError
from fedgate.config.protocol.receiver import Patience, Receiver
from fedgate.config.protocol.samples import SampleRefusal, SampleRequest, check_clip, name_clip
from fedgate.config.protocol.topics import ALL
from fedgate.config.protocol.transfer import ChunkHeader, digest_of, parse_chunk
from fedgate.models.time_units import DAY_S, NS

ITEM = re.compile(r"([0-9a-f]{32})\.(clip|refused)")
ASKED_MAX = 100  # requests of a site that have no answer
ASKED_S = 7 * DAY_S  # after which nobody waits any more
REPEAT_S = 60.0
HERE_KEPT = 1_000  # digests of what came, for receipts that were lost
REASON_LENGTH = 500
PATIENCE = Patience(first_s=30.0, lost_s=3_600.0, turn_s=3_600.0)  # nothing is less urgent


class Key(NamedTuple):
    """Which clip of which gateway, by the item under which it travels."""

    gateway: str
    item: str


class Asked(NamedTuple):
    """A request without an answer."""

    alarm: str
    number: int  # the time of day when it was asked for the first time, in ns of Unix time
    asked_ns: int  # the same by the uptime
    sent_ns: int | None = None  # when the gateway was last asked, by the uptime


@dataclass(frozen=True)
class Fetches:
    """What is asked for, what of it is on its way, and the digests of what is here."""

    asked: dict[Key, Asked] = field(default_factory=dict)
    uploads: Receiver = field(default_factory=lambda: Receiver(PATIENCE))
    here: dict[Key, str] = field(default_factory=dict)


Result = tuple[Fetches, list[Effect]]


def restore_fetches(asked: Iterable[tuple[str, str, int]], here: Iterable[tuple[str, str, int, str]]) -> Fetches:
    """Return what a store holds: gateway, alarm and number of requests; the same and the digest of clips. When a
    request was made is by the wall clock until `resume`.
    """
    return Fetches(
        {Key(gateway, name_clip(alarm, number)): Asked(alarm, number, number) for gateway, alarm, number in asked},
        here={Key(gateway, name_clip(alarm, number)): digest for gateway, alarm, number, digest in here},
    )


def resume(fetches: Fetches, context: Context) -> Fetches:
    """Return the fetches that a store held, by the time of this boot; one of before the clock was set begins now."""
    asked = {key: one._replace(asked_ns=_resume_ns(one, context)) for key, one in fetches.asked.items()}
    return replace(fetches, asked=asked)


def _resume_ns(one: Asked, context: Context) -> int:
    return context.uptime_ns if one.number < SET_NS else min(one.number - context.anchor_ns, context.uptime_ns)


def carry_out(fetches: Fetches, context: Context, order: Ordered) -> tuple[Fetches, list[Effect], str]:
    """Ask a gateway for the samples around an alarm, which the order names as gateway/id; raises `OrderError`."""
    if not context.settings.samples.fetch:
        raise OrderError(
            "this site fetches no raw samples: [samples] fetch is false in the settings of the aggregator; set it to "
            "true to allow it, and start the aggregator anew"
        )
    names = order.body.get("alarms")
    if not (isinstance(names, list) and len(names) == 1 and isinstance(names[0], str)):
        raise OrderError(f"alarms: expected one name as gateway/id, got {str(names)[:100]}")
    gateway, _, alarm = names[0].partition("/")
    if names[0] not in order.stored:
        raise OrderError(f"{names[0]}: there is no such alarm; 'cloud-aggregator alarms' lists those there are")
    if gateway == ALL:
        raise OrderError(f"{names[0]} is an alarm of the whole site; name that of one gateway")
    # Who asks again has another request: the gateway may have forgotten the one before.
    before = [key for key, one in fetches.asked.items() if (key.gateway, one.alarm) == (gateway, alarm)]
    if not before and len(fetches.asked) >= ASKED_MAX:
        raise OrderError(f"{ASKED_MAX} requests have no answer yet, and that is the most; wait for some")
    number = max([context.now_ns, *(one.number + 1 for one in fetches.asked.values())])
    for key in before:
        fetches = _forget(fetches, key)
    key = Key(gateway, name_clip(alarm, number))
    fetches = replace(fetches, asked={**fetches.asked, key: Asked(alarm, number, context.uptime_ns)})
    fetches, published = _publish(fetches, context, key)
    text = f"{names[0]}: its samples are asked for; 'cloud-aggregator samples list' tells when they are here"
    return fetches, [RecordFetch(gateway, alarm, number), *published], text


def _publish(fetches: Fetches, context: Context, key: Key) -> Result:
    """Ask for a clip now, where there is a connection; who reports later is asked then."""
    if not context.is_connected:
        return fetches, []
    one = fetches.asked[key]
    signed = context.sign(SampleRequest(alarm=one.alarm, number=one.number), key.gateway)
    fetches = replace(fetches, asked={**fetches.asked, key: one._replace(sent_ns=context.uptime_ns)})
    return fetches, [Publish(context.topic(key.gateway, "fetch", key.item), signed.to_bytes())]


def repeat_requests(fetches: Fetches, context: Context, gateway: str) -> Result:
    """Ask a gateway that has just reported for what it has not answered; not while that is coming in."""
    effects = list[Effect]()
    if not fetches.asked or not context.settings.samples.fetch:
        return fetches, effects
    for key, one in fetches.asked.items():
        is_due = one.sent_ns is None or context.uptime_ns - one.sent_ns >= REPEAT_S * NS
        if key.gateway == gateway and is_due and not _is_coming(fetches, context, key):
            fetches, published = _publish(fetches, context, key)
            effects += published
    return fetches, effects


def _is_coming(fetches: Fetches, context: Context, key: Key) -> bool:
    """Tell whether a clip goes on coming in: a gateway that was restarted has to be asked again."""
    incoming = fetches.uploads.incoming.get(_name_upload(key))
    return incoming is not None and context.uptime_ns - incoming.received_ns < REPEAT_S * NS


def follow_up(fetches: Fetches, context: Context) -> Result:
    """Ask for the chunks that lack, and give up requests that nobody has answered for too long."""
    effects = list[Effect]()
    for key, one in fetches.asked.items():
        if context.uptime_ns - one.asked_ns > ASKED_S * NS:
            fetches, ended = _end(fetches, context, key, f"no answer within {ASKED_S / DAY_S:g} days")
            effects += ended
    if not fetches.uploads.incoming:
        return fetches, effects
    uploads, asked = fetches.uploads.ask(context.uptime_ns, context.settings.samples.max_clip_bytes)
    for name, assembly in asked.items():
        gateway, _, item = name.partition("/")
        effects.append(Publish(context.topic(gateway, "resend", item), assembly.want.to_bytes()))
    return replace(fetches, uploads=uploads), effects


def forget_gateway(fetches: Fetches, context: Context, gateway: str) -> Result:
    """End the requests of a gateway that is gone."""
    effects = list[Effect]()
    for key in [key for key in fetches.asked if key.gateway == gateway]:
        fetches, ended = _end(fetches, context, key, "the gateway was removed or replaced")
        effects += ended
    return fetches, effects


def drop_uploads(fetches: Fetches, gateway: str) -> Fetches:
    """Return the fetches without what a gateway has on its way."""
    uploads = fetches.uploads
    for name in uploads.incoming:
        if name.startswith(f"{gateway}/"):
            uploads = uploads.without(name)
    return replace(fetches, uploads=uploads)


def receive(fetches: Fetches, context: Context, gateway: str, item: str, payload: bytes) -> Result:
    """Take in a chunk of a clip, or its refusal; raises `MessageError` for what is neither."""
    named = ITEM.fullmatch(item)
    if named is None:
        raise MessageError(f"samples of {gateway}: {item!r} is no item of samples")
    if named[2] == "refused":
        return _receive_refusal(fetches, context, Key(gateway, f"{named[1]}.clip"), item, payload)
    header, piece = parse_chunk(payload)
    key, is_last = Key(gateway, item), header.index + 1 == header.chunks
    if fetches.here.get(key) == header.digest:
        return fetches, [context.receipt(gateway, item)] if is_last else []
    if key not in fetches.asked or not context.settings.samples.fetch:
        return fetches, [context.receipt(gateway, item, "nobody asks for these samples")] if is_last else []
    most = context.settings.samples.max_clip_bytes
    if header.size_bytes > most:
        return _refuse(fetches, context, key, f"the clip has {header.size_bytes} bytes, at most {most} are taken")
    return _add_chunk(fetches, context, key, header, piece)


def _add_chunk(fetches: Fetches, context: Context, key: Key, header: ChunkHeader, piece: bytes) -> Result:
    name, most = _name_upload(key), context.settings.samples.max_clip_bytes
    uploads = fetches.uploads.expect(name, header.transfer, context.uptime_ns, most)
    uploads, body = uploads.add(name, header, piece, context.uptime_ns)
    fetches = replace(fetches, uploads=uploads)
    if body is None:
        return fetches, []
    one = fetches.asked[key]
    try:
        meta = check_clip(body, most)
        if (meta.gateway, meta.alarm) != (key.gateway, one.alarm):
            raise MessageError(f"the clip is of {meta.gateway}/{meta.alarm}")
    except MessageError as error:
        return _refuse(fetches, context, key, str(error)[:REASON_LENGTH])
    table = context.settings.samples
    bounds = (table.max_gateway_bytes, table.max_bytes)
    here = dict([*fetches.here.items(), (key, digest_of(body))][-HERE_KEPT:])
    record = RecordFetched(key.gateway, one.alarm, context.now_ns, body=body, bounds=bounds)
    log = Log("info", f"the samples of {key.gateway}/{one.alarm} are here: {len(body)} bytes")
    return replace(_forget(fetches, key), here=here), [record, context.receipt(key.gateway, key.item), log]


def _refuse(fetches: Fetches, context: Context, key: Key, reason: str) -> Result:
    fetches, ended = _end(fetches, context, key, reason)
    return fetches, [*ended, context.receipt(key.gateway, key.item, reason)]


def _receive_refusal(fetches: Fetches, context: Context, key: Key, item: str, payload: bytes) -> Result:
    refusal, receipt = SampleRefusal.from_bytes(payload), context.receipt(key.gateway, item)
    if key not in fetches.asked:
        return fetches, [receipt]  # of a request that is over
    fetches, ended = _end(fetches, context, key, f"the gateway refuses: {refusal.reason[:REASON_LENGTH]}")
    return fetches, [*ended, receipt]


def _end(fetches: Fetches, context: Context, key: Key, problem: str) -> Result:
    """End a request that brings nothing."""
    one, fetches = fetches.asked[key], _forget(fetches, key)
    log = Log("warning", f"no samples of {key.gateway}/{one.alarm}: {problem}")
    return fetches, [RecordFetched(key.gateway, one.alarm, context.now_ns, problem=problem), log]


def _forget(fetches: Fetches, key: Key) -> Fetches:
    """Return the fetches without a request, and without what came of it."""
    asked = {other: held for other, held in fetches.asked.items() if other != key}
    return replace(fetches, asked=asked, uploads=fetches.uploads.without(_name_upload(key)))


def _name_upload(key: Key) -> str:
    return f"{key.gateway}/{key.item}"
