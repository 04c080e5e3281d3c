"""Who may run which model in a simulated world, and what becomes of the operator's orders.

What is released, and to whom, is what the aggregator committed; who runs what, what the gateways did.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from fedgate.cloud_aggregator import events
from fedgate.cloud_aggregator.storage.store import Store

AT_THE_BROKER = ("", "")  # the answer to an order that is done, of which the broker has yet to be told
OF_RELEASES = frozenset({"release", "go-on", "pause", "stop"})


class Releases:
    """The releases of a world, and the orders that were given."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self._to_all: set[int] = set()  # versions
        self._to_some: dict[int, set[str]] = defaultdict(set)  # version -> gateways to which it was given first
        self._rollout = b""
        self._held: dict[str, Any] = {}  # what it says
        self._orders: dict[int, str] = {}  # number -> kind
        self._answers: dict[int, tuple[str, str]] = {}
        self.counts = {"staged": 0, "stopped": 0, "orders": 0}

    def ordered(self, number: int, kind: str) -> None:
        """Take note of an order that lies in the aggregator's store."""
        self._orders[number] = kind
        self.counts["orders"] += 1

    def record(self, kind: str) -> int:
        """Take note of an order that the aggregator's own commit brings into its store, and return its number."""
        number = next(number for number in itertools.count(1) if number not in self._orders)
        self.ordered(number, kind)
        return number

    @property
    def has_waiting(self) -> bool:
        """True where an order has no answer yet."""
        return len(self._orders) != sum(answer != AT_THE_BROKER for answer in self._answers.values())

    def committed(self, effects: Sequence[events.Durable]) -> None:
        """Take note of what the aggregator's store holds from now on."""
        saved = [effect.body for effect in effects if isinstance(effect, events.SaveRollout)]
        for body in saved:
            held, rollout = json.loads(body), self._held.get("rollout", {})
            given = {name: self.wanted(name)[0] for part in ("canaries", "recalled") for name in rollout.get(part, ())}
            self._released(held)
            self._rollout, self._held = body, held
            for name, version in given.items():
                if 0 < self.wanted(name)[0] < version:  # gateways refuse a lower one: it stays with what it has
                    self._violate(f"{name} was given model {version} and then {self.wanted(name)[0]}")
        parts = ("everywhere", "candidate", "recall", "waiting")
        known = {json.loads(body).get(part) for body in saved for part in parts}
        made = {effect.manifest.version for effect in effects if isinstance(effect, events.RecordModel)}
        if made - known:  # a gateway may put it in force before the next of them, and nobody gave it that
            self._violate(f"models {sorted(made - known)} are stored, and no release that is stored tells of them")
        for effect in effects:
            if isinstance(effect, events.Answered):
                self._answered(effect, is_done=bool(saved))

    def _released(self, held: dict[str, Any]) -> None:
        rollout, before = held["rollout"], self._stage()
        self._to_all.add(held["everywhere"])
        for version in (held.get("candidate"), held.get("recall")):
            if version is not None:
                self._to_some[version] |= {*rollout["canaries"], *rollout["recalled"]}
        is_new = (rollout["stage"], rollout["version"]) != before
        self.counts["staged"] += is_new and rollout["stage"] == "watching"
        self.counts["stopped"] += is_new and rollout["stage"] == "stopped"

    @property
    def watched(self) -> int:
        """The version that canaries try and on which the aggregator is to decide by itself; 0 where there is none."""
        stage, version = self._stage()
        return version if stage == "watching" and self._held["rollout"]["canaries"] else 0

    def wanted(self, gateway: str) -> tuple[int, bool]:
        """Return the version that a gateway is to run, 0 for none, and whether it is given to it and not to all."""
        if not self._held:
            return 0, False
        rollout = self._held["rollout"]
        if rollout["stage"] in ("watching", "paused") and gateway in rollout["canaries"]:
            return self._held["candidate"], True
        if gateway in rollout["recalled"]:
            return self._held["recall"], True
        return self._held["everywhere"], False

    def _stage(self) -> tuple[str, int]:
        return (self._held["rollout"]["stage"], self._held["rollout"]["version"]) if self._held else ("none", 0)

    def _answered(self, answer: events.Answered, *, is_done: bool) -> None:
        kind = self._orders.get(answer.number)
        if kind is None:
            self._violate(f"order {answer.number} was answered, and nobody gave it")
        if self._answers.get(answer.number, AT_THE_BROKER) != AT_THE_BROKER:
            self._violate(f"order {answer.number} was carried out twice")
        if kind in OF_RELEASES and answer.text != "refused" and not is_done:
            self._violate(f"order {answer.number} ({kind}) was answered, and nothing of it is stored")
        self._answers[answer.number] = (answer.text, answer.problem)

    def in_force(self, gateway: str, version: int) -> None:
        """See that a gateway puts nothing in force that was given to others first."""
        if version not in self._to_all and gateway not in self._to_some[version]:
            self._violate(f"{gateway} put model {version} in force, which only others were to try")

    def opened(self, store: Store) -> None:
        """See that a restart goes on with the release, and the answers, that were stored."""
        if (store.models.read_rollout() or b"") != self._rollout:
            self._violate("a restart went on with another release than was stored")
        self._compare(store)

    def _compare(self, store: Store) -> None:
        rows = store.read_rows("orders") if self._orders else []
        if {row["number"]: row["kind"] for row in rows} != self._orders:
            self._violate(f"the store holds the orders {[row['number'] for row in rows]}, given were {self._orders}")
        answers = {row["number"]: (row["answer"], row["problem"]) for row in rows if row["answer"] is not None}
        if answers != self._answers:
            self._violate(f"the store holds the answers {answers}, told were {self._answers}")

    def audit(self, store: Store) -> dict[str, int]:
        """See in the end that every order has its answer; return what there was of orders and releases."""
        self._compare(store)
        if self.has_waiting:
            answered = {number for number, answer in self._answers.items() if answer != AT_THE_BROKER}
            self._violate(f"orders have no answer: {sorted(self._orders.keys() - answered)}")
        return self.counts
