"""Goal: the page of a gateway shows what a real agent measures over a real broker, and costs a gateway little."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import broker
from tests.end_to_end.test_processes import END_S, ME, free_port, running, speaking, stored_model, until, write
from tests.support.sites import WINDOWS, frame, samples, topic
from tests.support.web_page import Client

PSS_MAX = 120 * 10**6  # of the unit's 192 MiB
HEAVY = ("onnxruntime", "sklearn", "scipy", "torch", "onnx/", "sqlalchemy")

pytestmark = pytest.mark.slow


@pytest.mark.soak
def test_a_page_beside_a_running_agent_is_live_and_small(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "web.log"
    with broker(tmp_path / "broker") as served:
        write(tmp_path, served.port)
        with (tmp_path / "gateway.toml").open("a") as settings:
            settings.write(f'[web]\nlisten = "127.0.0.1:{port}"\n')
        stored_model(tmp_path)
        with running("gateway_agent", tmp_path) as agent, speaking(served.port) as node, log.open("ab") as words:
            assert (tmp_path / "gateway.socket").stat().st_mode & 0o777 == 0o600
            command = [sys.executable, "-P", "-m", "fedgate.gateway_agent", "web", "-c", str(tmp_path / "gateway.toml")]
            page = children.start(command, stdout=words, stderr=words)
            try:
                until(lambda: b"the page is at" in log.read_bytes(), page, log)

                def ask(path: str) -> Any:
                    return json.loads(Client(port).get(path).text)

                assert ask("/api/overview")["is_live"]
                numbers = iter(range(10_000))

                def is_raised() -> bool:
                    number = next(numbers)
                    node.publish(topic(ME, "sample", "deck"), frame(samples(number, 1, 60.0), WINDOWS + number))
                    return bool(ask("/api/overview")["evidence"])

                until(is_raised, agent, tmp_path / "gateway.log")
                found = ask("/api/overview")
                assert [one["cause"] for one in found["alarms"]] == ["anomaly"]
                assert found["channels"][0]["value"] > 50 and set(found["charts"]) == {"bands", "spectrum", "trail"}
                assert ask("/api/device")["link"]["state"] == "up"
                process = psutil.Process(page.pid)
                loaded = " ".join(region.path for region in process.memory_maps())
                assert not [name for name in HEAVY if f"site-packages/{name}" in loaded]
                assert process.memory_full_info().pss < PSS_MAX
                mine = " ".join(region.path for region in psutil.Process(agent.pid).memory_maps())
                assert not [name for name in ("starlette", "uvicorn", "jinja2", "markupsafe") if name in mine]
                page.terminate()
                assert children.wait_for_end(page, END_S) == 0, log.read_text()
            finally:
                page.kill()
                page.wait()
    assert "Traceback" not in log.read_text()
