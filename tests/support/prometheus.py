"""A Prometheus of our own for one test, on a free port of this machine and in a temporary folder.

Debian's package `prometheus` has it, and promtool. It looks at what it watches several times a second, since tests wait
for what it has seen.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from fedgate.firmware_sim import children
from tests.end_to_end.test_processes import free_port
from tests.support.waiting import PATIENCE_S, until

CONFIGURATION = """
global: {{scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 200ms}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: fedgate
    static_configs: [{{targets: ["{target}"]}}]
"""
ANSWER_S = 10.0


def program(name: str) -> str:
    """Return where a program of the package is; a test fails where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"this test needs {name}: sudo apt-get install prometheus")
    return found


def promtool(*arguments: str | Path, **options: Any) -> None:
    """Run promtool; a test fails where it finds anything."""
    done = children.run([program("promtool"), *arguments], PATIENCE_S, text=True, **options)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


class Prometheus:
    """A server that runs."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its HTTP API; raises `URLError` where it is none or an error."""
        with urlopen(f"http://{self._address}/api/v1/{path}?{urlencode(parameters)}", timeout=ANSWER_S) as answer:
            body = json.load(answer)
        assert body["status"] == "success" and not body.get("warnings"), body
        return body["data"]

    def query(self, expression: str) -> list[Any]:
        """Return the samples of an expression now."""
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found

    def answers(self) -> bool:
        """Tell whether it answers."""
        try:
            self.ask("status/buildinfo")
        except (URLError, ConnectionError):
            return False
        return True


@contextmanager
def running_prometheus(folder: Path, target: str, rules: Path) -> Iterator[Prometheus]:
    """Run a server that watches an address by some rules, until the end."""
    configuration, address = folder / "prometheus.yml", f"127.0.0.1:{free_port()}"
    configuration.write_text(CONFIGURATION.format(rules=rules, target=target), encoding="utf-8")
    promtool("check", "config", configuration)
    flags = {"config.file": configuration, "storage.tsdb.path": folder / "data", "web.listen-address": address}
    command = [program("prometheus"), *(f"--{name}={value}" for name, value in flags.items())]
    with (folder / "prometheus.log").open("wb") as log:
        process = children.start(command, cwd=folder, stdout=log, stderr=log)
    try:
        server = Prometheus(address)
        until(server.answers, (folder / "prometheus.log").read_text)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            children.wait_for_end(process, PATIENCE_S)
        finally:
            process.kill()
