"""What a simulated world promises of actions over MQTT: those who may act are answered, others change nothing.

A request is recorded as an order once, however often it comes and whatever ends the aggregator meanwhile; what became
of it is what its sender is told, each time. What an order does, `log` sees to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from fedgate.cloud_aggregator import events
from fedgate.config.protocol.messages import ActionAnswer, AlarmAction, MessageError

Wanted = Literal["done", "refused", "either"]


class Request(NamedTuple):
    """What another system asked for under a number of its own."""

    user: str
    number: str


class Asked(NamedTuple):
    """What it said, and what is to become of it."""

    payload: bytes
    wanted: Wanted


class Actions:
    """The requests of other systems in a world."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self.allowed: frozenset[str] = frozenset()
        self._asked: dict[Request, Asked] = {}
        self._recorded: dict[int, Request] = {}  # by the number of the order
        self._answers: dict[Request, tuple[str, str]] = {}  # that are stored
        self._received: dict[Request, ActionAnswer] = {}  # by who asked

    def ask(self, user: str, number: str, payload: bytes, wanted: Wanted) -> None:
        """Take note of what a system is about to ask."""
        self._asked[Request(user, number)] = Asked(payload, wanted)

    def record(self, number: int, effect: events.RecordAction) -> tuple[Mapping[str, Any], Wanted]:
        """See that an action that became an order was asked for, once, by who may; return it, and what is to be."""
        request = Request(effect.user, str(effect.body.get("request")))
        if request.user not in self.allowed:
            self._violate(f"an action of {request.user} is recorded, who may not act")
        if request in self._recorded.values():
            self._violate(f"request {request.number} of {request.user} is recorded twice")
        asked = self._asked.get(request)
        if asked is None or _read(asked.payload, request.user) != effect.body:
            self._violate(f"request {request.number} of {request.user} is recorded, and was not asked so")
        self._recorded[number] = request
        return effect.body, "either" if asked is None else asked.wanted

    def note_answer(self, number: int, text: str, problem: str) -> None:
        """Take note of what the store holds as the answer to an order."""
        if number in self._recorded:
            self._answers[self._recorded[number]] = (text, problem)

    def publish(self, user: str, answer: ActionAnswer) -> None:
        """See that a system is told what is stored; what nobody could read is stored nowhere, and refused."""
        request = Request(user, answer.request)
        asked, stored = self._asked.get(request), self._answers.get(request)
        is_read = asked is not None and _read(asked.payload, user) is not None
        expected = stored if is_read else ("refused", answer.problem)
        if (answer.answer, answer.problem) != expected:
            self._violate(f"request {answer.request} of {user} is answered with {answer}, stored is {stored}")

    def receive(self, user: str, answer: ActionAnswer) -> None:
        """See that who asks again is told the same again."""
        before = self._received.setdefault(Request(user, answer.request), answer)
        if before != answer:
            self._violate(f"request {answer.request} of {user} is answered with {answer}, and before with {before}")

    def has_answer(self, user: str, number: str) -> bool:
        """Tell whether a system knows what became of a request."""
        return Request(user, number) in self._received

    @property
    def missing(self) -> int:
        """How many requests of those who may act have no answer."""
        return sum(one.user in self.allowed and one not in self._received for one in self._asked)

    @property
    def counts(self) -> dict[str, int]:
        """How many requests there were, and how many became orders."""
        return {"action_requests": len(self._asked), "action_orders": len(self._recorded)}


def _read(payload: bytes, user: str) -> dict[str, Any] | None:
    """Return the order that an action becomes; None for one that nobody can read."""
    try:
        return AlarmAction.from_bytes(payload).model_dump(exclude_none=True) | {"who": user}
    except MessageError:
        return None
