"""The aggregator's clock is set while it runs: by a little it follows, by more it ends and is started again."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.runtime.app import Aggregator
from fedgate.config.runtime import cli, clock, loop
from fedgate.config.settings.settings import AggregatorSettings, load
from fedgate.models.time_units import NS


@pytest.mark.parametrize(
    ("by_s", "quality", "code"),
    [
        (50 * 365 * 86_400, "synchronised", cli.SERVICE_ERROR),
        (-90, "synchronised", cli.SERVICE_ERROR),
        (30, "synchronised", 0),
        (10**6, "unsynchronised", 0),
    ],
)
def test_the_service_ends_where_the_clock_makes_a_great_step_and_follows_a_small_one(
    by_s: int, quality: clock.Quality, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["init", str(tmp_path / "site"), "--loopback"]) == 0
    settings = load(tmp_path / "site" / "aggregator.toml", AggregatorSettings)
    with socket.socket() as nobody:  # bound, so that no broker is there
        nobody.bind(("127.0.0.1", 0))
        here = settings.broker.model_copy(update={"port": nobody.getsockname()[1]})
        aggregator = Aggregator(settings.model_copy(update={"broker": here}))
        wall_ns = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + by_s * NS)
        monkeypatch.setattr(clock, "quality", lambda: quality)
        monkeypatch.setattr(loop, "TICK_S", 0.05)
        stop = threading.Timer(0.3, aggregator.stop)
        stop.start()
        assert cli.serve("cloud-aggregator", aggregator.run) == code
        stop.cancel()
    followed_s = (aggregator.service.state.context.now_ns - wall_ns()) / NS
    assert followed_s == pytest.approx(by_s if by_s == 30 else 0, abs=10)
