"""Goal: Ctrl-C ends a demo and all that it started, however far it came, and the demo says so by its exit code."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fedgate.firmware_sim import children
from tests import conftest
from tests.support.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.soak
@pytest.mark.parametrize("begun", ["cloud_aggregator init", "cloud_aggregator run", "gateway_agent run", "replay"])
def test_ctrl_c_ends_a_demo_that_starts(begun: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        arguments = ("demo", "--keep", "--out", str(tmp_path / "demo"))
        demo = children.start_module("firmware_sim", *arguments, stdout=file, stderr=file)
    below: set[int] = set()

    def is_begun() -> bool:
        below.update(children.family(demo.pid))
        return demo.poll() is not None or any(begun in conftest._command(pid) for pid in below)

    until(is_begun, log.read_text)
    below.update(children.family(demo.pid))
    demo.send_signal(signal.SIGINT)
    assert children.wait_for_end(demo, 60.0) == 128 + signal.SIGINT, log.read_text()
    until(lambda: not any(map(children.is_alive, below)), idle_s=2.0)
    assert "Traceback" not in log.read_text()
