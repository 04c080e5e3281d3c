"""What a gateway writes to its card: flash wears out, so a quiet gateway hardly writes, and a busy one in groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fedgate.config.settings.settings import MIB, StoreTable
from fedgate.gateway_agent import machine
from fedgate.gateway_agent.events import Durable, Enqueue, Keep
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.storage.store import Store
from tests.benchmarks import station, usage
from tests.benchmarks.conftest import Note
from tests.benchmarks.timing import median_s, repeat
from tests.support.flash_day import commission, live
from tests.support.kept import Small, item, service

GROUP = 12  # windows of 5 s in a minute
FEATURES = 12
ALARM_BYTES = 700
RECORDS = 600
# Where the card is a fast one; what one commit costs is one flush of the disk.
RECORDS_PER_S, WINDOW_BYTES, ALARM_WRITTEN_BYTES = 1_000.0, 700, 16_000


@pytest.mark.soak  # test_store_budget.py lives the same day in every run
def test_a_day_with_an_alarm_every_hour(tmp_path: Path, benchmark: BenchmarkFixture, note: Note) -> None:
    agent = service(Store(tmp_path / "gateway.db"))
    commission(agent)
    before_bytes = usage.written_bytes()
    repeat(benchmark, live, agent, rounds=1)
    written_bytes = usage.written_bytes() - before_bytes
    agent.close()
    budget_mib = StoreTable().flash_bytes_per_day / MIB
    note("store: written in a day, an update and a model in it", written_bytes / MIB, "MiB", at_most=budget_mib)


def _kept(store: Store, number: int) -> Durable:
    return Keep(FeatureRow(np.full(FEATURES, number, np.float32), number))


def test_windows_in_groups(tmp_path: Path, benchmark: BenchmarkFixture, note: Note) -> None:
    store = Small(tmp_path / "gateway.db")
    before_bytes = usage.written_bytes()

    def fill() -> None:
        for number in range(0, RECORDS, GROUP):
            store.commit([_kept(store, number + part) for part in range(GROUP)])

    repeat(benchmark, fill, rounds=1)
    written_bytes = (usage.written_bytes() - before_bytes) / RECORDS
    store.close()
    if not benchmark.disabled:
        records_per_s = RECORDS / median_s(benchmark)
        note("store: windows of a baseline stored, in groups of 12", records_per_s, "1/s", at_least=RECORDS_PER_S)
    note("store: written for a window of a baseline", written_bytes, "B", at_most=WINDOW_BYTES)


def test_alarms_one_by_one(tmp_path: Path, note: Note) -> None:
    store, before_bytes = Small(tmp_path / "gateway.db"), usage.written_bytes()
    for number in range(RECORDS):
        name = f"{number:032d}.raised"
        store.commit([Enqueue(name, item(name, 0, ALARM_BYTES))])
    written_bytes = (usage.written_bytes() - before_bytes) / RECORDS
    store.close()
    note("store: written for an alarm of 700 B", written_bytes, "B", at_most=ALARM_WRITTEN_BYTES)


def test_watching_writes_nothing(tmp_path: Path) -> None:
    state = station.commissioned()
    durable: list[Durable] = []
    for arrival in station.arrivals(state.context.settings.features, 5):
        state, effects = machine.step(state, arrival.now_ns, arrival.event)
        durable += [effect for effect in effects if isinstance(effect, Durable)]
    assert state.monitor.windows == 5
    assert durable == []
