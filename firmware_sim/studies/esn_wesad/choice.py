"""Network and ridge chosen without a look at who is scored: inner folds leave out one training subject at a time.

The sums of all training subjects but one are those of all less its own, so an inner fold costs one solution for each
ridge and no training at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.engine.study import Figures
from fedgate.firmware_sim.studies.esn_wesad.data import Fold, folds, gateway
from fedgate.firmware_sim.studies.esn_wesad.methods import Outputs, figures_of
from fedgate.firmware_sim.studies.esn_wesad.options import Normalisation, Options
from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats, Singles, generator
from fedgate.models.detectors.esn import esn, ridge_readout
from fedgate.models.federated import build
from fedgate.models.federated.closed_form.series import lesson
from fedgate.models.federated.protocol.run import run


class Summed(NamedTuple):
    """A subject under one network: regressors (n, M) of all rows, and the sums of those that teach."""

    regressors: Singles
    sums: Arrays


def summed(options: Options, data: Path, normalisation: Normalisation, network: str, seed: int) -> dict[str, Summed]:
    """Return every subject's regressors and sums, as its gateway would make them."""
    chosen, found = options.network(network), {}
    shared: Arrays = {}
    for name in options.subjects:
        rows = gateway(options, data, name, normalisation)
        if not shared:
            count = rows[FEATURES].shape[1]
            algorithm = build(
                "incfed", count, {"network": chosen.model_dump(), "normalisation": "none", "unit": "feature"}
            )
            shared = algorithm.start(generator(seed, 0, "cloud")).global_state
        taught = lesson(chosen, shared, {}, rows, "none")
        found[name] = Summed(
            esn.passed(shared, rows[FEATURES]).regressors, ridge_readout.sums(taught.regressors, taught.targets)
        )
    return found


def total(parts: list[Arrays]) -> Arrays:
    """Return the sum of sums."""
    return {name: np.asarray(sum(part[name] for part in parts)) for name in parts[0]}


def chosen(options: Options, data: Path, normalisation: Normalisation, seed: int) -> Figures:
    """Return the figures of IncFed with the network and the ridge that did best on the inner folds of each fold, and
    which these were: places in `candidates` and `ridges`.
    """
    known = {name: summed(options, data, normalisation, name, seed) for name in options.candidates}
    truth = {name: gateway(options, data, name, normalisation)[LABELS] for name in options.subjects}
    best = {fold.number: _best(options, known, truth, fold) for fold in folds(options)}

    def train(fold: Fold) -> Outputs:
        candidate, ridge = best[fold.number]
        network = options.network(options.candidates[candidate])
        clients = {name: gateway(options, data, name, normalisation) for name in fold.others}
        count = clients[fold.others[0]][FEATURES].shape[1]
        settings = {
            "network": network.model_dump(),
            "ridge": options.ridges[ridge],
            "normalisation": "none",
            "unit": "feature",
        }
        shared = run(build("incfed", count, settings), clients, seed=seed).server.global_state
        return lambda rows: esn.outputs(shared, rows[FEATURES])

    figures = figures_of(options, data, normalisation, train)
    for index, (candidate, ridge) in best.items():
        figures |= {f"candidate.{index}": float(candidate), f"ridge.{index}": float(ridge)}
    return figures


def _best(
    options: Options, known: dict[str, dict[str, Summed]], truth: dict[str, Floats], fold: Fold
) -> tuple[int, int]:
    accuracies = np.zeros((len(options.candidates), len(options.ridges)))
    for place, candidate in enumerate(options.candidates):
        subjects = known[candidate]
        everyone = total([subjects[name].sums for name in fold.others])
        for name in fold.others:
            left = {key: np.asarray(everyone[key] - subjects[name].sums[key]) for key in everyone}
            for index, ridge in enumerate(options.ridges):
                said = subjects[name].regressors @ ridge_readout.solve(left, ridge).weights.T
                accuracies[place, index] += np.mean(said.argmax(axis=1) == truth[name])
    best = np.unravel_index(int(accuracies.argmax()), accuracies.shape)
    return int(best[0]), int(best[1])
