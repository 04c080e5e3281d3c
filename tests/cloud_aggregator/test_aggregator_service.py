"""The aggregator towards those who listen: what it announces, repeats and hands out, and what it remembers of whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgate.cloud_aggregator.context import Payload
from fedgate.cloud_aggregator.events import Connection, Effect, Log, Received, RecordGateway, RecordRound, Tick
from fedgate.cloud_aggregator.releases import announce
from fedgate.cloud_aggregator.rounds.round import LOST_S, REMIND_S
from fedgate.cloud_aggregator.state import Stored
from fedgate.config.protocol.messages import Manifest, RoundOpen, Status, Want, round_number
from fedgate.config.protocol.transfer import describe, split
from fedgate.models.arrays import Arrays
from fedgate.models.federated.protocol.algorithm import Server
from fedgate.models.time_units import NS
from tests.cloud_aggregator.test_aggregator_machine import (
    GATEWAYS,
    OPEN,
    READY,
    after,
    body,
    heard,
    opened,
    published,
    started,
    update,
)
from tests.gateway_agent.deployment.test_gateway_models import FIRST
from tests.support.cloud_service import NAMES, Cloud, cloud, mean_of
from tests.support.sites import T0_NS, CloudShelf, aggregator_settings, start_cloud, with_record


def test_a_reconnect_and_a_restart_announce_the_same_round_to_the_same_gateways() -> None:
    state = opened(quorum=2, fraction=0.7)
    announced = published(after(state, Connection(False), Connection(True))[1], "round")
    assert [one.retain for one in announced] == [True]
    message = RoundOpen.from_bytes(announced[0].payload)
    assert message.cohort == state.rounds.asked and message.round_index == 0
    shelf = CloudShelf(gateways=dict(state.access.gateways))
    assert state.rounds.asked is not None
    state, effects = after(state, Connection(True), *update(state.rounds.asked[0], body(state)))
    shelf.commit(effects)
    state, effects = after(started(shelf, quorum=2, fraction=0.7), Connection(True))
    assert RoundOpen.from_bytes(published(effects, "round")[0].payload) == message
    assert len(state.rounds.counted) == 1


def test_an_invitation_that_may_be_lost_is_repeated_to_those_who_have_not_answered() -> None:
    state, effects = after(OPEN, Tick(), at_s=REMIND_S - 1)
    assert not published(effects, "round")
    state, effects = after(state, Tick(), at_s=REMIND_S + 1)
    assert len(published(effects, "round")) == 1 and not published(effects, "chunk")
    assert not published(after(state, Tick(), at_s=REMIND_S + 2)[1], "round")
    state, _ = after(state, *[event for gateway in GATEWAYS[:2] for event in update(gateway, body(state))])
    away = heard(GATEWAYS[2], "status", Status(state="offline").to_bytes())
    assert not published(after(state, away, Tick(), at_s=3 * REMIND_S)[1], "round")


@pytest.mark.parametrize(
    ("change", "repeated"),
    [
        ({}, True),
        ({"model_version": 1}, False),
        ({"refusal": "model 1 refused: its features differ"}, False),  # it has heard
        ({"refusal": "round 7: no memory"}, True),
        ({"state": "offline"}, False),
        ({"baseline_windows": 3}, False),
        ({"can_train": False}, True),
    ],
)
def test_a_manifest_that_may_be_lost_is_repeated(change: dict[str, object], repeated: bool) -> None:
    state, _ = after(started(CloudShelf(released=FIRST)), Connection(True))
    status = READY.model_copy(update=change)
    state, effects = after(state, heard("north", "status", status.to_bytes()), Tick(), at_s=REMIND_S + 1)
    assert bool(published(effects, "manifest")) == repeated


def test_a_gateway_that_asks_without_end_is_sent_four_bodies_and_one_a_minute() -> None:
    state, _ = after(started(), Connection(True), *[heard(name, "status", READY.to_bytes()) for name in GATEWAYS])
    small, large = (
        Payload(describe(body, state.context.settings.limits.max_payload_bytes), body)
        for body in (bytes(announce.WHOLE_BYTES // 8), bytes(2 * announce.WHOLE_BYTES))
    )

    def sent(gateway: str, at_s: float, shared: Payload = large) -> int:
        nonlocal state
        asking = heard(gateway, "want", Want().to_bytes(), shared.transfer.digest)
        state, effects = after(with_record(state, "rounds", shared=shared), asking, at_s=at_s)
        return len(published(effects, "chunk"))

    whole = sent("north", 0.0)
    assert [bool(sent("north", 0.1 * step)) for step in range(1, 100)] == [True] * 3 + [False] * 96
    assert sent("west", 10.0) == whole  # others are not asked to wait
    assert [bool(sent("north", at_s)) for at_s in (75.0, 76.0, 77.0, 140.0)] == [True, False, False, True]
    assert sent("north", 150.0, small)  # what is small costs little, whatever was asked for before


@pytest.mark.parametrize(
    ("said", "remembers", "index"),
    [
        ({}, False, 1),
        ({"outbox": 1}, False, 0),  # it may still come
        ({"answered": "x/0"}, False, 0),  # it has yet to answer
        ({}, True, 0),  # what was counted would be missing for good
    ],
)
def test_a_round_that_waits_for_an_answer_that_was_lost_is_given_up(
    said: dict[str, object], remembers: bool, index: int
) -> None:
    """Goal: damage of one gateway's store, which held its answer, does not stand in the way of every later round."""
    state, _ = after(OPEN, *[event for name in GATEWAYS[:-1] for event in update(name, body(OPEN))])
    state = with_record(state, "rounds", algorithm=state.rounds.algorithm._replace(remembers=remembers))
    status = READY.model_copy(update={"answered": round_number(state.rounds.run, 0), **said})
    state, _ = after(state, heard(GATEWAYS[-1], "status", status.to_bytes()), Tick(), at_s=LOST_S - 1.0)
    assert state.rounds.server.round_index == 0 and len(state.rounds.counted) == len(GATEWAYS) - 1
    state, effects = after(state, Tick(), at_s=LOST_S + 1.0)
    assert state.rounds.server.round_index == index
    told = [one.text for one in effects if isinstance(one, Log) and "is given up" in one.text]
    assert len(told) == index and all(f"{GATEWAYS[-1]} answered it" in text for text in told)


@pytest.mark.parametrize(("lost", "index"), [(1, 0), (2, 1)])
def test_who_never_answers_keeps_no_round_open_that_has_no_quorum_with_it_either(lost: int, index: int) -> None:
    """Goal: one gateway that says nothing does not keep the others, whose answers were lost, from the next round."""
    state, _ = after(opened(), heard("silent", "status", READY.to_bytes()))
    status = READY.model_copy(update={"answered": round_number(state.rounds.run, 0)})
    told = [heard(name, "status", status.to_bytes()) for name in GATEWAYS[:lost]]
    counted = [event for name in GATEWAYS[lost:] for event in update(name, body(state))]
    state, _ = after(state, *told, *counted)
    state, _ = after(state, Tick(), at_s=LOST_S + 1.0)
    assert state.rounds.server.round_index == index


def test_a_round_whose_answers_were_refused_is_given_up_and_the_next_one_after_twice_the_time() -> None:
    """Goal: answers that do not fit end no training; and who sends such has others train again ever more seldom."""
    shelf, at_s, given_up = CloudShelf(), 0.0, 0
    state, effects = opened(), list[Effect]()
    for wait_s in (LOST_S, 2 * LOST_S, 4 * LOST_S):
        wrong = body(state, {"vectors": np.ones((2, 5))})
        state, effects = after(state, *update("north", wrong), *update("west", body(state)), at_s=at_s)
        shelf.commit(effects)
        assert (set(state.rounds.turned_away), set(state.rounds.counted)) == ({"north"}, {"west"})
        state, _ = after(state, *update("east", wrong), at_s=at_s)
        begun_s, index = (state.rounds.opened_ns - T0_NS) / NS, state.rounds.server.round_index
        state, _ = after(state, Tick(), at_s=begun_s + wait_s - 1.0)
        assert state.rounds.server.round_index == index
        state, effects = after(state, Tick(), at_s=begun_s + wait_s + 1.0)
        shelf.commit(effects)
        given_up += 1
        assert not shelf.held, "what the round had counted is stored still, and would count in the next"
        assert state.rounds.server.round_index == index + 1 and state.rounds.given_up == given_up
        (told,) = [one.text for one in effects if isinstance(one, Log) and "is given up" in one.text]
        assert "the answers of east, north were refused" in told
        (record,) = [one for one in effects if isinstance(one, RecordRound)]
        assert (record.round_index, record.gateways, record.refused) == (index, (), 2)
        at_s = (state.rounds.rest_until_ns - T0_NS) / NS + 1.0
        state, _ = after(state, Tick(), at_s=at_s)
        assert state.rounds.opened
    shelf.gateways.update(state.access.gateways)
    again, _ = after(started(shelf, at_s=at_s), Connection(True))
    assert again.rounds.given_up == given_up
    state, _ = after(state, *[event for name in GATEWAYS for event in update(name, body(state))], at_s=at_s)
    assert state.rounds.given_up == 0


def given_up(made: Cloud) -> bool:
    """Let two of three answer with what is refused, and the time pass that a first such round has; tell whether it was
    given up.
    """
    before = made.service.state.rounds.given_up
    for gateway in NAMES[1:]:
        made.send(gateway, made.wrong())
    made.hear(Tick(), after_s=LOST_S)
    return made.service.state.rounds.given_up > before


def test_a_round_that_is_given_up_is_no_round_of_a_training_and_releases_nothing(tmp_path: Path) -> None:
    """Goal: answers that do not fit neither end a training early nor take the place of its last round."""
    with cloud(tmp_path, mean_of(3), rounds={"quorum": 2, "deadline_s": 60.0, "per_release": 2}) as made:
        for gateway in NAMES:
            made.send(gateway, made.body(1.0))
        assert made.service.state.rounds.since_release == 1
        made.said.clear()
        assert given_up(made) and made.service.state.rounds.since_release == 1
        said = [one.text for one in made.said if isinstance(one, Log)]
        assert not any(word in text for text in said for word in ("nobody had", "no model can be made", "closed"))
        made.hear(Tick(), after_s=60.0)
        for gateway in NAMES:
            made.send(gateway, made.body(1.0))
        assert made.service.state.rounds.since_release == 0, "two whole rounds are a release"


def test_an_exchange_that_closes_before_one_that_is_given_up_gives_no_new_patience(tmp_path: Path) -> None:
    """Goal: also where a round is several exchanges, as under masks, others train for bad answers ever more seldom."""
    one = mean_of(3)
    (phase,) = one.phases

    def asked_on(server: Server, _total: Arrays) -> Server:
        return server._replace(phase=1)

    def ended(server: Server, total: Arrays) -> Server:
        return phase.advance(server, total)._replace(phase=0)

    both = one._replace(phases=(phase._replace(advance=asked_on), phase._replace(advance=ended)))
    with cloud(tmp_path, both, rounds={"quorum": 2, "deadline_s": 60.0}) as made:
        for is_in_time in (True, False):
            for gateway in NAMES:
                made.send(gateway, made.body(1.0))
            assert made.service.state.rounds.server.phase == 1
            assert given_up(made) == is_in_time
            made.hear(Tick(), after_s=60.0)
        made.hear(Tick(), after_s=LOST_S)
        assert made.service.state.rounds.given_up == 2
        made.hear(Tick(), after_s=60.0)
        for exchange in range(2):
            for gateway in NAMES:
                made.send(gateway, made.body(1.0, phase=exchange))
        assert made.service.state.rounds.given_up == 0 and made.w == 1.0


def test_rounds_that_follow_each_other_do_not_keep_a_manifest_from_being_repeated() -> None:
    """Each round that opens is an invitation that just went out; of the model that says nothing."""
    state, _ = after(started(CloudShelf(released=FIRST), quorum=1, per_release=1_000), Connection(True))
    state, _ = after(state, heard("north", "status", READY.to_bytes()))
    rounds, told_s = list[int](), list[float]()
    for at_s in range(10, 4 * round(REMIND_S), 10):
        events = [*(update("north", body(state)) if at_s % 100 == 0 else []), Tick()]
        state, effects = after(state, *events, at_s=at_s)
        rounds.append(state.rounds.server.round_index)
        told_s += [at_s] * len(published(effects, "manifest"))
    assert max(rounds) >= 5, "rounds shorter than the wait for a reminder"
    assert told_s == [REMIND_S, 2 * REMIND_S, 3 * REMIND_S]


def test_a_store_that_was_set_back_is_told_of_whatever_the_line_does() -> None:
    state = opened()
    ahead = READY.model_copy(update={"answered": round_number(state.rounds.run, 5)})
    state, _ = after(state, heard("north", "status", ahead.to_bytes()))
    told = list[Log]()
    for at_s in range(0, 2 * round(REMIND_S), 100):  # a line that breaks before the wait for a reminder is over
        state, effects = after(state, Connection(False), Connection(True), Tick(), at_s=at_s)
        told += [one for one in effects if isinstance(one, Log) and "this store is older" in one.text]
    assert len(told) == 1


def test_the_model_is_announced_and_handed_out_chunk_by_chunk() -> None:
    state, effects = after(started(CloudShelf(released=FIRST)), Connection(True))
    (announced,) = published(effects, "manifest")
    assert announced.retain
    manifest = Manifest.from_bytes(announced.payload)
    pieces = split(FIRST[1], state.context.settings.limits.max_payload_bytes)
    want = heard("north", "want", Want(missing=(0, 0, 5, 0)).to_bytes(), manifest.model.digest)
    effects = after(state, want)[1]
    assert [one.payload for one in published(effects, "chunk")] == pieces[:1]
    effects = after(state, heard("north", "want", Want().to_bytes(), manifest.model.digest))[1]
    assert [one.payload for one in published(effects, "chunk")] == pieces
    assert all("/north/chunk/" in one.topic for one in published(effects, "chunk"))


def test_a_manifest_is_cut_as_the_present_limits_want_it() -> None:
    state = started(CloudShelf(released=FIRST))
    assert state.releases.manifest is not None and state.releases.manifest != FIRST[0]
    assert state.releases.manifest.model == describe(FIRST[1], state.context.settings.limits.max_payload_bytes)
    assert state.releases.manifest.model.digest == FIRST[0].model.digest


def test_shared_parameters_are_handed_out_and_what_is_unknown_is_said() -> None:
    digest = RoundOpen.from_bytes(published(after(OPEN, Connection(True))[1], "round")[0].payload).shared.digest
    assert published(after(OPEN, heard("north", "want", Want().to_bytes(), digest))[1], "chunk")
    effects = after(OPEN, heard("north", "want", Want().to_bytes(), "f" * 64))[1]
    assert any("neither the model nor the shared parameters" in told.text for told in effects if isinstance(told, Log))


def test_a_gateway_that_is_gone_is_remembered_as_it_was() -> None:
    told = READY.model_copy(update={"version": "0.1.0", "model_version": 3, "refusal": "why"})
    state, effects = after(OPEN, heard("north", "status", told.to_bytes()))
    state, effects = after(state, heard("north", "status", Status(state="offline").to_bytes()))
    (record,) = [effect for effect in effects if isinstance(effect, RecordGateway)]
    assert record.status == told.model_copy(update={"state": "offline"}) and not record.status.ready()
    unknown = after(state, heard("new", "status", Status(state="offline").to_bytes()))[0]
    assert unknown.access.gateways["new"] == Status(state="offline")


def test_a_new_training_leaves_the_old_one_behind_and_versions_go_on() -> None:
    shelf = CloudShelf(released=FIRST, gateways={})
    state, effects = after(OPEN, *update("north", body(OPEN)))
    shelf.commit(effects)
    again = started(shelf)
    assert again.rounds.counted == state.rounds.counted and again.rounds.run == OPEN.rounds.run
    changed = aggregator_settings(algorithm={"settings": {"nu": 0.2}})
    fresh = start_cloud(changed, Stored(shelf.training, shelf.releases), T0_NS)
    assert (
        fresh.rounds.run != OPEN.rounds.run
        and fresh.rounds.counted == {}
        and fresh.releases.manifest is not None
        and fresh.releases.manifest.version == 1
    )


def test_a_deadline_that_ran_out_while_the_machine_was_off_leaves_the_others_their_time() -> None:
    shelf = CloudShelf(gateways=dict.fromkeys(GATEWAYS, READY))
    state, effects = after(opened(quorum=2, deadline_s=60.0), *update("north", body(OPEN)), at_s=1)
    shelf.commit(effects)
    state, _ = after(started(shelf, 900, quorum=2, deadline_s=60.0), Connection(True), Tick(), at_s=900)
    state, _ = after(state, *update("east", body(state)), at_s=901)
    assert (state.rounds.server.round_index, len(state.rounds.counted)) == (0, 2)
    assert after(state, Tick(), at_s=960)[0].rounds.server.round_index == 1


def test_a_closed_round_says_what_it_weighed_and_who_had_nothing_to_send() -> None:
    full, nothing = update("north", body(OPEN)), update("west", body(OPEN, {}))
    again = [*full, *full, *nothing]  # what is sent again was received too
    state, effects = after(OPEN, *again)
    shelf = CloudShelf(gateways=dict.fromkeys(GATEWAYS, READY))
    shelf.commit(effects)
    state = after(started(shelf), Connection(True))[0]  # a restart forgets neither
    state, effects = after(state, *update("east", body(state)))
    (record,) = [effect for effect in effects if isinstance(effect, RecordRound)]
    expected = sum(len(event.payload) for event in (*again, *update("east", body(OPEN))) if isinstance(event, Received))
    assert (record.bytes_received, record.empty, record.gateways) == (expected, ("west",), ("north", "west", "east"))
    assert (state.rounds.bytes_received, state.rounds.empty) == (0, ())
