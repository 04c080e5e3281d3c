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

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.config.identity import signing
from fedgate.config.transport.tls import trust
from fedgate.gateway_agent.runtime.enrolment import EnrolmentError, enrol
from tests.cloud_aggregator.pki.test_enrolment import contents, files, made_token
from tests.support.site_folders import Folder, aggregator_of, founded


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Folder]:
    made = founded(tmp_path / "site")
    with aggregator_of(made):
        yield made


@contextmanager
def impostor(evil: Folder, site: Folder, root_key: Path, keys: bytes) -> Iterator[tuple[int, list[str]]]:
    """Stand between: say these keys of a site, pass on what is asked, and write down the token."""
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
            self.say(json.dumps({"root_key": root_key.read_text(), "keys": keys.decode()}).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            stolen.append(json.loads(body)["token"])
            behind = HTTPSConnection("localhost", site.port + 1, context=trust(site.path / "ca.pem"))
            behind.request("POST", "/v1/certificate", body)
            self.say(behind.getresponse().read())
            behind.close()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(evil.path / "server.pem", evil.path / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], stolen
        server.shutdown()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["its own", "its own under the site's root", "changed", "another site's"])
def test_who_stands_between_is_told_nothing_whatever_keys_it_says(
    kind: str, site: Folder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also where the aggregator's own certificate is in wrong hands."""
    evil = founded(tmp_path / "evil")
    capsys.readouterr()
    root, keys = site.path / "root.pub", (site.path / "keys.json").read_bytes()
    if kind == "changed":
        release = json.dumps((evil.path / "release.pub").read_text())
        keys = json.dumps({**json.loads(keys), "release_key": json.loads(release)}).encode()
    elif kind != "another site's":
        keys = (evil.path / "keys.json").read_bytes()
    root = evil.path / "root.pub" if kind == "its own" else root
    shown = evil if kind != "another site's" else site
    with impostor(shown, site, root, keys) as (port, stolen):
        token = replace(made_token(site, "north", capsys), address=f"localhost:{port}")
        if kind == "another site's":
            token = replace(token, root=made_token_root(evil))
        with pytest.raises(EnrolmentError, match="nothing was sent"):
            enrol(token, files(tmp_path / "device"))
    assert not stolen and not contents(tmp_path / "device")


def made_token_root(folder: Folder) -> str:
    return signing.digest_public_key((folder.path / "root.pub").read_bytes())


@pytest.mark.soak
def test_a_statement_that_is_older_than_the_one_here_is_not_taken_at_an_enrolment_either(
    site: Folder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    mine = files(tmp_path / "device")
    enrol(made_token(site, "north", capsys), mine)
    before = (site.path / "keys.json").read_bytes()
    config = str(site.path / "aggregator.toml")
    assert cloud_aggregator(["keys", "rotate", "--release", "-c", config]) == 0
    capsys.readouterr()
    enrol(made_token(site, "north", capsys, "--replace"), mine)
    assert mine.statement.read_bytes() != before
    kept = contents(tmp_path / "device")
    with impostor(site, site, site.path / "root.pub", before) as (port, stolen):
        token = replace(made_token(site, "north", capsys, "--replace"), address=f"localhost:{port}")
        with pytest.raises(EnrolmentError, match="number 1, and number 2 is here"):
            enrol(token, mine)
    assert not stolen and contents(tmp_path / "device") == kept
