"""Invitations to an earlier training, which a broker from a backup hands out: whoever answered would be locked out.

An algorithm that remembers takes a gateway's update only as the one that follows its last; so a gateway that forgot it
for another training could never be counted again.
"""

from __future__ import annotations

import pytest

from fedgate.cloud_aggregator.events import Connection, Effect, Log, Tick
from fedgate.cloud_aggregator.rounds.rounds import number_training
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import LARGEST, Receipt, RoundOpen, Status
from fedgate.config.protocol.transfer import parse_chunk
from fedgate.gateway_agent.events import Connection as Link
from fedgate.gateway_agent.events import Train, Trained
from fedgate.gateway_agent.runtime.training_worker import answer
from fedgate.gateway_agent.state import State
from fedgate.models.time_units import NS
from tests.cloud_aggregator.test_aggregator_machine import after as cloud_after
from tests.cloud_aggregator.test_aggregator_machine import heard as cloud_heard
from tests.cloud_aggregator.test_aggregator_machine import opened, published, started
from tests.gateway_agent.test_gateway_machine import invited
from tests.gateway_agent.trust.test_newest import stated
from tests.support.agents import after, commissioned, heard, kinds, sent
from tests.support.sites import T0_NS, CloudShelf, Shelf, agent, gateway_settings, with_record

NOW, BEFORE = 1_800_000_000, 1_700_000_000


def trained(state: State, round_index: int, training: int, run: str) -> tuple[State, str]:
    """Answer an invitation; return what the answer says that it follows, and have it counted."""
    state, effects = invited(state, round_index, training=training, run=run)
    state, _ = after(state, Trained(answer(kinds(effects, Train)[0].job)))
    ((name, item),) = state.outbox.items.items()
    meta = wire.decode(b"".join(parse_chunk(piece)[1] for piece in item.payloads))[1]
    return after(state, heard("receipt", name, Receipt(accepted=True).to_bytes()))[0], meta["after"]


def test_the_number_of_a_training_is_on_the_disk_before_anything_is_answered() -> None:
    """Else a restart between invitation and answer forgot it, and the broker's older invitation was taken."""
    shelf = Shelf()
    state, effects = invited(commissioned(shelf), 3, training=NOW, run="new")
    assert kinds(effects, Train)
    shelf.commit(effects)
    state, _ = after(agent(gateway_settings(), shelf), Link(True))
    state, effects = invited(state, 9, training=BEFORE, run="old")
    assert not kinds(effects, Train)
    assert state.context.refusal.startswith(f"round 9: it is of training {BEFORE}, an earlier")


@pytest.mark.parametrize("restarted", [False, True])
def test_an_invitation_to_an_earlier_training_is_refused_and_nothing_is_forgotten(restarted: bool) -> None:
    shelf = Shelf()
    state = commissioned(shelf)
    state, effects = invited(state, 3, training=NOW, run="new")
    state, more = after(state, Trained(answer(kinds(effects, Train)[0].job)))
    shelf.commit([*effects, *more])
    name = next(iter(state.outbox.items))
    state, settled = after(state, heard("receipt", name, Receipt(accepted=True).to_bytes()))
    shelf.commit(settled)
    if restarted:
        state = after(agent(gateway_settings(), shelf), Link(True))[0]
    state, effects = invited(state, 9, training=BEFORE, run="old")
    assert not kinds(effects, Train)
    assert state.context.refusal.startswith(f"round 9: it is of training {BEFORE}, an earlier")
    assert Status.from_bytes(sent(effects, "status")[0].payload).refused_round == "old/9"
    assert not kinds(invited(state, 3, training=NOW, run="new")[1], Train)  # answered, and known to be
    assert trained(state, 4, NOW, "new")[1] == name


def test_an_invitation_to_an_earlier_training_does_not_take_the_place_of_one_that_is_being_answered() -> None:
    state, effects = invited(commissioned(), 0, training=NOW, run="new")
    state, _ = invited(state, 9, training=BEFORE, run="old")
    state, more = after(state, Trained(answer(kinds(effects, Train)[0].job)))
    assert not kinds(more, Train) and state.training.answered == ("new", 0)
    assert state.training.round is not None and state.training.round.run == "new"


def test_numbers_that_are_equal_or_not_told_order_nothing() -> None:
    state, _ = trained(commissioned(), 3, NOW, "new")
    for number, run in ((NOW, "other"), (0, "untold"), (NOW + 1, "next")):
        state, follows = trained(state, 0, number, run)
        assert follows == "" and state.training.answered == (run, 0)
    assert state.training.newest_training == NOW + 1


def invitation(effects: list[Effect]) -> RoundOpen:
    return RoundOpen.from_bytes(published(effects, "round")[-1].payload)


def test_a_training_keeps_its_number_and_one_that_begins_has_a_higher_one_whatever_the_clock_says() -> None:
    state = started()
    shelf = CloudShelf()
    state, effects = cloud_after(state, Connection(True))
    shelf.commit(effects)
    assert invitation(effects).training == state.rounds.training == T0_NS // NS
    assert (
        started(shelf, at_s=-1e9).rounds.training == state.rounds.training == started(shelf, at_s=1e9).rounds.training
    )
    assert number_training(5 * NS, known=state.rounds.training) == state.rounds.training + 1
    assert number_training(T0_NS + 7 * NS, known=state.rounds.training) == state.rounds.training + 7


@pytest.mark.parametrize("told", [10**10, LARGEST])
def test_a_store_that_was_lost_is_no_reason_to_be_refused_whatever_the_clock_says(told: int) -> None:
    state = opened(quorum=2)
    shelf = CloudShelf()
    state, _ = cloud_after(state, cloud_heard("north", "newest", stated(training=told)))
    state, effects = cloud_after(state, Tick())
    number = min(told + 1, LARGEST)
    assert state.rounds.training == number == invitation(effects).training
    assert any("which now is" in one.text for one in effects if isinstance(one, Log))
    shelf.commit(effects)
    assert started(shelf, quorum=2).rounds.training == number
    assert not published(cloud_after(state, Tick())[1], "round")  # said once
    away = with_record(state, "context", is_connected=False)
    assert not published(cloud_after(with_record(away, "rounds", opened=False, training=1), Tick())[1], "round")
