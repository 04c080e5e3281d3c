"""Our exchange and our simulation beside Flower's, in turns; prints the table and never fails on a figure.

    python -m tests.benchmarks.peers.compare <python of an environment with Flower>

A round that was not whole on either side ends it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fedgate.firmware_sim import broker as brokers
from fedgate.firmware_sim import children
from tests.benchmarks.central import make_certificate
from tests.benchmarks.exchange import GATEWAYS, ROUNDS, UPDATE_BYTES, WARM_UP, Exchange, exchange
from tests.benchmarks.figures import Figure, Target, table
from tests.benchmarks.peers.loopback import round_s, sealing_s
from tests.benchmarks.peers.simulation import NAMES, fedavg, same_task, trained, work_s
from tests.benchmarks.station import ROOT
from tests.support.waiting import PATIENCE_S

TURNS = 3
NUMBERS = UPDATE_BYTES // 4  # float32
ROUND_OF_PEER = {False: 0.5, True: 0.8}  # with TLS? of updates that are not compressed
DEFAULT_OF_PEER = 0.25  # of those that travel as they do by default
AGGREGATOR_BUSY_S = 0.12  # a round
NODES, SIMULATED_ROUNDS = (200, 500), 3
NODE_OF_PEER = 1 / 50
NODE_MS = 0.5


class Peer(NamedTuple):
    """What a round of the peer takes, and how busy its server is in one."""

    round_s: float
    busy_s: float


def run_peer(folder: Path, command: Sequence[object]) -> dict[str, Any]:
    """Return what a command printed that runs where the peers are installed.

    Raises `AssertionError` with the end of what it complained of where it failed.
    """
    quiet = {"FLWR_HOME": str(folder / "flower"), "FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    ended = children.run([*map(str, command)], PATIENCE_S, text=True, cwd=ROOT, env={**os.environ, **quiet})
    assert ended.returncode == 0, ended.stderr[-4_000:]
    printed: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return printed


def flower_exchange(python: Path, folder: Path, *, tls: bool) -> tuple[list[float], float]:
    """Return how long Flower's rounds took, without those of the warm-up, and what its server was busy in one."""
    secured = [make_certificate(folder).parent] if tls else []
    order = (brokers.find_free_port(), GATEWAYS, ROUNDS, NUMBERS, *secured)
    printed = run_peer(folder, [python, "-m", "tests.benchmarks.peers.flower_exchange", *order])
    assert printed["replies"] == [GATEWAYS] * ROUNDS, printed["replies"]
    busy_s = np.diff(printed["busy_s"])[WARM_UP:]
    return np.diff(printed["opened_s"])[WARM_UP:].tolist(), float(busy_s.mean())


def exchange_figures(python: Path, folder: Path, *, tls: bool) -> list[Figure]:
    """Return our exchange beside Flower's."""
    ours, theirs, limits_s = list[Exchange](), list[tuple[list[float], float]](), list[float]()
    by_default: list[Exchange] = []
    for turn in range(TURNS):
        place = folder / f"{'tls' if tls else 'plain'}-{turn}"
        place.mkdir()
        theirs.append(flower_exchange(python, place, tls=tls))
        ours.append(exchange(place / "ours", tls=tls, plain=True))
        by_default.append(exchange(place / "default", tls=tls))
        cipher_s = sealing_s(2 * GATEWAYS * UPDATE_BYTES) if tls else 0.0
        limits_s.append(round_s(GATEWAYS, UPDATE_BYTES) + cipher_s)
    theirs_s = float(np.median([taken_s for durations_s, _ in theirs for taken_s in durations_s]))
    server_s, limit_s = float(np.median([busy_s for _, busy_s in theirs])), float(np.median(limits_s))
    way = "TLS" if tls else "no TLS"
    peer, target = Peer(theirs_s, server_s), Target(ROUND_OF_PEER[tls], of_peer=True)
    default = Target(DEFAULT_OF_PEER, of_peer=True)
    return [
        *figures_beside(peer, f"{GATEWAYS} gateways, int8 up, 1.3 MB down, {way}", by_default, default, None),
        *figures_beside(peer, f"{GATEWAYS} gateways, 1.3 MB up and down, {way}", ours, target, limit_s),
    ]


def figures_beside(
    peer: Peer, what: str, found: list[Exchange], target: Target, limit_s: float | None
) -> Iterator[Figure]:
    """Yield what rounds of ours took beside the peer's."""
    median_s = float(np.median([taken_s for one in found for taken_s in one.durations_s]))
    aggregator_s, broker_s = (float(np.median([one.busy_s[who] for one in found])) for who in ("aggregator", "broker"))
    yield Figure(f"{what}: median round", median_s, "s", target, peer.round_s, limit_s)
    yield Figure(f"{what}: processor of the aggregator", aggregator_s, "s a round", Target(AGGREGATOR_BUSY_S))
    yield Figure(f"{what}: processor of aggregator and broker", aggregator_s + broker_s, "s a round", None, peer.busy_s)


def simulation_figures(python: Path, folder: Path, nodes: int) -> list[Figure]:
    """Return our training loop beside Flower's simulation engine, both of which must end in the same model."""
    printed = run_peer(folder, [python, "-m", "tests.benchmarks.peers.flower_simulation", nodes, SIMULATED_ROUNDS])
    assert printed["replies"] == [nodes] * SIMULATED_ROUNDS, printed["replies"]
    same = [trained(same_task(), nodes, SIMULATED_ROUNDS) for _ in range(TURNS)]
    for name, array in zip(NAMES, printed["model"], strict=True):
        np.testing.assert_allclose(same[0][0].shared[name], array, rtol=1e-9, atol=1e-12)
    ours_s = float(np.median([taken_s for _, taken_s in same]))
    fedavg_s = np.median([trained(fedavg(), nodes, SIMULATED_ROUNDS)[1] for _ in range(TURNS)])
    theirs_s = float(np.median(printed["durations_s"])) / nodes
    limit_s = float(np.median([work_s(nodes) for _ in range(TURNS)]))
    what, target = f"simulation of {nodes} gateways, one round of one", Target(NODE_OF_PEER, of_peer=True)
    return [
        Figure(f"{what}: the same task", 1e3 * ours_s, "ms", target, 1e3 * theirs_s, 1e3 * limit_s),
        Figure(f"{what}: fedavg, 5 epochs", 1e3 * float(fedavg_s), "ms", Target(NODE_MS)),
    ]


def main() -> None:
    python = Path(sys.argv[1]).absolute()
    with TemporaryDirectory() as folder:
        place = Path(folder)
        figures = [figure for tls in (False, True) for figure in exchange_figures(python, place, tls=tls)]
        figures += [figure for nodes in NODES for figure in simulation_figures(python, place, nodes)]
    print("\n".join(table(figures)))


if __name__ == "__main__":
    main()
