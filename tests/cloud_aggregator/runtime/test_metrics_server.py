"""Goal: whoever asks for metrics gets them or hears why not, and nobody keeps others from them.

Method: the server in a thread, asked over real sockets; the command as a process.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.runtime import metrics_server
from fedgate.cloud_aggregator.runtime.metrics_server import MetricsServer
from fedgate.cloud_aggregator.storage.store import StoreError
from fedgate.config.identity.pki import IdentityError
from fedgate.config.settings.settings import AggregatorSettings, SettingsError, load
from fedgate.config.settings.web import read_address
from tests.support.metric_samples import make_site, serving_metrics
from tests.support.waiting import PATIENCE_S, until

Read = Callable[[], list[Metric]]


@contextmanager
def serving(read: Read) -> Iterator[MetricsServer]:
    server = MetricsServer(("127.0.0.1", 0), read)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        until(lambda: not thread.is_alive())


def ask(server: MetricsServer, path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    """Return status, page and type."""
    request = Request(f"http://{server.address[0]}:{server.address[1]}{path}", headers=headers)
    try:
        with urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310 - an address of our own
            return answer.status, answer.read().decode(), answer.headers["Content-Type"]
    except HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers["Content-Type"]


def one(value: float = 1.0) -> list[Metric]:
    family = GaugeMetricFamily("fedgate_made", "made up", labels=["site"])
    family.add_metric(["b"], value)
    return [family]


def test_metrics_are_made_for_each_request_in_the_format_that_is_asked_for() -> None:
    asked = list[int]()

    def read() -> list[Metric]:
        asked.append(1)
        return one(len(asked))

    with serving(read) as server:
        assert ask(server)[:2] == (
            200,
            '# HELP fedgate_made made up\n# TYPE fedgate_made gauge\nfedgate_made{site="b"} 1.0\n',
        )
        status, page, kind = ask(server, "/metrics?name=x", Accept="application/openmetrics-text; version=1.0.0")
        assert status == 200 and page.endswith('{site="b"} 2.0\n# EOF\n') and "openmetrics" in kind
        assert ask(server, "/")[:2] == (404, "metrics are at /metrics\n") and len(asked) == 2


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (StoreError("a.db: is away"), "a.db: is away"),
        (IdentityError("ca.pem: damaged"), "ca.pem: damaged"),
        (PermissionError(errno.EACCES, "Permission denied", "server.pem"), "server.pem: permission denied"),
    ],
)
def test_what_cannot_be_read_is_said_to_who_asks_and_once_in_the_log(
    problem: Exception, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    problems = [problem] * 3

    def read() -> list[Metric]:
        if problems:
            raise problems.pop()
        return one()

    caplog.set_level(logging.INFO, "fedgate.metrics")
    with serving(read) as server:
        assert [ask(server)[:2] for _ in range(3)] == [(503, f"{words}\n")] * 3
        assert ask(server)[0] == 200
    logged = [record.getMessage() for record in caplog.records]
    assert logged[1:] == [f"no metrics: {words}", "there are metrics again"]


def test_a_mistake_of_ours_is_logged_whole_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    wrong = [ZeroDivisionError("x")]

    def read() -> list[Metric]:
        if wrong:
            raise wrong.pop()
        return one()

    with serving(read) as server:
        with pytest.raises(OSError):
            ask(server)
        assert ask(server)[0] == 200
    assert "ZeroDivisionError" in caplog.text


def test_who_says_nothing_is_cut_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "SERVED_WITHIN_S", 0.2)
    with serving(one) as server, socket.create_connection(server.address) as silent:
        silent.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        silent.settimeout(PATIENCE_S)
        assert silent.recv(1) == b""
        assert ask(server)[0] == 200


@pytest.mark.soak
@pytest.mark.slow
def test_the_command_serves_a_store_that_comes_and_goes(tmp_path: Path) -> None:
    settings = make_site(tmp_path / "site")
    store = settings.parent / "aggregator.db"
    with serving_metrics(settings) as address:
        url = f"http://{address}/metrics"
        with urlopen(url, timeout=PATIENCE_S) as answer:
            assert b'fedgate_model_version{site="bridge"} 0.0' in answer.read()
        store.rename(store.with_name("away"))
        with pytest.raises(HTTPError, match="503") as caught:
            urlopen(url, timeout=PATIENCE_S)
        with caught.value as error:
            assert b"no store yet" in error.read()
        store.with_name("away").rename(store)
        with urlopen(url, timeout=PATIENCE_S) as answer:
            assert answer.status == 200


def test_the_command_prints_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = make_site(tmp_path / "site")
    capsys.readouterr()
    assert main(["metrics", "-c", str(settings)]) == 0
    assert '\nfedgate_gateways{site="bridge",state="revoked"} 1.0\n' in capsys.readouterr().out


def test_an_address_is_this_machines_and_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_address("127.0.0.1:9464") == ("127.0.0.1", 9464) and read_address("[::1]:0") == ("::1", 0)
    for wrong in ("9464", "localhost:9464", "127.0.0.1:", "127.0.0.1:65536", "::1:9464", "[127.0.0.1]:1", "1.2.3:4"):
        with pytest.raises(ValueError, match="expected ADDRESS:PORT"):
            read_address(wrong)
    settings = make_site(tmp_path / "site")
    text = settings.read_text(encoding="utf-8")
    assert main(["metrics", "--listen", "-c", str(settings)]) == 2
    assert "[metrics] listen" in capsys.readouterr().err
    settings.write_text(f'{text}\n[metrics]\nlisten = "anywhere"\n', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"metrics\.listen: .*expected ADDRESS:PORT"):
        load(settings, AggregatorSettings)
    settings.write_text(text, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["metrics", "--listen", f"127.0.0.1:{port}", "-c", str(settings)]) == 2
        assert f"127.0.0.1:{port}: address already in use; name another" in capsys.readouterr().err.lower()
