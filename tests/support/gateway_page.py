"""A gateway's own page over a store and the socket of an agent, as a browser gets it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgate.config.settings.settings import GatewaySettings
from fedgate.config.settings.web import GATEWAY_SOCKET
from fedgate.config.web.server import Server
from fedgate.gateway_agent.events import Keep, Save
from fedgate.gateway_agent.runtime.page_socket import PageSocket
from fedgate.gateway_agent.snapshot import describe_now
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.web.app import Web
from tests.gateway_agent.monitor.test_gateway_sensors import START_S, feed, watched
from tests.support.kept import Small
from tests.support.receivers import free_port
from tests.support.sites import Shelf, gateway_settings, samples
from tests.support.waiting import until
from tests.support.web_page import Client


@dataclass
class GatewayPage:
    """A page, and the agent that it asks, which is where it stands when `state` is set."""

    settings: GatewaySettings
    state: State

    @property
    def port(self) -> int:
        """Where the page is."""
        assert self.settings.web is not None
        return int(self.settings.web.listen.rpartition(":")[2])

    def client(self) -> Client:
        """Return a browser."""
        return Client(self.port)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the agent run: it holds its store, and answers."""
        path = self.settings.gateway.store
        with closing(Small(path)):
            socket = PageSocket(path.parent / GATEWAY_SOCKET, lambda: describe_now(self.state))
            socket.start()
            try:
                yield
            finally:
                socket.stop()


def make_alarmed(shelf: Shelf | None = None) -> State:
    """Return an agent on which an anomaly stands."""
    return feed(watched(shelf), np.concatenate([samples(0, 40), samples(40, 5, 50.0)]), START_S)[0]


@contextmanager
def open_gateway_page(folder: Path, *, is_stored: bool = True, **tables: Any) -> Iterator[GatewayPage]:
    """Serve the page of a gateway in a folder, with a store or without one; its agent does not run yet."""
    shelf, path = Shelf(), folder / "gateway.db"
    state = make_alarmed(shelf)
    if is_stored:
        with closing(Small(path)) as store:
            store.commit([*map(Keep, shelf.baseline), *(Save(key, body) for key, body in shelf.blobs.items())])
    settings = gateway_settings(web={"listen": f"127.0.0.1:{free_port()}"}, **tables)
    settings = settings.model_copy(update={"gateway": settings.gateway.model_copy(update={"store": path})})
    page = GatewayPage(settings, state)
    assert settings.web is not None
    server = Server(Web(settings), settings.web.listen)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.is_ready)
        yield page
    finally:
        server.stop()
        thread.join()
