"""IncFed, Partial IncFed and Random while a quarter to all of the gateways are there (A. Di Mauro, "Federated Echo
State Networks for Stress Prediction in the Automotive Use Case", Pisa 2022, Table B.3), on features of WESAD.

Every subject is scored once, by a training that it took no part in. Beside the printed settings stand the ridge that
mends the masked sums, other ways to send less, and what needs no memory, nobody else or no look at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedgate.config.protocol.wire import encode
from fedgate.config.settings import settings
from fedgate.config.settings.base import Share
from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.evaluate.methods import Method
from fedgate.firmware_sim.evaluate.training import train_fleet
from fedgate.firmware_sim.studies.datasets.wesad import CLASSES, Units, load_subject
from fedgate.firmware_sim.studies.literal.printed_ridge import with_printed_ridge
from fedgate.firmware_sim.studies.literal.sketched_sums import SKETCHES, total
from fedgate.firmware_sim.studies.probes.networks.memoryless import Memoryless, fit_memoryless
from fedgate.models.arrays import FEATURES, LABELS, MISSING, NEW_SERIES, Array, Arrays, Floats, Singles, generator
from fedgate.models.detectors.esn import esn, ridge_readout
from fedgate.models.detectors.esn.network import Classifier, Network
from fedgate.models.federated import build
from fedgate.models.federated.closed_form.series import lesson
from fedgate.models.federated.protocol.algorithm import Algorithm

NUMBER_BYTES = 8
IN_OWN_UNITS = {"normalisation": "none", "unit": "feature"}  # a subject's rows are in units of its own already
MIDDLE = {"condition": np.median}  # of folds; of everything else the mean

Outputs = Callable[[str], Floats]  # (n, classes) of a subject's rows, or (k n, classes) of k models in turn


class ReadoutMethod(Method):
    """A method of the study.

    :param printed_ridge: the ridge is the paper's λ as it is, in place of the algorithm's.
    """

    printed_ridge: bool = False

    @classmethod
    def others(cls) -> Mapping[str, Callable[..., Any]]:
        return OTHERS


class Case(settings.Table):
    """What is measured.

    :param held_out: subjects that are scored together and take no part in anything else.
    :param units: what a gateway knows the centre and scale of its features from.
    :param share: of the other subjects that are there to train.
    :param size: k: units of the network of `incfed`, else how many units, coordinates or eigenvectors are sent; 0: all,
        and of Partial IncFed as many as the paper's rule says.
    """

    folder: str
    subjects: list[str]
    held_out: int = Field(default=2, ge=1)
    method: ReadoutMethod
    network: Classifier
    units: Units = "whole recording"
    share: Share = 1.0
    size: int = Field(default=0, ge=0)
    seed: int = 0


class Fold(NamedTuple):
    """Who is scored, and who may train."""

    number: int
    scored: list[str]
    others: list[str]


class Trained(NamedTuple):
    """What scores rows after a training, and what the training cost."""

    outputs: Outputs
    figures: Figures


Rows = dict[str, Arrays]  # features and classes by subject
Train = Callable[[Fold], Trained]


def reads(case: Case, data: Path) -> list[Path]:
    """Return the files of the subjects."""
    return [data / case.folder / f"{name}.npz" for name in case.subjects]


def measure(case: Case, data: Path) -> Figures:
    """Return `accuracy` and `macro_f1` over all rows of all subjects, the `error` Σ (output - class)² of a row, the
    deviation of the accuracy between subjects, and what the trainings cost.
    """
    from sklearn.metrics import f1_score

    rows = {name: load_subject(data / case.folder, name, case.units) for name in case.subjects}
    train = OTHERS.get(case.method.algorithm, _readout)(case, rows, **_given(case))
    costs: list[Figures] = []
    scored: list[tuple[NDArray[np.int64], Floats]] = []
    for fold in folds(case.subjects, case.held_out):
        outputs, cost = train(fold)
        costs.append(cost)
        scored += [_beside_truth(rows[name][LABELS], outputs(name)) for name in fold.scored]
    y, found = (np.concatenate(parts) for parts in zip(*scored, strict=True))
    said = found.argmax(axis=1)
    single = [float(np.mean(truth == each.argmax(axis=1))) for truth, each in scored]
    figures = {
        "accuracy": float(np.mean(y == said)),
        "macro_f1": float(f1_score(y, said, labels=range(CLASSES), average="macro", zero_division=0.0)),
        "error": float(np.square(found - np.eye(CLASSES)[y]).sum(axis=1).mean()),
        "subject_deviation": float(np.std(single, ddof=1)),
    }
    figures |= {key: float(MIDDLE.get(key, np.mean)([each[key] for each in costs])) for key in costs[0]}
    both = {"bytes": figures["bytes_up"] + figures["bytes_down"]} if "bytes_up" in figures else {}
    return figures | both


def _given(case: Case) -> dict[str, Any]:
    return case.method.settings if case.method.algorithm in OTHERS else {}


def _beside_truth(classes: Array, found: Floats) -> tuple[NDArray[np.int64], Floats]:
    return np.tile(classes, len(found) // len(classes)), found


def folds(subjects: list[str], held_out: int) -> Iterator[Fold]:
    """Yield the subjects in turn, so many at a time."""
    from sklearn.model_selection import KFold

    names = np.array(subjects)
    for index, (others, scored) in enumerate(KFold(len(names) // held_out).split(names)):
        yield Fold(index, names[scored].tolist(), names[others].tolist())


def present(fold: Fold, share: float, seed: int) -> list[str]:
    """Return the share of the training subjects that are there, those of a smaller share among them."""
    order = generator(seed, fold.number, "present").permutation(len(fold.others))
    there = order[: max(round(share * len(order)), 1)]
    return [name for index, name in enumerate(fold.others) if index in there]


def _readout(case: Case, rows: Rows) -> Train:
    """Return the training of a readout in closed form: over all who are there, of all rows in one place, or of every
    subject's own, one after another.
    """
    cohort = len(present(next(folds(case.subjects, case.held_out)), case.share, case.seed))
    algorithm = build(case.method.algorithm, _feature_count(rows), _settings(case, cohort))
    algorithm = with_printed_ridge(algorithm) if case.method.printed_ridge else algorithm
    start = algorithm.start(generator(case.seed, 0, "cloud"))  # one for all folds: it takes half the time of a fold
    ready = algorithm._replace(start=lambda _: start)

    def train(fold: Fold) -> Trained:
        clients = {name: rows[name] for name in present(fold, case.share, case.seed)}
        if case.method.data == "federated":
            return _trained(case, ready, clients, rows)
        joined = [{"all": _joined([*clients.values()])}]
        parts = joined if case.method.data == "pooled" else [{name: each} for name, each in clients.items()]
        models = [_trained(case, ready, part, rows).outputs for part in parts]
        return Trained(lambda name: np.concatenate([outputs(name) for outputs in models]), {})

    return train


def _feature_count(rows: Rows) -> int:
    return int(next(iter(rows.values()))[FEATURES].shape[1])


def _settings(case: Case, cohort: int) -> dict[str, Any]:
    network, given = case.network, case.method.settings | IN_OWN_UNITS
    if case.method.algorithm == "incfed":
        network = network.model_copy(update={"units": case.size or network.units})
    else:
        given |= {"neurons": case.size} if case.size else {"cohort": cohort}
    return {**given, "network": network.model_dump()}


def _trained(case: Case, algorithm: Algorithm, clients: Rows, rows: Rows) -> Trained:
    """Return a model and its cost: bytes that one gateway sends, and receives beside the model itself, and the upload
    as a share of the square that the paper counts.
    """
    fit = train_fleet(algorithm, clients, seed=case.seed)
    sent = round(sum(fit.sent_bytes.values()) / len(clients))
    size = case.network.units + 1  # the paper's readout sees states and a constant
    cost = {
        "bytes_up": float(sent),
        "bytes_down": float(fit.received_bytes - len(encode(fit.shared))),
        "of_square": sent / (NUMBER_BYTES * size * (size + CLASSES)),
        "condition": float(fit.shared["condition"]),
    }
    return Trained(lambda name: esn.outputs(fit.shared, rows[name][FEATURES]), cost)


def _joined(parts: list[Arrays]) -> Arrays:
    """Return several series as one that says where each begins."""
    missing = np.concatenate([np.where(np.arange(len(part[FEATURES])) == 0, NEW_SERIES, 0) for part in parts])
    joined = {name: np.concatenate([part[name] for part in parts]) for name in (FEATURES, LABELS)}
    return {**joined, MISSING: missing}


def _memoryless(case: Case, rows: Rows) -> Train:
    kind: Memoryless = "majority" if case.method.algorithm == "majority" else "logistic"

    def train(fold: Fold) -> Trained:
        predict = fit_memoryless(kind, [rows[name] for name in fold.others])
        return Trained(lambda name: predict(rows[name][FEATURES]), {})

    return train


class Summed(NamedTuple):
    """A subject under one network: regressors (n, M) of all rows, and the sums of those that teach."""

    regressors: Singles
    sums: Arrays


def _summed(network: Network, rows: Rows, seed: int) -> dict[str, Summed]:
    """Return every subject's regressors and sums, as its gateway would make them."""
    algorithm = build("incfed", _feature_count(rows), {"network": network.model_dump(), **IN_OWN_UNITS})
    shared, found = algorithm.start(generator(seed, 0, "cloud")).global_state, {}
    for name, each in rows.items():
        taught = lesson(network, shared, {}, each, "none")
        sums = ridge_readout.sums(taught.regressors, taught.targets)
        found[name] = Summed(esn.passed(shared, each[FEATURES]).regressors, sums)
    return found


def _chosen(case: Case, rows: Rows, *, networks: dict[str, Any], ridges: list[float]) -> Train:
    """Return IncFed with the network and the ridge that did best where one training subject in turn is left out.

    The sums of all training subjects but one are those of all less its own, so that an inner fold is one solution.
    """
    named = {name: Network.model_validate(case.network.model_dump() | given) for name, given in networks.items()}
    known = {name: _summed(network, rows, case.seed) for name, network in named.items()}

    def train(fold: Fold) -> Trained:
        inner = {
            (name, ridge): _inner_accuracy(known[name], rows, fold, ridge) for name, ridge in product(named, ridges)
        }
        best = max(inner, key=lambda choice: inner[choice])
        given = {"network": named[best[0]].model_dump(), "ridge": best[1], **IN_OWN_UNITS}
        clients = {name: rows[name] for name in fold.others}
        algorithm = build("incfed", _feature_count(rows), given)
        chosen = {f"chosen.{name}|{ridge:g}": float((name, ridge) == best) for name, ridge in inner}
        return Trained(_trained(case, algorithm, clients, rows).outputs, chosen)

    return train


def _inner_accuracy(known: dict[str, Summed], rows: Rows, fold: Fold, ridge: float) -> float:
    everyone, found = total([known[name].sums for name in fold.others]), 0.0
    for name in fold.others:
        left = {key: np.asarray(everyone[key] - known[name].sums[key]) for key in everyone}
        said = known[name].regressors @ ridge_readout.solve(left, ridge).weights.T
        found += float(np.mean(said.argmax(axis=1) == rows[name][LABELS]))
    return found


def _sketched(case: Case, rows: Rows) -> Train:
    known, sketch = _summed(case.network, rows, case.seed), SKETCHES[case.method.algorithm]

    def train(fold: Fold) -> Trained:
        sums = [known[name].sums for name in fold.others]
        found = sketch(sums, case.size, np.random.default_rng([case.seed, fold.number]))
        cost = {"bytes_up": float(NUMBER_BYTES * found.sent), "bytes_down": float(NUMBER_BYTES * found.received)}
        return Trained(lambda name: np.asarray(known[name].regressors @ found.readout.T), cost)

    return train


# By the name of what is no algorithm of the package: (case, rows, ...) -> its training.
OTHERS: dict[str, Callable[..., Train]] = {
    "majority": _memoryless,
    "logistic": _memoryless,
    "inner-folds": _chosen,
    **dict.fromkeys(SKETCHES, _sketched),
}
