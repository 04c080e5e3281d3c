"""What an update and the released model tell of the rows behind them, for Ensemble SVDD and Support Vector Election.

Half of the rows of a set that may train do so, the other half are fresh. The update of each client is attacked by
distance to the nearest vector in it, the released model by that and by its own score: simple attacks, hence lower
bounds on what an attacker learns. Only here are the rows behind the vectors known: the same functions that a client
trains with are called again with the same random numbers.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.studies.datasets.outliers import FOLDER, deal, load
from fedgate.firmware_sim.studies.datasets.unit_range import to_unit_range
from fedgate.firmware_sim.studies.probes.svm import svdd as tables
from fedgate.firmware_sim.studies.probes.svm.row_attacks import NOTHING_FOUND, Attack, attack, nearness, traced
from fedgate.models.arrays import FEATURES, Array, Floats, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.svm import svdd
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.support_vectors.ensemble_svdd import Mixture, described
from fedgate.models.federated.support_vectors.support_vector_election import Move, elected

ELECTION = "support-vector-election"


class Case(tables.Case):
    """What is measured: one value, the median of those drawn.

    :param repeats: ways to halve the rows.
    """

    repeats: tables.Count = 10


def reads(case: Case, data: Path) -> list[Path]:
    """Return the file of the table."""
    return [data / FOLDER / case.table]


def measure(case: Case, data: Path) -> Figures:
    """Return what each attack is worth, `<attack>.auc` and `<attack>.found`, the share of vectors `traced` to their row
    and the number of `vectors`: means over clients and repeats.
    """
    path = data / FOLDER / case.table
    repeats = [_once(case, path, case.seed + index) for index in range(case.repeats)]
    return _means(repeats)


def _once(case: Case, path: Path, seed: int) -> Figures:
    rows, value = load(path), _value(case)
    may_train = np.flatnonzero((rows.y == 0) | (case.form.train_on == "all"))
    halves = generator(seed, 0, "membership").permutation(may_train)
    train, fresh = np.sort(halves[: len(halves) // 2]), halves[len(halves) // 2 :]
    clients = deal(path, train, case.clients, case.split, seed)
    unseen = to_unit_range(rows.x[fresh], rows.x[train])
    updates = [_of_update(case, each[FEATURES], unseen, generator(seed, 0, name)) for name, each in clients.items()]
    algorithm = build(case.method.algorithm, unseen.shape[1], tables.settings_of(case, value))
    shared = run(algorithm, clients, seed=seed).server.global_state
    seen = np.concatenate([each[FEATURES] for each in clients.values()])
    released = scored = NOTHING_FOUND
    if shared:
        released = attack(nearness(seen, shared["vectors"]), nearness(unseen, shared["vectors"]))
        score = partial(DETECTORS[algorithm.detector].score, shared)
        scored = attack(-score(seen), -score(unseen))
    return {**_means(updates), **_named("released", released), **_named("score", scored)}


def _value(case: Case) -> float:
    return float(np.median(tables.draw_values(case)))


def _of_update(case: Case, z: Array, unseen: Array, rng: np.random.Generator) -> Figures:
    """Judge what a client with rows z (n, F) sends; who sends nothing counts as one of whom nothing is found."""
    sent, originals = sent_and_originals(case, z, rng)
    near = of_elected = NOTHING_FOUND
    if len(sent):
        far, own = nearness(unseen, sent), {row.tobytes() for row in originals}
        near = attack(nearness(z, sent), far)
        chosen = np.array([row.tobytes() in own for row in z])
        of_elected = attack(nearness(z[chosen], sent), far) if chosen.any() else NOTHING_FOUND
    share = traced(sent, originals, z) if len(sent) else 0.0
    return {"vectors": float(len(sent)), "traced": share, **_named("update", near), **_named("elected", of_elected)}


def sent_and_originals(case: Case, z: Array, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the vectors (S, F) that a client with rows z (n, F) sends, and the row behind each.

    What the method does not set has the defaults of the algorithms, which a test compares with what they send.
    """
    given, value = case.method.settings, _value(case)
    cap = value if case.form.caps == "c" else None
    fit = partial(svdd.fit, nu=value, c=cap, gamma=given["gamma"], most_rows=max(len(z), 2))
    if case.method.algorithm == ELECTION:
        move = Move(given["sigma"], given["tau"], 0.1) if given["anonymise"] else None
        return elected(z, rng, fit=fit, move=move, max_vectors=len(z))
    mixture = Mixture(None, 0.5, 0.1) if given["anonymise"] else None
    member, originals = described(z, rng, fit=fit, mixture=mixture, max_vectors=len(z))
    return member.get("vectors", z[:0]), originals


def _named(name: str, found: Attack) -> Figures:
    return {f"{name}.auc": found.auc, f"{name}.found": found.found}


def _means(many: list[Figures]) -> Figures:
    return {name: float(np.mean([each[name] for each in many])) for name in many[0]}
