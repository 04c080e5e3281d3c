"""How much memory a training takes on a gateway: the child process, at the largest baseline an agent can hold.

A gateway of 1 GiB has to keep sampling while it trains, so a training may take half of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol import wire
from fedgate.config.settings.settings import Baseline
from fedgate.firmware_sim import children
from fedgate.models.arrays import FEATURES, LABELS, Arrays, generator, joined
from fedgate.models.federated import ALGORITHMS, build
from tests.benchmarks.conftest import Note

MIB = 2.0**20
TARGET_MIB = 512.0
FEATURE_COUNT = 300
FAULTS = 200  # labelled windows beside the baseline, for the algorithms that need them


def job(name: str, windows: int) -> bytes:
    """Return the first job of a training, as an agent would hand it to its child."""
    algorithm = build(name, FEATURE_COUNT, {})
    rng = np.random.default_rng(0)
    labelled = {FEATURES: rng.normal(1.0, 1.0, (FAULTS, FEATURE_COUNT)), LABELS: np.ones(FAULTS, dtype=np.int64)}
    parts: dict[str, Arrays] = {
        "shared": algorithm.start(generator(0, 0, "cloud")).global_state,
        "data": {FEATURES: rng.normal(size=(windows, FEATURE_COUNT)).astype(np.float32)},
        "labelled": labelled,
    }
    order: dict[str, Any] = {"algorithm": name, "settings": {}, "feature_count": FEATURE_COUNT, "phase": 0}
    order |= {"run": "run", "seed": 0, "round_index": 0, "gateway": "north", "secret": "", "drawn": ""}
    return wire.encode(joined(parts), order)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_memory_of_a_training(name: str, note: Note) -> None:
    most = next(part.le for part in Baseline.model_fields["windows"].metadata if hasattr(part, "le"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "fedgate.gateway_agent.runtime.training_worker"]
    child = children.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(job(name, most))
    child.stdin.close()
    answer = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.stdout.close()
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0 and answer
    peak_mib, seconds = usage.ru_maxrss * 1024 / MIB, usage.ru_utime + usage.ru_stime
    note(
        f"{name}: first exchange on {most} windows of {FEATURE_COUNT} features, peak",
        peak_mib,
        "MiB",
        at_most=TARGET_MIB,
    )
    note(f"{name}: the same, one core", seconds, "s")
