"""Many gateways that answer at once: bounded memory, nobody forgotten, and what a restart makes of half an update."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from pydantic import ValidationError

from fedgate.cloud_aggregator.events import Connection, Outward, Received, RecordRound, SaveTraining, Tick
from fedgate.cloud_aggregator.rounds.rounds import PATIENCE
from fedgate.config.protocol.backoff import JITTER
from fedgate.config.protocol.messages import RoundOpen, Want
from fedgate.config.settings.settings import Limits
from tests.support.cloud_service import Cloud, chunks_of, cloud, mean_of, receipts, said_under

VALUES = 2_000
LIMITS = {"max_update_bytes": 20_000, "incoming_bytes": 20_000}  # room for two updates of 8 KB


def asked_for(said: list[Outward]) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.topic.split("/")[3], Want.from_bytes(one.payload).missing) for one in said_under("resend", said)]


def answers(made: Cloud, index: int) -> list[Received]:
    return [event for event in chunks_of(made.names[index], made.body(float(index))) if isinstance(event, Received)]


@pytest.mark.soak
def test_more_updates_than_there_is_room_for_are_asked_for_later_and_all_are_counted(tmp_path: Path) -> None:
    names = [f"gateway-{number}" for number in range(30)]
    with cloud(tmp_path, mean_of(VALUES), names, limits=LIMITS) as made:
        bodies = {name: chunks_of(name, made.body(1.0)) for name in names}
        said: list[Outward] = []
        for number in range(len(bodies[names[0]])):  # everyone at once, chunk by chunk
            said += made.hear(*[bodies[name][number] for name in names])
            held = [one.assembly.held_bytes for one in made.service.state.rounds.uploads.incoming.values()]
            assert sum(held) <= LIMITS["incoming_bytes"]
        while asked := asked_for(said):
            said = made.hear(*[event for name, missing in asked for event in bodies[name] if missing == ()])
        assert made.service.state.rounds.server.round_index == 1 and not made.service.state.rounds.uploads.incoming


def test_a_gateway_that_stops_half_way_makes_room_for_the_others_in_the_end(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(VALUES), ("a", "b", "c"), limits=LIMITS) as made:
        for index in (0, 1):
            made.hear(answers(made, index)[0])
        made.hear(*answers(made, 2))
        assert made.service.state.rounds.uploads.incoming["c"].is_parked
        said: list[Outward] = []
        for _ in range(15):
            said += made.hear(Tick(), after_s=PATIENCE.first_s)
        assert ("c", ()) in asked_for(said) and not {"a", "b"} & made.service.state.rounds.uploads.incoming.keys()


@pytest.mark.parametrize("how", ["the same again", "another each time", "a new one now and then"])
def test_who_only_seems_to_go_on_keeps_nobody_out(how: str, tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(VALUES), ("a", "b", "c"), limits=LIMITS) as made:
        first = [answers(made, index) for index in (0, 1)]
        made.hear(*[pieces[0] for pieces in first])
        made.hear(*answers(made, 2))
        assert made.service.state.rounds.uploads.incoming["c"].is_parked
        said: list[Outward] = []
        for step in range(200):
            if how == "another each time":
                again = [answers_of(made, index, float(step)) for index in (0, 1)]
            else:
                again = [pieces[0 if how == "the same again" else step // 60] for pieces in first]
            said += made.hear(*again, after_s=PATIENCE.first_s - 1.0)
            said += made.hear(Tick(), after_s=0.0)
        assert ("c", ()) in asked_for(said)


def answers_of(made: Cloud, index: int, value: float) -> Received:
    """Return the first chunk of an update that is not the one before."""
    (first, *_) = [event for event in chunks_of(made.names[index], made.body(value)) if isinstance(event, Received)]
    return first


def test_room_for_less_than_one_update_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ValidationError, match="incoming_bytes = 2000 is less than max_update_bytes = 3000"):
        Limits(max_update_bytes=3_000, incoming_bytes=2_000)


def test_half_an_update_at_a_restart_is_asked_for_and_counted_once(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(VALUES)) as made:
        pieces = answers(made, 0)
        made.hear(*pieces[:4])
        made.restart()
        said = made.hear(*pieces[4:])
        assert not receipts(said)
        ((who, missing),) = asked_for(made.hear(Tick(), after_s=PATIENCE.first_s * (1.0 + JITTER)))
        assert (who, missing) == (made.names[0], (0, 1, 2, 3))
        (receipt,) = receipts(made.hear(*[pieces[index] for index in missing]))
        assert receipt.accepted and list(made.service.state.rounds.counted) == [made.names[0]]


def test_events_that_wait_are_one_commit_and_their_receipts_come_after_it(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(VALUES)) as made:
        commits: list[list[object]] = []
        commit = made.service.store.commit

        def watched(effects: list[object]) -> None:
            commits.append(list(effects))
            commit(effects)  # type: ignore[arg-type]  # whatever the service hands over

        made.service.store.commit = watched  # type: ignore[assignment,method-assign]  # to count what is written
        events = [event for index in range(3) for event in answers(made, index)]
        said = made.hear(*events, at_once=True)
        ((*effects,),) = commits
        assert len([one for one in effects if isinstance(one, RecordRound)]) == 1
        assert len([one for one in effects if isinstance(one, SaveTraining)]) > 1  # of which the last is written
        assert [one.accepted for one in receipts(said)] == [True] * 3
        meanwhile = made.service.state
        made.restart()
        assert made.service.state.rounds.server.round_index == meanwhile.rounds.server.round_index == 1
        assert made.service.state.rounds.counted_before == meanwhile.rounds.counted_before


def test_a_reconnect_sends_no_bodies_and_who_lacks_them_asks(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(VALUES)) as made:
        assert said_under("chunk", made.said)  # once, when the round was opened
        said = made.hear(Connection(False), Connection(True))
        (invitation,) = said_under("round", said)
        assert invitation.retain and not said_under("chunk", said)
        made.said.clear()
        made.restart()
        assert said_under("round", made.said) and not said_under("chunk", made.said)
        transfer = RoundOpen.from_bytes(invitation.payload).shared
        want = Received(
            invitation.topic.replace("/all/round/open", f"/north/want/{transfer.digest}"), Want().to_bytes()
        )
        assert len(said_under("chunk", made.hear(want))) == transfer.chunks


@pytest.mark.soak
def test_the_memory_of_a_round_does_not_grow_with_the_gateways(tmp_path: Path) -> None:
    """A sum is a sum: what a gateway costs is its name, its status and a digest."""
    peaks = []
    for count in (8, 80):
        (folder := tmp_path / str(count)).mkdir()
        with cloud(folder, mean_of(50_000), [f"gateway-{number}" for number in range(count)]) as made:
            tracemalloc.start()
            for index in range(count):
                made.hear(*chunks_of(made.names[index], made.body(1.0), 65_536))
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            assert made.service.state.rounds.server.round_index == 1
    assert peaks[1] - peaks[0] < (80 - 8) * 5_000  # bytes; an update has 200,000
