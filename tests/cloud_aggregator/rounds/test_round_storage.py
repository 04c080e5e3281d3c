"""Goal: what was counted in an open round survives any restart, bit for bit, and takes a bounded part of the disk.

Method: updates of a sum are stored one by one and folded into it above a number of bytes, made small here; the service
is ended after each of them, beside one that never is.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedgate.cloud_aggregator.events import (
    ROUNDS_CLOSED,
    ROUNDS_GIVEN_UP,
    ROUNDS_OPEN_MS,
    UPDATES_ADMITTED,
    UPDATES_BYTES,
    UPDATES_REFUSED,
    Log,
    Tick,
)
from fedgate.cloud_aggregator.rounds import rounds
from fedgate.cloud_aggregator.storage.store import Store, StoreError
from fedgate.config.protocol import wire
from fedgate.models.arrays import Arrays
from fedgate.models.federated.protocol.algorithm import Algorithm, Server
from fedgate.models.federated.wrappers.error_feedback import Compression, with_error_feedback
from fedgate.models.packing import packed
from tests.support.cloud_service import Cloud, cloud, mean_of

NAMES = [f"gateway-{number}" for number in range(9)]
SIZE = 40  # of which float64 without the meta takes as much as float32 with it
POLICY = {"rounds": {"quorum": 2, "deadline_s": 60.0}}


def half(_server: Server, update: Arrays) -> Arrays:
    return {name: np.asarray(array / 2) for name, array in update.items()}


def half_of(size: int) -> Algorithm:
    """Return an algorithm that counts half of what gateways send."""
    algorithm = mean_of(size)
    return algorithm._replace(phases=tuple(phase._replace(counted=half) for phase in algorithm.phases))


def in_store(made: Cloud) -> list[str]:
    return [row["gateway"] for row in made.service.store.read_rows("held", "gateway")]


@pytest.mark.soak
@pytest.mark.parametrize("algorithm", [mean_of(SIZE), half_of(SIZE)], ids=["as it came", "half of it"])
@pytest.mark.parametrize("updates_at_most", [0, 1, 3, 20])
def test_a_round_goes_on_with_the_same_sum_whenever_it_is_interrupted(
    updates_at_most: int, algorithm: Algorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stopped", "steady"):
        (tmp_path / name).mkdir()
    with (
        cloud(tmp_path / "stopped", algorithm, NAMES, **POLICY) as stopped,
        cloud(tmp_path / "steady", algorithm, NAMES, **POLICY) as steady,
    ):
        monkeypatch.setattr(rounds, "UNFOLDED_BYTES_MAX", updates_at_most * (len(stopped.body(0.1)) + 10))
        for number, name in enumerate(NAMES[:-1]):
            for made in (stopped, steady):
                made.send(name, made.body(0.1 * 3.0**number))  # a sum in another order has other bits
            assert len(in_store(stopped)) <= updates_at_most
            stopped.restart()
            assert stopped.service.state.rounds.counted == steady.service.state.rounds.counted
            for key, array in steady.service.state.rounds.total.items():
                np.testing.assert_array_equal(stopped.service.state.rounds.total[key], array)
        for made in (stopped, steady):
            made.hear(Tick(), after_s=60.0)
        assert stopped.w == steady.w != 0.0 and in_store(stopped) == []


@pytest.mark.parametrize(("algorithm", "is_kept"), [(mean_of(SIZE), True), (half_of(SIZE), False)])
def test_what_was_admitted_as_it_came_is_stored_as_it_came(algorithm: Algorithm, is_kept: bool, tmp_path: Path) -> None:
    with cloud(tmp_path, algorithm, NAMES, **POLICY) as made:
        sent = made.body(0.1)
        made.send(NAMES[0], sent)
        assert (made.service.store.read_held()[NAMES[0]].body == sent) == is_kept


def test_what_came_compressed_is_stored_so_and_added_again_bit_for_bit(tmp_path: Path) -> None:
    algorithm = with_error_feedback(mean_of(SIZE), Compression(number="int8"))
    with cloud(tmp_path, algorithm, NAMES, **POLICY) as made:
        for number, name in enumerate(NAMES[:-1]):
            update, meta = wire.decode(made.body(0.1 * 3.0**number))
            sent = wire.encode(packed(update, ["w"], "int8", 1.0), meta)
            assert made.send(name, sent)[0].accepted and made.service.store.read_held()[name].body == sent
        total = made.service.state.rounds.total
        made.restart()
        for key, array in made.service.state.rounds.total.items():
            np.testing.assert_array_equal(array, total[key])


def test_a_late_update_stays_where_the_round_at_hand_is_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "UNFOLDED_BYTES_MAX", 0)
    with cloud(tmp_path, mean_of(SIZE), NAMES, **POLICY) as made:
        slow = made.body(9.0)
        for name in NAMES[:2]:
            made.send(name, made.body(1.0))
        made.hear(Tick(), after_s=60.0)
        made.send(NAMES[2], slow)
        for name in NAMES[:2]:
            made.send(name, made.body(1.0))
        assert in_store(made) == [NAMES[2]]
        made.restart()
        made.hear(Tick(), after_s=60.0)
        assert made.w == pytest.approx(1.0 + (1.0 + 1.0 + 9.0) / 3)


def test_a_damaged_update_ends_the_start_with_what_to_do(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(SIZE), NAMES, **POLICY) as made:
        made.send(NAMES[0], made.body(1.0))
        with closing(sqlite3.connect(made.path)) as db, db:
            (body,) = db.execute("SELECT body FROM held").fetchone()
            db.execute("UPDATE held SET body = ?", (body[:-1] + bytes([body[-1] ^ 1]),))
        with pytest.raises(StoreError, match=r"damaged: .*digest differs.*cloud-aggregator restore FILE --replace"):
            made.restart()
        made.service.store = Store(made.path)


def test_totals_of_rounds_are_stored_with_them_and_log_lines_say_which_round_they_are_about(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(SIZE), NAMES, rounds={"quorum": 2}) as made:
        made.send(NAMES[0], made.wrong())
        made.send(NAMES[1], made.body(1.0), after_s=90)
        made.send(NAMES[2], made.body(1.0))
        made.hear(Tick(), after_s=600)
        totals = {row["name"]: row["value"] for row in made.service.store.read_rows("counts")}
        assert (totals[ROUNDS_CLOSED], totals[ROUNDS_GIVEN_UP], totals[ROUNDS_OPEN_MS]) == (1, 0, 690_000)
        assert (totals[UPDATES_ADMITTED], totals[UPDATES_REFUSED]) == (2, 1)
        assert totals[UPDATES_BYTES] == made.service.store.read_rows("rounds")[0]["bytes_received"] > 0
        run = made.service.state.rounds.run
        logs = {one.text: dict(one.about) for one in made.said if isinstance(one, Log)}
        assert logs["round 0 closed with 2 updates"] == {"run": run, "round": 0}
        (refused,) = [about for text, about in logs.items() if " refused: " in text]
        assert refused["gateway"] == NAMES[0] and len(str(refused["digest"])) == 64


def test_a_round_says_whose_update_was_refused_and_why_also_after_a_restart(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(SIZE), NAMES, rounds={"quorum": 2}) as made:
        made.send(NAMES[0], made.wrong())
        made.send(NAMES[1], made.body(1.0))
        made.restart()
        made.send(NAMES[2], made.body(1.0))
        made.hear(Tick(), after_s=600)
        (row,) = made.service.store.read_rows("rounds")
        ((gateway, why),) = json.loads(row["refusals"])
        assert (gateway, row["refused"]) == (NAMES[0], 1) and why
        assert made.service.state.rounds.refusals == ()
