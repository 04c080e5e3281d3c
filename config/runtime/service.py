"""The machine with its store: events in, what they changed made durable, and then what is to be done outside.

The order is the promise of both services, so it stands in one place, which the running services and the simulated world
share: whoever cuts the power between two lines of `run` and `commit` loses nothing that anyone was told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

State = TypeVar("State")
Step = Callable[[State, int, Any], tuple[State, list[Any]]]  # the state, the time since the boot in ns, an event
# Given the state, the effects of a step and its events, it stores what is durable, now or later, and returns the state,
# what may be done outside now, and what the machine is to hear of the store.
CommitPolicy = Callable[[State, list[Any], Sequence[Any]], tuple[State, list[Any], list[Any]]]


class Service(Generic[State]):
    """A service between its start and its end; use it from one thread."""

    def __init__(self, state: State, step: Step[State], commit_policy: CommitPolicy[State]) -> None:
        self.state = state
        self._step, self._commit_policy = step, commit_policy

    def step(self, uptime_ns: int, event: Any) -> list[Any]:
        """Take in one event and return what is to be done outside."""
        return self.step_all(uptime_ns, [event])

    def step_all(self, uptime_ns: int, events: Sequence[Any]) -> list[Any]:
        """Take in events in their order and return what is to be done outside, all it rests on being on disk: what
        waits for others costs no commit of its own.
        """
        return self.run(self._step, uptime_ns, events)

    def run(self, step: Step[State], uptime_ns: int, events: Sequence[Any]) -> list[Any]:
        """Do so by another step."""
        effects: list[Any] = []
        for event in events:
            self.state, more = step(self.state, uptime_ns, event)
            effects += more
        return self.commit(uptime_ns, effects, events)

    def commit(self, uptime_ns: int, effects: list[Any], events: Sequence[Any] = ()) -> list[Any]:
        """Make durable what is to be, and return what is to be done outside."""
        self.state, outward, news = self._commit_policy(self.state, effects, events)
        return [*outward, *self.step_all(uptime_ns, news)] if news else outward
