"""The order of both services: events in, what they changed made durable, and then what is to be done outside."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedgate.config.runtime.service import Service


def step(state: str, uptime_ns: int, event: str) -> tuple[str, list[str]]:
    """Take in an event, which is stored and said."""
    return state + event, [f"store {event}", f"say {event} at {uptime_ns}"]


class Policy:
    """Stores at once, and has the machine hear what it was given to tell."""

    def __init__(self, *news: str) -> None:
        self.stored: list[list[str]] = []
        self._news = list(news)

    def commit(self, state: str, effects: list[str], events: Sequence[str]) -> tuple[str, list[str], list[str]]:
        self.stored.append([effect for effect in effects if effect.startswith("store")])
        news, self._news = self._news[:1], self._news[1:]
        return f"{state}|", [effect for effect in effects if effect.startswith("say")], news


def test_events_that_wait_share_one_commit_and_are_answered_in_their_order() -> None:
    policy = Policy()
    service = Service("", step, policy.commit)
    assert service.step_all(7, ["a", "b"]) == ["say a at 7", "say b at 7"]
    assert policy.stored == [["store a", "store b"]] and service.state == "ab|"


def test_the_machine_hears_of_its_store_before_the_next_event_and_is_stored_again() -> None:
    policy = Policy("full", "well")
    service = Service("", step, policy.commit)
    assert service.step(7, "a") == ["say a at 7", "say full at 7", "say well at 7"]
    assert policy.stored == [["store a"], ["store full"], ["store well"]] and service.state == "a|full|well|"


def test_nothing_is_said_of_what_could_not_be_stored() -> None:
    def fail(state: str, effects: list[str], events: Sequence[str]) -> tuple[str, list[str], list[str]]:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        Service("", step, fail).step(7, "a")
