"""Which numbers of models and trainings are believed: those that this site's aggregator signed, and no others.

Goal: no gateway can end the releases or the training of all by what it says of itself; an aggregator that lost its
store goes on above what it once signed; a gateway takes nothing older than what was signed, whoever announces it to
whom, and notices where news are kept from it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator import machine as cloud_machine
from fedgate.cloud_aggregator.context import WEEK_NS, WEEKS, sign_message
from fedgate.cloud_aggregator.events import Connection, Log, Tick
from fedgate.cloud_aggregator.releases.releases import ModelRelease
from fedgate.cloud_aggregator.state import State as Cloud
from fedgate.cloud_aggregator.state import Stored
from fedgate.config.identity.signing import sign
from fedgate.config.protocol.messages import LARGEST, Manifest, MessageError, Newest, RoundOpen, name_audience
from fedgate.gateway_agent.events import Connection as Link
from fedgate.gateway_agent.events import Event, Save
from fedgate.gateway_agent.events import Tick as GatewayTick
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.status import status
from fedgate.gateway_agent.trust import trust as kept
from fedgate.gateway_agent.trust.trust import NEWEST
from fedgate.models.time_units import NS
from tests.cloud_aggregator.test_aggregator_machine import OPEN, READY, published, started
from tests.cloud_aggregator.test_aggregator_machine import after as cloud_after
from tests.cloud_aggregator.test_aggregator_machine import heard as cloud_heard
from tests.gateway_agent.deployment.test_gateway_models import FIRST, FOR_ALL, GOOD, SECOND, in_force, offered
from tests.gateway_agent.deployment.test_gateway_models import signed as signed_as
from tests.gateway_agent.test_gateway_machine import invitation
from tests.support.agents import ME, after, commissioned, heard, kinds, sent
from tests.support.fleets import Fleet
from tests.support.sites import (
    KEY,
    SITE,
    T0_NS,
    CloudShelf,
    Shelf,
    Site,
    agent,
    aggregator_settings,
    gateway_settings,
    receive_model,
    start_cloud,
    topic,
)

WEEK_S = WEEK_NS / NS
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))
WILD = (LARGEST, LARGEST - 1, 10**10, 41)


def stated(version: int = 0, highest: int = 0, training: int = 0, *, at_s: float = 0.0) -> bytes:
    """Return what the aggregator once signed of its numbers."""
    return stated_by(KEY, FOR_ALL, version, highest, training, at_s)


def stated_by(
    key: Ed25519PrivateKey, audience: str, version: int, highest: int = 0, training: int = 0, at_s: float = 0.0
) -> bytes:
    message = Newest(version=version, highest_version=max(highest, version), training=training)
    return sign_message(message, key, audience, T0_NS + round(at_s * NS)).to_bytes()


NUMBERS = Newest.from_bytes(stated(3, 5, 7))


def newest(state: Cloud) -> Newest:
    """Return what an aggregator that connects announces."""
    return Newest.from_bytes(published(cloud_after(state, Connection(True))[1], "newest")[-1].payload)


def later(state: State, seconds: float, *events: Event, clock: Any = "synchronised") -> State:
    events = events or (GatewayTick(clock, 0, 0),)
    return after(state, *events, now_ns=state.context.now_ns + round(seconds * NS))[0]


@pytest.mark.parametrize("wild", WILD)
def test_what_a_gateway_says_of_its_versions_and_trainings_moves_no_number(wild: int) -> None:
    said = READY.model_dump() | {"model_version": wild, "newest_version": wild, "training": wild}
    payload = READY.model_validate(said).to_bytes()
    state, _ = cloud_after(OPEN, cloud_heard("north", "status", payload), Tick())
    assert newest(state) == newest(OPEN) and state.rounds.training == OPEN.rounds.training
    assert newest(started(CloudShelf(released=SECOND))).version == 2


@pytest.mark.parametrize("who", ["north", "all"])
def test_an_aggregator_that_lost_its_store_goes_on_above_what_it_signed(who: str) -> None:
    lost = started()
    state, _ = cloud_after(
        lost, Connection(True), cloud_heard(who, "newest", stated(9, 12, lost.rounds.training + 7)), Tick()
    )
    now = newest(state)
    assert (now.version, now.highest_version, now.training) == (9, 12, lost.rounds.training + 8)
    assert (state.rounds.training, state.releases.highest_version + 1) == (lost.rounds.training + 8, 13)


@pytest.mark.parametrize(
    "payload",
    [
        stated_by(STRANGER, FOR_ALL, 9),
        stated_by(KEY, name_audience("other", "all"), 9),
        Newest(version=9, highest_version=9, training=9).to_bytes(),
    ],
)
def test_numbers_that_were_not_signed_for_this_site_count_nowhere(payload: bytes) -> None:
    state, effects = cloud_after(OPEN, cloud_heard("north", "newest", payload))
    assert newest(state) == newest(OPEN)
    assert any("was not signed by this aggregator" in one.text for one in effects if isinstance(one, Log))
    gateway = commissioned()
    with pytest.raises(MessageError, match="newest: "):
        kept.receive_numbers(gateway.trust, gateway.context, payload)
    assert after(gateway, heard("newest", "current", payload, "all"))[0].trust.newest is None


def test_a_gateway_keeps_the_newest_numbers_for_the_aggregator_through_a_restart() -> None:
    shelf = Shelf()
    state, effects = after(commissioned(shelf), heard("newest", "current", stated(3, 5, 7), "all"))
    shelf.commit(effects)
    assert [Newest.from_bytes(one.payload) for one in sent(effects, "newest")] == [NUMBERS]
    again, effects = after(agent(gateway_settings(), shelf), Link(True))
    assert again.trust.newest == state.trust.newest
    (repeated,) = sent(effects, "newest")
    assert repeated.retain and repeated.topic == topic(ME, "newest", "current")
    assert Newest.from_bytes(repeated.payload) == NUMBERS


def test_what_a_newer_aggregator_signed_besides_is_passed_on_as_it_was_signed() -> None:
    document = json.loads(stated(3)) | {"from_the_future": [1]}
    signature = sign(KEY, Newest.from_bytes(json.dumps(document).encode()).signed_bytes())
    payload = json.dumps(document | {"signature": signature}).encode()
    shelf = Shelf()
    _, effects = after(commissioned(shelf), heard("newest", "current", payload, "all"))
    shelf.commit(effects)
    (repeated,) = sent(after(agent(gateway_settings(), shelf), Link(True))[1], "newest")
    assert json.loads(repeated.payload) == json.loads(payload)
    assert newest(cloud_after(OPEN, cloud_heard("north", "newest", repeated.payload))[0]).version == 3


@pytest.mark.parametrize("older", [(2, 5, 7), (3, 4, 7), (3, 5, 6), (2, 9, 9), (9, 9, 6)])
def test_numbers_that_went_back_are_not_taken_and_the_aggregator_is_told_what_it_signed(older: tuple[int, ...]) -> None:
    state, _ = after(commissioned(), heard("newest", "current", stated(3, 5, 7), "all"))
    state, effects = after(state, heard("newest", "current", stated(*older, at_s=WEEK_S), "all"))
    assert state.trust.newest == NUMBERS and not kinds(effects, Save)
    assert [Newest.from_bytes(one.payload) for one in sent(effects, "newest")] == [NUMBERS]


def test_the_same_numbers_again_cost_nothing_and_signed_anew_one_write() -> None:
    state, _ = after(commissioned(), heard("newest", "current", stated(3, 5, 7), "all"))
    for _ in range(3):
        state, effects = after(state, heard("newest", "current", stated(3, 5, 7), "all"))
        assert not effects
    state, effects = after(state, heard("newest", "current", stated(3, 5, 7, at_s=WEEK_S), "all"))
    assert [one.key for one in kinds(effects, Save)] == [NEWEST]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_new_store_takes_no_model_older_than_the_newest_that_was_signed(restarted: bool) -> None:
    shelf = Shelf()
    state, effects = after(commissioned(shelf), heard("newest", "current", stated(2), "all"))
    shelf.commit(effects)
    state = agent(gateway_settings(), shelf) if restarted else state
    state, _ = offered(state, FIRST)
    assert state.deployment.manifest is None
    assert state.context.refusal == "model 1 is older than 2, which the aggregator has signed to be the newest"
    assert offered(state, SECOND)[0].deployment.manifest == GOOD


OTHERS = {
    "a canary's, told to all": ("all", name_audience(SITE, ME)),
    "another canary's": (ME, name_audience(SITE, "south")),
    "another site's": ("all", name_audience("other", "all")),
    "to all, told to one": (ME, FOR_ALL),
    "nobody's": ("all", ""),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_model_that_was_signed_for_others_is_not_taken(case: str) -> None:
    announced_to, audience = OTHERS[case]
    manifest = signed_as(GOOD, audience=audience)
    state, effects = after(in_force(), heard("manifest", "current", manifest.to_bytes(), announced_to))
    assert state.deployment.candidate is None and not state.downloads.receiver.incoming and not kinds(effects, Save)
    assert state.context.refusal.startswith(f"model 2 refused: it is for {audience!r} and was announced to")
    assert offered(state, SECOND)[0].deployment.manifest == GOOD  # the right one is not kept out by it


def test_an_invitation_that_was_signed_for_others_is_not_answered() -> None:
    asked, other = RoundOpen.from_bytes(invitation()), name_audience("other", "all")
    for audience, is_taken in ((FOR_ALL, True), (other, False)):
        payload = sign_message(asked, KEY, audience, T0_NS).to_bytes()
        state, _ = after(commissioned(), heard("round", "open", payload, "all"))
        assert (state.training.round is not None) == is_taken
    assert state.context.refusal.startswith("round 0: it is for 'other/all' and was announced to")


@pytest.mark.parametrize(("clock", "is_taken"), [("synchronised", False), ("unsynchronised", True), ("unknown", True)])
def test_what_has_expired_is_not_taken_where_the_clock_is_known_to_be_right(clock: Any, is_taken: bool) -> None:
    """A gateway that boots in 1970 or in 2100 cannot tell; it goes by the signed numbers."""
    after_s = WEEKS * WEEK_S
    state = later(commissioned(), after_s, clock=clock)
    taken = offered(replace(state, context=replace(state.context, clock=clock)), FIRST)[0]
    assert (taken.deployment.manifest is not None) == is_taken
    assert is_taken or "refused: it expired on " in state.context.refusal + taken.context.refusal
    asked = after(
        replace(state, context=replace(state.context, clock=clock)), heard("round", "open", invitation(), "all")
    )[0]
    assert (asked.training.round is not None) == is_taken


def test_a_model_in_force_goes_on_after_all_that_was_signed_has_expired_and_the_gateway_says_so() -> None:
    state, _ = after(in_force(), heard("newest", "current", stated(1), "all"))
    state = later(state, 2 * WEEK_S)
    assert status(state).stale == ""
    state = later(state, WEEKS * WEEK_S)
    assert state.deployment.manifest == FIRST[0] and state.monitor.pipeline.judge is not None
    assert "signed last expired on " in status(state).stale and "the model in force goes on" in status(state).stale
    fresh = stated(1, at_s=2 * WEEKS * WEEK_S)
    state, _ = after(state, heard("newest", "current", fresh, "all"))
    assert status(later(state, 1.0)).stale == ""


def test_a_model_that_was_signed_and_does_not_come_is_noticed() -> None:
    state, _ = after(in_force(), heard("newest", "current", stated(2), "all"))
    assert status(later(state, kept.WITHHELD_S - 1)).stale == ""
    state = later(state, kept.WITHHELD_S)
    assert (
        status(state).stale == "the aggregator has signed that there is a model 2, and it has not been announced here"
    )
    state, _ = offered(state, SECOND)
    assert status(later(state, 1.0)).stale == ""


def test_a_model_that_was_refused_with_a_reason_is_not_missing() -> None:
    state, _ = after(in_force(), heard("newest", "current", stated(2), "all"))
    wrong = signed_as(GOOD, opset=99)
    state, _ = after(state, heard("manifest", "current", wrong.to_bytes(), "all"))
    assert state.context.refusal.startswith("model 2 refused: it needs opset 99")
    assert status(later(state, 2 * kept.WITHHELD_S)).stale == ""


def test_what_is_retained_is_signed_anew_each_week_and_is_the_same_in_between() -> None:
    shelf = CloudShelf(released=FIRST)
    state, first = cloud_after(started(shelf), Connection(True))
    state, same = cloud_after(state, Tick(), at_s=1.0)
    assert not published(same, "manifest") and not published(same, "newest")
    state, anew = cloud_after(state, Tick(), at_s=WEEK_S)
    for channel in ("manifest", "newest", "round"):
        before, now = published(first, channel)[-1], published(anew, channel)[-1]
        assert before.topic == now.topic and before.retain and now.retain and before.payload != now.payload
    ends = [Manifest.from_bytes(published(told, "manifest")[0].payload).expires_ns for told in (first, anew)]
    assert ends[1] - ends[0] == WEEK_NS and ends[0] - T0_NS > 4 * WEEK_NS
    assert not published(cloud_after(state, Tick(), at_s=WEEK_S + 1)[1], "manifest")
    gateway, taken = after(in_force(), *(heard("manifest", "current", published(anew, "manifest")[0].payload, "all"),))
    assert (
        not kinds(taken, Save) and not gateway.context.refusal and gateway.deployment.candidate is None
    )  # the one that it has


def test_a_site_whose_aggregator_lost_its_store_goes_on_with_models_that_its_gateways_take() -> None:
    made = Site(aggregator_settings(rounds={"quorum": 2}), [gateway_settings(name) for name in ("north", "south")])
    made.connect_all()
    made.commission()
    made.run(lambda: {one.trust.newest and one.trust.newest.version for one in made.agents.values()} == {1})
    training = made.cloud.rounds.training
    made.cloud_shelf.training, made.cloud_shelf.released = None, None  # and the broker lost what it kept
    made.retained = {where: body for where, body in made.retained.items() if "/all/" not in where}
    made.cloud_shelf.gateways.clear()
    made.cloud = start_cloud(made.cloud_settings, Stored(), made.now_ns, "second")
    made.connect("cloud")
    made.run(lambda: made.in_force(2))
    assert made.cloud.rounds.training > training and not any(one.trust.stale for one in made.agents.values())


@pytest.mark.soak
def test_a_store_that_was_set_back_releases_the_model_that_the_training_makes_again_under_a_new_version() -> None:
    made = Fleet("north", "south", "east", rounds={"quorum": 3}, mode="all")
    made.connect_all()
    made.commission()
    made.run(made.in_force)
    cloud = made.cloud
    assert cloud.releases.everywhere is not None
    learned, _ = cloud_machine.step(cloud, made.now_ns, cloud_heard("north", "newest", stated(4, 6), "current"))
    again, _ = receive_model(
        learned,
        ModelRelease(
            cloud.releases.everywhere.manifest.model_copy(update={"version": 7}), cloud.releases.everywhere.body
        ),
    )
    assert again.releases.manifest is not None and again.releases.manifest.version == 7
    same, _ = receive_model(
        cloud,
        ModelRelease(
            cloud.releases.everywhere.manifest.model_copy(update={"version": 7}), cloud.releases.everywhere.body
        ),
    )
    assert same.releases.manifest == cloud.releases.manifest


@pytest.mark.soak
def test_what_was_published_of_an_aggregator_names_every_version_it_gave() -> None:
    """Also of canaries, whose versions nobody else may get."""
    made = Fleet("north", "south", "east", mode="staged")
    made.connect_all()
    made.commission()
    made.flow()
    made.order("release", FIRST, share=1.0, to_all=True)
    made.told()
    made.order("release", SECOND, gateways=["south"])
    made.told()
    assert (made.cloud.releases.newest.version, made.cloud.releases.newest.highest_version) == (1, 2)
    retained = made.retained[topic("all", "newest", "current")]
    assert Newest.from_bytes(retained).highest_version == 2
    own = Manifest.from_bytes(made.retained[topic("south", "manifest", "current")])
    assert own.audience == name_audience(SITE, "south")
