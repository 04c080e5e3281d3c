"""A broker that forgets: queues of ten messages, a database that is gone after every kill.

Goal: what a gateway says arrives, whatever the broker does with it after it has acknowledged it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.field import BROKER, CLOUD, field
from tests.support.sites import WINDOWS, samples

NAMES = ("east", "north")
ALARMS = 12  # raised and cleared, each: more than twice what the broker keeps for the aggregator
SHIFT = 60.0
MINIMUM_WINDOWS = 12


@pytest.mark.slow
@pytest.mark.soak
def test_what_a_small_forgetful_broker_drops_arrives_all_the_same(tmp_path: Path) -> None:
    with field(tmp_path, NAMES, rounds={"quorum": 2}) as made:
        settings = (tmp_path / "mosquitto.conf").read_text().splitlines()
        kept = [line for line in settings if not line.startswith("max_queued")]
        (tmp_path / "mosquitto.conf").write_text("\n".join([*kept, "max_queued_messages 10"]) + "\n")
        made.begin()
        made.start(*NAMES)
        made.commission()
        made.settle(lambda: bool(made.rounds()) and {row["model_version"] for row in made.statuses().values()} == {1})

        made.kill(CLOUD)
        for count in range(2 * ALARMS):
            shift = SHIFT if count % 2 == 0 else 0.0
            made.feed(NAMES[0], samples(count, MINIMUM_WINDOWS, shift), WINDOWS + count * MINIMUM_WINDOWS)
        made.settle(lambda: len(made.outbox(NAMES[0])) >= 2 * ALARMS - 1)
        made.kill(BROKER)
        forgotten = list(tmp_path.glob("**/mosquitto.db"))
        for database in forgotten:
            database.unlink()
        made.start(BROKER, CLOUD)
        made.settle(lambda: not made.outbox(NAMES[0]))

        anomalies = [row for row in made.rows("alarms") if row["cause"] == "anomaly"]
        ends = [row["cleared_ns"] for row in anomalies]
        assert len(anomalies) == ALARMS and ends.count(None) <= 1
        onsets = sorted(row["onset_ns"] for row in anomalies)
        assert len(set(onsets)) == ALARMS  # each once, and with its own time
