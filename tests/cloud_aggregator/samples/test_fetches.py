"""Goal: raw samples come to the aggregator where an operator asked for them and the site allows it; a gateway that
sends what nobody asked for, or nonsense, or too much, gains nothing and harms nobody.

Method: the real service with a real store; gateways made by hand.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.cloud_aggregator import machine
from fedgate.cloud_aggregator.events import ClockSet, Connection, ForgetDevice, Outward, RecordFetch, Tick
from fedgate.cloud_aggregator.samples import fetches
from fedgate.cloud_aggregator.storage import samples_table
from fedgate.config.identity.signing import verify
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import MessageError, Want
from fedgate.config.protocol.samples import (
    PIECE_BYTES,
    PIECES_MAX,
    SampleRefusal,
    SampleRequest,
    decode_clip,
    encode_clip,
    name_clip,
    name_refusal,
)
from fedgate.config.protocol.transfer import split
from fedgate.config.settings.samples import CLIP_BYTES_MAX
from fedgate.models.time_units import DAY_S, NS
from tests.cloud_aggregator.test_aggregator_machine import ALARM
from tests.support.clip_samples import make_clip, make_pieces
from tests.support.cloud_service import CHUNK, READY, Cloud, cloud, heard, mean_of, receipts, said_under
from tests.support.sites import KEY, SITE

ALLOWED = {"samples": {"fetch": True}}
VALUES = np.random.default_rng(0).normal(size=(400, 1)).astype(np.float32)
BODY = encode_clip(make_clip(*make_pieces(VALUES, 0.0, 10.0)))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Cloud]:
    with cloud(tmp_path, mean_of(2), **ALLOWED) as one:
        give_alarm(one)
        yield one


def give_alarm(made: Cloud, gateway: str = "north", alarm: str = ALARM.id) -> None:
    made.hear(heard(gateway, "alarm", ALARM.model_copy(update={"id": alarm}).to_bytes(), ALARM.cause))


def fetch(made: Cloud, name: str = f"north/{ALARM.id}") -> tuple[list[Outward], str, str]:
    number = made.service.store.order("samples", {"alarms": [name]})
    said = made.hear(*made.service.read_orders())
    return said, *(made.service.store.answer(number) or ("", ""))


def item_of(made: Cloud, gateway: str = "north", alarm: str = ALARM.id) -> str:
    """Return the item that answers the last request for an alarm."""
    asked = made.service.store.read_rows("samples", "gateway", "alarm", "requested_ns")
    numbers = {(row["gateway"], row["alarm"]): row["requested_ns"] for row in asked}
    return name_clip(alarm, numbers.get((gateway, alarm), 0))


def send(made: Cloud, body: bytes, gateway: str = "north", item: str = "") -> list[Outward]:
    item = item or item_of(made, gateway)
    return made.hear(*(heard(gateway, "samples", piece, item) for piece in split(body, CHUNK)))


def rows(made: Cloud) -> list[dict[str, Any]]:
    return made.service.store.read_rows("samples", "gateway", "alarm", "received_ns", "problem", "size_bytes")


def test_a_request_is_signed_for_its_gateway_and_what_comes_is_stored_once(made: Cloud) -> None:
    said, text, problem = fetch(made)
    (published,) = said_under("fetch", said)
    request = SampleRequest.from_bytes(published.payload)
    assert request.alarm == ALARM.id and request.audience == f"{SITE}/north" and "asked for" in text and not problem
    assert verify(KEY.public_key(), request.signed_bytes(), request.signature)
    assert published.topic.endswith(f"/north/fetch/{item_of(made)}") and not published.retain
    assert [one.accepted for one in receipts(send(made, BODY))] == [True]
    assert made.service.store.read_samples("north", ALARM.id) == BODY and rows(made)[0]["problem"] == ""
    # Its receipt was lost: the last chunk comes again, also after a restart.
    for _ in range(2):
        last = heard("north", "samples", split(BODY, CHUNK)[-1], item_of(made))
        assert [one.accepted for one in receipts(made.hear(last))] == [True]
        made.restart()
    assert len(rows(made)) == 1 and not made.service.state.fetches.asked


def test_by_default_a_site_fetches_nothing_and_takes_nothing(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        give_alarm(made)
        said, _, problem = fetch(made)
        assert "[samples] fetch is false" in problem and not said_under("fetch", said)
        (receipt,) = receipts(send(made, BODY))
        assert receipt.reason == "nobody asks for these samples" and rows(made) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [("north/none", "there is no such alarm"), ("all/x", "there is no such alarm"), ("", "there is no such alarm")],
)
def test_only_the_samples_of_an_alarm_that_is_here_can_be_asked_for(made: Cloud, name: str, why: str) -> None:
    assert why in fetch(made, name)[2] and rows(made) == []


def test_requests_that_have_no_answer_are_bounded_and_repeated_when_the_gateway_reports(
    made: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetches, "ASKED_MAX", 1)
    give_alarm(made, "east", "b")
    made.hear(Connection(False))
    said, _, _ = fetch(made)
    assert not said_under("fetch", said) and "that is the most" in fetch(made, "east/b")[2]
    made.restart()
    status = heard("north", "status", READY.to_bytes())
    (first,) = said_under("fetch", made.hear(status))
    assert not said_under("fetch", made.hear(status))
    assert not said_under("fetch", made.hear(heard("east", "status", READY.to_bytes()), after_s=61))
    (again,) = said_under("fetch", made.hear(status))
    assert SampleRequest.from_bytes(again.payload).number == SampleRequest.from_bytes(first.payload).number
    assert len(said_under("fetch", fetch(made)[0])) == 1  # an operator who asks again reminds it
    made.hear(Tick(), after_s=40)
    made.hear(heard("north", "samples", split(BODY, CHUNK)[0], item_of(made)))
    assert not said_under("fetch", made.hear(status, after_s=30))  # it comes in
    assert said_under("fetch", made.hear(status, after_s=31))  # not any more: the gateway was restarted, perhaps
    made.hear(Tick(), after_s=7 * DAY_S + 1)
    assert rows(made)[0]["problem"] == "no answer within 7 days" and not made.service.state.fetches.asked
    assert fetch(made, "east/b")[2] == ""


def test_a_refusal_ends_its_request_and_that_of_an_older_one_does_not(made: Cloud) -> None:
    (published,) = said_under("fetch", fetch(made)[0])
    number = SampleRequest.from_bytes(published.payload).number
    for named, is_asked in ((number - 1, True), (number, False), (number, False)):
        refusal = SampleRefusal(alarm=ALARM.id, number=named, reason="it keeps none")
        said = made.hear(heard("north", "samples", refusal.to_bytes(), name_refusal(ALARM.id, named)))
        assert [one.accepted for one in receipts(said)] == [True]
        assert bool(made.service.state.fetches.asked) == is_asked
    assert rows(made)[0]["problem"] == "the gateway refuses: it keeps none"


def test_a_refusal_ends_the_request_that_its_item_names_whatever_was_damaged_in_it(made: Cloud) -> None:
    (published,) = said_under("fetch", fetch(made)[0])
    number = SampleRequest.from_bytes(published.payload).number
    damaged = SampleRefusal(alarm=f"{ALARM.id}x", number=number, reason="it keeps none")
    said = made.hear(heard("north", "samples", damaged.to_bytes(), name_refusal(ALARM.id, number)))
    assert [one.accepted for one in receipts(said)] == [True]
    assert not made.service.state.fetches.asked and rows(made)[0]["problem"] == "the gateway refuses: it keeps none"


def test_chunks_that_lack_are_asked_for_and_the_clip_comes_whole(made: Cloud) -> None:
    fetch(made)
    pieces = split(BODY, CHUNK)
    assert receipts(made.hear(*(heard("north", "samples", piece, item_of(made)) for piece in pieces[1:]))) == []
    (asked,) = said_under("resend", made.hear(Tick(), after_s=60))
    assert asked.topic.endswith(f"/north/resend/{item_of(made)}") and Want.from_bytes(asked.payload).missing == (0,)
    assert [one.accepted for one in receipts(made.hear(heard("north", "samples", pieces[0], item_of(made))))] == [True]


def test_what_nobody_asked_for_is_dropped_before_it_takes_memory(made: Cloud) -> None:
    fetch(made)
    for gateway, item in (("east", item_of(made)), ("north", name_clip("other", 0))):
        said = send(made, BODY, gateway, item)
        assert [one.reason for one in receipts(said)] == ["nobody asks for these samples"]
    assert not made.service.state.fetches.uploads.incoming and rows(made)[0]["received_ns"] is None
    assert [one.accepted for one in receipts(send(made, BODY, "stranger"))] == [False]
    assert receipts(send(made, BODY, "north", "x")) == []
    assert [one.accepted for one in receipts(send(made, BODY))] == [True]  # and the one that was asked for comes


WRONG = {
    "too large": bytes(70_000),
    "noise": b"x" * 3_000,
    "of another gateway": encode_clip(make_clip(*make_pieces(VALUES, 0.0), gateway="east")),
    "of another alarm": encode_clip(make_clip(*make_pieces(VALUES, 0.0), alarm="b")),
    "of no shape": wire.encode({"0.values": np.zeros(3)}, make_clip().meta.model_dump()),
    "of nothing": wire.encode({}, {}),
    "another inside than its digest says": BODY[:-1] + bytes([BODY[-1] ^ 1]),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_clip_of_the_alarm_is_refused_for_good(kind: str, tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2), samples={"fetch": True, "max_clip_bytes": 65_536}) as made:
        give_alarm(made)
        fetch(made)
        said = (
            made.hear(heard("north", "samples", split(WRONG[kind], CHUNK)[0], item_of(made)))
            if kind == "too large"
            else []
        )
        said = said or send(made, WRONG[kind])
        assert [one.accepted for one in receipts(said)] == [False]
        assert rows(made)[0]["problem"] and rows(made)[0]["size_bytes"] is None
        assert not made.service.state.fetches.asked and not made.service.state.fetches.uploads.incoming


def test_what_is_on_its_way_of_all_gateways_is_no_more_than_one_clip(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2), samples={"fetch": True, "max_clip_bytes": 65_536}) as made:
        large = bytes(60_000)
        for gateway in ("east", "north", "west"):
            give_alarm(made, gateway)
            fetch(made, f"{gateway}/{ALARM.id}")
            made.hear(*(heard(gateway, "samples", piece, item_of(made, gateway)) for piece in split(large, CHUNK)[:-1]))
        held = [one.assembly.held_bytes for one in made.service.state.fetches.uploads.incoming.values()]
        assert sum(held) <= 65_536 and len(held) == 3


def test_clips_are_bounded_per_gateway_and_in_all(tmp_path: Path) -> None:
    most = {"max_clip_bytes": 65_536, "max_gateway_bytes": 65_536, "max_bytes": 131_072}
    with cloud(tmp_path, mean_of(2), samples={"fetch": True, **most}) as made:
        for gateway, alarm in (("north", "a"), ("north", "b"), ("east", "c"), ("west", "d"), ("west", "e")):
            give_alarm(made, gateway, alarm)
            fetch(made, f"{gateway}/{alarm}")
            values = np.zeros((10_000, 1), np.float32)
            body = encode_clip(make_clip(*make_pieces(values, 0.0), gateway=gateway, alarm=alarm))
            made.now_ns += 10**9
            assert [one.accepted for one in receipts(send(made, body, gateway, item_of(made, gateway, alarm)))] == [
                True
            ]
            kept = [(row["gateway"], row["alarm"]) for row in rows(made)]
        assert kept == [("north", "b"), ("east", "c"), ("west", "e")]  # 40 kB each: one a gateway, three of all


def test_requests_are_bounded_by_number(made: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_table, "KEPT", 2)
    for alarm in "bcd":
        give_alarm(made, "east", alarm)
        fetch(made, f"east/{alarm}")
    assert [row["alarm"] for row in rows(made)] == ["c", "d"]


def test_the_requests_of_a_gateway_that_is_gone_end_with_it(made: Cloud) -> None:
    fetch(made)
    made.hear(heard("north", "samples", split(BODY, CHUNK)[0], item_of(made)))
    state, effects = machine.apply(made.service.state, [ForgetDevice("north", "removed")])
    assert not state.fetches.asked and not state.fetches.uploads.incoming
    assert any("removed or replaced" in str(one) for one in effects)


@pytest.mark.parametrize("by_s", [400 * DAY_S, -400 * DAY_S])
def test_a_clock_that_is_set_ends_no_request_and_drops_no_clip(by_s: float, tmp_path: Path) -> None:
    values = np.zeros((10_000, 1), np.float32)
    most = {"max_clip_bytes": 65_536, "max_gateway_bytes": 65_536, "max_bytes": 131_072}
    with cloud(tmp_path, mean_of(2), samples={"fetch": True, **most}) as made:
        for alarm in "ab":
            give_alarm(made, "north", alarm)
            fetch(made, f"north/{alarm}")
        for alarm in "ba":  # the one that was asked for last comes first
            body = encode_clip(make_clip(*make_pieces(values, 0.0), alarm=alarm))
            assert [one.accepted for one in receipts(send(made, body, "north", item_of(made, "north", alarm)))] == [
                True
            ]
            assert made.service.store.read_samples("north", alarm) == body  # the newest stays
            made.hear(ClockSet(made.service.state.context.anchor_ns + round(by_s * NS)), Tick())


@pytest.mark.parametrize(
    ("asked_s", "is_over"), [(-7 * DAY_S - 1, True), (-60.0, False), (DAY_S, False), (None, False)]
)
def test_a_request_waits_a_week_over_restarts(asked_s: float | None, is_over: bool, made: Cloud) -> None:
    """One from the future, or from before the clock was set, waits a week from now."""
    number = 5 if asked_s is None else made.now_ns + round(asked_s * NS)
    made.service.store.commit([RecordFetch("north", ALARM.id, number)])
    made.restart()
    made.hear(Tick())
    assert bool(made.service.state.fetches.asked) != is_over
    made.hear(Tick(), after_s=7 * DAY_S + 1)
    assert not made.service.state.fetches.asked


def make_blocks(count: int) -> bytes:
    ones = {"t_ns": np.zeros(count, np.int64), "rate_hz": np.ones(count), "rows": np.ones(count, np.int64)}
    arrays = {f"0.{name}": one for name, one in ones.items()} | {"0.values": np.zeros((count, 1), np.int8)}
    return wire.encode(arrays, make_clip().meta.model_dump())


@pytest.mark.soak
def test_a_clip_of_many_blocks_costs_the_aggregator_no_more_than_its_bytes(tmp_path: Path) -> None:
    """A block of one sample has 25 bytes, and as an object twenty times as many."""
    assert CLIP_BYTES_MAX // PIECE_BYTES < PIECES_MAX  # so no gateway makes one of as many
    for count, is_taken in ((PIECES_MAX, True), (600_000, False)):
        body = make_blocks(count)
        (folder := tmp_path / str(count)).mkdir()
        with cloud(folder, mean_of(2), **ALLOWED) as made:
            give_alarm(made)
            fetch(made)
            *first, last = split(body, 200_000)
            made.hear(*(heard("north", "samples", piece, item_of(made)) for piece in first))
            tracemalloc.start()
            try:
                said = made.hear(heard("north", "samples", last, item_of(made)))
                peak_bytes = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert [one.accepted for one in receipts(said)] == [is_taken]
            assert peak_bytes < 6 * len(body)


@given(st.integers(0, len(BODY) - 1), st.integers(1, 255))
def test_a_damaged_clip_is_no_clip(place: int, by: int) -> None:
    damaged = bytearray(BODY)
    damaged[place] ^= by
    with pytest.raises(MessageError, match=r"^clip: "):
        decode_clip(bytes(damaged), len(BODY))


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("t_ns", np.array([2**62 + 1, 0])),
        ("t_ns", np.array([0.0, 1.0])),
        ("t_ns", np.array([0])),
        ("rate_hz", np.array([np.nan, 20.0])),
        ("rate_hz", np.array([0.0, 20.0])),
        ("rate_hz", np.array([1e-9, 20.0])),
        ("rate_hz", np.array([0.01, 20.0])),
        ("rows", np.array([0, 400])),
        ("rows", np.array([2**62, 2**62])),
        ("rows", np.array([-1, 401])),
        ("values", np.zeros((400, 2), np.float32)),
        ("values", np.zeros(400, np.float32)),
    ],
)
def test_a_clip_whose_parts_do_not_fit_is_refused(name: str, array: Any) -> None:
    arrays, meta = wire.decode(BODY)
    forged = wire.encode({**arrays, f"0.{name}": array}, meta)
    with pytest.raises(MessageError, match="source deck"):
        decode_clip(forged, 10**6)
