"""Who sees to the alarms of a simulated world: acknowledges, shelves, labels and assigns them, takes causes out of
service, announces maintenance; and some of it is nonsense.

The orders come to the aggregator as those of the commands do, and whoever has not heard of one asks for it again.
"""

from __future__ import annotations

from typing import Any

from fedgate.cloud_aggregator.alarms.workflow import LABELS
from fedgate.config.protocol.topics import ALL
from fedgate.firmware_sim.world.actors.hosts import CloudHost
from fedgate.firmware_sim.world.actors.operator import Operator
from fedgate.firmware_sim.world.actors.shared import World
from fedgate.firmware_sim.world.environment.setup import stream_of
from fedgate.firmware_sim.world.promises.alarms.log import SITE_WIDE, Wanted
from fedgate.models.time_units import NS

ACTIONS = {  # how often each is drawn
    "acknowledge": 6.0,
    "shelve": 4.0,
    "unshelve": 2.0,
    "note": 2.0,
    "label": 4.0,
    "assign": 2.0,
    "out-of-service": 1.5,
    "in-service": 2.0,
    "window": 3.0,
    "window-end": 2.0,
    "nonsense": 3.0,
}
SHELVED_S, MAINTENANCE_S = (60.0, 400.0), (30.0, 400.0)
BEGINS_S = (-60.0, 120.0)  # of maintenance, from now
ASKED_S, ASKED_AGAIN_S = 10.0, 60.0  # after an order, and then until there is an answer
PEOPLE = ("ann", "bo", "Zoë Å.")
CAUSES = ("anomaly", "anomaly", "silent-deck", "disk-full")
NOTES = ("", "", "crew is on its way", "Überprüfung ≠ Fehler", "x" * 1_000)
NONSENSE: tuple[dict[str, Any], ...] = (  # each over an order that would be taken
    {"text": "\x1b[2J\x1b[H"},
    {"text": "a\nb"},
    {"text": "\u202egnissim"},
    {"text": "x" * 1_001},
    {"who": ""},
    {"who": "x" * 65},
    {"who": "a\x07"},
    {"action": "close"},
    {"action": ""},
    {"action": "label", "label": "nonsense"},
    {"action": "label", "label": {"damage": 1}},
    {"action": "assign", "to": None},
    {"action": "assign", "to": "\x1b[31m"},
    {"action": "note", "text": ""},
    {"action": "shelve", "for_s": -1},
    {"action": "shelve", "for_s": 1e300},
    {"action": "shelve", "for_s": float("nan")},
    {"action": "shelve", "for_s": True},
    {"alarms": ["north/none"]},
    {"alarms": ["../../etc/passwd"]},
    {"alarms": []},
    {"alarms": "north"},
    {"alarms": [7]},
    {"alarms": ["x"] * 101},
    {"action": "out-of-service", "gateway": "a/b", "cause": "anomaly"},
    {"action": "in-service", "gateway": "north", "cause": "\x1b"},
    {"action": "window", "gateway": "north", "from_s": 0.0, "to_s": 1.0, "text": "long ago"},
    {"action": "window", "gateway": "north", "from_s": 4e9, "to_s": 4e9 + 60.0, "text": "far ahead"},
    {"action": "window", "gateway": "+", "from_s": 0.0, "to_s": 4e9, "text": "all"},
    {"action": "window-end", "window": 10**6},
    {"action": "window-end", "window": "first"},
)


class AlarmOperator:
    """Who gives orders about alarms, by way of `operator`; the gateways have these names."""

    people = PEOPLE

    def __init__(
        self,
        world: World,
        operator: Operator,
        cloud: CloudHost,
        names: tuple[str, ...],
        concern: str = "alarm operator",
    ) -> None:
        self._world, self._operator, self._cloud, self._names = world, operator, cloud, names
        self._log = world.witness.log
        self._rng = stream_of(world.seed, concern)
        shares = list(ACTIONS.values())
        self._shares = [share / sum(shares) for share in shares]

    def schedule_faults(self) -> None:
        """Arrange for the orders."""
        self._world.scheduler.again(self._rng, self._world.network.faults.alarms.orders, self._order)

    def _order(self) -> None:
        action = str(self._rng.choice(list(ACTIONS), p=self._shares))
        # A gateway that the aggregator has not met yet is none.
        wanted: Wanted = "refused" if action == "nonsense" else "either" if action in SITE_WIDE else "done"
        self._give(self._nonsense() if action == "nonsense" else self._body(action), wanted)

    def _give(self, body: dict[str, Any] | None, wanted: Wanted) -> None:
        number = 0 if body is None else self._operator.give("alarm", body)
        if body is not None and number:
            self._log.ordered(number, body, wanted)
            self._world.scheduler.after(ASKED_S, lambda: self._ask(number))

    def _ask(self, number: int) -> None:
        """Ask for the answer to an order, as its command does, until there is one."""
        answer = self._operator.answer(number)
        self._log.answer_read(number, answer)
        if answer is None:
            self._world.scheduler.after(ASKED_AGAIN_S, lambda: self._ask(number))

    def _chosen(self, values: tuple[Any, ...]) -> Any:
        return values[int(self._rng.integers(len(values)))]

    def _body(self, action: str) -> dict[str, Any] | None:
        """Return an order that makes sense; None where there is nothing that it could be about."""
        body = {"action": action, "who": self._chosen(PEOPLE), "text": self._chosen(NOTES)}
        match action:
            case "window":
                return body | self._maintenance()
            case "window-end":
                known = tuple(self._log.states.spans)
                return body | {"window": self._chosen(known), "text": ""} if known else None
            case "out-of-service" | "in-service":
                out = tuple(sorted(self._log.states.out)) if action == "in-service" else ()
                gateway, cause = self._chosen(out) if out else (self._chosen(self._names), self._chosen(CAUSES))
                return body | {"gateway": gateway, "cause": cause}
        names = self._alarms()
        if not names:
            return None
        for_s, label, to = self._rng.uniform(*SHELVED_S), self._chosen(LABELS), self._chosen((*PEOPLE, ""))
        detail = {"shelve": {"for_s": round(float(for_s), 1)}, "label": {"label": label}, "assign": {"to": to}}
        text = body["text"] or ("looked at it" if action == "note" else "")
        return body | detail.get(action, {}) | {"alarms": names, "text": text}

    def _maintenance(self) -> dict[str, Any]:
        begins_s, lasts_s = float(self._rng.uniform(*BEGINS_S)), float(self._rng.uniform(*MAINTENANCE_S))
        from_s = self._cloud.now_ns / NS + begins_s
        gateway = self._chosen((*self._names, ALL))
        return {"gateway": gateway, "from_s": from_s, "to_s": from_s + max(lasts_s, 30.0 - begins_s), "text": "works"}

    def _alarms(self) -> list[str]:
        """Return one to three alarms, past or present, of all gateways alike, rather those that stand."""
        known = self._log.states.alarms
        gateways = sorted({key.gateway for key in known})
        found = []
        for _ in range(self._chosen((1, 1, 2, 3)) if gateways else 0):
            gateway = self._chosen(tuple(gateways))
            of_it = tuple(key for key in known if key.gateway == gateway)
            standing = tuple(key for key in of_it if known[key].is_active)
            found.append("/".join(self._chosen(standing if standing and self._rng.random() < 0.7 else of_it)))
        return found

    def _nonsense(self) -> dict[str, Any]:
        """Return an order of which something is not as it must be."""
        sound = {"action": "acknowledge", "who": "ann", "text": "", "alarms": self._alarms() or ["north/none"]}
        odd: dict[str, Any] = self._chosen(NONSENSE)
        return sound | odd
