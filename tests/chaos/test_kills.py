"""Everything is killed, again and again, at moments that nobody chose, with certificates on.

Goal: what the seeded world shows of the machines holds for the processes: after many rounds, a kill in every second,
the model is, byte for byte, that of the loop over the data sets and that of the world, no round was decided
twice, nobody was counted twice, and every alarm arrived once.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.field import BROKER, CLOUD, Field, field, whole
from tests.end_to_end.test_end_to_end import loop_model
from tests.support.sites import WINDOWS, Site, aggregator_settings, gateway_settings, samples

NAMES = ("east", "north")  # of two the sum is the same whoever comes first, so models can be held byte against byte
ROUNDS, ROUND_S = 50, 1.5
SHIFT = 60.0  # deviations: damage that nobody can miss
SEED = 9
LOW_LEVEL = 1_000.0  # false alarms a day: what eight components can tell apart reaches no higher


TRAINING: dict[str, Any] = {
    "name": "fedavg",
    "seed": 5,
    "settings": {"rounds": ROUNDS, "components": 8, "gamma": 0.3},
}


def world_model() -> str:
    """Return the digest of the model that the machines end in where nothing goes wrong."""
    made = Site(aggregator_settings(algorithm=TRAINING, rounds={"quorum": 2}), map(gateway_settings, NAMES))
    made.connect_all()
    made.commission()
    made.run(made.in_force)
    assert made.cloud.releases.manifest is not None
    return made.cloud.releases.manifest.model.digest


def kill_through(made: Field, chance: random.Random) -> Counter[str]:
    """Kill one in every second round, at a moment that chance takes, until all rounds are closed; return how often each
    was killed.
    """
    killed: Counter[str] = Counter()
    for closed in range(0, ROUNDS, 2):
        made.settle(partial(has_closed, made, closed))
        time.sleep(chance.uniform(0.0, 2 * ROUND_S))
        victim = chance.choice((*NAMES, CLOUD, BROKER))
        made.restart(victim)
        killed[victim] += 1
    made.settle(partial(has_closed, made, ROUNDS))
    return killed


def has_closed(made: Field, count: int) -> bool:
    return len(made.rounds()) >= count


@pytest.mark.slow
@pytest.mark.soak
def test_rounds_under_fire_end_in_the_model_of_the_loop_and_of_the_world(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    settings = {"algorithm": TRAINING, "rounds": {"quorum": 2, "deadline_s": 600.0}}
    with field(tmp_path, NAMES, false_alarms_per_day=LOW_LEVEL, **settings) as made:
        made.begin()
        made.start(*NAMES)
        made.commission()
        killed = kill_through(made, chance)
        assert min(killed[who] for who in (*NAMES, CLOUD, BROKER)) > 0, killed
        made.settle(lambda: {status["model_version"] for status in made.statuses().values()} == {1})

        spans = ((0.0, 0.0), (10.0, SHIFT), (20.0, 0.0))
        for start_s, shift in spans:
            for index, who in enumerate(NAMES):
                made.feed(who, samples(100 + index, 10, shift), WINDOWS + start_s)
            made.restart(chance.choice((CLOUD, BROKER)))
        made.settle(lambda: {status["windows"] for status in made.statuses().values()} == {10 * len(spans)})
        assert all(made.told(who, "raised") for who in NAMES)
        made.settle(lambda: not any(made.outbox(who) for who in NAMES))

        closed = made.rounds()
        assert [row["round_index"] for row in closed] == list(range(ROUNDS))
        assert {tuple(sorted(row["gateways"].split())) for row in closed} == {NAMES}
        (model,) = made.rows("models", "version", "digest")
        digest = hashlib.sha256(loop_model(tmp_path, list(NAMES))).hexdigest()
        assert model["digest"] == digest == world_model()
        anomalies = [row for row in made.rows("alarms") if row["cause"] == "anomaly"]
        assert Counter(row["gateway"] for row in anomalies) == {who: made.told(who, "raised") for who in NAMES}
        cleared = [row for row in anomalies if row["cleared_ns"] is not None]
        assert Counter(row["gateway"] for row in cleared) == {who: made.told(who, "cleared") for who in NAMES}
        assert all(row["onset_ns"] <= row["raised_ns"] and row["model_digest"] == digest for row in anomalies)
        assert all(row["raised_ns"] < row["cleared_ns"] for row in cleared)
    assert all(whole(tmp_path / f"{who}.db") for who in (*NAMES, CLOUD))
