"""A line of 20 kB/s that loses three packets of ten and breaks now and then, as under a bridge in winter.

Goal: rounds close, models come, alarms arrive. That an alarm does not wait behind an update is shown by `test_link`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.field import field
from tests.chaos.slow_link import slow_link
from tests.support.sites import WINDOWS, samples

NAMES = ("east", "north")
RATE_BYTES_S = 20_000.0
LOSS = 0.3
SHIFT = 60.0


@pytest.mark.slow
@pytest.mark.soak
def test_a_round_and_an_alarm_get_through_a_slow_line_that_loses_and_breaks(tmp_path: Path) -> None:
    with field(tmp_path, NAMES, rounds={"quorum": 2}) as made:
        made.begin()
        with slow_link(made.port, rate_bytes_s=RATE_BYTES_S, loss=LOSS) as line:
            made.write_settings(NAMES[0], port=line.port)
            made.start(*NAMES)
            made.commission()
            made.settle(lambda: bool(made.rounds()))
            line.cut()
            made.settle(lambda: {row["model_version"] for row in made.statuses().values()} == {1})
            made.feed(NAMES[0], samples(100, 10, SHIFT), WINDOWS)
            line.cut()
            made.settle(lambda: [row["cause"] for row in made.rows("alarms")] == ["anomaly"])
            assert line.packets_lost > 0 and line.bytes_passed > 10_000
            made.end()
