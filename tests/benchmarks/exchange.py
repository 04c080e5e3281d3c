"""Rounds between the aggregator and light gateways over a real broker: what they take, where all of them were whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgate.firmware_sim import children
from tests.benchmarks.central import centre
from tests.support.waiting import PATIENCE_S

GATEWAYS, ROUNDS, WARM_UP = 16, 30, 5
UPDATE_BYTES = 1_300_000
NARROW_BYTES = UPDATE_BYTES // 4  # as int8, which is the default


class Exchange(NamedTuple):
    """What rounds took: how long each, without those of the warm-up, and what went into one."""

    durations_s: list[float]
    busy_s: dict[str, float]  # processor of the aggregator, of the broker and of the light gateways together, a round
    sent_mb: float  # by a gateway, a round
    received_mb: float


def exchange(folder: Path, *, tls: bool, plain: bool = False) -> Exchange:
    """Run the rounds and return what they took, with updates as they travel by default, or `plain`.

    Raises `AssertionError` where not every update of every gateway was counted, or less than a model went each way.
    """
    with centre(folder, quorum=GATEWAYS, tls=tls, plain=plain) as running:
        servers = {"aggregator": running.aggregator_pid, "broker": running.broker_pid}
        arguments = [str(number) for number in (running.broker.port, GATEWAYS, ROUNDS, *servers.values())]
        arguments += [str(running.broker.ca_file)] if tls else []
        command = [sys.executable, "-m", "tests.benchmarks.light_gateways", *arguments]
        ended = children.run(command, PATIENCE_S, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr + (folder / "aggregator.log").read_text()[-4_000:]
        said = json.loads(ended.stdout)
    check(said, sent_bytes=UPDATE_BYTES if plain else NARROW_BYTES)
    rounds_s = np.diff(said["servers_s"], axis=0)[WARM_UP:].mean(axis=0)  # without the start of the processes
    busy_s = {**dict(zip(servers, rounds_s.tolist(), strict=True)), "light gateways": said["busy_s"] / ROUNDS}
    return Exchange(
        np.diff(said["opened_s"])[WARM_UP:].tolist(),
        busy_s,
        *(said[way] / ROUNDS / GATEWAYS / 1e6 for way in ("sent", "received")),
    )


def check(said: dict[str, Any], sent_bytes: int = UPDATE_BYTES) -> None:
    """Raise `AssertionError` where what the light gateways printed is not that of so many whole rounds."""
    assert len(said["opened_s"]) > ROUNDS, f"{len(said['opened_s'])} rounds opened, more than {ROUNDS} expected"
    assert not said["refused"], said["refused"][:3]
    assert len(said["counted"]) == GATEWAYS and min(said["counted"]) >= ROUNDS, said["counted"]
    for way, size in (("sent", sent_bytes), ("received", UPDATE_BYTES)):
        expected = ROUNDS * GATEWAYS * size
        assert said[way] >= expected, f"{way}: {said[way]} bytes, at least {expected} expected"
