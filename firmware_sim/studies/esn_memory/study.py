"""Does the memory of an echo state network pay, and where? Tasks that need one, beside models that have none.

A cell is a task, a model and a seed: what is tried is chosen on rows that choose, and its loss on the rows that are
reported is written down. Further cells measure how long reservoirs of several leaks and radii remember an input.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Study, StudyError
from fedgate.firmware_sim.studies.esn_memory.models import DRAWN, NETWORK, losses, models_of, tried
from fedgate.firmware_sim.studies.esn_memory.options import Capacity, Options
from fedgate.firmware_sim.studies.esn_memory.report import CAPACITY, report
from fedgate.firmware_sim.studies.esn_memory.tasks import task
from fedgate.models.arrays import generator
from fedgate.models.detectors.esn import esn, ridge_readout
from fedgate.models.detectors.esn.network import Network

CAPACITY_RIDGE = 1e-9


def cells(options: Options) -> list[Cell]:
    """Return task x model x seed, where something is drawn, and leak x radius x seed of the capacity curve."""
    found: list[Cell] = []
    for name, each in options.tasks.items():
        for model in models_of(each.kind):
            seeds = options.seeds if model in DRAWN or not each.folder else 1
            found += [{"task": name, "model": model, "seed": seed} for seed in range(seeds)]
    grid = product(options.capacity.leak, options.capacity.spectral_radius, range(options.seeds))
    return found + [{"task": CAPACITY, "leak": leak, "radius": radius, "seed": seed} for leak, radius, seed in grid]


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return the loss reported of what did best where it was chosen, and of a network the best at each leak and radius.

    Raises `StudyError` where the data cannot be read.
    """
    if cell["task"] == CAPACITY:
        return capacity(options.capacity, cell["leak"], cell["radius"], options.seed + int(cell["seed"]))
    each, seed = options.tasks[cell["task"]], options.seed + int(cell["seed"])
    given = task(each, data / each.folder, generator(seed, 0, cell["task"]))
    best, figures = float("inf"), Figures()
    by_memory: dict[str, tuple[float, float]] = {}
    rng = generator(seed, 0, "reservoir")
    for chosen, said, size in tried(cell["model"], given, options.grid, options.units, rng):
        choice, reported = losses(given, said)
        if choice < best:
            best = choice
            figures = {"choose": choice, "loss": reported, "size": float(size), **chosen}
        if cell["model"] == NETWORK:
            key = f"at.{chosen['leak']:g}.{chosen['spectral_radius']:g}"
            by_memory[key] = min(by_memory.get(key, (float("inf"), 0.0)), (choice, reported))
    if not figures:
        raise StudyError(f"{cell['task']}, {cell['model']}: no ridge determines a readout; give a larger one")
    return {**figures, **{key: reported for key, (_, reported) in by_memory.items()}}


def capacity(options: Capacity, leak: float, radius: float, seed: int) -> Figures:
    """Return how much of an input so many steps ago, `delay.k`, the states still hold, and the sum over all delays.

    The squared correlation, on rows that trained nothing, of u(t-k) with the best linear readout (Jaeger 2001).
    """
    rng = generator(seed, 0, CAPACITY)
    network = Network(
        task="classify", units=options.units, leak=leak, spectral_radius=radius, input_scaling=0.1, direct=False
    )
    u = rng.uniform(-1.0, 1.0, (options.rows, 1))
    params = esn.initial(rng, network, 1)
    regressors = np.asarray(esn.passed(params, u).regressors, dtype=np.float64)
    delays = np.arange(1, options.delays + 1)
    targets = np.stack([np.concatenate([np.zeros(k), u[:-k, 0]]) for k in delays], axis=1)  # (n, delays)
    start = max(options.delays, network.washout_steps)
    middle = (start + options.rows) // 2
    total = ridge_readout.sums(regressors[start:middle], targets[start:middle])
    said = regressors[middle:] @ ridge_readout.solve(total, CAPACITY_RIDGE).weights.T
    held = [_squared_correlation(one, two) for one, two in zip(said.T, targets[middle:].T, strict=True)]
    return {f"delay.{k}": value for k, value in zip(delays.tolist(), held, strict=True)} | {"total": float(sum(held))}


def _squared_correlation(one: Any, two: Any) -> float:
    return float(np.corrcoef(one, two)[0, 1] ** 2) if np.std(one) > 0.0 else 0.0


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return what of the options a measurement depends on, beside its cell."""
    if cell["task"] == CAPACITY:
        sizes = options.capacity.model_dump(mode="json", exclude={"leak", "spectral_radius"})
        return {"seed": options.seed, "capacity": sizes}
    each = options.tasks[cell["task"]].model_dump(mode="json", exclude={"note"})
    return {"seed": options.seed, "task": each, "grid": options.grid.model_dump(mode="json"), "units": options.units}


STUDY = Study(Options, cells, measure, report, identity)
