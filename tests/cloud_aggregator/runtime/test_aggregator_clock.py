"""The aggregator's clock is set while it runs: it goes on, and follows one that can be believed."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.runtime.app import Aggregator
from fedgate.config.protocol.messages import ClockQuality
from fedgate.config.runtime import cli, clock, loop
from fedgate.config.settings.settings import AggregatorSettings, load
from fedgate.models.time_units import NS


@pytest.mark.parametrize(
    ("by_s", "quality", "follows"),
    [
        (50 * 365 * 86_400, "synchronised", True),
        (-30 * 365 * 86_400, "synchronised", True),
        (30, "synchronised", True),
        (10**6, "unsynchronised", False),
    ],
)
def test_the_service_goes_on_where_its_clock_is_set_and_follows_one_that_can_be_believed(
    by_s: int, quality: ClockQuality, follows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["init", str(tmp_path / "site"), "--loopback"]) == 0
    settings = load(tmp_path / "site" / "aggregator.toml", AggregatorSettings)
    with socket.socket() as nobody:  # bound, so that no broker is there
        nobody.bind(("127.0.0.1", 0))
        here = settings.broker.model_copy(update={"port": nobody.getsockname()[1]})
        aggregator = Aggregator(settings.model_copy(update={"broker": here}))
        wall_ns, began_ns = time.time_ns, time.monotonic_ns()
        monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + by_s * NS)
        monkeypatch.setattr(clock, "ask_quality", lambda: quality)
        monkeypatch.setattr(loop, "TICK_S", 0.05)
        stop = threading.Timer(0.3, aggregator.stop)
        stop.start()
        assert cli.serve("cloud-aggregator", aggregator.run) == 0
        stop.cancel()
    context = aggregator.service.state.context
    assert (context.now_ns - wall_ns()) / NS == pytest.approx(by_s if follows else 0, abs=10)
    assert began_ns <= context.uptime_ns <= time.monotonic_ns()
