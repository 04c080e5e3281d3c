"""The running agent: its links, and beside its loop a training child and the renewal of its certificate."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fedgate.config.protocol.messages import Status
from fedgate.config.protocol.topics import ALL, Channel, Topic, topic_of, watch
from fedgate.config.runtime import clock
from fedgate.config.runtime.app import App
from fedgate.config.runtime.version import VERSION
from fedgate.config.settings import labelled
from fedgate.config.settings.settings import GatewaySettings
from fedgate.config.settings.web import GATEWAY_SOCKET
from fedgate.config.transport.mqtt import Link, Will
from fedgate.gateway_agent.deployment.deployment import Examination
from fedgate.gateway_agent.events import Connection, Event, Received, Tick, Train, Trained
from fedgate.gateway_agent.runtime import echo, model_trial, run_deadline, signature_worker
from fedgate.gateway_agent.runtime.membership import find_files
from fedgate.gateway_agent.runtime.model_trial import ONE_THREAD
from fedgate.gateway_agent.runtime.renewal import Renewer
from fedgate.gateway_agent.runtime.service import Service
from fedgate.gateway_agent.state import Host, State
from fedgate.gateway_agent.storage.store import Store
from fedgate.gateway_agent.trust.trust import take_none

if TYPE_CHECKING:
    from fedgate.config.runtime.local_socket import LocalSocket

LOG = logging.getLogger("fedgate.gateway")
STDERR_TAIL = 400
LIBRARIES = ("torch", "dp_accounting")  # that only some algorithms need, and that not every gateway has
SECRET_BYTES = 32
# What a gateway hears from the aggregator: told to all, and to it alone.
# Keys come before what they sign, so they are asked for first.
OF_ALL: tuple[Channel, ...] = ("keys", "newest", "maintenance-windows", "round", "manifest", "chunk")
OF_ITS_OWN: tuple[Channel, ...] = ("manifest", "chunk", "receipt", "resend", "fetch")


class Agent(App):
    """A running agent."""

    def __init__(self, settings: GatewaySettings) -> None:
        super().__init__(LOG)
        self.settings = settings
        signature_worker.check(settings.trust.release_key)
        run_deadline.watch_scoring()
        self._child: subprocess.Popen[bytes] | None = None
        self._renewer = None if settings.identity is None else Renewer(settings, settings.identity, self._is_shut_out)
        self.service: Service = Service(
            settings,
            Store(settings.gateway.store),
            Host(
                boot_id=clock.boot_id(),
                verified=signature_worker.make_verifier(settings.trust.release_key),
                can_train=settings.training.enabled and find_spec("sklearn") is not None,
                libraries=tuple(name for name in LIBRARIES if find_spec(name) is not None),
                uptime_ns=self.clock.uptime_ns(),
                anchor_ns=self.clock.anchor_ns,
                clock=self.clock.quality(),
                labelled=labelled.read_labelled(settings),
                random_bytes=partial(secrets.token_bytes, SECRET_BYTES),
                stopwatch=time.thread_time_ns,
                take_keys=self._renewer.take_keys if self._renewer else take_none,
                examine=self._examine,
            ),
        )
        self._page: LocalSocket | None = None  # of the gateway's page, while the agent runs
        self._echo = echo.Echo(topic_of(Topic(settings.gateway.site, settings.gateway.id, "doctor", echo.ITEM)))
        self.links = _make_links(settings, self._receive, lambda up: self.loop.put(Connection(up)))
        self.handlers[Train] = self._start_training
        self.carry_out(self.service.first_effects)

    def _receive(self, topic: str, payload: bytes) -> None:
        """Take in a message, from the network thread."""
        if topic == self._echo.topic:
            self._echo.note_return()
        else:
            self.loop.offer(Received(topic, payload), len(topic) + len(payload))

    def begin(self) -> None:
        """Renew the certificate from now on, whenever it is due."""
        if self._renewer is not None:
            self._renewer.start()
        self._page = _open_page_socket(self.settings, lambda: self.service.state)
        LOG.info("gateway %s watches %d source(s)", self.settings.gateway.id, len(self.settings.source))

    def tick(self) -> Tick:
        """Return how the links are, and warn of a broker that lets this gateway in and passes on nothing of it."""
        if not self._echo.is_reported and self._is_mute():
            self._echo.is_reported = True
            LOG.warning("%s", echo.TEXT)
        return Tick(
            self.clock.quality(),
            bytes_sent=sum(link.bytes_sent for link in self.links),
            bytes_received=sum(link.bytes_received for link in self.links),
            bytes_waiting=self.links[0].waiting_bytes,
            conflict=self.links[0].conflict,
            payload_bytes=self.links[0].payload_bytes,
        )

    def step(self, events: Sequence[Event]) -> None:
        """Say something to itself over a new connection, and then as any service."""
        for event in events:
            if isinstance(event, Connection):
                self._echo.begin(time.monotonic() if event.up else None)
                self.links[0].publish(self._echo.topic, b"")
        super().step(events)

    def end(self) -> None:
        """End the renewal, the training, and what the page asks."""
        if self._page is not None:
            self._page.stop()
        if self._renewer is not None:
            self._renewer.stop()
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()

    def _is_shut_out(self) -> bool:
        return not self.links[0].is_connected or self._is_mute()

    def _is_mute(self) -> bool:
        """Tell whether the broker has acknowledged all that was said, and passes on none of it."""
        return self._echo.is_missing(time.monotonic()) and self.links[0].waiting_bytes == 0

    def _examine(self, asked: Examination) -> None:
        """Try a model in a child process; the sampling waits for a second, and `model_trial.EXAMINATION_S` at most."""
        if lacks := model_trial.examine(asked).lacks:
            LOG.warning("the process that tried the model was limited in all but %s", lacks)

    def _start_training(self, effect: Train) -> None:
        threading.Thread(target=self._train, args=(effect.job,), daemon=True).start()

    def _train(self, job: bytes) -> None:
        training = self.settings.training
        command = [sys.executable, "-P", "-m", "fedgate.gateway_agent.runtime.training_worker", str(training.nice)]
        if self.settings.identity is not None:
            files = find_files(self.settings)
            command += [str(path) for path in (files.key, files.root_key, files.statement)]
        environment = {**os.environ, **ONE_THREAD}
        pipe = subprocess.PIPE
        try:
            self._child = child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)  # noqa: S603 - our own module
        except OSError as error:
            self.loop.put(Trained(None, f"no child process can be started ({error})"))
            return
        try:
            answer, complaint = child.communicate(job, timeout=training.timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            self.loop.put(Trained(None, f"no answer within {training.timeout_s:g} s"))
            return
        if child.returncode == 0:
            self.loop.put(Trained(answer))
        else:
            lines = complaint.decode(errors="replace").strip().splitlines() or [f"exit code {child.returncode}"]
            self.loop.put(Trained(None, lines[-1][-STDERR_TAIL:]))


def _open_page_socket(settings: GatewaySettings, read_state: Callable[[], State]) -> LocalSocket | None:
    """Return the socket that the gateway's page asks; None where there is no page, or where the socket cannot be made:
    no sample waits for it.
    """
    if settings.web is None:
        return None
    from fedgate.gateway_agent.runtime.page_socket import PageSocket  # what most gateways never need
    from fedgate.gateway_agent.snapshot import describe_now

    try:
        path = settings.gateway.store.parent / GATEWAY_SOCKET
        socket = PageSocket(path, lambda: describe_now(read_state()))
    except OSError as error:
        LOG.warning("the gateway's page shows nothing but what is stored: %s (%s)", GATEWAY_SOCKET, error)
        return None
    socket.start()
    return socket


def _make_links(
    settings: GatewaySettings, on_message: Callable[[str, bytes], None], on_connection: Callable[[bool], None]
) -> list[Link]:
    """Return the link to the aggregator's broker first and, where the sensors talk to another, the link to that."""
    site, name = settings.gateway.site, settings.gateway.id
    cloud = [watch(site, ALL, channel) for channel in OF_ALL] + [watch(site, name, channel) for channel in OF_ITS_OWN]
    cloud.append(topic_of(Topic(site, name, "doctor", echo.ITEM)))
    sensors = [watch(site, name, "sample")] + [source.topic for source in settings.source if source.kind == "json"]
    will = Will(topic_of(Topic(site, name, "status", "agent")), Status(state="offline", version=VERSION).to_bytes())
    other = settings.sensors.broker
    if other is None:
        return [Link(settings.broker, name, [*cloud, *sensors], on_message, on_connection, will)]
    other = other.model_copy(update={"user": other.user or name})
    return [
        Link(settings.broker, name, cloud, on_message, on_connection, will),
        # A client id of its own: both brokers may be one, and a broker ends the older of two clients of one name.
        Link(other, f"{name}.sensors", sensors, on_message, _ignore),
    ]


def _ignore(_up: bool) -> None:
    """The machine asks about the aggregator's broker only; silence of the sensors is seen in their sources."""
