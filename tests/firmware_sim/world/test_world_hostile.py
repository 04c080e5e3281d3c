"""A gateway that means harm in the simulated world, and a broker that lies.

Goal: one gateway harms itself and nobody else. Method: what it says is drawn from the messages' own types and is as
harmful as it can be; the witness excuses what concerns it alone; defects put back are seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator.access import device_sessions
from fedgate.cloud_aggregator.access.device_sessions import DeviceSession
from fedgate.cloud_aggregator.alarms import register
from fedgate.cloud_aggregator.context import Context as CloudContext
from fedgate.cloud_aggregator.context import Statuses
from fedgate.cloud_aggregator.events import BuildModel
from fedgate.cloud_aggregator.releases import deploy
from fedgate.cloud_aggregator.releases.deploy import Result, build_model
from fedgate.cloud_aggregator.releases.releases import Releases
from fedgate.config.protocol import wire
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import LARGEST, Alarm, Message, Score, Signed, Status, Want
from fedgate.config.protocol.topics import CHANNELS
from fedgate.firmware_sim.mutation import resealed
from fedgate.firmware_sim.world import world
from fedgate.firmware_sim.world.actors import hostile as world_hostile
from fedgate.firmware_sim.world.actors.hosts import CloudHost
from fedgate.firmware_sim.world.actors.messages import Seen, mutated, swollen
from fedgate.firmware_sim.world.actors.messages import drawn as drawn_message
from fedgate.firmware_sim.world.environment.faults import Faults, Handling, Hostile, Lies, Power, drawn
from fedgate.firmware_sim.world.environment.network import PACKET_BYTES
from fedgate.firmware_sim.world.environment.setup import HOURS, stream_of
from fedgate.firmware_sim.world.promises import bounds
from fedgate.firmware_sim.world.promises.bounds import bounded_step
from fedgate.firmware_sim.world.promises.checks import Witness
from fedgate.firmware_sim.world.promises.latest import Latest
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.deployment import activation
from tests.firmware_sim.world.test_world_network import network
from tests.support.sites import topic
from tests.support.soak import some

MANY = Faults(hostile=Hostile(messages=1_500.0))
CUTS = Faults(power=Power(cuts=20.0, away_s=5.0))
TWINS = Faults(handling=Handling(twins=6.0, twin_s=900.0))
IMAGES = CUTS.model_copy(update={"handling": Handling(restores=20.0)})


@pytest.mark.parametrize("kind", [Status, Alarm, Tombstone, Want, Score])
def test_what_is_drawn_is_sound_and_goes_to_its_bounds(kind: type[Message]) -> None:
    rng, seen = np.random.default_rng(0), Seen()
    found = [drawn_message(kind, rng, seen) for _ in range(200)]
    texts = [json.dumps(one) for one in found]
    for text in texts:
        kind.from_bytes(text.encode())
    assert any(str(LARGEST) in text for text in texts) or kind is Score
    assert len(set(texts)) > 50


def test_what_was_seen_is_drawn_broken_and_swollen() -> None:
    rng, seen = np.random.default_rng(0), Seen()
    seen.note({"run": "0a1b", "of": [41]})
    texts = [json.dumps(drawn_message(Status, rng, seen)) for _ in range(60)]
    assert any("0a1b" in text for text in texts) and any("42" in text for text in texts)
    assert len({mutated(b'{"missing":[1,2]}', rng) for _ in range(50)}) > 20
    assert len(swollen({"text": "", "device": {"model": ""}}, 10_000, rng)) == 10_000


@pytest.mark.soak
@pytest.mark.parametrize(("seed", "more"), [(11, {"telemetry"}), (27, {"summary"})])  # features are published in 27
def test_it_keeps_to_what_a_gateway_may_write(seed: int, more: set[str]) -> None:
    allowed = world_hostile.may_write()
    assert allowed["status"] in ("agent", "doctor") and allowed["alarm"] == "+" and "manifest" not in allowed
    assert allowed.keys() < CHANNELS
    said = [line.split(maxsplit=2)[2] for line in world.run(seed, HOURS, MANY).history if " mallory " in line]
    channels = {line.split(": ")[1].partition("/")[0] for line in said if "/'" in line}
    assert {"status", "alarm", "update", "want", "tombstone"} | more <= channels <= allowed.keys()
    assert len({line.partition(":")[0] for line in said} & world_hostile.ACTS.keys()) > 7


@pytest.mark.soak
def test_a_seed_without_harm_is_what_it_was() -> None:
    """Harm has random numbers of its own; so have lies, the ends of loads, alarms, samples and who begins anew."""
    mixes = {seed: world.faults_of(seed) for seed in range(400)}
    harmless = {name: getattr(Faults(), name) for name in ("hostile", "lies", "loads", "alarms", "samples")}
    for seed, mix in mixes.items():
        handling = mix.handling.model_copy(update={"anew": 0.0})
        assert mix.model_copy(update={**harmless, "handling": handling}) == drawn(stream_of(seed, "faults"))
    assert 0.15 < np.mean([mix.hostile.messages > 0 for mix in mixes.values()]) < 0.35
    assert 0.05 < np.mean([mix.lies != Lies() for mix in mixes.values()]) < 0.15
    assert 0.1 < np.mean([mix.handling.anew > 0 for mix in mixes.values()]) < 0.2
    assert 0.1 < np.mean([mix.loads.ends > 0 for mix in mixes.values()]) < 0.3
    assert 0.4 < np.mean([mix.alarms.orders > 0 for mix in mixes.values()]) < 0.6
    assert 0.15 < np.mean([mix.alarms.actions > 0 for mix in mixes.values()]) < 0.35
    assert 0.4 < np.mean([mix.samples.fetches > 0 for mix in mixes.values()]) < 0.6


def test_the_broker_puts_out_who_sends_too_much_and_takes_what_is_just_small_enough() -> None:
    scheduler, made, (cloud, north) = network(Faults(), "cloud", "north")
    where = topic("north", "alarm", "anomaly")
    room = PACKET_BYTES - len(where) - 9
    made.push("north", where, b"x" * room, retain=False, qos=1)
    scheduler.run(20.0)
    assert [len(payload) for _, payload in cloud.messages] == [room] and north.links == [True]
    made.push("north", where, b"x" * PACKET_BYTES, retain=False, qos=1)
    scheduler.run(100.0)
    assert north.links[:2] == [True, False] and cloud.links == [True]
    assert max(len(payload) for _, payload in cloud.messages) == room


def test_a_broker_that_lies_says_old_things_again_and_withholds_others() -> None:
    scheduler, made, (_cloud, north) = network(Faults(lies=Lies(replays=3_600.0, withholds=0.0)), "cloud", "north")
    where = topic("all", "manifest", "current")
    made.schedule_lies()
    for version in (b"1", b"2"):
        made.publish("cloud", where, version, retain=True)
        scheduler.run(scheduler.elapsed_s + 5.0)
    scheduler.run(100.0)
    said = [payload for _, payload in north.messages]
    assert len(said) > 20 and said.index(b"2") < len(said) - said[::-1].index(b"1"), "the old one after the new one"
    scheduler, made, (_cloud, north) = network(Faults(lies=Lies(withholds=3_600.0, withheld_s=1e6)), "cloud", "north")
    made.schedule_lies()
    scheduler.run(200.0)
    for channel in ("manifest", "round", "chunk", "receipt", "resend"):
        made.publish("cloud", topic("north", channel, "x"), b"1", retain=False)
    scheduler.run(210.0)
    assert north.messages == []


def test_a_broker_that_lies_shows_all_what_is_for_one_and_says_old_statuses_again() -> None:
    lies = Lies(shows=0.9, withheld_s=10.0, replays=600.0)
    scheduler, made, (cloud, north, west) = network(Faults(lies=lies), "cloud", "north", "west")
    manifest = json.dumps({"model": {"digest": "d"}}).encode()
    for _ in range(3):
        made.publish("cloud", topic("north", "manifest", "current"), manifest, retain=True)
    made.publish("cloud", topic("north", "chunk", "d"), b"body", retain=False)
    made.publish("cloud", topic("north", "chunk", "e"), b"other", retain=False)
    scheduler.run(200.0)
    shown = [(topic("all", "manifest", "current"), manifest), (topic("all", "chunk", "d"), b"body")]
    assert list(dict.fromkeys(west.messages)) == shown and set(shown) < set(north.messages)
    assert made.retained[shown[0][0]] == manifest
    made.schedule_lies()
    for said in (b"1", b"2"):
        made.publish("north", topic("north", "status", "agent"), said, retain=True)
        scheduler.run(scheduler.elapsed_s + 5.0)
    scheduler.run(scheduler.elapsed_s + 400.0)
    statuses = [payload for _, payload in cloud.messages]
    assert b"1" in statuses[statuses.index(b"2") :]


def test_what_is_known_is_not_set_back_but_for_who_was_handled() -> None:
    elapsed_s, said = [0.0], list[str]()
    latest = Latest(said.append, lambda: elapsed_s[0])
    old, new = (Status(state="online", boot_id="b", store_id="s", monotonic_ns=at) for at in (1, 2))
    for status in (old, new):
        elapsed_s[0] += 60.0
        for gateway in ("north", "west"):
            latest.note_sent(gateway, status)
    for status in (old, new, Status(state="offline"), new, old):
        latest.known({"north": status, "west": status}, {"west": {"restored"}})
    assert said == ["what is known of north was set back by 60 s, to an old status"]


# The witness excuses what concerns the hostile gateway, and no more.


def witness(hostile: str = "") -> Witness:
    seen = Witness(lambda who, text: None, lambda: 0.0)
    seen.hostile = hostile
    return seen


def test_a_model_that_is_older_than_one_before_is_seen() -> None:
    seen = witness()
    for version in (1, 3, 1, 3, 4):
        seen._rises("north", version)
    assert seen.violations == []
    seen._rises("north", 2)
    assert seen.violations == ["north put model 2 in force, after model 4"]
    seen.devices.touched("west", "restored")
    seen._rises("west", 2)
    seen._rises("west", 1)
    assert len(seen.violations) == 1


def test_what_the_aggregator_holds_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, said = tmp_path / "cloud.db", list[str]()
    store.write_bytes(b"x" * 1_000)
    assert bounds.audit(None, store, said.append) == {"held_bytes": 0, "disk_bytes": 1_000} and not said
    monkeypatch.setattr(bounds, "DISK_BYTES_MAX", 999)
    bounds.audit(None, store, said.append)
    assert said == ["disk_bytes of the aggregator are 1000, 999 at most"]
    with (tmp_path / "cloud.db-wal").open("wb") as log:  # of a service that never ended
        for size, expected in ((bounds.LOG_BYTES_MAX, 1_000), (bounds.LOG_BYTES_MAX + 5, 1_005)):
            log.truncate(size)
            assert bounds.disk_bytes(store) == expected


def test_a_step_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "STEP_S", 0.2)
    with pytest.raises(RuntimeError, match="took more than"), bounded_step():
        while True:
            pass
    with bounded_step():
        pass


# Defects of the product, put back.


def for_anybody(context: Context, message: Signed, gateway: str) -> str:
    """Return why a message does not count as if whom it is for were all the same."""
    return "" if context.verified(message.signed_bytes(), message.signature) else f"not signed for {gateway}"


def build_believing(releases: Releases, context: CloudContext, statuses: Statuses, wanted: BuildModel) -> Result:
    """Make a model under a version as if what gateways say of theirs were true."""
    highest = max((one.model_version for one in statuses.values()), default=0)
    releases = replace(releases, newest=releases.newest.changed(highest_version=highest))
    return build_model(releases, context, statuses, wanted)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("where", "name", "bug", "seed", "faults", "said"),
    some(
        [
            (register, "find_refusal", lambda *_: "", 11, MANY, "the aggregator failed at a message of mallory"),
            (deploy, "build_model", build_believing, 34, MANY, "Python int too large"),
            (activation, "check_signed", for_anybody, 970_083, None, "in force, which only others were to try"),
            (device_sessions, "_is_present", lambda *_: True, 970_097, None, "to an old status"),
            (device_sessions, "_find_conflict", lambda *_: None, 2, TWINS, "by turns, and nobody said so"),
            (device_sessions, "_find_conflict", lambda *_: None, 3, IMAGES, "to an old card, and nobody said so"),
            (DeviceSession, "outlasts", lambda *_: True, 3, CUTS, "to which was done: nothing"),
        ],
        2,
    ),
)
def test_a_world_shows_it(
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    name: str,
    bug: Callable[..., Any] | int,
    seed: int,
    faults: Faults | None,
    said: str,
) -> None:
    monkeypatch.setattr(where, name, bug)
    monkeypatch.setattr(world, "SETTLE_S", 600.0)
    try:
        found = world.run(seed, HOURS, faults).violations
    except OverflowError as error:  # of the aggregator's own step: the command says so, with the seed
        found = (str(error),)
    assert any(said in text for text in found)


@pytest.mark.soak
def test_commands_are_asked_on_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, said = list[str](), list[str]()

    def answer(words: list[str]) -> int:
        asked.append(" ".join(word for word in words if not word.startswith(("-", "/"))))
        print("[]" if "--json" in words else "a\x1b[2Jb")
        return 4 if words[0] == "models" else 0

    monkeypatch.setattr(bounds, "main", answer)
    monkeypatch.setattr(CloudHost, "owed", lambda _: {})
    faults = Faults(hostile=Hostile(messages=60.0))
    said += world.run(4, 0.05, faults, tmp_path).violations
    assert {"status", "models", "gateways list", "alarms"} <= set(asked)
    assert any("models ends with 4" in one for one in said) and any("status prints '\\x1b'" in one for one in said)


def test_what_is_resealed_is_read_whatever_is_in_it() -> None:
    body = wire.encode({"a": np.ones(2)}, {"x": "HALF"})
    head, _, rest = body.partition(b"\n")
    changed = resealed(head.replace(b"HALF", b"FULL") + b"\n" + rest)
    assert wire.decode(changed)[1] == {"x": "FULL"}
