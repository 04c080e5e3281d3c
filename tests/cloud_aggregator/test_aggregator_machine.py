"""The aggregator as a function: what it counts, what it refuses and why, and that nothing that arrives can stop it.

Whole rounds with gateways at the other end are in `test_exchange`; here every message is made by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedgate.cloud_aggregator import machine
from fedgate.cloud_aggregator.events import (
    Connection,
    Effect,
    Event,
    Log,
    Publish,
    Received,
    RecordRound,
    SaveTraining,
    Tick,
)
from fedgate.cloud_aggregator.state import State, Stored
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Alarm, Receipt, Status, Want
from fedgate.config.protocol.topics import CHANNELS
from fedgate.config.protocol.transfer import ASK_MAX, ChunkHeader, split
from fedgate.models.arrays import equal
from fedgate.models.federated.protocol.algorithm import Phase, Server
from fedgate.models.federated.protocol.reducer import STACK
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.time_units import NS
from tests.gateway_agent.deployment.test_gateway_models import JUNK
from tests.support.sites import T0_NS, CloudShelf, aggregator_settings, start_cloud, topic, with_record

GATEWAYS = ("east", "north", "west")
LIMIT = 1_024
READY = Status(state="online", can_train=True, baseline_windows=60, baseline_needed=60)
VECTORS = {"vectors": np.arange(6.0).reshape(2, 3)}


def heard(gateway: str, channel: str, payload: bytes, item: str = "x") -> Received:
    return Received(topic(gateway, channel, item), payload)


def after(state: State, *events: Event, at_s: float | None = None) -> tuple[State, list[Effect]]:
    effects: list[Effect] = []
    for event in events:
        state, more = machine.step(state, state.context.uptime_ns if at_s is None else T0_NS + round(at_s * NS), event)
        effects += more
    return state, effects


def started(shelf: CloudShelf | None = None, at_s: float = 0.0, **rounds: Any) -> State:
    shelf = shelf or CloudShelf()
    settings = aggregator_settings(rounds={"quorum": 3, **rounds}, limits={"max_update_bytes": 100_000})
    stored = Stored(shelf.training, shelf.releases, shelf.gateways, held=shelf.held)
    return start_cloud(settings, stored, T0_NS + round(at_s * NS))


def opened(**rounds: Any) -> State:
    """Return an aggregator that knows its gateways and has an open round."""
    state, _ = after(started(**rounds), *[heard(gateway, "status", READY.to_bytes()) for gateway in GATEWAYS])
    return after(state, Connection(True))[0]


def body(state: State, update: dict[str, Any] | None = None, **change: Any) -> bytes:
    meta = {"run": state.rounds.run, "round_index": state.rounds.server.round_index, "phase": state.rounds.server.phase}
    return wire.encode(VECTORS if update is None else update, {**meta, **change})


def update(gateway: str, payload: bytes) -> list[Event]:
    return [heard(gateway, "update", piece) for piece in split(payload, LIMIT)]


def receipts(effects: Iterable[Effect]) -> list[Receipt]:
    return [Receipt.from_bytes(one.payload) for one in published(effects, "receipt")]


def published(effects: Iterable[Effect], channel: str) -> list[Publish]:
    return [effect for effect in effects if isinstance(effect, Publish) and f"/{channel}/" in effect.topic]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ALARM = Alarm(
    id="a", cause="anomaly", kind="anomaly", state="raised", severity="major", text="", onset_ns=1, t_ns=2, score=1.0
)
GOOD = {
    "status": READY.to_bytes(),
    "alarm": ALARM.to_bytes(),
    "want": Want(missing=(0,)).to_bytes(),
    "update": ChunkHeader(digest="a" * 64, index=0, chunks=2, size_bytes=900).to_bytes(),
}
OPEN = opened()


@given(data=st.data())
def test_random_bytes_on_any_channel_are_dropped(data: st.DataObject) -> None:
    channel = data.draw(st.sampled_from(sorted(CHANNELS)))
    gateway = data.draw(st.sampled_from(["north", "stranger", "all"]))
    payload = data.draw(st.binary(max_size=60))
    assume(payload or channel not in ("alarm", "status"))  # what was retained is taken away
    state, effects = after(OPEN, heard(gateway, channel, payload))
    assert replace(state, dropped={}) == OPEN and [reducer.count for reducer in state.dropped.values()] == [1]
    assert [type(effect) for effect in effects] == [Log]


def test_messages_that_make_no_sense_fill_no_log() -> None:
    wrong = heard("north", "status", b"{}")
    state, effects = after(OPEN, *[wrong] * 1_000, heard("west", "status", b"{}"), heard("north", "alarm", b"{}"))
    told = [effect.text for effect in effects if isinstance(effect, Log)]
    assert len(told) == 10 + 2 and told[-3].endswith("(number 512)")
    assert {sender: reducer.count for sender, reducer in state.dropped.items()} == {
        ("north", "status"): 1_000,
        ("west", "status"): 1,
        ("north", "alarm"): 1,
    }
    (again,) = after(state, wrong, at_s=3_700.0)[1]  # what is still so in the next hour is told again
    assert isinstance(again, Log) and again.text.endswith("(number 1)")


@pytest.mark.soak
@given(data=st.data())
def test_a_message_with_any_value_anywhere_never_stops_the_aggregator(data: st.DataObject) -> None:
    channel = data.draw(st.sampled_from(sorted(GOOD)))
    document = json.loads(GOOD[channel])
    for key in data.draw(st.lists(st.sampled_from(sorted(document)), min_size=1, max_size=2)):
        document[key] = data.draw(JSON)
    payload = json.dumps(document).encode() + (b"\n" + b"x" * 500 if channel == "update" else b"")
    state, _ = after(OPEN, heard("north", channel, payload))
    for at_s in (10, 20, 1_000):
        state, _ = after(state, Tick(), at_s=at_s)


NAN = {"vectors": np.full((2, 3), np.nan)}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a closed round": ({}, {"round_index": 7}, "it answers {'phase': 0, 'round_index': 7"),
    "another training": ({}, {"run": "other"}, "the present round is {'run': '"),
    "another phase": ({}, {"phase": 1}, "it answers {'phase': 1"),
    "no number": ({}, {"round_index": None}, "it answers {'phase': 0, 'round_index': None"),
    "NaN": (NAN, {}, "expected finite values, got NaN or infinity"),
    "infinite": ({"vectors": np.full((2, 3), np.inf)}, {}, "expected finite values, got NaN or infinity"),
    "huge": ({"vectors": np.full((2, 3), 1e300)}, {}, "expected values up to 1e+15, got 1e+300"),
    "columns": ({"vectors": np.zeros((2, 4))}, {}, "vectors: expected shape (2 to 500, 3), got (2, 4)"),
    "flat": ({"vectors": np.zeros(6)}, {}, "vectors: expected shape (2 to 500, 3), got (6,)"),
    "names": ({"vector": np.zeros((2, 3))}, {}, "expected arrays ['vectors'], got ['vector']"),
    "truths": ({"vectors": np.zeros((2, 3), np.bool_)}, {}, "vectors: expected numbers, got bool"),
    "weight": ({"vectors": np.zeros((2_001, 3))}, {}, "vectors: expected shape (2 to 500, 3), got (2001, 3)"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_bad_update_is_refused_with_the_reason_and_counts_for_nothing(fault: str) -> None:
    arrays, change, words = REFUSED[fault]
    state, effects = after(OPEN, *update("north", body(OPEN, arrays or None, **change)))
    (receipt,) = receipts(effects)
    assert not receipt.accepted and words in receipt.reason
    assert (state.rounds.counted, state.rounds.total, state.rounds.uploads.incoming, state.rounds.refused) == (
        {},
        {},
        {},
        1,
    )
    state, effects = after(state, *update("north", body(state)))
    assert receipts(effects) == [Receipt(accepted=True)] and list(state.rounds.counted) == ["north"]


@pytest.mark.parametrize("payload", [b"", JUNK, body(OPEN)[:-8], body(OPEN) + b"x", body(OPEN).replace(b"e", b"f")])
def test_bytes_that_are_no_update_are_refused_with_the_reason(payload: bytes) -> None:
    state, effects = after(OPEN, *update("north", payload))
    (receipt,) = receipts(effects)
    assert not receipt.accepted and receipt.reason and not state.rounds.counted


def test_a_header_that_claims_terabytes_is_refused_and_holds_no_memory() -> None:
    header = ChunkHeader(digest="a" * 64, index=9, chunks=10, size_bytes=2**42)
    state, effects = after(OPEN, heard("north", "update", header.to_bytes() + b"\nsome"))
    assert receipts(effects)[0].reason == f"update of {2**42} bytes, at most 100000 are taken"
    assert not state.rounds.uploads.incoming
    inner = json.dumps({"arrays": [["vectors", "<f8", [2**37, 3]]], "format": "fedgate/1", "meta": {}, "sha256": ""})
    state, effects = after(OPEN, *update("north", inner.encode() + b"\n"))
    assert "expected from the header" in receipts(effects)[0].reason


def test_a_stranger_is_dropped_without_a_receipt_until_its_status_is_here() -> None:
    state, effects = after(OPEN, *update("stranger", body(OPEN)))
    assert not receipts(effects) and not state.rounds.uploads.incoming and not state.rounds.counted
    assert all("stranger has not reported its status yet" in log.text for log in effects if isinstance(log, Log))
    state, effects = after(state, heard("stranger", "status", READY.to_bytes()), *update("stranger", body(OPEN)))
    assert receipts(effects) == [Receipt(accepted=True)]


def test_an_update_counts_once_however_often_it_comes_also_after_its_round() -> None:
    state, first = OPEN, body(OPEN)
    for _ in range(3):
        state, effects = after(state, *update("north", first))
        assert receipts(effects) == [Receipt(accepted=True)]
    assert len(STACK.closed(state.rounds.total)["vectors"]) == 2
    other = body(OPEN, {"vectors": np.ones((5, 3))})
    state, effects = after(state, *update("north", other))
    assert receipts(effects)[0].reason == "another update of this gateway was counted in this round"
    state, effects = after(state, *update("east", body(OPEN)), *update("west", body(OPEN)))
    (record,) = [effect for effect in effects if isinstance(effect, RecordRound)]
    assert (record.gateways, record.refused) == (("north", "east", "west"), 1)  # as they were merged
    state, effects = after(state, *update("north", first))  # its first receipt was lost
    assert receipts(effects) == [Receipt(accepted=True)] and state.rounds.refused == 0
    state, effects = after(state, *update("north", other))
    assert not receipts(effects)[0].accepted


def test_missing_chunks_are_asked_for_and_who_never_answers_is_forgotten() -> None:
    pieces = update("north", body(OPEN, {"vectors": np.random.default_rng(0).normal(size=(500, 3))}))
    assert len(pieces) < 100 < ASK_MAX + len(pieces)
    state, _ = after(OPEN, *pieces[1:3])
    asked = []
    for at_s in range(1, 200):
        state, effects = after(state, Tick(), at_s=at_s)
        asked += [Want.from_bytes(one.payload).missing for one in published(effects, "resend")]
    assert asked == [(0, *range(3, len(pieces)))] * 3 and not state.rounds.uploads.incoming
    assert receipts(after(state, *pieces)[1]) == [Receipt(accepted=True)]


@pytest.mark.parametrize("spoil", ["byte", "length", "count"])
def test_a_damaged_transfer_begins_anew_and_is_never_a_dead_end(spoil: str) -> None:
    payload = body(OPEN, {"vectors": np.zeros((500, 3))})
    first, *rest = split(payload, LIMIT)
    header = json.loads(first.split(b"\n")[0])
    if spoil == "byte":
        damaged = first[:-1] + b"?"
    elif spoil == "length":
        damaged = first + b"x" * 10_000
    else:
        damaged = json.dumps({**header, "chunks": header["chunks"] + 1}).encode() + first[first.index(b"\n") :]
    state, effects = after(OPEN, *[heard("north", "update", piece) for piece in (damaged, *rest)])
    assert not receipts(effects)
    state, effects = after(state, *update("north", payload), *update("north", payload))
    assert Receipt(accepted=True) in receipts(effects) and list(state.rounds.counted) == ["north"]


def test_one_gateway_holds_the_memory_of_one_update() -> None:
    state = OPEN
    for number in range(50):
        state, _ = after(state, update("north", bytes([number]) * 90_000)[0])
    assert len(state.rounds.uploads.incoming) == 1


def test_a_round_closes_with_all_or_at_the_deadline_and_never_below_the_quorum() -> None:
    state = opened(quorum=2, deadline_s=600.0)
    state, _ = after(state, *update("north", body(state)), at_s=1)
    state, _ = after(state, Tick(), at_s=5_000)
    assert state.rounds.server.round_index == 0
    state, _ = after(state, *update("east", body(state)), at_s=5_001)
    assert state.rounds.server.round_index == 1  # late already, and now a quorum
    state = opened(quorum=2, deadline_s=600.0)
    state, _ = after(state, *update("north", body(state)), *update("east", body(state)), at_s=1)
    assert after(state, Tick(), at_s=600)[0].rounds.server.round_index == 0
    assert after(state, Tick(), at_s=601)[0].rounds.server.round_index == 1
    gone = heard("west", "status", Status(state="offline").to_bytes())
    assert after(state, gone, at_s=2)[0].rounds.server.round_index == 1


def test_an_update_is_stored_once_and_not_again_with_every_other() -> None:
    """A round of many members would write all that came before with each of them."""
    shelf, state, sizes = CloudShelf(gateways=dict.fromkeys(GATEWAYS, READY)), OPEN, []
    for gateway in GATEWAYS[:2]:
        state, effects = after(state, *update(gateway, body(state)))
        shelf.commit(effects)
        sizes.append(len(next(effect for effect in effects if isinstance(effect, SaveTraining)).arrays))
    assert sizes[0] == sizes[1] and list(shelf.held) == list(GATEWAYS[:2])
    resumed = started(shelf)
    assert equal(STACK.closed(resumed.rounds.total), STACK.closed(state.rounds.total)) and not resumed.rounds.held
    state, effects = after(state, *update(GATEWAYS[2], body(state)))
    shelf.commit(effects)
    assert state.rounds.server.round_index == 1 and shelf.held == {}


def test_what_was_acknowledged_is_counted_after_a_restart_whatever_would_be_admitted_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelf, state = CloudShelf(gateways=dict.fromkeys(GATEWAYS, READY)), OPEN
    for gateway in GATEWAYS[:2]:
        state, effects = after(state, *update(gateway, body(state)))
        shelf.commit(effects)

    def refuse(*_: object) -> None:
        raise UpdateError("another defence")

    monkeypatch.setattr(Phase, "admit", refuse)
    resumed = started(shelf)
    assert resumed.rounds.counted == state.rounds.counted and not resumed.rounds.held
    assert equal(STACK.closed(resumed.rounds.total), STACK.closed(state.rounds.total))


def test_updates_that_no_solver_can_join_change_nothing_and_stop_nothing() -> None:
    def advance(_server: Server, _total: dict[str, Any]) -> Server:
        raise np.linalg.LinAlgError("singular")

    phase = OPEN.rounds.algorithm.phases[0]._replace(advance=advance)
    state = with_record(OPEN, "rounds", algorithm=OPEN.rounds.algorithm._replace(phases=(phase,)))
    payload = body(state)
    for gateway in GATEWAYS:
        state, effects = after(state, *update(gateway, payload))
    assert state.rounds.server.round_index == 1 and state.releases.manifest is None and state.rounds.counted == {}
    assert "round 0 changes nothing: LinAlgError: singular" in [one.text for one in effects if isinstance(one, Log)]


def test_a_round_of_nothing_but_empty_updates_rests_instead_of_spinning() -> None:
    state, payload = OPEN, body(OPEN, {})
    for gateway in GATEWAYS:
        state, effects = after(state, *update(gateway, payload))
    assert state.rounds.server.round_index == 1 and equal(
        state.rounds.server.global_state, OPEN.rounds.server.global_state
    )
    assert (
        state.releases.manifest is None
        and not state.rounds.opened
        and state.rounds.rest_until_ns > state.context.now_ns
    )
    assert published(effects, "round")[-1].payload == b""


def test_who_is_not_drawn_is_not_counted() -> None:
    state = opened(quorum=1, fraction=0.4)
    assert state.rounds.asked is not None and len(state.rounds.asked) == 1
    outsider = next(gateway for gateway in GATEWAYS if gateway not in state.rounds.asked)
    _, effects = after(state, *update(outsider, body(state)))
    assert receipts(effects)[0].reason == "this gateway is not asked in round 0"


def test_those_who_took_part_in_one_phase_are_asked_again_in_the_next() -> None:
    state = opened(quorum=1, fraction=0.4)
    phase = state.rounds.algorithm.phases[0]
    first = phase._replace(advance=lambda server, _total: server._replace(phase=1))
    second = phase._replace(advance=lambda server, _total: server._replace(phase=0))
    state = with_record(state, "rounds", algorithm=state.rounds.algorithm._replace(phases=(first, second), rounds=3))
    asked = []
    for _ in range(4):
        assert state.rounds.asked is not None
        asked.append(state.rounds.asked)
        state, _ = after(state, *[event for who in state.rounds.asked for event in update(who, body(state))])
        newcomer = heard(f"new-{len(asked)}", "status", READY.to_bytes())
        state, _ = after(state, newcomer)
    assert asked[0] == asked[1] and asked[2] == asked[3]
