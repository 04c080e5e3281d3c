"""The shell around the machine: it carries events in and effects out, and does nothing else."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, closing

from fedgate.cloud_aggregator.access import registry_sync
from fedgate.cloud_aggregator.access.registry import Issue, Reject, Revoke, TakeKeys
from fedgate.cloud_aggregator.alarms.fleet import CAUSE
from fedgate.cloud_aggregator.events import ClockSet, Connection, Event, Log, Outward, Publish, Received, Send, Tick
from fedgate.cloud_aggregator.pki import site_keys
from fedgate.cloud_aggregator.pki.enrolment_service import EnrolmentService
from fedgate.cloud_aggregator.runtime import defence
from fedgate.cloud_aggregator.runtime.service import Service
from fedgate.cloud_aggregator.runtime.webhook_client import WebhookClient
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import Status, escape_text
from fedgate.config.protocol.topics import ALL, CLOUD, Channel, Topic, party, topic_of, watch
from fedgate.config.runtime import clock
from fedgate.config.runtime.loop import Loop
from fedgate.config.runtime.version import VERSION
from fedgate.config.settings.checks import check_budget
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.config.transport.mqtt import Link, Will

LOG = logging.getLogger("fedgate.aggregator")
ANY_GATEWAY = "+"
BEGINNING_BYTES = 4
WATCHED: tuple[Channel, ...] = ("status", "update", "alarm", "want", "tombstone", "telemetry", "newest")


class Aggregator:
    """A running aggregator: `run` blocks until `stop` is called from a signal handler or another thread."""

    def __init__(self, settings: AggregatorSettings) -> None:
        self.settings = settings
        check_budget(settings.algorithm, settings.rounds, settings.features)
        self._loop: Loop[Event] = Loop()
        self._clock = clock.Clock()
        with ExitStack() as undo:
            store = undo.enter_context(closing(Store(settings.aggregator.store, program="aggregator")))
            self._open(settings, store)
            undo.pop_all()

    def _open(self, settings: AggregatorSettings, store: Store) -> None:
        if store.was_empty:
            LOG.warning("%s was there and empty: a copy without its log, the file that ends in -wal?", store.name)
        self.service = Service(
            settings,
            store,
            site_keys.release_key(settings.aggregator, settings.identity.folder if settings.identity else None),
            uptime_ns=self._clock.uptime_ns(),
            anchor_ns=self._clock.anchor_ns,
            beginning=secrets.token_hex(BEGINNING_BYTES),
            material=defence.read(settings),
        )
        self._enrolment = None
        if settings.identity is not None:
            self._enrolment = EnrolmentService(settings, settings.identity, self._loop.put)
            if not store.is_new:
                registry_sync.check(store.name, store.registry(), self._enrolment.listed())
        self._poster = None if settings.webhook is None else WebhookClient(settings.webhook, self._loop.put)
        site = settings.aggregator.site
        self._status_topic = topic_of(Topic(site, ALL, "status", CLOUD))
        self._own_topics = {self._status_topic, topic_of(Topic(site, ALL, "alarm", CAUSE))}
        self._link = Link(
            settings.broker,
            f"{CLOUD}.{site}",
            [watch(site, ANY_GATEWAY, channel) for channel in WATCHED],
            lambda topic, payload: self._loop.offer(Received(topic, payload), len(payload), party(topic)),
            lambda up: self._loop.put(Connection(up)),
            Will(self._status_topic, Status(state="offline", version=VERSION).to_bytes()),
            lambda topic, payload: self._loop.offer(
                Received(topic, payload, is_retained=True), len(payload), party(topic)
            ),
        )

    def run(self) -> None:
        """Serve until told to stop."""
        self._link.start()
        LOG.info("aggregator of site %s, %s", self.settings.aggregator.site, self.settings.algorithm.name)
        try:
            if self._enrolment is not None and self.service.state.access.registry is not None:
                self._step_all([self._enrolment.listed(), self._enrolment.stated()])
                self._enrolment.start(self.service.state.access.registry, self.service.store.half_answered())
            self._loop.run_all(self._step_all, self._tick)
        finally:
            if self._enrolment is not None:
                self._enrolment.stop()
            self._publish_status("offline")
            self._link.stop()
            self.service.close()

    def stop(self) -> None:
        """Ask `run` to end after the step at hand."""
        self._loop.stop()

    def _tick(self) -> Event:
        if self._clock.follow():
            self._step_all([ClockSet(self._clock.anchor_ns)])
        for order in self.service.orders():
            self._step_all([order])
        if self._enrolment is not None:
            self._enrolment.tick()
        return Tick()

    def _step_all(self, events: Sequence[Event]) -> None:
        # Without our own word, sent back to us by our own subscription.
        news = [event for event in events if not (isinstance(event, Received) and event.topic in self._own_topics)]
        self._carry_out(self.service.step_all(self._clock.uptime_ns(), news))
        if Connection(True) in news:
            self._publish_status("online")

    def _publish_status(self, state: str) -> None:
        status = Status.model_validate({"state": state, "version": VERSION, "clock": self._clock.quality()})
        self._link.publish(self._status_topic, status.to_bytes(), retain=True)

    def _carry_out(self, effects: Sequence[Outward]) -> None:
        for effect in effects:
            match effect:
                case Publish(topic=topic, payload=payload, retain=retain):
                    self._link.publish(topic, payload, retain=retain)
                case Send(post=post) if self._poster is not None:
                    self._poster.send(post)
                case Issue() | Reject() | Revoke() | TakeKeys() if self._enrolment is not None:
                    self._enrolment.carry_out(effect)
                case Log(level=level, text=text):
                    LOG.log(logging.WARNING if level == "warning" else logging.INFO, "%s", escape_text(text))
