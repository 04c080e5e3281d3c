"""Where devices ask for certificates: two paths over HTTPS, for whoever is not in yet and so cannot use the broker.

    GET  /v1/keys           {"root_key": PEM, "keys": statement}: a device compares the first with its token
    POST /v1/certificate    {"request": PEM, "token": secret, or empty to renew, "same_device": with another key}
                            -> certificate, and a "notice" where the name is not good at the broker yet

It stands open to the network the gateways are in, so everything about it is bounded: how many are served at once and
how long, how much one may say, and how often.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any

from fedgate.config.identity import pki
from fedgate.config.identity.pki import IdentityError, PublicKey
from fedgate.config.transport.tls import TLS_MIN

LOG = logging.getLogger("fedgate.enrolment")
BODY_BYTES_MAX = 16 * 1024
AT_ONCE_MAX = 32
OF_ADDRESS_MAX = 8  # at once
ASKED_WITHIN_S = 3.0  # handshake and headers
SERVED_WITHIN_S = 15.0  # all that comes after
PER_MINUTE_MAX = 600  # of one address, behind which may be a whole site
ADDRESSES_MAX = 1_000
MINUTE_S = 60.0
BIND_AGAIN_S = 30.0
NO_ROOT = b'{"problem": "this site has no root key; cloud-aggregator init with its folder makes one"}\n'


@dataclass(frozen=True)
class Question:
    """What a device asked, and proved: the name it wants, and that it holds the key."""

    gateway: str
    key: PublicKey
    secret: str  # of its token; empty for a renewal
    is_same_device: bool = False  # see `Asked`


Answer = tuple[HTTPStatus, dict[str, str]]
Ask = Callable[[Question], Answer]


class Pace:
    """How often each address may ask; use it from one thread."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._counts: dict[str, int] = {}

    def allows(self, address: str, now_s: float) -> bool:
        """Count one question of an address; False where it has asked enough in this minute."""
        if now_s - self._since_s >= MINUTE_S or now_s < self._since_s:
            self._since_s, self._counts = now_s, {}
        if address not in self._counts and len(self._counts) >= ADDRESSES_MAX:
            return False
        self._counts[address] = self._counts.get(address, 0) + 1
        return self._counts[address] <= PER_MINUTE_MAX


class Endpoint:
    """The server, in threads of its own; `ask` is called from them."""

    def __init__(self, listen: str, certificate: Path, key: Path, keys: Callable[[], bytes], ask: Ask) -> None:
        self._address = pki.split_address(listen)
        self._files = (certificate, key)
        self.context = context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = TLS_MIN
        self.renew()
        self._parts = (context, keys, ask)
        self._server: _Server | None = None
        self._lock = threading.Lock()  # of the two: a server is made only where nobody wants to stop
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
        with self._lock:
            self._stopping.set()
            server = self._server
        if server is not None:
            server.shutdown()
        if self._thread.is_alive():
            self._thread.join(SERVED_WITHIN_S)

    def _serve(self) -> None:
        while (server := self._made()) is None:
            if self._stopping.wait(BIND_AGAIN_S):
                return
        LOG.info("enrolment listens on %s:%d", *self._address)
        with server:
            server.serve_forever()  # also where it is to stop: only this tells that it has

    def _made(self) -> _Server | None:
        with self._lock:
            if not self._stopping.is_set():
                try:
                    self._server = _Server(self._address, *self._parts)
                except OSError as error:
                    LOG.warning("enrolment cannot listen on %s:%d (%s); trying on", *self._address, error)
            return self._server


class _Guest:
    """Who is connected, and how long he may be."""

    def __init__(self, request: socket.socket, address: str) -> None:
        self.address = address
        self.is_silent = True  # until the handshake is done
        self.is_out = False  # had to make room, and is about to go
        self._twin = request.dup()
        self._limit = self._within(ASKED_WITHIN_S)

    def asked(self) -> None:
        """Give him time for the rest."""
        self._limit.cancel()
        self._limit = self._within(SERVED_WITHIN_S)

    def cut(self) -> None:
        """End his connection, whatever waits for it."""
        with suppress(OSError):  # he is gone already
            self._twin.shutdown(socket.SHUT_RDWR)

    def left(self) -> None:
        """Forget him."""
        self._limit.cancel()
        self._twin.close()

    def _within(self, seconds: float) -> threading.Timer:
        # A time limit of the socket is one of each read; who sends a byte now and then would never meet it.
        limit = threading.Timer(seconds, self.cut)
        limit.daemon = True
        limit.start()
        return limit


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext, keys: Callable[[], bytes], ask: Ask) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.context, self.keys, self.ask = context, keys, ask
        self._guests: dict[Any, _Guest] = {}  # by socket, the first to come first
        self._door = threading.Lock()  # of the guests
        self._pace = Pace()
        super().__init__(address, BaseHTTPRequestHandler)  # unused: see `finish_request`

    def verify_request(self, _request: Any, client_address: Any) -> bool:
        return self._pace.allows(str(client_address[0]), time.monotonic())

    def process_request(self, request: Any, client_address: Any) -> None:
        guest = _Guest(request, str(client_address[0]))
        with self._door:
            if is_let_in := self._has_place(guest.address):
                self._guests[request] = guest
        if is_let_in:
            super().process_request(request, client_address)
        else:
            guest.left()
            self.shutdown_request(request)

    def _has_place(self, address: str) -> bool:
        """Tell whether one more may come from this address; who has said nothing for the longest time makes room."""
        guests = [one for one in self._guests.values() if not one.is_out]
        same = [one for one in guests if one.address == address]
        if len(same) < OF_ADDRESS_MAX and len(guests) < AT_ONCE_MAX:
            return True
        silent = [one for one in (same if len(same) >= OF_ADDRESS_MAX else guests) if one.is_silent]
        for guest in silent[:1]:
            guest.is_out = True
            guest.cut()
        return bool(silent)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._door:
                guest = self._guests.pop(request)
            guest.left()

    def finish_request(self, request: Any, client_address: Any) -> None:
        guest = self._guests[request]
        request.settimeout(SERVED_WITHIN_S)
        with self.context.wrap_socket(request, server_side=True) as tls:  # here, not where all others would wait
            guest.is_silent = False
            _Handler(guest, tls, client_address, self)

    def handle_error(self, _request: Any, client_address: Any) -> None:
        LOG.debug("enrolment: %s went away", client_address[0], exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "fedgate", ""

    def __init__(self, guest: _Guest, request: ssl.SSLSocket, client_address: Any, server: _Server) -> None:
        self._guest = guest
        super().__init__(request, client_address, server)

    def parse_request(self) -> bool:
        is_read = super().parse_request()
        self._guest.asked()
        return is_read

    def do_GET(self) -> None:
        if self.path != "/v1/keys":
            self._say(HTTPStatus.NOT_FOUND, b'{"problem": "expected /v1/keys"}\n')
        elif keys := self.server.keys():
            self._say(HTTPStatus.OK, keys)
        else:
            self._say(HTTPStatus.NOT_FOUND, NO_ROOT)

    def do_POST(self) -> None:
        status, answer = self._answer()
        self._say(status, json.dumps(answer).encode())

    def _answer(self) -> Answer:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or int(length) > BODY_BYTES_MAX:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {
                "problem": f"expected a body of at most {BODY_BYTES_MAX} bytes"
            }
        body = self.rfile.read(int(length))  # whatever it is: an answer over words unread may never arrive
        if self.path != "/v1/certificate":
            return HTTPStatus.NOT_FOUND, {"problem": "expected /v1/certificate"}
        try:
            return self.server.ask(read_question(body))
        except IdentityError as error:
            return HTTPStatus.BAD_REQUEST, {"problem": str(error)}

    def _say(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: the machine logs what it decides, and what strangers send belongs into no log."""


def read_question(body: bytes) -> Question:
    """Return what the body of a request asks; raises `IdentityError`."""
    try:
        given = json.loads(body)
        request, secret, is_same = given["request"], given.get("token", ""), given.get("same_device", False)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise IdentityError('body: expected JSON {"request": PEM, "token": text}') from None
    if not isinstance(request, str) or not isinstance(secret, str):
        raise IdentityError('body: expected JSON {"request": PEM, "token": text}')
    return Question(*pki.read_request(request.encode(errors="replace")), secret, is_same is True)
