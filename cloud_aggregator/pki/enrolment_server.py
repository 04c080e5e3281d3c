"""Where devices ask for certificates: two paths over HTTPS, for whoever is not in yet and so cannot use the broker.

    GET  /v1/keys           {"root_key": PEM, "keys": statement}: a device compares the first with its token
    POST /v1/certificate    {"request": PEM, "token": secret, or empty to renew, "same_device": with another key}
                            -> certificate, and a "notice" where the name is not good at the broker yet

It stands open to the network the gateways are in, so everything about it is bounded: how many are served at once and
how long, how much one may send, and how often. A web server bounds what comes after the handshake; who may come to it
and how long that may take is decided where a connection is accepted (`_Listener`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedgate.cloud_aggregator.pki.enrolment_request import Answer, EnrolmentRequest, read_request
from fedgate.config.identity import pki
from fedgate.config.identity.pki import IdentityError
from fedgate.config.transport.tls import TLS_MIN

LOG = logging.getLogger("fedgate.enrolment")
BODY_BYTES_MAX = HEADER_BYTES_MAX = 16 * 1024
CONNECTIONS_MAX = 32
CONNECTIONS_OF_ADDRESS_MAX = 8
HEADERS_WITHIN_S = 3.0  # handshake and headers
SERVED_WITHIN_S = 15.0  # all that comes after
PER_MINUTE_MAX = 600  # of one address, behind which may be a whole site
ADDRESSES_MAX = 1_000
MINUTE_S = 60.0
BIND_AGAIN_S = 30.0
BACKLOG = 128
Enrol = Callable[[EnrolmentRequest], Answer]
Client = tuple[str, int]  # address and port
CLOSE = {"Connection": "close"}  # each connection asks once


class RateLimiter:
    """How often each address may connect; use it from one thread."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._counts: dict[str, int] = {}

    def admit(self, address: str, now_s: float) -> bool:
        """Count one connection of an address; False where it has had enough in this minute."""
        if now_s - self._since_s >= MINUTE_S or now_s < self._since_s:
            self._since_s, self._counts = now_s, {}
        if address not in self._counts and len(self._counts) >= ADDRESSES_MAX:
            return False
        self._counts[address] = self._counts.get(address, 0) + 1
        return self._counts[address] <= PER_MINUTE_MAX


class _Connection:
    """A connection that is open, with the time that it has left."""

    def __init__(self, accepted: socket.socket, client: Client, forget: Callable[[Client], object]) -> None:
        self.client, self.is_silent = client, True  # until the handshake is done
        self._socket, self._forget = accepted.dup(), forget
        self._deadline = asyncio.get_running_loop().call_later(HEADERS_WITHIN_S, self.cut)

    def extend(self) -> None:
        """Give it time for the rest: its headers are here."""
        self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(SERVED_WITHIN_S, self.cut)

    def cut(self) -> None:
        """End it, whatever waits for it."""
        with suppress(OSError):  # its peer is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        """Forget it."""
        self._deadline.cancel()
        self._socket.close()
        self._forget(self.client)


class _Listener(socket.socket):
    """A listening socket that accepts so many connections at once, and so many of one address."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Listen; raises `OSError` where the address is taken."""
        self._open: dict[Client, _Connection] = {}  # the first to come first
        self._limiter = RateLimiter()
        super().__init__(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(address)
            self.listen(BACKLOG)
        except OSError:
            self.close()
            raise

    def find_connection(self, client: Client) -> _Connection | None:
        """Return the open connection of a client; None where it was cut meanwhile."""
        return self._open.get(client)

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection that may come; one that may not is closed before its handshake."""
        while True:
            accepted, peer = super().accept()
            client = (str(peer[0]), int(peer[1]))
            if self._limiter.admit(client[0], time.monotonic()) and self._has_place(client[0]):
                self._open[client] = _Connection(accepted, client, lambda client: self._open.pop(client, None))
                return accepted, peer
            accepted.close()

    def close(self) -> None:
        """Close it, and every connection that is open."""
        for one in list(self._open.values()):
            one.cut()
        super().close()

    def _has_place(self, address: str) -> bool:
        """Tell whether one more may come from this address; who has sent nothing for the longest time makes room."""
        same = [one for one in self._open.values() if one.client[0] == address]
        if len(same) < CONNECTIONS_OF_ADDRESS_MAX and len(self._open) < CONNECTIONS_MAX:
            return True
        among = same if len(same) >= CONNECTIONS_OF_ADDRESS_MAX else list(self._open.values())
        silent = [one for one in among if one.is_silent]
        for one in silent[:1]:
            one.cut()
        return bool(silent)


class EnrolmentServer:
    """The server, in a thread of its own; `enrol` is called from threads beside it."""

    def __init__(self, listen: str, certificate: Path, key: Path, keys: Callable[[], bytes], enrol: Enrol) -> None:
        self._address = pki.split_address(listen)
        self._files = (certificate, key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = TLS_MIN
        self.renew()
        self._keys, self._enrol = keys, enrol
        self._listener: _Listener | None = None
        self._server = uvicorn.Server(self._configure())
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def renew(self) -> None:
        """Take the certificate from its file again; raises `OSError`."""
        self.context.load_cert_chain(*self._files)

    def start(self) -> None:
        """Begin to serve; where the address is taken, it is tried again, since the alarms must not wait for that."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        self._server.should_exit = self._server.force_exit = True
        if self._thread.is_alive():
            self._thread.join(SERVED_WITHIN_S)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listener = _Listener(self._address)
            except OSError as error:
                LOG.warning("enrolment cannot listen on %s:%d (%s); trying on", *self._address, error)
                self._stopping.wait(BIND_AGAIN_S)
                continue
            with self._listener:
                LOG.info("enrolment listens on %s:%d", *self._address)
                self._server.run(sockets=[self._listener])
            return

    def find_connection(self, client: Client | None) -> _Connection | None:
        """Return the open connection of a client; None where it was cut meanwhile."""
        return None if client is None or self._listener is None else self._listener.find_connection(client)

    def _configure(self) -> uvicorn.Config:
        of_client = self.find_connection

        class Protocol(H11Protocol):
            """HTTP that tells the listener of its connections."""

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
                super().connection_made(transport)
                if known := of_client(self.client):
                    known.is_silent = False

            def connection_lost(self, exc: Exception | None) -> None:
                if known := of_client(self.client):
                    known.close()
                super().connection_lost(exc)

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            """Give a request time for its body and its answer: its headers are here."""
            if known := of_client(scope["client"]):
                known.extend()
            await app(scope, receive, send)

        routes = [
            Route("/v1/keys", self._get_keys, methods=["GET"]),
            Route("/v1/certificate", self._post_certificate, methods=["POST"]),
        ]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _refuse, Exception: _fail})
        return uvicorn.Config(
            serve,
            http=Protocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=logging.CRITICAL,  # what strangers send belongs into no log
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            ssl_context_factory=lambda *_: self.context,
        )

    async def _get_keys(self, _request: Request) -> Response:
        return Response(self._keys(), HTTPStatus.OK, CLOSE, media_type="application/json")

    async def _post_certificate(self, request: Request) -> Response:
        length = request.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or int(length) > BODY_BYTES_MAX:
            raise HTTPException(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected a body of at most {BODY_BYTES_MAX} bytes"
            )
        try:
            asked = read_request(await request.body())
        except IdentityError as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from None
        status, answer = await run_in_threadpool(self._enrol, asked)
        return JSONResponse(answer, status, CLOSE)


async def _refuse(_request: Request, error: Any) -> Response:
    """Answer what is refused, or is asked of a path that there is not, which is an `HTTPException`."""
    return JSONResponse({"problem": error.detail}, error.status_code, CLOSE)


async def _fail(_request: Request, error: Exception) -> Response:
    LOG.error("a request for a certificate could not be handled", exc_info=error)
    text = "the aggregator failed at it; its log says more"
    return JSONResponse({"problem": text}, HTTPStatus.INTERNAL_SERVER_ERROR, CLOSE)
