"""The world sees each duty that is starved, on its own: it can fail, and it asks for what the machines do.

Goal: whatever recurs, recurs whatever else happens. Method: clocks made by hand, and states of the real machines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from types import ModuleType
from typing import Any

import pytest

from fedgate.cloud_aggregator.events import Connection as CloudConnection
from fedgate.cloud_aggregator.events import SaveRollout
from fedgate.cloud_aggregator.releases import deploy, rollout
from fedgate.cloud_aggregator.releases.releases import Rollout
from fedgate.cloud_aggregator.rounds import round as rounds
from fedgate.cloud_aggregator.rounds.round import REMIND_S
from fedgate.config.protocol.messages import round_number
from fedgate.config.protocol.transfer import describe, split
from fedgate.firmware_sim.world import world
from fedgate.firmware_sim.world.environment.faults import drawn
from fedgate.firmware_sim.world.environment.setup import HOURS, stream_of
from fedgate.firmware_sim.world.environment.time import TICK_S
from fedgate.firmware_sim.world.promises.liveness import ANSWER_S, SLACK_S, Due, Liveness, Owed, of_cloud, of_gateway
from fedgate.firmware_sim.world.promises.releases import Releases
from fedgate.gateway_agent.deployment import probation
from fedgate.gateway_agent.deployment.probation import STEADY_S
from fedgate.gateway_agent.events import ALARM_PRIORITY, UPDATE_PRIORITY, Connection, Item, Publish
from fedgate.gateway_agent.outbox import outbox as queue
from fedgate.gateway_agent.outbox.outbox import ITEMS_MAX
from fedgate.gateway_agent.state import State
from fedgate.models.time_units import NS
from tests.cloud_aggregator.test_aggregator_machine import READY, after, body, heard, opened, started, update
from tests.gateway_agent.deployment.test_gateway_models import FIRST
from tests.support.agents import TICK, commissioned, deliver, fetch, kinds
from tests.support.agents import after as agent_after
from tests.support.sites import CloudShelf, topic, with_record
from tests.support.soak import some

SEED = 600373  # of a world in which a model goes to canaries first
LOST = 600374  # of a world in which an announcement is lost
STATUS = topic("north", "status", "agent")


def stored(rollout: Rollout | None = None) -> Releases:
    """Return the releases of a world in which this one is stored; without any, all have model 1."""
    releases = Releases(pytest.fail)
    said = {"rollout": asdict(rollout or Rollout("everywhere", 1)), "everywhere": 1, "candidate": 2, "recall": 3}
    releases.committed([SaveRollout(json.dumps(said).encode(), 1)])
    return releases


class Watched:
    """The liveness of one machine, and the time."""

    def __init__(self) -> None:
        self.now_s, self.said = 0.0, list[str]()
        self.liveness = Liveness(self.said.append, lambda: self.now_s)

    def owes(self, owed: Owed, until_s: float, process: int = 1) -> None:
        while self.now_s < until_s:
            self.liveness.owes("north", process, owed)
            self.now_s += 10.0


def test_what_is_not_done_in_time_is_said_once() -> None:
    watched = Watched()
    watched.owes({"one": Due(60.0, STATUS), "other": Due(900.0)}, 60.0 + SLACK_S)
    assert watched.said == []
    watched.owes({"one": Due(60.0, STATUS), "other": Due(900.0)}, 600.0)
    assert [said.split(",")[0] for said in watched.said] == ["north owes one"]


def test_what_is_sent_goes_on_is_over_or_belongs_to_another_process_is_not_overdue() -> None:
    watched = Watched()
    for step in range(100):
        watched.owes({"topic": Due(60.0, STATUS), "payload": Due(60.0, b"x")}, watched.now_s + 50.0)
        watched.liveness.sent("north", *((STATUS, b"") if step % 2 else ("any", b"x")))
        watched.liveness.sent("east", STATUS, b"x")
    watched.owes({}, watched.now_s + 10.0)
    for step in range(100):
        watched.owes({"body": Due(60.0, "resend", progress=step)}, watched.now_s + 100.0)
        watched.owes({"status": Due(60.0, STATUS)}, watched.now_s + 100.0, process=step)
    assert watched.said == []


def test_an_aggregator_owes_manifests_invitations_questions_and_the_end_of_a_round() -> None:
    behind = after(started(CloudShelf(released=FIRST)), heard("north", "status", READY.to_bytes()))[0]
    assert of_cloud(behind, stored(), set()) == {}, "without a connection nothing"
    manifest, invitation = topic("all", "manifest", "current"), topic("all", "round", "open")
    again = {name: Due(REMIND_S, name) for name in (manifest, invitation)}
    behind = after(behind, CloudConnection(True))[0]
    assert of_cloud(behind, stored(), set()) == again
    assert of_cloud(behind, stored(), {"north"}) == {manifest: again[manifest]}, "of two devices neither is counted"
    refusing = READY.model_copy(
        update={"refusal": "model 1 is too slow", "refused_round": round_number(behind.rounds.run, 0)}
    )
    assert of_cloud(after(behind, heard("north", "status", refusing.to_bytes()))[0], stored(), set()) == {}
    state = opened(quorum=2, deadline_s=60.0)
    state = after(state, *update("north", body(state)), *update("east", body(state)))[0]
    piece, *_ = update("west", body(state, {"vectors": [[0.5] * 300] * 2}))
    owed = of_cloud(after(state, piece)[0], Releases(pytest.fail), set())
    (asked,) = (name for name in owed if "/west/resend/" in name)
    assert owed.pop(asked).progress == 1
    assert owed == {invitation: again[invitation], "the end of round 0": Due(60.0)}


def test_an_aggregator_owes_the_end_of_a_round_that_can_have_no_quorum() -> None:
    state = opened(quorum=3, deadline_s=60.0)
    state = after(state, *update("north", body(state)))[0]
    lost = READY.model_copy(update={"answered": round_number(state.rounds.run, 0)})
    end = "the end of round 0, which can have no quorum"
    others = [name for name in state.access.gateways if name != "north"]
    for here, status in ((False, lost.model_copy(update={"outbox": 1})), (True, lost)):
        state = after(state, *[heard(name, "status", status.to_bytes()) for name in others])[0]
        assert (of_cloud(state, Releases(pytest.fail), set()).get(end) == Due(rounds.LOST_S)) == here
    again = of_cloud(with_record(state, "rounds", given_up=2), Releases(pytest.fail), set())
    assert again[end] == Due(4 * rounds.LOST_S)
    remembers = with_record(state, "rounds", algorithm=state.rounds.algorithm._replace(remembers=True))
    assert end not in of_cloud(remembers, Releases(pytest.fail), set())


def test_a_gateway_owes_an_end_of_the_mark_of_a_model_that_it_has_outlived() -> None:
    state, digest = commissioned(), FIRST[0].model.digest
    marked = replace(
        state,
        deployment=replace(
            state.deployment,
            manifest=FIRST[0],
            models=state.deployment.models.with_load(digest, "boot"),
            tried=("it", 7),
        ),
    )
    for connected in (True, False):
        owed = of_gateway(replace(marked, context=replace(marked.context, is_connected=connected)), set())
        assert owed["an end of the mark of model 1"] == Due(STEADY_S, progress=7)
    assert "an end of the mark of model 1" not in of_gateway(
        replace(marked, deployment=replace(marked.deployment, manifest=None)), set()
    )


def test_an_aggregator_owes_canaries_their_model_and_all_a_word_on_it() -> None:
    state = after(started(CloudShelf(released=FIRST)), CloudConnection(True))[0]
    state = after(state, *[heard(name, "status", READY.to_bytes()) for name in ("north", "west")])[0]
    own = topic("north", "manifest", "current")
    watching = of_cloud(state, stored(Rollout("watching", 2, canaries=("north",))), {"north", "west"})
    assert watching.pop("a word on model 2") == Due(state.context.settings.release.patience_s)
    assert watching.keys() == {own, topic("all", "manifest", "current")}
    paused = of_cloud(state, stored(Rollout("paused", 2, canaries=("north",))), {"north", "west"})
    assert paused == watching, "the operator decides"
    undrawn = of_cloud(state, stored(Rollout("watching", 2)), {"north", "west"})
    assert undrawn.keys() == watching.keys() - {own}
    recalled = of_cloud(state, stored(Rollout("stopped", 2, recall=3, recalled=("north",))), {"north", "west"})
    assert recalled.keys() == watching.keys()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("where", "name", "broken", "seed"),
    some(
        [
            (rounds, "find_awaited", lambda *_: set(), SEED),
            (probation, "clear_marks", lambda deployment, *_: (deployment, []), SEED),
            (deploy, "list_reminders", lambda *_: [], LOST),
            (rollout, "judge_canaries", lambda *_: ("wait", ""), SEED),
        ],
        2,
    ),
)
def test_a_world_sees_a_service_that_never_decides_reminds_or_ends_a_mark(
    where: ModuleType, name: str, broken: Callable[..., Any], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, broken)
    faults = drawn(stream_of(seed, "faults"))  # and nobody who means harm
    assert any(" owes " in text for text in world.run(seed, HOURS, faults).violations)


def test_a_gateway_owes_its_status_what_it_holds_and_questions() -> None:
    state = commissioned()
    assert of_gateway(replace(state, context=replace(state.context, is_connected=False)), {"a", "b"}) == {}
    state = agent_after(state, Connection(True))[0]
    digest = describe(b"model", 1_024).digest
    alarm = Item(topic("north", "alarm", "anomaly"), (b"alarm",), retain=True, priority=ALARM_PRIORITY)
    answer = Item(topic("north", "update", "b"), tuple(split(bytes(2_000), 1_024)), False, UPDATE_PRIORITY)
    for name, item in (("a", alarm), ("b", answer), ("c", replace(alarm, payloads=(b"c",)))):
        state = deliver(state, name, item)[0]
    state = fetch(state, describe(b"model", 1_024))
    assert of_gateway(state, {"a", "b"}) == {
        STATUS: Due(state.context.settings.exchange.status_s, STATUS),
        "a": Due(ANSWER_S, b"alarm"),
        "b": Due(ANSWER_S, answer.topic),  # what is stored of it; "c" is not
        topic("north", "want", digest): Due(ANSWER_S, topic("north", "want", digest)),
    }


ALARM = Item(topic("north", "alarm", "anomaly"), (b"alarm",), retain=True, priority=ALARM_PRIORITY)
UPDATE = Item(topic("north", "update", "u"), (b"update",), False, UPDATE_PRIORITY)


def queued(alarms: int, updates: int) -> State:
    """Return an agent with a connection that has this to send, each with a payload of its own."""
    state = agent_after(commissioned(), Connection(True))[0]
    for name, item, count in (("a", ALARM, alarms), ("u", UPDATE, updates)):
        for number in range(count):
            payload = f"{name}{number}"
            state = deliver(state, payload, replace(item, payloads=(payload.encode(),)))[0]
    return state


def test_what_finds_no_room_beside_alarms_that_nobody_answers_is_not_owed_yet() -> None:
    assert of_gateway(queued(ITEMS_MAX - 1, 1), {"u0"})["u0"] == Due(ANSWER_S, b"u0")
    assert of_gateway(queued(ITEMS_MAX, 1), {"u0", "a0"}).keys() == {STATUS, "a0"}


def nobody_answers(state: State, until_s: float) -> list[str]:
    """Return what is complained of while an agent has all of this to send, and no receipt comes."""
    watched, begun_ns = Watched(), state.context.now_ns
    while watched.now_s < until_s:
        watched.liveness.owes("north", 1, of_gateway(state, state.outbox.items.keys()))
        watched.now_s += TICK_S
        state, effects = agent_after(state, TICK, now_ns=begun_ns + round(watched.now_s * NS))
        for one in kinds(effects, Publish):
            watched.liveness.sent("north", one.topic, one.payload)
    return [said.split()[2].rstrip(",") for said in watched.said]


@pytest.mark.soak
@pytest.mark.parametrize(("alarms", "updates", "turns"), [(32, 0, 1), (33, 0, 2), (65, 0, 3), (31, 5, 5)])
def test_what_shares_the_room_is_owed_in_turns_and_the_agent_keeps_them(
    alarms: int, updates: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = queued(alarms, updates)
    owed = {
        name: due for name, due in of_gateway(state, state.outbox.items.keys()).items() if name in state.outbox.items
    }
    assert owed.keys() == state.outbox.items.keys()
    assert {due.within_s for name, due in owed.items() if name[0] == ("u" if updates else "a")} == {turns * ANSWER_S}
    until_s = 2 * turns * ANSWER_S
    assert nobody_answers(state, until_s) == []
    monkeypatch.setattr(queue, "send_due", lambda outbox, *_: (outbox, []))
    assert owed.keys() <= set(nobody_answers(state, until_s))
