"""What receives changes of alarms in tests: a real HTTP server on loopback; and what sends them: the machine, the store
and the posters as the shell joins them, with a clock that the test moves.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedgate.cloud_aggregator import machine
from fedgate.cloud_aggregator.events import Durable, Enqueue, Event, Log, Send, Tick
from fedgate.cloud_aggregator.runtime.notify_client import NotifyClient
from fedgate.cloud_aggregator.runtime.posting import Poster
from fedgate.cloud_aggregator.runtime.webhook_client import WebhookClient
from fedgate.cloud_aggregator.state import State, Stored
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.settings.notifications import WEBHOOK
from tests.cloud_aggregator.alarms.test_fleet import ALL, WATCHING
from tests.support import waiting
from tests.support.sites import T0_NS, aggregator_settings, start_cloud


class Receiver:
    """A real server; `answer` says what it does with a request: a status, or a function that serves it by hand."""

    def __init__(self, port: int = 0, name: Callable[[bytes], str] = lambda body: str(json.loads(body)["id"])) -> None:
        self.name = name
        self.answer: int | Callable[[BaseHTTPRequestHandler], None] = 200
        self.taken: list[str] = []  # names of what was answered with 2xx
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, dict(self.headers), body))
                if callable(receiver.answer):
                    receiver.answer(self)
                    return
                status = receiver.answer
                if 200 <= status < 300:
                    receiver.taken.append(receiver.name(body))
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing on standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def receiving(port: int = 0, **options: Any) -> Iterator[Receiver]:
    """Have a receiver for as long as it is needed."""
    made = Receiver(port, **options)
    try:
        yield made
    finally:
        made.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Service:
    """An aggregator that has only alarms to do with."""

    def __init__(self, path: Path, **receivers: Any) -> None:
        config = aggregator_settings(**receivers)
        self.store = Store(path)
        gateways = {**dict.fromkeys(ALL, WATCHING), **self.store.read_statuses()}
        self.state: State = start_cloud(config, Stored(gateways=gateways, alarms=self.store.read_alarms()), T0_NS)
        self.events: queue.Queue[Event] = queue.Queue()
        self.enqueued: list[str] = []
        self.log: list[str] = []
        self.posters: dict[str, Poster] = {one.name: NotifyClient(one, self.events.put) for one in config.notify}
        if config.webhook is not None:
            self.posters[WEBHOOK] = WebhookClient(config.webhook, self.events.put)

    def step(self, *events: Event) -> None:
        for event in events:
            self.state, effects = machine.step(self.state, time.time_ns(), event)
            self.store.commit([one for one in effects if isinstance(one, Durable)])
            self.enqueued += [one.name for one in effects if isinstance(one, Enqueue)]
            self.log += [
                one.text for one in effects if isinstance(one, Log) and one.text.startswith(("webhook", "notify"))
            ]
            for one in effects:
                if isinstance(one, Send):
                    self.posters[one.post.channel].send(one)

    def run(self, until: Callable[[], bool]) -> None:
        def is_done() -> bool:
            if not until():
                try:
                    self.step(self.events.get(timeout=0.01))
                except queue.Empty:
                    self.step(Tick())
            return until()

        waiting.until(is_done, lambda: self.log, poll_s=0.0)

    def empty(self) -> bool:
        return not any(one.items for one in self.state.alarms.queues.values())

    def cut(self) -> None:
        """Cut the power: whatever is under way is never heard of."""
        for poster in self.posters.values():
            if isinstance(poster, NotifyClient):
                poster.stop()
        self.store.close()
