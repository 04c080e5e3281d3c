"""Waiting in tests: for as long as anything of ours is at work, and never for a number of seconds alone."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TypeVar

from fedgate.config.transport.mqtt import Link
from fedgate.firmware_sim.children import wait_until

PATIENCE_S = 60.0  # in which nothing is at work
POLL_S = 0.02
ASKED_LAST = "fedgate/asked-last"  # a topic on which nobody speaks

Heard = TypeVar("Heard")


def until(
    done: Callable[[], object], words: Callable[[], object] = str, *, idle_s: float = PATIENCE_S, poll_s: float = POLL_S
) -> None:
    """Wait until something is so; fails with what `words` says then."""
    assert wait_until(done, idle_s, poll_s), f"nothing has moved for {idle_s:g} s\n{words()}"


def taken(waiting: queue.Queue[Heard], idle_s: float = PATIENCE_S) -> Heard:
    """Return the next of a queue, as soon as there is one."""
    until(lambda: not waiting.empty(), idle_s=idle_s, poll_s=0.005)
    return waiting.get_nowait()


def until_subscribed(link: Link) -> None:
    """Wait until the subscriptions of a connected link are in force: brokers answer those of one client in order."""
    answered: list[int] = []
    client = link._client
    known = client.on_subscribe
    client.on_subscribe = lambda _client, _data, number, _codes, _properties: answered.append(number)
    number = client.subscribe(ASKED_LAST, qos=1)[1]
    until(lambda: number in answered, poll_s=0.005)
    client.on_subscribe = known


def until_all_came(link: Link, topic: str, heard: Callable[[], object]) -> None:
    """Wait until a link has what a broker held for it when it subscribed: what it says to itself comes after that."""
    assert link.publish(topic, b"")
    until(heard, poll_s=0.005)
