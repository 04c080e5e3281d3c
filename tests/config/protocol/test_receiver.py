"""Bodies on their way in: asked for where they pause and not while they go on, within a budget, each in its turn."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fedgate.config.protocol.backoff import JITTER
from fedgate.config.protocol.receiver import Patience, Receiver
from fedgate.config.protocol.transfer import describe, parse_chunk, split
from fedgate.models.time_units import NS

LIMIT = 1_024
BODY = bytes(range(256)) * 40
TRANSFER = describe(BODY, LIMIT)
CHUNKS = [parse_chunk(payload) for payload in split(BODY, LIMIT)]
PATIENCE = Patience(first_s=5.0, longest_s=20.0, lost_s=60.0, turn_s=600.0)


def expecting(*keys: str, budget_bytes: int = 10 * len(BODY)) -> Receiver:
    receiver = Receiver(PATIENCE)
    for key in keys:
        receiver = receiver.expect(key, TRANSFER, 0, budget_bytes)
    return receiver


def test_what_goes_on_slowly_is_asked_for_a_few_times_and_not_with_every_chunk() -> None:
    """On a line that takes longer for a chunk than the first pause each question would bring the rest twice."""
    receiver, asks, body = expecting("a"), 0, None
    for at_s in range(1, 8 * len(CHUNKS) + 1):
        if at_s % 8 == 0:
            header, piece = CHUNKS[at_s // 8 - 1]
            receiver, body = receiver.add("a", header, piece, at_s * NS)
        receiver, questions = receiver.ask(at_s * NS, 10 * len(BODY))
        asks += len(questions)
    assert body == BODY and asks == 1


def test_questions_are_further_and_further_apart_until_the_body_is_given_up() -> None:
    receiver, asked_s = expecting("a"), []
    for at_s in range(100):
        receiver, questions = receiver.ask(at_s * NS, 10 * len(BODY))
        asked_s += [at_s for _ in questions]
    pauses_s = [later - earlier for earlier, later in pairwise(asked_s)]
    assert 5 <= asked_s[0] <= 7 and 9 <= pauses_s[0] <= 10 * (1 + JITTER) + 1 <= pauses_s[1] <= 20 * (1 + JITTER) + 1
    assert not receiver.incoming and max(asked_s) <= PATIENCE.lost_s


def test_what_finds_no_space_is_asked_for_when_there_is_some_first_come_first() -> None:
    receiver = expecting("a", "b", "c", budget_bytes=len(BODY))
    assert [one.is_parked for one in receiver.incoming.values()] == [False, True, True]
    for header, piece in CHUNKS:
        receiver, _ = receiver.add("b", header, piece, NS)
        receiver, body = receiver.add("a", header, piece, NS)
    receiver, questions = receiver.ask(NS, len(BODY))
    assert body == BODY and [(key, one.want.missing) for key, one in questions.items()] == [("b", ())]
    assert not receiver.incoming["b"].assembly.pieces and receiver.incoming["c"].is_parked


def test_a_large_body_that_waits_is_not_passed_by_small_ones_that_come_later() -> None:
    small = describe(BODY[:512], LIMIT)
    ((header, piece),) = [parse_chunk(payload) for payload in split(BODY[:512], LIMIT)]
    receiver = Receiver(PATIENCE).expect("small 0", small, 0, len(BODY)).expect("large", TRANSFER, 0, len(BODY))
    for number in range(1, 4):
        receiver = receiver.expect(f"small {number}", small, 0, len(BODY))
        receiver, questions = receiver.ask(NS, len(BODY))
        assert not questions and all(one.is_parked for key, one in receiver.incoming.items() if key != "small 0")
    receiver, body = receiver.add("small 0", header, piece, NS)
    receiver, questions = receiver.ask(NS, len(BODY))
    assert body is not None and [*questions] == ["large"]
    for header, piece in CHUNKS:
        receiver, body = receiver.add("large", header, piece, NS)
    receiver, questions = receiver.ask(NS, len(BODY))
    assert body == BODY and [*questions] == ["small 1", "small 2", "small 3"]


def test_small_bodies_pass_a_large_one_that_waits_as_long_as_it_delays_it_by_nothing() -> None:
    """So who announces much and sends little keeps nobody out."""
    small, budget_bytes = describe(BODY[:512], LIMIT), len(BODY) + 1_024
    receiver = Receiver(PATIENCE)
    for key, transfer in (("slow", TRANSFER), ("large", TRANSFER), *((f"small {n}", small) for n in range(3))):
        receiver = receiver.expect(key, transfer, 0, budget_bytes)
    assert [key for key, one in receiver.incoming.items() if one.is_parked] == ["large", "small 2"]
    receiver, questions = receiver.ask(NS, budget_bytes)
    assert not questions
    for header, piece in CHUNKS:
        receiver, _ = receiver.add("slow", header, piece, NS)
    receiver, questions = receiver.ask(NS, budget_bytes)
    assert [*questions] == ["large"] and receiver.incoming["small 2"].is_parked


@pytest.mark.parametrize("others", [(), ("b",)])
def test_only_where_another_waits_has_a_turn_an_end(others: tuple[str, ...]) -> None:
    receiver = expecting("a", *others, budget_bytes=len(BODY))
    for number, (header, piece) in enumerate(CHUNKS[:-1]):
        at_ns = 50 * NS * (number + 1)
        receiver, _ = receiver.add("a", header, piece, at_ns)
        receiver, _ = receiver.ask(at_ns, len(BODY))
    assert at_ns > PATIENCE.turn_s * NS and ("a" in receiver.incoming) is (not others)


def test_a_damaged_body_begins_anew_and_is_counted() -> None:
    receiver = expecting("a")
    for header, piece in CHUNKS:
        receiver, body = receiver.add("a", header, bytes(len(piece)), 0)
        assert body is None
    assert receiver.damaged == 1 and not receiver.incoming["a"].assembly.pieces
    for header, piece in CHUNKS:
        receiver, body = receiver.add("a", header, piece, 0)
    assert body == BODY and not receiver.incoming
