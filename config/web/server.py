"""The process that serves a page."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedgate.config.runtime.supervisor import Supervisor
from fedgate.config.settings.web import name_network, read_address

LOG = logging.getLogger("fedgate.web")
CONNECTIONS_MAX, OF_ONE_MAX = 500, 100  # at a time; those of one address: a dozen browsers behind a router have one
ASKED_WITHIN_S = 10.0  # of the first request of a connection
GO_AFTER_S = 3  # what is under way at the end
LOOK_S, WORK_S = 0.1, 30.0  # the first as often as uvicorn looks itself


class _Protocol(H11Protocol):
    """HTTP that ends a connection on which nothing is asked for, or of an address that has many: it would take the
    place of another.
    """

    proxies: frozenset[str] = frozenset()  # whose connections are those of many

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._deadline = self.loop.call_later(ASKED_WITHIN_S, transport.abort)
        host = self.client[0] if self.client else ""
        others = [one.client[0] for one in self.connections if isinstance(one, _Protocol) and one.client]
        if host not in self.proxies and list(map(name_network, others)).count(name_network(host)) > OF_ONE_MAX:
            transport.abort()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None:  # a request has begun
            self._deadline.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)


class Web(Protocol):
    """A page: the application, and how what would last for ever is ended."""

    app: Starlette

    async def end_streams(self) -> None:
        """Let nobody wait for a change any more."""


class Server:
    """A page, from its start to its end."""

    def __init__(
        self,
        web: Web,
        listen: str,
        *,
        certificate_file: Path | None = None,
        key_file: Path | None = None,
        proxies: Sequence[str] = (),
    ) -> None:
        """Listen at `ADDRESS:PORT`, over HTTPS where there is a certificate; connections of `proxies`, which are those
        of many, are not counted by address. Raises `OSError` where the address is taken.
        """
        host, port = read_address(listen)
        self._web = web
        self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._server = uvicorn.Server(
            uvicorn.Config(
                web.app,
                http=type("_ProtocolHere", (_Protocol,), {"proxies": frozenset(proxies)}),
                ws="none",
                loop="asyncio",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=GO_AFTER_S,
                ssl_certfile=certificate_file,
                ssl_keyfile=key_file,
            )
        )
        self._address = f"{'http' if certificate_file is None else 'https'}://{listen}"

    @property
    def is_ready(self) -> bool:
        """True while it serves."""
        return self._server.started

    def run(self) -> None:
        """Serve until `stop`."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        beside = [asyncio.create_task(one) for one in (self._report_work(), self._end_streams())]
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            for task in beside:
                task.cancel()

    async def _end_streams(self) -> None:
        """End what would last for ever, once the server is to end."""
        while not self._server.should_exit:
            await asyncio.sleep(LOOK_S)
        await self._web.end_streams()

    async def _report_work(self) -> None:
        while not self._server.started:
            await asyncio.sleep(LOOK_S)
        LOG.info("the page is at %s", self._address)
        supervisor = Supervisor()
        while True:
            supervisor.report_work()
            await asyncio.sleep(min(supervisor.pause_s, WORK_S))

    def stop(self) -> None:
        """End soon."""
        self._server.should_exit = True
