"""The lines of a simulated world, its clocks and its sensors: what they promise they keep, and break no more than that.

Goal: a promise that the world breaks is the product's, not its own. Method: each part alone, with clients that note
what they hear.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedgate.firmware_sim.recordings import Channel, Recording
from fedgate.firmware_sim.world.actors.node import AWAKE_S, Node
from fedgate.firmware_sim.world.environment.faults import Faults
from fedgate.firmware_sim.world.environment.network import Network
from fedgate.firmware_sim.world.environment.setup import RATE_HZ
from fedgate.firmware_sim.world.environment.time import MachineClock, Scheduler
from fedgate.firmware_sim.world.promises.checks import Witness
from fedgate.models.time_units import NS
from tests.support.sites import topic


class Listener:
    """A client that notes what it hears."""

    def __init__(self, name: str) -> None:
        self.name, self.is_up = name, True
        self.messages: list[tuple[str, bytes]] = []
        self.links: list[bool] = []

    def receive(self, topic: str, payload: bytes) -> None:
        self.messages.append((topic, payload))

    def linked(self, up: bool) -> None:
        self.links.append(up)


def network(faults: Faults, *names: str) -> tuple[Scheduler, Network, list[Listener]]:
    scheduler = Scheduler()
    made = Network(scheduler, np.random.default_rng(0), faults, lambda who, text: None, pytest.fail)
    clients = [Listener(name) for name in names]
    for client in clients:
        made.join(client, (topic(client.name, "status", "agent"), b"gone"))
        made.connect(client.name)
    scheduler.run(10.0)
    return scheduler, made, clients


def test_the_broker_delivers_keeps_and_says_wills() -> None:
    scheduler, made, (cloud, north) = network(Faults(), "cloud", "north")
    made.publish("cloud", topic("all", "manifest", "current"), b"model", retain=True)
    made.publish("north", topic("north", "alarm", "anomaly"), b"alarm", retain=True)
    scheduler.run(20.0)
    assert north.messages == [(topic("all", "manifest", "current"), b"model")]
    assert cloud.messages == [(topic("north", "alarm", "anomaly"), b"alarm")]
    north.is_up = False
    made.left("north", at_once=False)
    made.publish("cloud", topic("north", "receipt", "x"), b"yours", retain=False)
    scheduler.run(100.0)
    assert (topic("north", "status", "agent"), b"gone") in cloud.messages
    north.is_up, north.messages = True, []
    made.connect("north")
    scheduler.run(110.0)
    assert (topic("north", "receipt", "x"), b"yours") in north.messages  # of its session
    assert (topic("all", "manifest", "current"), b"model") in north.messages  # retained


def test_a_process_that_stops_before_it_connected_leaves_its_machine_a_line_that_works() -> None:
    scheduler, made, (cloud, north) = network(Faults(), "cloud", "north")
    made.left("north", at_once=False)  # the power fails: the broker still holds that connection
    made.goodbye("north")  # the next process is stopped before it found the broker
    scheduler.run(100.0)
    assert cloud.messages == [(topic("north", "status", "agent"), b"gone")]
    made.connect("north")
    scheduler.run(110.0)
    made.publish("north", topic("north", "alarm", "anomaly"), b"alarm", retain=True)
    made.publish("cloud", topic("north", "receipt", "x"), b"yours", retain=False)
    scheduler.run(120.0)
    assert (topic("north", "alarm", "anomaly"), b"alarm") in cloud.messages
    assert (topic("north", "receipt", "x"), b"yours") in north.messages


@pytest.mark.parametrize(("memory", "is_kept"), [("whole", True), ("empty", False)])
def test_a_broker_that_restarts_forgets_or_not(memory: str, is_kept: bool) -> None:
    scheduler, made, (north,) = network(Faults(), "north")
    made.join(Listener("cloud"), None)
    made.connect("cloud")
    scheduler.run(20.0)
    made.publish("cloud", topic("all", "manifest", "current"), b"model", retain=True)
    scheduler.run(30.0)
    north.messages = []
    made.restart(5.0, memory)
    scheduler.run(200.0)
    assert north.links == [True, False, True]
    assert bool(north.messages) is is_kept


def test_messages_are_lost_repeated_delayed_and_queues_are_bounded() -> None:
    hard = Faults.model_validate(
        {"messages": {"loss": 0.3, "repeat": 0.3, "delay_s": 20.0}, "broker": {"queue_max": 3}}
    )
    scheduler, made, (_, cloud) = network(hard, "north", "cloud")
    sent = [f"{number}".encode() for number in range(100)]
    for payload in sent:
        made.publish("north", topic("north", "want", "x"), payload, retain=False)
    scheduler.run(500.0)
    came = [payload for _, payload in cloud.messages]
    assert set(came) < set(sent) and len(came) > len(set(came)) and came != sorted(came, key=sent.index)
    made.goodbye("cloud")
    for payload in sent:
        made.publish("north", topic("north", "want", "x"), payload, retain=False)
    scheduler.run(1_000.0)
    assert len(made.sessions["cloud"].queue) == 3


def test_a_clock_that_was_set_is_followed_and_leaves_the_uptime_alone() -> None:
    clock = MachineClock()
    then_ns = 1_800_000_000 * NS
    clock.booted(20 * NS, then_ns)
    clock.started()
    said: list[tuple[int, str]] = [(clock.now_ns(then_ns), clock.quality)]
    clock.synchronised()
    said.append((clock.now_ns(then_ns), clock.quality))
    assert clock.follow() == then_ns - 20 * NS and clock.uptime_ns(then_ns + NS) == then_ns + NS - clock.boot_ns
    said.append((clock.now_ns(then_ns), clock.quality))
    assert said == [(20 * NS, "unsynchronised"), (20 * NS, "unsynchronised"), (then_ns, "synchronised")]


def test_a_gateway_that_comes_back_late_still_finds_its_sensor() -> None:
    scheduler, came_s = Scheduler(), list[float]()
    host: Any = SimpleNamespace(
        name="north",
        settings=SimpleNamespace(gateway=SimpleNamespace(id="north")),
        world=SimpleNamespace(
            seed=1,
            scheduler=scheduler,
            network=SimpleNamespace(faults=Faults()),
            witness=Witness(lambda who, text: None, lambda: scheduler.elapsed_s),
        ),
        under=None,
        reaches=lambda: False,
        receive=lambda topic, payload: came_s.append(scheduler.elapsed_s),
        is_up=False,
        is_retired=False,
    )
    samples = Recording("", (Channel("load"),), RATE_HZ, np.zeros((round(3 * AWAKE_S * RATE_HZ), 1)))
    Node(host, samples, 0.0).start()
    scheduler.calm_s = 0.0
    late_s = AWAKE_S + 100.0
    scheduler.run(late_s)
    host.is_up = True
    scheduler.run(late_s + 2 * AWAKE_S)
    assert late_s < came_s[0] < late_s + 60.0 and AWAKE_S - 60.0 < came_s[-1] - came_s[0] < AWAKE_S + 60.0
