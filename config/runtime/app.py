"""The shell around a machine: it carries events in and effects out, and does nothing else.

One thread steps the machine; the network threads, and whatever else a service starts, only put events in its queue.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fedgate.config.protocol.messages import escape_text
from fedgate.config.runtime.clock import Clock
from fedgate.config.runtime.events import ClockSet, Log, Publish
from fedgate.config.runtime.logs import ABOUT
from fedgate.config.runtime.loop import Loop
from fedgate.config.transport.mqtt import Link


class App(ABC):
    """A running service: `run` blocks until `stop` is called from a signal handler or another thread.

    `handlers` says what carries out an effect of which type; the service adds its own.
    """

    service: Any

    def __init__(self, log: logging.Logger, *, at_once: int = 1) -> None:
        """`at_once` events at most are given to the service together."""
        self._at_once = at_once
        self.loop, self.clock = Loop[Any](), Clock()
        self.links: list[Link] = []  # the first is to the broker of the site
        self.handlers: dict[type, Callable[[Any], object]] = {Publish: self._publish, Log: partial(write_log, log)}

    def run(self) -> None:
        """Serve until told to stop; then leave nothing half-written."""
        for link in self.links:
            link.start()
        try:
            self.begin()
            self.loop.run(self.step, self._tick, self._at_once)
        finally:
            self.end()
            for link in self.links:
                link.stop()
            self.carry_out(self.service.close())

    def stop(self) -> None:
        """Ask `run` to end after the step at hand."""
        self.loop.stop()

    def step(self, events: Sequence[Any]) -> None:
        """Give events to the service, and do what it wants done."""
        self.carry_out(self.service.step_all(self.clock.uptime_ns(), events))

    def carry_out(self, effects: Sequence[Any]) -> None:
        """Do what is to be done outside."""
        for effect in effects:
            if handle := self.handlers.get(type(effect)):  # an old order may need what the settings no more have
                handle(effect)

    def _tick(self) -> Any:
        if self.clock.follow():
            self.step([ClockSet(self.clock.anchor_ns)])
        return self.tick()

    def _publish(self, effect: Publish) -> None:
        self.links[0].publish(effect.topic, effect.payload, retain=effect.retain, qos=effect.qos)

    @abstractmethod
    def begin(self) -> None:
        """Start what works beside the loop."""

    @abstractmethod
    def tick(self) -> Any:
        """Return the event that time has passed, and do what is to be done about once a second."""

    @abstractmethod
    def end(self) -> None:
        """Stop what works beside the loop."""


def write_log(log: logging.Logger, effect: Log) -> None:
    """Write what a machine has to say into the log; what an outsider sent of it is escaped."""
    level = logging.WARNING if effect.level == "warning" else logging.INFO
    log.log(level, "%s", escape_text(effect.text), extra={ABOUT: effect.about})
