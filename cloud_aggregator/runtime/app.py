"""The running aggregator: its link, and beside its loop the enrolment and whoever sends changes of alarms."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, get_args

from fedgate.cloud_aggregator.access import registry_sync
from fedgate.cloud_aggregator.alarms.fleet import CAUSE
from fedgate.cloud_aggregator.enrolment import EnrolmentEffect
from fedgate.cloud_aggregator.events import Connection, Event, Received, Send, Tick
from fedgate.cloud_aggregator.notifications.post_queue import label
from fedgate.cloud_aggregator.pki import site_keys
from fedgate.cloud_aggregator.pki.enrolment_service import EnrolmentService
from fedgate.cloud_aggregator.rounds.compression import describe_updates
from fedgate.cloud_aggregator.runtime import defence, freed_memory, notify_client, webhook_client
from fedgate.cloud_aggregator.runtime.notify_client import NotifyClient
from fedgate.cloud_aggregator.runtime.order_socket import OrderSocket
from fedgate.cloud_aggregator.runtime.posting import Poster
from fedgate.cloud_aggregator.runtime.service import Service
from fedgate.cloud_aggregator.runtime.webhook_client import WebhookClient
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import Status
from fedgate.config.protocol.topics import ALL, CLOUD, Channel, Topic, party, topic_of, watch
from fedgate.config.runtime.app import App
from fedgate.config.runtime.version import VERSION
from fedgate.config.settings.checks import check_budget
from fedgate.config.settings.notifications import WEBHOOK
from fedgate.config.settings.settings import AggregatorSettings, SettingsError
from fedgate.config.settings.web import locate_socket
from fedgate.config.transport.mqtt import Link, Will

LOG = logging.getLogger("fedgate.aggregator")
ANY_GATEWAY = "+"
BEGINNING_BYTES = 4
AT_ONCE_MAX = 256  # events that one commit is for: more would make the first of them wait
WATCHED: tuple[Channel, ...] = (
    *("status", "update", "alarm", "evidence", "want", "tombstone", "telemetry", "summary", "samples", "newest"),
)


def _check_receivers(settings: AggregatorSettings, askers: Sequence[NotifyClient]) -> None:
    """Name in the log what keeps changes of alarms from their receivers."""
    try:
        if settings.webhook is not None:
            webhook_client.check(settings.webhook)
    except SettingsError as error:
        LOG.warning("alarms wait for the webhook: %s", error)
    for channel, asker in zip(settings.notify, askers, strict=True):
        try:
            notify_client.check([channel], asker)
        except (SettingsError, ModuleNotFoundError, ChildProcessError) as error:
            LOG.warning("alarms may wait for channel %s: %s", channel.name, error)


def _open_socket(settings: AggregatorSettings) -> OrderSocket | None:
    """Return the socket of the page, which takes orders; None where it cannot be made: alarms do not wait for it."""
    place = settings.aggregator.store

    def store_order(kind: str, body: dict[str, Any]) -> int:
        with closing(Store(place, create=False)) as store:
            return store.order(kind, body)

    try:
        socket = OrderSocket(locate_socket(settings.web, place), store_order)
    except (OSError, ValueError) as error:
        LOG.warning("the page can give no orders: %s", error)
        return None
    socket.start()
    return socket


class Aggregator(App):
    """A running aggregator."""

    def __init__(self, settings: AggregatorSettings) -> None:
        super().__init__(LOG, at_once=AT_ONCE_MAX)
        self.settings = settings
        check_budget(settings.algorithm, settings.rounds, settings.features)
        with ExitStack() as undo:
            store = undo.enter_context(closing(Store(settings.aggregator.store, program="aggregator")))
            self._open(settings, store)
            undo.pop_all()

    def _open(self, settings: AggregatorSettings, store: Store) -> None:
        if store.was_empty:
            LOG.warning("%s was there and empty: a copy without its log, the file that ends in -wal?", store.name)
        self.service: Service = Service(
            settings,
            store,
            site_keys.release_key(settings.aggregator, settings.identity.folder if settings.identity else None),
            uptime_ns=self.clock.uptime_ns(),
            anchor_ns=self.clock.anchor_ns,
            beginning=secrets.token_hex(BEGINNING_BYTES),
            material=defence.read(settings),
        )
        self._trained = self.service.state.rounds.server
        self._enrolment = None
        if settings.identity is not None:
            self._enrolment = EnrolmentService(settings, settings.identity, self.loop.put)
            self.handlers |= dict.fromkeys(get_args(EnrolmentEffect), self._enrolment.carry_out)
            if not store.is_new:
                registry_sync.check(store.name, store.read_registry(), self._enrolment.read_list())
        # Alarms are received and wait in their queues whatever is wrong with a receiver, and nothing waits for Apprise.
        self._askers = [NotifyClient(one, self.loop.put) for one in settings.notify]
        threading.Thread(target=_check_receivers, args=(settings, self._askers), daemon=True).start()
        self._channels = {one.name: NotifyClient(one, self.loop.put) for one in settings.notify}
        posters: dict[str, Poster] = {**self._channels}
        if settings.webhook is not None:
            posters[WEBHOOK] = WebhookClient(settings.webhook, self.loop.put)
        for name, queue in self.service.state.alarms.queues.items():
            if queue.items and name not in posters:
                waiting = f"{len(queue.items)} changes of alarms wait for it, and the settings have no such receiver"
                LOG.warning("%s: %s", label(name), waiting)
        self.handlers[Send] = lambda effect: posters[effect.post.channel].send(effect)
        self._orders: OrderSocket | None = None  # of the page, while the service runs
        site = settings.aggregator.site
        actions = watch(site, CLOUD, "action")
        self._status_topic = topic_of(Topic(site, ALL, "status", CLOUD))
        self._own_topics = {self._status_topic, topic_of(Topic(site, ALL, "alarm", CAUSE))}
        self.links = [
            Link(
                settings.broker,
                f"{CLOUD}.{site}",
                [*(watch(site, ANY_GATEWAY, channel) for channel in WATCHED), actions],
                self._receive,
                lambda up: self.loop.put(Connection(up)),
                Will(self._status_topic, Status(state="offline", version=VERSION).to_bytes()),
                partial(self._receive, is_retained=True),
                as_published=[actions],  # so that one that is retained is refused, and not once more at each start
            )
        ]

    def _receive(self, topic: str, payload: bytes, *, is_retained: bool = False) -> None:
        """Take in a message, from the network thread, but for our own word, which our own subscription sends back."""
        if topic not in self._own_topics:
            self.loop.offer(Received(topic, payload, is_retained), len(payload), party(topic))

    def begin(self) -> None:
        """Take orders of the page, and let gateways enrol, where the site has identities."""
        self._orders = _open_socket(self.settings)
        site, settled = self.settings.aggregator.site, self.service.state.context.settings
        LOG.info("aggregator of site %s, %s; %s", site, settled.algorithm.name, describe_updates(settled))
        if self._enrolment is not None and self.service.state.access.registry is not None:
            self.step([self._enrolment.read_list(), self._enrolment.read_statement()])
            self._enrolment.start(self.service.state.access.registry, self.service.store.read_half_answered())

    def tick(self) -> Tick:
        """Carry out what the operator has ordered, and see to certificates, the broker's access list and memory."""
        for order in self.service.read_orders():
            self.step([order])
        if self._enrolment is not None:
            self._enrolment.tick()
        if (server := self.service.state.rounds.server) is not self._trained:  # a round was closed
            self._trained = server
            freed_memory.give_back()
        return Tick()

    def step(self, events: Sequence[Event]) -> None:
        """As any service, and say that it is online once it is connected."""
        super().step(events)
        if Connection(True) in events:
            status = Status(state="online", version=VERSION, clock=self.clock.quality())
            self.links[0].publish(self._status_topic, status.to_bytes(), retain=True)

    def end(self) -> None:
        """Let no gateway enrol any more, take no orders, and end the processes that send changes of alarms."""
        if self._orders is not None:
            self._orders.stop()
        for channel in (*self._channels.values(), *self._askers):
            channel.stop()
        if self._enrolment is not None:
            self._enrolment.stop()
