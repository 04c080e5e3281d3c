"""Goal: who stands between a device that enrols and its aggregator gets no token and plants nothing.

Method: a real aggregator, and a server before it that passes on what it is asked and changes what it says.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from config.tls import trusting
from gateway_agent.enrolment import EnrolmentError, enrol
from tests.site_folders import Folder, aggregator_of, founded
from tests.test_enrolment import contents, files, made_token


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Folder]:
    made = founded(tmp_path / "site")
    with aggregator_of(made):
        yield made


@contextmanager
def impostor(evil: Folder, site: Folder, certificates: bytes, release_key: str) -> Iterator[tuple[int, list[str]]]:
    """Stand between: say these certificates, pass on what is asked, put another release key into the answer."""
    stolen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

        def say(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.say(certificates)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            stolen.append(json.loads(body)["token"])
            behind = HTTPSConnection("localhost", site.port + 1, context=trusting(site.path / "ca.pem"))
            behind.request("POST", "/v1/certificate", body)
            answer = json.loads(behind.getresponse().read())
            behind.close()
            self.say(json.dumps({**answer, "release_key": release_key}).encode())

    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(evil.path / "server.pem", evil.path / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], stolen
        server.shutdown()


@pytest.mark.parametrize("order", ["site-first", "evil-first"])
def test_who_stands_between_gets_no_token_with_a_second_certificate_behind_the_first(
    order: str, site: Folder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    evil = founded(tmp_path / "evil")
    capsys.readouterr()
    both = [(one.path / "ca.pem").read_bytes() for one in (site, evil)]
    said = b"".join(both if order == "site-first" else both[::-1])
    with impostor(evil, site, said, (evil.path / "release.pub").read_text()) as (port, stolen):
        token = replace(made_token(site, "north", capsys), address=f"localhost:{port}")
        with pytest.raises(EnrolmentError, match="nothing was sent"):
            enrol(token, files(tmp_path / "device"))
    assert not stolen and not contents(tmp_path / "device")


@pytest.mark.parametrize("kind", ["foreign", "none"])
def test_no_release_key_but_the_one_of_the_token_is_kept(
    kind: str, site: Folder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also where the aggregator's own certificate is in wrong hands."""
    other = founded(tmp_path / "other")
    capsys.readouterr()
    key = (other.path / "release.pub").read_text() if kind == "foreign" else "no key"
    with impostor(site, site, (site.path / "ca.pem").read_bytes(), key) as (port, _):
        token = replace(made_token(site, "north", capsys), address=f"localhost:{port}")
        with pytest.raises(EnrolmentError, match=r"release key.* nothing was changed"):
            enrol(token, files(tmp_path / "device"))
    assert [*contents(tmp_path / "device")] == ["gateway.key"]
