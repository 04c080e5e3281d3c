"""What an update tells of its rows: the rows behind a vector are those of what is really sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.firmware_sim.studies.datasets.outliers import FOLDER, deal
from fedgate.firmware_sim.studies.probes.svm import membership
from fedgate.firmware_sim.studies.probes.svm.membership import Case, measure, sent_and_originals
from fedgate.firmware_sim.studies.probes.svm.svdd import settings_of
from fedgate.models.arrays import FEATURES, Array, Arrays, generator
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run
from tests.support.outlier_files import FEATURES_OF_A_ROW, ROWS, write_outliers

TABLE = "pen.csv"
LITERAL = {"caps": "c", "low": 0.5, "high": 0.5, "train_on": "all"}
RECOMMENDED = {"caps": "nu", "low": 0.1, "high": 0.1, "train_on": "normal"}
ELECTION: dict[str, Any] = {"sigma": 1.0, "tau": 1e-3}
METHODS = {"ensemble-svdd": {}, "support-vector-election": ELECTION}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_outliers(tmp_path, (TABLE,))


def case_of(method: str, *, anonymise: bool, **given: Any) -> Case:
    chosen = {"gamma": 1.0, "normalisation": "none", "anonymise": anonymise, **METHODS[method]}
    table = {"table": TABLE, "method": {"algorithm": method, "settings": chosen}, "clients": 2}
    return Case.model_validate({**table, "form": LITERAL, **given})


@pytest.mark.parametrize("anonymise", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_the_rows_behind_a_vector_are_those_of_what_is_really_sent(method: str, anonymise: bool, data: Path) -> None:
    case = case_of(method, anonymise=anonymise)
    clients = deal(data / FOLDER / TABLE, np.arange(ROWS), 2, "iid", seed=3)
    algorithm = build(method, FEATURES_OF_A_ROW, settings_of(case, 0.5))
    updates: dict[str, Arrays] = {}

    def keep(client: str, update: Arrays) -> None:
        updates[client] = update

    run(algorithm, clients, seed=3, on_update=keep)
    for name, rows in clients.items():
        sent, originals = sent_and_originals(case, rows[FEATURES], generator(3, 0, name))
        assert sent.shape == originals.shape
        assert sorted(sent.tolist()) == sorted(updates[name]["vectors"].tolist())
        known = {tuple(row) for row in rows[FEATURES].tolist()}
        assert {tuple(row) for row in originals.tolist() if not np.isnan(row).any()} <= known


def test_plain_vectors_betray_their_rows_and_fresh_rows_are_never_among_them(data: Path) -> None:
    plain, moved = (
        measure(case_of("ensemble-svdd", anonymise=each, form=RECOMMENDED, repeats=2), data) for each in (False, True)
    )
    assert plain["traced"] == plain["elected.auc"] == plain["elected.found"] == 1.0
    assert moved["traced"] < 1.0
    assert moved["update.found"] < plain["update.found"]
    assert 0.2 < plain["score.auc"] < 0.8


def test_a_client_that_sends_nothing_counts_as_nothing_found(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four clients silent: every figure of the updates lies half way to guessing."""
    silent: list[bool] = []

    def sent(case: Case, z: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        silent.append(len(silent) % 2 == 0)
        return (z[:0], z[:0]) if silent[-1] else (z, z)

    monkeypatch.setattr(membership, "sent_and_originals", sent)
    figures = measure(case_of("support-vector-election", anonymise=False, clients=4, repeats=1), data)
    assert silent == [True, False, True, False]
    assert (figures["update.auc"], figures["update.found"], figures["traced"]) == (0.75, 0.5, 0.5)
