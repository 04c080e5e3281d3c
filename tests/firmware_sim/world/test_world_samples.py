"""What the witness of a simulated world says of actions over MQTT and of raw samples.

Goal: an action is carried out once and for those who may alone; samples come as they were sent, or a refusal does, and
from nobody who keeps none. Method: as in `test_world_alarms`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator.alarms import records, remote_actions
from fedgate.cloud_aggregator.context import Context as CloudContext
from fedgate.cloud_aggregator.events import Answered, RecordAction, RecordFetch, RecordFetched
from fedgate.cloud_aggregator.samples import fetches
from fedgate.cloud_aggregator.storage import store
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.frames import Frame
from fedgate.config.protocol.messages import ActionAnswer
from fedgate.config.protocol.samples import Clip, Piece, SampleRequest, encode_clip, name_clip, name_refusal
from fedgate.config.protocol.transfer import split
from fedgate.firmware_sim.recordings import Channel, Recording
from fedgate.firmware_sim.replay.node import frames
from fedgate.firmware_sim.world import world
from fedgate.firmware_sim.world.environment.faults import Faults, Hostile, Messages, OfAlarms, OfSamples, Power, Work
from fedgate.firmware_sim.world.environment.setup import FRAME_S, RATE_HZ, REMOTE
from fedgate.firmware_sim.world.environment.time import T0_NS
from fedgate.firmware_sim.world.promises.alarms.actions import Actions
from fedgate.firmware_sim.world.promises.alarms.samples import Fetches
from fedgate.firmware_sim.world.promises.alarms.states import Key
from fedgate.gateway_agent.events import SAMPLES_PRIORITY, Deliver, Item
from fedgate.gateway_agent.samples import samples as raw
from tests.firmware_sim.world.test_world_alarms import make_alarm
from tests.support.clip_samples import make_clip

ASKED = {"request": "1", "action": "acknowledge", "alarms": ("north/a",)}
DONE = ActionAnswer(request="1", answer="acknowledged")


class Acted:
    """The witness of actions, and what it complains of."""

    def __init__(self) -> None:
        self.violations = list[str]()
        self.actions = Actions(self.violations.append)
        self.actions.allowed = frozenset({REMOTE})
        self.actions.ask(REMOTE, "1", json.dumps(ASKED).encode(), "done")

    def record(self, user: str = REMOTE, number: int = 1, **changes: Any) -> None:
        self.actions.record(number, RecordAction(user, ASKED | {"who": user} | changes))

    def answer(self, answer: ActionAnswer = DONE) -> None:
        self.actions.publish(REMOTE, answer)
        self.actions.receive(REMOTE, answer)


def test_an_action_is_recorded_once_and_answered_as_often_as_it_is_asked() -> None:
    acted = Acted()
    acted.record()
    assert acted.actions.missing == 1
    acted.actions.note_answer(1, DONE.answer, "")
    acted.answer()
    acted.answer()
    acted.actions.ask(REMOTE, "2", b'{"request": "2", "action": "close"}', "refused")
    acted.answer(ActionAnswer(request="2", answer="refused", problem="what is this"))
    assert acted.violations == [] and acted.actions.missing == 0 and acted.actions.has_answer(REMOTE, "2")


def recorded_twice(acted: Acted) -> None:
    acted.record()
    acted.record(number=2)


def recorded_of_a_stranger(acted: Acted) -> None:
    acted.actions.ask("stranger", "1", json.dumps(ASKED).encode(), "done")
    acted.record("stranger")


def recorded_of_nobody(acted: Acted) -> None:
    acted.record(request="7")


def recorded_otherwise(acted: Acted) -> None:
    acted.record(alarms=("north/b",))


def answered_before_it_is_stored(acted: Acted) -> None:
    acted.record()
    acted.answer()


def answered_in_two_ways(acted: Acted) -> None:
    acted.actions.receive(REMOTE, DONE)
    acted.actions.receive(REMOTE, DONE.model_copy(update={"answer": "refused"}))


def taken_though_nobody_can_read_it(acted: Acted) -> None:
    acted.actions.ask(REMOTE, "2", b'{"request": "2"}', "refused")
    acted.answer(ActionAnswer(request="2", answer="acknowledged"))


WRONG_ACTIONS = [recorded_twice, recorded_of_a_stranger, recorded_of_nobody, recorded_otherwise]
WRONG_ACTIONS += [answered_before_it_is_stored, answered_in_two_ways, taken_though_nobody_can_read_it]


@pytest.mark.parametrize("wrong", WRONG_ACTIONS)
def test_what_breaks_a_promise_about_actions_is_seen(wrong: Callable[[Acted], None]) -> None:
    acted = Acted()
    wrong(acted)
    assert acted.violations


# Samples.

NORTH, WEST = Key("north", "a"), Key("west", "b")
RECORDING = Recording("deck", (Channel("load"),), RATE_HZ, np.random.default_rng(0).normal(size=(240, 1)))
ALARM = make_alarm(alarm="a")


class Fetched:
    """The witness of samples, what it complains of, and the aggregator's store."""

    def __init__(self, folder: Path) -> None:
        self.violations = list[str]()
        self.fetches = Fetches(self.violations.append)
        self.fetches.know("north", RECORDING, keeps=True)
        self.fetches.know("west", RECORDING, keeps=False)
        self.store = Store(folder / "cloud.db")

    def commit(self, *effects: Any) -> None:
        self.store.commit([one for one in effects if not isinstance(one, Answered)])
        self.fetches.committed(effects, lambda key: [ALARM.model_copy(update={"id": key.alarm})])

    def ask(self, key: Key = NORTH, order: int = 1) -> None:
        self.fetches.ordered(order, key)
        self.commit(Answered(order, "asked for"), RecordFetch(*key, order))

    def come(self, key: Key = NORTH, **changes: Any) -> None:
        body = encode_clip(sent_clip(**{"gateway": key.gateway, "alarm": key.alarm, **changes}))
        self.commit(RecordFetched(*key, 5, body=body, bounds=(10**6, 10**6)))


def sent_clip(factor: float = 1.0, **changes: Any) -> Clip:
    """Return a clip of the first two frames that a node sends."""
    blocks = [Frame.from_bytes(one.to_bytes()) for _, one in frames(RECORDING, FRAME_S, T0_NS, "node")][:2]
    pieces = (Piece(one.meta.t_ns, one.meta.rate_hz, (one.values * factor).astype(one.values.dtype)) for one in blocks)
    return make_clip(*pieces, **{"t_ns": ALARM.t_ns, **changes})


@pytest.fixture
def fetched(tmp_path: Path) -> Any:
    made = Fetched(tmp_path)
    yield made
    made.store.close()


def test_a_fetch_ends_in_a_clip_or_a_refusal(fetched: Fetched) -> None:
    fetched.ask()
    fetched.ask(WEST, 2)
    assert fetched.fetches.missing == [NORTH, WEST]
    fetched.fetches.publish("north", name_clip("a", 1))
    fetched.come()
    fetched.fetches.publish("west", name_refusal("b", 2))
    fetched.commit(RecordFetched(*WEST, 5, problem="it keeps none"))
    counts = fetched.fetches.audit(fetched.store)
    assert fetched.violations == [] and fetched.fetches.missing == []
    assert counts == {"fetches": 2, "clips": 1, "clips_refused": 1}


def samples_are_others(fetched: Fetched) -> None:
    fetched.ask()
    fetched.come(factor=2.0)


def samples_are_of_another_alarm(fetched: Fetched) -> None:
    fetched.ask()
    fetched.come(alarm="c")


def samples_are_of_another_time(fetched: Fetched) -> None:
    fetched.ask()
    fetched.come(t_ns=7)


def samples_come_from_who_keeps_none(fetched: Fetched) -> None:
    fetched.ask(WEST)
    fetched.come(WEST)


def samples_leave_who_keeps_none(fetched: Fetched) -> None:
    fetched.ask(WEST)
    fetched.fetches.publish("west", name_clip("b", 1))


def samples_leave_unasked(fetched: Fetched) -> None:
    fetched.fetches.publish("north", name_clip("a", 1))


def nobody_waits_for_them(fetched: Fetched) -> None:
    fetched.come()


def nobody_ordered_them(fetched: Fetched) -> None:
    fetched.commit(RecordFetch(*NORTH, 1))


def nobody_is_asked(fetched: Fetched) -> None:
    fetched.fetches.ordered(1, NORTH)
    fetched.commit(Answered(1, "asked for"))


def another_refuses(fetched: Fetched) -> None:
    fetched.ask()
    fetched.fetches.publish("west", name_refusal("a", 1))
    fetched.commit(RecordFetched(*NORTH, 5, problem="it keeps none"))


def they_are_gone(fetched: Fetched) -> None:
    fetched.ask()
    fetched.come()
    fetched.store.commit([RecordFetch(*NORTH, 9)])
    fetched.fetches.opened(fetched.store)


WRONG_SAMPLES = [samples_are_others, samples_are_of_another_alarm, samples_are_of_another_time, they_are_gone]
WRONG_SAMPLES += [samples_come_from_who_keeps_none, samples_leave_who_keeps_none, samples_leave_unasked]
WRONG_SAMPLES += [nobody_waits_for_them, nobody_ordered_them, nobody_is_asked, another_refuses]


@pytest.mark.parametrize("wrong", WRONG_SAMPLES)
def test_what_breaks_a_promise_about_samples_is_seen(fetched: Fetched, wrong: Callable[[Fetched], None]) -> None:
    wrong(fetched)
    assert fetched.violations


# Defects of the product, put back.

ACTED = Faults(alarms=OfAlarms(orders=20.0, actions=240.0), messages=Messages(repeat=0.3, loss=0.2))
CUT = ACTED.model_copy(update={"power": Power(kills=40.0)})
SILENT = Work(silence=30.0, silence_s=200.0)
KILLED = Faults(samples=OfSamples(fetches=240.0), power=Power(kills=40.0), messages=Messages(loss=0.5), work=SILENT)
HARMED = Faults(
    samples=OfSamples(fetches=240.0),
    hostile=Hostile(messages=2_000.0),
    messages=Messages(loss=0.6),
    work=SILENT,
)
receive_action, make_clip_of, receive, receive_request = (
    remote_actions.receive_action,
    raw._make_clip,
    fetches.receive,
    raw.receive_request,
)


def let_anybody(alarms: Any, context: CloudContext, user: str, payload: bytes, **how: bool) -> Any:
    """Let everybody act on alarms."""
    table = context.settings.alarms.model_copy(update={"actions_from": (user,)})
    settings = context.settings.model_copy(update={"alarms": table})
    alarms, effects = receive_action(alarms, replace(context, settings=settings), user, payload, **how)
    return alarms, effects


def answer_at_random(alarms: Any, context: Any, user: str, request: str, done: Answered) -> Any:
    """Tell a system of an action something else than is stored."""
    answer = ActionAnswer(request=request, answer=f"{done.text}!", problem=done.problem)
    requests = {**alarms.requests, user: records.keep_request(alarms.requests.get(user, {}), request, answer)}
    return replace(alarms, requests=requests), [remote_actions._publish(context, user, answer)]


def answer_nobody(alarms: Any, *_: Any) -> Any:
    """Carry out an action and say nothing."""
    return alarms, []


def make_filtered(*given: Any) -> Clip:
    """Smooth the samples of a clip on their way."""
    clip = make_clip_of(*given)
    pieces = tuple(tuple(one._replace(values=one.values * np.float32(0.5)) for one in of) for of in clip.pieces)
    return clip._replace(pieces=pieces)


def send_anyway(samples: Any, context: Any, payload: bytes) -> Any:
    """Send samples whether or not the settings of the gateway keep any."""
    request = SampleRequest.from_bytes(payload)
    if context.settings.samples is not None:
        return receive_request(samples, context, payload)
    name = name_clip(request.alarm, request.number)
    item = Item(context.topic("samples", name), tuple(split(b"x", 1_024)), retain=False, priority=SAMPLES_PRIORITY)
    return samples, [Deliver(name, item)]


def receive_for_anybody(state: Any, context: Any, gateway: str, item: str, payload: bytes) -> Any:
    """Take a clip of whoever sends it for that of the gateway that was asked for one of its name."""
    return receive(
        state, context, next((key.gateway for key in state.asked if key.item == item), gateway), item, payload
    )


@pytest.mark.soak
@pytest.mark.parametrize(
    ("where", "name", "bug", "seed", "faults", "said"),
    [
        (remote_actions, "keep_request", lambda known, *_: known, 0, ACTED, "is recorded twice"),
        (fetches, "repeat_requests", lambda fetches, *_: (fetches, []), 49, None, "have not come"),
        (records, "keep_request", lambda known, *_: known, 0, CUT, "is recorded twice"),
        (remote_actions, "receive_action", let_anybody, 1, ACTED, "who may not act"),
        (remote_actions, "answer_action", answer_at_random, 0, ACTED, "stored is"),
        (remote_actions, "answer_action", answer_nobody, 0, ACTED, "have no answer"),
        (raw, "_make_clip", make_filtered, 21, None, "that no node sent"),
        (raw, "receive_request", send_anyway, 7, None, "its settings keep none"),
        (fetches, "receive", receive_for_anybody, 2, HARMED, "the gateway never said so"),
        (store, "restore_fetches", lambda *_: fetches.Fetches(), 0, KILLED, "have not come"),
    ],
)
def test_a_world_shows_it(
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    name: str,
    bug: Callable[..., Any],
    seed: int,
    faults: Faults | None,
    said: str,
) -> None:
    monkeypatch.setattr(where, name, bug)
    monkeypatch.setattr(world, "SETTLE_S", 600.0)
    assert any(said in text for text in world.run(seed, faults=faults).violations)
