"""Sketches of the sums that became no setting: what else could be sent in as few bytes, measured on the sums alone.

random projection       k coordinates along random directions, which a seed tells everyone
pooled directions       the range of B Ω, summed in an exchange of its own (Halko, Martinsson and Tropp 2011), then
                        the sums along it
own eigenvectors        every gateway its k largest eigenvalues and vectors of B, and all of A; the cloud takes what
                        is left out as a ridge
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.engine.study import Figures
from fedgate.firmware_sim.studies.esn_wesad.choice import Summed, summed, total
from fedgate.firmware_sim.studies.esn_wesad.data import folds, gateway
from fedgate.firmware_sim.studies.esn_wesad.options import CLASSES, Options
from fedgate.models.arrays import LABELS, Arrays, Floats
from fedgate.models.detectors.base.moments import symmetric, triangle
from fedgate.models.detectors.esn.ridge_readout import CROSS, GRAM

RIDGE = 0.01  # in mean eigenvalues, as in the algorithms
BYTES = 8


def _parts(sums: Arrays) -> tuple[Floats, Floats]:
    return sums[CROSS], symmetric(sums[GRAM], sums[CROSS].shape[1])


def _ridge(cross: Floats, gram: Floats) -> Floats:
    beta = RIDGE * float(np.trace(gram)) / len(gram)
    return np.asarray(np.linalg.solve(gram + beta * np.eye(len(gram)), cross.T).T)


def _along(parts: list[Arrays], directions: Floats) -> Floats:
    """Return the readout of the sums along directions (N, k) of the units; the rest is kept as it is."""
    cross, gram = _parts(total(parts))
    units, count = directions.shape
    basis = np.zeros((len(gram), count + len(gram) - units))
    basis[:units, :count], basis[units:, count:] = directions, np.eye(len(gram) - units)
    return np.asarray(_ridge(cross @ basis, basis.T @ gram @ basis) @ basis.T)


def random_projection(parts: list[Arrays], count: int, rng: np.random.Generator) -> Floats:
    """Return the readout along random directions of all units but the constant."""
    units = parts[0][CROSS].shape[1] - 1
    return _along(parts, np.linalg.qr(rng.normal(size=(units, count)))[0])


def pooled_directions(parts: list[Arrays], count: int, rng: np.random.Generator) -> Floats:
    """Return the readout along the range of B Ω."""
    _, gram = _parts(total(parts))
    return _along(parts, np.linalg.qr(gram[:-1, :-1] @ rng.normal(size=(len(gram) - 1, count)))[0])


def own_eigenvectors(parts: list[Arrays], count: int, rng: np.random.Generator) -> Floats:
    """Return the readout of the sum of what the largest eigenvectors of each gateway make of its B."""
    del rng
    cross, gram = _parts(total(parts))
    sketched = np.zeros_like(gram)
    for part in parts:
        values, vectors = np.linalg.eigh(_parts(part)[1])
        sketched += (vectors[:, -count:] * values[-count:]) @ vectors[:, -count:].T
    mean = float(np.trace(gram)) / len(gram)
    left_out = mean - float(np.trace(sketched)) / len(gram)
    return np.asarray(np.linalg.solve(sketched + (RIDGE * mean + left_out) * np.eye(len(gram)), cross.T).T)


class Sketch(NamedTuple):
    """A way to send less: the readout it leads to, and the bytes it sends and receives for k of M columns."""

    readout: Callable[[list[Arrays], int, np.random.Generator], Floats]
    sent: Callable[[int, int], int]
    received: Callable[[int, int], int]


def _along_bytes(count: int, size: int) -> int:
    del size
    return BYTES * (triangle(count + 1) + CLASSES * (count + 1))


def _readout_bytes(count: int, size: int) -> int:
    del count
    return BYTES * CLASSES * size


SKETCHES = {
    "random projection": Sketch(random_projection, _along_bytes, _readout_bytes),
    "pooled directions": Sketch(
        pooled_directions,
        lambda count, size: _along_bytes(count, size) + BYTES * count * (size - 1),
        lambda count, size: _readout_bytes(count, size) + BYTES * count * (size - 1),
    ),
    "own eigenvectors": Sketch(
        own_eigenvectors, lambda count, size: BYTES * (count * (size + 1) + CLASSES * size), _readout_bytes
    ),
}


def sketches(options: Options, data: Path, seed: int) -> Figures:
    """Return accuracy, error and bytes of every sketch at every size, on the first network, which has no direct
    inputs, under own normalisation.
    """
    known = summed(options, data, "recording", next(iter(options.networks)), seed)
    figures: Figures = {}
    for name, sketch in SKETCHES.items():
        for count in options.sizes:
            said, truth = _said(options, data, known, sketch, count, seed)
            size = next(iter(known.values())).regressors.shape[1]
            key = f"{name}.{count}"
            figures[f"{key}.accuracy"] = float(np.mean(said.argmax(axis=1) == truth))
            figures[f"{key}.error"] = float(np.square(said - np.eye(CLASSES)[truth]).sum(axis=1).mean())
            figures[f"{key}.bytes_up"] = float(sketch.sent(count, size))
            figures[f"{key}.bytes_down"] = float(sketch.received(count, size))
    return figures


def _said(
    options: Options, data: Path, known: dict[str, Summed], sketch: Sketch, count: int, seed: int
) -> tuple[Floats, Floats]:
    said, truth = [], []
    for fold in folds(options):
        weights = sketch.readout(
            [known[name].sums for name in fold.others], count, np.random.default_rng([seed, fold.number])
        )
        for name in fold.scored:
            said.append(known[name].regressors @ weights.T)
            truth.append(gateway(options, data, name, "recording")[LABELS])
    return np.concatenate(said), np.concatenate(truth)
