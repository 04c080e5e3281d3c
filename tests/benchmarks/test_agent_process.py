"""The agent as a process of its own on a real broker: memory, processor, and the delay that an operator sees."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from fedgate.models.features.spec import FeatureSpec
from tests.benchmarks import station, usage
from tests.benchmarks.conftest import Note
from tests.benchmarks.field import Field, field

SETTLE_S = 3.0
SILENT_S = 10.0
REAL_TIME_WINDOWS, TIMED_WINDOWS = 10, 150
RSS_MIB_MAX = 80.0
CORE_PERCENT_MAX = 5.0
SHIPPED, LARGE = "1 channel at 100 Hz", "24 channels at 600 Hz"

pytestmark = pytest.mark.slow


def note_memory(note: Note, what: str, running: Field, at_most: float | None = None) -> None:
    used = usage.memory(running.agent.pid)
    note(f"agent, {what}: resident", used.rss_mib, "MiB", at_most=at_most)
    note(f"agent, {what}: proportional share", used.pss_mib, "MiB")
    note(f"agent, {what}: private and written", used.private_dirty_mib, "MiB")


def core_percent(before_s: float, began_s: float, running: Field) -> float:
    """Return the share of one core that the agent took since then."""
    return 100 * (usage.busy_s(running.agent.pid) - before_s) / (time.monotonic() - began_s)


@pytest.mark.parametrize(("what", "spec"), [(SHIPPED, station.shipped_features()), (LARGE, station.features())])
def test_memory(what: str, spec: FeatureSpec, tmp_path: Path, note: Note) -> None:
    with field(tmp_path, spec) as running:
        time.sleep(SETTLE_S)
        note_memory(note, f"{what}, idle", running)
        running.commission()
        running.play(40, per_s=5.0)
        running.heard()
        note_memory(note, f"{what}, scoring", running, RSS_MIB_MAX)
        usage.forget_touched(running.agent.pid)
        running.play(40, per_s=5.0)
        running.heard()
        note(f"agent, {what}, scoring: touched by 40 windows", usage.touched_mib(running.agent.pid), "MiB")


def test_processor_and_delay(tmp_path: Path, note: Note) -> None:
    with field(tmp_path, station.features()) as running:
        time.sleep(SETTLE_S)
        before_s, began_s = usage.busy_s(running.agent.pid), time.monotonic()
        time.sleep(SILENT_S)
        note("agent, no sensor: processor", core_percent(before_s, began_s, running), "% of a core")

        running.commission()
        before_s, began_s = usage.busy_s(running.agent.pid), time.monotonic()
        running.play(REAL_TIME_WINDOWS, per_s=1.0 / running.spec.window_s)
        running.heard()
        busy = core_percent(before_s, began_s, running)
        note(f"agent, {LARGE}: processor", busy, "% of a core", at_most=CORE_PERCENT_MAX)

        sent_s = running.play(TIMED_WINDOWS, per_s=5.0)
        delays_ms = [1e3 * (arrived_s - sent_s[end_ns]) for end_ns, arrived_s in running.heard().items()]
        assert len(delays_ms) == TIMED_WINDOWS
        p50_ms, p99_ms = np.quantile(delays_ms, (0.5, 0.99))
        note(f"node's frame to operator's score, {LARGE}, p50", p50_ms, "ms")
        note(f"node's frame to operator's score, {LARGE}, p99", p99_ms, "ms")
