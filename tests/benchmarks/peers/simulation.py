"""Our training loop on the task of `simulated_task`, and on FedAvg as it comes over the same rows."""

from __future__ import annotations

import time

import numpy as np

from fedgate.firmware_sim.evaluate.training import Fit, train_fleet
from fedgate.models.arrays import FEATURES as ROWS_NAME
from fedgate.models.arrays import Array, Arrays
from fedgate.models.federated import build
from fedgate.models.federated.averaging.averaging import STEP, averaging
from fedgate.models.federated.protocol.algorithm import Algorithm, Server, Trained
from tests.benchmarks.peers.simulated_task import FEATURES, ROWS, first_model, improved, rows_of

NAMES = ("frequencies", "phases", "rest")
LARGEST_CHANGE = 1e3


def same_task() -> Algorithm:
    """Return the task as an algorithm, whose updates are as large as a model."""

    def start(_rng: np.random.Generator) -> Server:
        first = dict(zip(NAMES, first_model(), strict=True))
        return Server({**first, STEP: np.array(0, dtype=np.int64)}, {})

    def improve(global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        moved = improved([global_state[name] for name in NAMES], data[ROWS_NAME])
        return local_state, dict(zip(NAMES, moved, strict=True))

    phase = averaging(improve, None, NAMES, largest_change=LARGEST_CHANGE, max_samples=ROWS, normalisation="none")
    return Algorithm("linear", start, (phase,))


def fedavg() -> Algorithm:
    """Return FedAvg with its defaults: 256 components of a map, five epochs of the dual; the width of the map given."""
    return build("fedavg", FEATURES, {"gamma": 1.0 / FEATURES})


def trained(algorithm: Algorithm, nodes: int, rounds: int) -> tuple[Fit, float]:
    """Return a training of so many nodes and rounds, and how many seconds a node took in a round.

    Raises `AssertionError` where a node sent nothing, or a round had to be repeated.
    """
    data = {f"node-{number:04d}": {ROWS_NAME: rows_of(number)} for number in range(nodes)}
    began_s = time.perf_counter()
    fit = train_fleet(algorithm, data, seed=0, rounds=rounds)
    taken_s = time.perf_counter() - began_s
    assert fit.exchanges == rounds and len(fit.sent_bytes) == nodes and all(fit.sent_bytes.values()), fit.exchanges
    return fit, taken_s / rounds / nodes


def work_s(nodes: int) -> float:
    """Return how many seconds the work of one node takes alone: what no loop around it can save."""
    model: list[Array] = [*first_model()]
    rows = [rows_of(number) for number in range(nodes)]
    began_s = time.perf_counter()
    for each in rows:
        improved(model, each)
    return (time.perf_counter() - began_s) / nodes
