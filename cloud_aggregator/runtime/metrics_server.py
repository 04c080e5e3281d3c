"""Where Prometheus reads the metrics: one path over HTTP, for whoever reaches the address, one request at a time.

What is served is made for each request, so it is never older than that. It changes nothing and says no secret, but
which gateways there are: the address is one of this machine unless somebody wants another.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from fedgate.config.identity.pki import IdentityError
from fedgate.config.runtime.cli import describe

LOG = logging.getLogger("fedgate.metrics")
PATH = "/metrics"
SERVED_WITHIN_S = 10.0  # from its connection to its last byte: who is slower keeps others waiting
Read = Callable[[], Iterable[Metric]]


class _Collected(Collector):
    """What was read, for an encoder."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        """Return it."""
        return self._metrics


def encode(metrics: Iterable[Metric], accept: str = "") -> tuple[bytes, str]:
    """Return metrics as a page, in the format that whoever asks accepts, and the type of that."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(metrics))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


class MetricsServer:
    """The server, listening; `run` serves until `stop` is called from a signal handler or another thread."""

    def __init__(self, address: tuple[str, int], read: Read) -> None:
        """Listen; raises `OSError` where the address is taken. `read` is called for each request, by the thread that
        runs.
        """
        self._server = _Server(address, read)
        host, port = self._server.server_address[:2]
        self.address = (str(host), int(port))

    def run(self) -> None:
        """Serve until told to stop."""
        LOG.info("metrics at http://%s:%d%s", _bracket(self.address[0]), self.address[1], PATH)
        try:
            self._server.serve_forever()
        finally:
            self._server.server_close()

    def stop(self) -> None:
        """Ask `run` to end after the request at hand."""
        threading.Thread(target=self._server.shutdown).start()  # which waits for the thread that runs


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _Server(HTTPServer):
    def __init__(self, address: tuple[str, int], read: Read) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._read, self._problem = read, ""
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection within its time."""
        deadline = threading.Timer(SERVED_WITHIN_S, _cut, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request(request, client_address)
        finally:
            deadline.cancel()

    def handle_error(self, *_: object) -> None:
        """Pass over a client that went before its answer, or was cut; what else fails here is ours."""
        if not isinstance(sys.exception(), OSError):
            LOG.exception("a request could not be answered")

    def make_page(self, accept: str) -> tuple[HTTPStatus, bytes, str]:
        """Return what is served: status, page and its type. What cannot be read, of the store or of the site, is said
        once in the log.
        """
        try:
            page, content_type = encode(self._read(), accept)
        except (OSError, IdentityError) as error:
            if (problem := describe(error)) != self._problem:
                LOG.warning("no metrics: %s", problem)
            self._problem = problem
            return HTTPStatus.SERVICE_UNAVAILABLE, f"{problem}\n".encode(), "text/plain; charset=utf-8"
        if self._problem:
            LOG.info("there are metrics again")
        self._problem = ""
        return HTTPStatus.OK, page, content_type


def _cut(request: socket.socket) -> None:
    with suppress(OSError):  # it is gone already
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "fedgate", ""
    timeout = SERVED_WITHIN_S

    def do_GET(self) -> None:
        """Answer a request."""
        if self.path.partition("?")[0] != PATH:
            status, page, content_type = HTTPStatus.NOT_FOUND, f"metrics are at {PATH}\n".encode(), "text/plain"
        else:
            status, page, content_type = self.server.make_page(self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Log no request: there is one every few seconds."""
