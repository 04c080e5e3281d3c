"""Goal: the endpoint that stands open to the network serves whoever asks, whatever strangers do to it.

Method: a real aggregator with its endpoint on loopback, and sockets that ask wrongly, slowly or not at all.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPSConnection

import pytest

from fedgate.cloud_aggregator.pki.enrolment_request import Answer, EnrolmentRequest
from fedgate.cloud_aggregator.pki.enrolment_server import (
    BODY_BYTES_MAX,
    CONNECTIONS_OF_ADDRESS_MAX,
    HEADER_BYTES_MAX,
    EnrolmentServer,
)
from fedgate.config.transport.tls import trust
from tests.support.site_folders import Folder, aggregator_of, founded, free_ports, until


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    made = founded(tmp_path_factory.mktemp("endpoint") / "site")
    with aggregator_of(made):
        yield made


def test_what_is_no_request_is_told_so_and_too_much_is_not_read(site: Folder) -> None:
    def said(method: str, path: str, body: bytes | Iterator[bytes] | None = None, length: int | None = None) -> int:
        headers = {} if length is None else {"Content-Length": str(length)}
        context = trust(site.path / "ca.pem")
        connection = HTTPSConnection("localhost", site.port + 1, timeout=5.0, context=context)
        connection.request(method, path, body, headers)
        status = connection.getresponse().status
        connection.close()
        return status

    assert said("GET", "/v1/keys") == 200 and said("GET", "/etc/passwd") == 404
    assert said("POST", "/v1/other", b"{}") == 404 and said("POST", "/v1/certificate", b"{}") == 400
    assert said("POST", "/v1/certificate", b"[" * 9_000) == 400
    assert said("POST", "/v1/certificate", length=BODY_BYTES_MAX + 1) == 413
    assert said("POST", "/v1/certificate", length=-1) == 400 and said("DELETE", "/v1/keys") == 405
    assert said("POST", "/v1/certificate", iter([b"{}"])) == 413  # in chunks, of which nobody says how many come


def answering(_request: EnrolmentRequest) -> Answer:
    return HTTPStatus.OK, {}


def is_served(site: Folder) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", site.port + 1), 2.0) as plain:
            plain.settimeout(2.0)
            with trust(site.path / "ca.pem").wrap_socket(plain, server_hostname="localhost"):
                return True
    except OSError:
        return False


# Under one address each is a race that may be lost and then takes seconds.
@pytest.mark.soak
@pytest.mark.parametrize(("source", "to_serve"), [("127.0.0.1", 5), ("127.0.0.2", 18)])
def test_who_says_nothing_and_comes_again_and_again_keeps_nobody_out(site: Folder, source: str, to_serve: int) -> None:
    stopping, opened = threading.Event(), []

    def hold() -> None:
        while not stopping.wait(0.02):
            with socket.socket() as one, suppress(OSError):
                one.bind((source, 0))
                one.settimeout(0.5)
                one.connect(("127.0.0.1", site.port + 1))
                opened.append(one)
                one.recv(1)  # until it is cut

    holders = [threading.Thread(target=hold) for _ in range(2 * CONNECTIONS_OF_ADDRESS_MAX)]
    for one in holders:
        one.start()
    until(lambda: len(opened) >= len(holders))
    served = list[bool]()

    def is_enough() -> bool:
        served.append(is_served(site))
        return sum(served) >= to_serve

    until(is_enough)
    stopping.set()
    until(lambda: is_served(site) and not any(one.is_alive() for one in holders))
    assert source == "127.0.0.1" or len(served) <= to_serve + 2


def test_who_does_not_ask_in_time_is_cut_off(site: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgate.cloud_aggregator.pki.enrolment_server.HEADERS_WITHIN_S", 0.3)
    with socket.create_connection(("127.0.0.1", site.port + 1), 5.0) as silent:
        assert silent.recv(1) == b""
    context = trust(site.path / "ca.pem")
    with (
        socket.create_connection(("127.0.0.1", site.port + 1), 5.0) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as slow,
        suppress(ssl.SSLError),
    ):
        slow.sendall(b"GET /v1/keys HTTP/1.0\r\n")  # and no end of the headers
        assert slow.recv(1) == b""


def raw(site: Folder) -> ssl.SSLSocket:
    """Return a connection to the server on which anything can be sent."""
    plain = socket.create_connection(("127.0.0.1", site.port + 1), 5.0)
    return trust(site.path / "ca.pem").wrap_socket(plain, server_hostname="localhost")


def received(connection: ssl.SSLSocket) -> bytes:
    """Return all that comes until the connection is ended."""
    pieces = []
    with suppress(ssl.SSLError, ConnectionError):
        while piece := connection.recv(4096):
            pieces.append(piece)
    return b"".join(pieces)


def test_a_body_that_does_not_come_in_time_ends_the_connection(site: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgate.cloud_aggregator.pki.enrolment_server.SERVED_WITHIN_S", 0.3)
    with raw(site) as slow:
        slow.sendall(b"POST /v1/certificate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        assert b" 200 " not in received(slow)
    assert is_served(site)


def test_headers_without_end_and_rubbish_are_refused_and_a_connection_asks_once(site: Folder) -> None:
    with raw(site) as endless, suppress(ConnectionError):
        endless.sendall(b"GET /v1/keys HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (2 * HEADER_BYTES_MAX))
        assert received(endless).startswith(b"HTTP/1.1 4")
    with raw(site) as rubbish:
        rubbish.sendall(b"\x16\x03\x01 rubbish\r\n\r\n")
        assert received(rubbish).startswith(b"HTTP/1.1 400 ")
    with raw(site) as twice:
        twice.sendall(2 * b"GET /v1/keys HTTP/1.1\r\nHost: x\r\n\r\n")
        assert received(twice).count(b"HTTP/1.1 200 ") == 1


@pytest.mark.parametrize("is_started", [True, False])
def test_an_endpoint_can_be_stopped_at_any_moment(site: Folder, is_started: bool) -> None:
    for _ in range(5 if is_started else 1):
        listen = f"127.0.0.1:{free_ports()}"
        endpoint = EnrolmentServer(listen, site.path / "server.pem", site.path / "server.key", bytes, answering)
        if is_started:
            endpoint.start()
        stopping = threading.Thread(target=endpoint.stop, daemon=True)
        stopping.start()
        stopping.join(5.0)
        assert not stopping.is_alive()


def test_the_endpoint_speaks_no_old_tls(site: Folder) -> None:
    endpoint = EnrolmentServer("127.0.0.1:1", site.path / "server.pem", site.path / "server.key", bytes, answering)
    assert endpoint.context.minimum_version == ssl.TLSVersion.TLSv1_2
