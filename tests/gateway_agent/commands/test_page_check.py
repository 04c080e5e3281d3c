"""Goal: the doctor says of the gateway's page what is wrong before somebody looks at it: packages, port, socket.

Method: a real page, a real socket and a real store, and what can stand in their place.
"""

from __future__ import annotations

import argparse
import http.server
import importlib.util
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.config.doctor.report import Finding
from fedgate.config.settings.settings import GatewaySettings
from fedgate.config.settings.web import GATEWAY_SOCKET
from fedgate.gateway_agent.commands import doctor, page_check
from tests.support.gateway_page import GatewayPage, open_gateway_page
from tests.support.kept import Small
from tests.support.receivers import free_port
from tests.support.sites import gateway_settings


def made(folder: Path, listen: str = "", name: str = "north") -> GatewaySettings:
    """Return settings with a page, whose store is in a folder."""
    web = {"listen": listen or f"127.0.0.1:{free_port()}"}
    return gateway_settings(web=web, gateway={"id": name, "site": "bridge", "store": folder / "gateway.db"})


def examine(settings: GatewaySettings) -> dict[str, Finding]:
    """Return what is found, by name, whose advices are there where they are needed."""
    found = list(page_check.check_page(settings))
    assert all(bool(one.advice) == (one.level != "ok") and "\n" not in str(one) for one in found)
    return {one.name: one for one in found}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayPage]:
    with open_gateway_page(tmp_path_factory.mktemp("gateway")) as page, page.running():
        yield page


@contextmanager
def listening(body: bytes) -> Iterator[str]:
    """Let a program that is no page answer, and yield where."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_page_that_is_served_and_whose_agent_answers_is_well(page: GatewayPage) -> None:
    found = examine(page.settings)
    assert [one.level for one in found.values()] == ["ok", "ok", "ok"]
    assert "the page is served at" in found["page port"].text
    assert "the agent answers at" in found["page socket"].text


def test_before_agent_and_page_are_started_all_is_well_where_there_is_room_for_them(tmp_path: Path) -> None:
    found = examine(made(tmp_path))
    assert [one.level for one in found.values()] == ["ok", "ok", "ok"]
    assert "is free" in found["page port"].text and "when the agent starts" in found["page socket"].text
    assert not list(tmp_path.iterdir())


def test_without_the_table_nothing_is_looked_at() -> None:
    assert examine(gateway_settings()) == {}


def test_the_doctor_looks_at_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cloud_aggregator(["init", str(tmp_path / "site"), "--loopback"]) == 0
    file = tmp_path / "site" / "gateway.toml"
    with file.open("a", encoding="utf-8") as settings:
        settings.write(f'\n[web]\nlisten = "127.0.0.1:{free_port()}"\n')
    monkeypatch.setattr(doctor, "check_imports", lambda *_: [])  # what takes seconds, and is tried elsewhere
    monkeypatch.setattr(doctor, "_check_brokers", lambda *_: [])
    monkeypatch.setattr(doctor, "MEASURE_S", 0.0)
    found = {one.name for one in doctor.examine(argparse.Namespace(config=file))}
    assert {"page", "page port", "page socket"} <= found


def test_a_package_that_is_not_here_is_named_with_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else name)
    found = examine(made(tmp_path))["page"]
    assert found.level == "failure" and "uvicorn" in found.text and "'.[web]'" in found.advice


@pytest.mark.parametrize(
    "body", [b"hello", b"[]", b'{"is_well": true}', b'{"is_live": true, "store": {"gateway": "x"}}']
)
def test_who_has_the_port_and_is_not_this_gateways_page_is_told(tmp_path: Path, body: bytes) -> None:
    with listening(body) as address:
        found = examine(made(tmp_path, address))["page port"]
    assert found.level == "failure" and address in found.text and "another port" in found.advice


def test_who_listens_and_says_nothing_is_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_check, "WITHIN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = examine(made(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}"))["page port"]
    assert found.level == "failure" and "another program" in found.text


def test_a_port_that_this_user_may_not_have_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    settings = made(tmp_path)
    monkeypatch.setattr(socket.socket, "bind", refuse)
    found = examine(settings)["page port"]
    assert found.level == "failure" and "Permission denied" in found.text


def test_an_agent_that_was_started_before_the_table_is_to_be_restarted(tmp_path: Path) -> None:
    settings = made(tmp_path)
    with closing(Small(settings.gateway.store)):
        found = examine(settings)["page socket"]
        assert found.level == "failure" and str(tmp_path / GATEWAY_SOCKET) in found.text
        assert "restart" in found.advice
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / GATEWAY_SOCKET))  # and nobody listens
            assert "does not answer" in examine(settings)["page socket"].text


def test_an_agent_that_hangs_up_says_nothing(tmp_path: Path) -> None:
    settings = made(tmp_path)
    with closing(Small(settings.gateway.store)), socket.socket(socket.AF_UNIX) as served:
        served.bind(str(tmp_path / GATEWAY_SOCKET))
        served.listen()

        def hang_up() -> None:
            served.accept()[0].close()

        hanging_up = threading.Thread(target=hang_up)
        hanging_up.start()
        found = examine(settings)["page socket"]
        hanging_up.join()
    assert found.level == "failure" and "says nothing" in found.text


def test_a_folder_that_takes_no_socket_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    found = examine(made(deep))["page socket"]
    assert found.level == "failure" and "expected 107 at most" in found.text
    assert examine(made(tmp_path / "nowhere"))["page socket"].level == "failure"
    tmp_path.chmod(0o770)
    assert "go-w" in examine(made(tmp_path))["page socket"].advice
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "this user cannot write" in examine(made(tmp_path))["page socket"].text
