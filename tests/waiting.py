"""Waiting in tests: for as long as anything of ours is at work, and never for a number of seconds alone."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TypeVar

from firmware_sim.children import wait_until

PATIENCE_S = 60.0  # in which nothing is at work
POLL_S = 0.02

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
