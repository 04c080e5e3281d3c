"""Other systems of a simulated world that act on alarms over MQTT: one that may, and one that may not.

The one that may asks again until it has its answer, and now and then once more when it has it, minutes later.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from fedgate.config.protocol.messages import ActionAnswer
from fedgate.config.protocol.topics import CLOUD, Topic, topic_of
from fedgate.firmware_sim.world.actors.alarm_operator import AlarmOperator
from fedgate.firmware_sim.world.actors.hosts import CloudHost
from fedgate.firmware_sim.world.actors.operator import Operator
from fedgate.firmware_sim.world.actors.shared import World
from fedgate.firmware_sim.world.environment.setup import REMOTE, SITE
from fedgate.firmware_sim.world.promises.alarms.log import Wanted

STRANGER = "stranger"
STRANGE = 0.15  # share of the actions that are the stranger's
ASKED_AGAIN_S, LATER_S = 60.0, 300.0
LATER = 0.3  # share of the requests that come again when they are answered


class RemoteSystem(AlarmOperator):
    """A building automation system, as the broker sees it: always up."""

    is_up = True

    def __init__(self, world: World, operator: Operator, cloud: CloudHost, names: tuple[str, ...]) -> None:
        super().__init__(world, operator, cloud, names, "remote system")
        self.name, self._count = REMOTE, 0
        self._actions = world.witness.actions

    def schedule_faults(self) -> None:
        """Arrange for the actions."""
        self._world.scheduler.again(self._rng, self._world.network.faults.alarms.actions, self._order)
        self._world.network.schedule_faults(self.name)

    def receive(self, topic: str, payload: bytes) -> None:
        """Take an answer."""
        self._actions.receive(topic.rpartition("/")[2], ActionAnswer.from_bytes(payload))

    def linked(self, up: bool) -> None:
        """Go on asking, with a connection or without."""

    def _give(self, body: dict[str, Any] | None, wanted: Wanted) -> None:
        if body is None or body["who"] not in self.people:  # who it is says the topic
            return
        self._count += 1
        user, number = STRANGER if self._rng.random() < STRANGE else self.name, str(self._count)
        action = {name: value for name, value in body.items() if name != "who"} | {"request": number}
        payload = json.dumps(action).encode()
        self._actions.ask(user, number, payload, wanted)
        self._world.note(user, f"asks {number}: {action}")
        self._say(user, number, payload)

    def _say(self, user: str, number: str, payload: bytes) -> None:
        self._world.network.push(self.name, self._topic(user), payload, retain=False, qos=1)
        self._world.scheduler.after(ASKED_AGAIN_S, partial(self._say_again, user, number, payload))

    def _say_again(self, user: str, number: str, payload: bytes) -> None:
        if user == self.name and not self._actions.has_answer(user, number):
            self._say(user, number, payload)
        elif self._rng.random() < LATER:
            later_s = float(self._rng.exponential(LATER_S))
            push = partial(self._world.network.push, self.name, self._topic(user), payload, retain=False, qos=1)
            self._world.scheduler.after(later_s, push)

    def _topic(self, user: str) -> str:
        return topic_of(Topic(SITE, CLOUD, "action", user))
