"""The probe of the gradient-trained readout: it measures what the algorithms do, and nobody scored leaks in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.studies.probes.networks import esn_readout
from fedgate.firmware_sim.studies.probes.networks.esn_readout import (
    Case,
    Fleet,
    Memory,
    Verdicts,
    algorithm_of,
    curve_figures,
    fleet_of,
    measure,
    reservoirs_beside,
    roles,
    trained_figures,
    with_own_reservoirs,
)
from fedgate.models.arrays import FEATURES, LABELS, Arrays, generator
from fedgate.models.detectors.esn import esn
from fedgate.models.federated.averaging.esn_fedavg import READOUT
from fedgate.models.federated.closed_form.series import lesson
from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from tests.support.given_width import build
from tests.support.wesad_files import CHANNELS, FOLDER, ROWS, write_wesad

SCORED, CHOSEN_ON = ["S7", "S8", "S9", "S10", "S11"], ["S2", "S3", "S4", "S5", "S6"]
ROUNDS = 4


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_wesad(tmp_path)


def case_of(**changes: Any) -> Case:
    given = {
        "folder": FOLDER,
        "scored": SCORED,
        "chosen_on": CHOSEN_ON,
        "method": "esn-fedavg",
        "rounds": ROUNDS,
        "discriminator_rounds": ROUNDS,
        "network": {"units": 10, "washout": 5, "direct": False},
        "descent": {"epochs": 1, "batch": 20, "optimiser": "adam", "learning_rate": 0.1},
        "class_weights": [0.3, 0.7],
    }
    return Case.model_validate(given | changes)


def plain(case: Case) -> Algorithm:
    return algorithm_of(case, case.method, Memory(), CHANNELS)


def test_who_is_scored_does_nothing_else_and_was_not_tuned_on() -> None:
    pairs = set()
    for seed in range(10):
        scored, trusted, gateways = roles(case_of(seed=seed))
        assert len(scored) == len(trusted) == 2 and set(scored) <= set(SCORED)
        assert sorted([*scored, *trusted, *gateways]) == sorted([*SCORED, *CHOSEN_ON])
        pairs.add(frozenset(scored))
    assert len(pairs) > 5
    with pytest.raises(ValidationError, match="S7 was tuned on"):
        case_of(chosen_on=["S2", "S7"])


def test_labels_are_stress_and_only_bad_gateways_are_changed(data: Path) -> None:
    honest, attacked = (fleet_of(case_of(attack={"kind": kind}), data) for kind in ("none", "flipped"))
    assert honest.scored[0][LABELS].tolist() == [0] * 30 + [1] * 30 + [0] * 60
    assert honest.bad == [] and attacked.bad == roles(case_of())[2][:3]
    for name, rows in attacked.gateways.items():
        same = np.array_equal(rows[LABELS], honest.gateways[name][LABELS])
        assert same == (name not in attacked.bad)


def test_the_memory_gives_what_the_detector_would(data: Path) -> None:
    case, memory = case_of(), Memory()
    shared = plain(case).start(generator(0, 0, "cloud")).global_state
    rows = fleet_of(case, data).trusted[0]
    for _ in range(2):
        found, expected = (each(case.network, shared, {}, rows, "none") for each in (memory.lesson, lesson))
        np.testing.assert_array_equal(found.regressors, expected.regressors)
        np.testing.assert_array_equal(found.classes, expected.classes)
        moved = {**shared, READOUT: np.random.default_rng(0).normal(size=shared[READOUT].shape)}
        np.testing.assert_allclose(memory.score(moved, rows[FEATURES]), esn.score(moved, rows[FEATURES]), atol=1e-5)


@pytest.mark.parametrize("method", ["esn-fedavg", "esn-fedcurv"])
def test_a_cell_is_the_training_that_the_service_would_run(method: str, data: Path) -> None:
    """The probe's way, with its memory, ends in the figures of the registered algorithm, and so does every round."""
    case = case_of(method=method, rate=0.1)
    fleet, found = fleet_of(case, data), measure(case, data)
    for rounds in (1, ROUNDS):
        given = {"network": case.network.model_dump(), "normalisation": "none", "rate": 0.1, "rounds": rounds}
        algorithm = build(method, CHANNELS, {**given, "class_weights": (0.3, 0.7)})
        shared = run(algorithm, fleet.gateways, seed=0, fraction=5 / 6).server.global_state
        stressed = np.concatenate([esn.score(shared, rows[FEATURES]) for rows in fleet.scored]) > 0.0
        assert found[f"curve.{rounds}"] == pytest.approx(metrics.balanced_accuracy(fleet.labels, stressed))
    assert found["accuracy"] == pytest.approx(np.mean(stressed == (fleet.labels == 1)))
    assert found["balanced"] == found[f"curve.{ROUNDS}"] and f"curve.{ROUNDS + 1}" not in found
    assert (found["told_right"], found["honest_counted"]) == (1.0, 1.0)


def test_figures_are_those_of_a_count() -> None:
    labels, stressed = np.array([1, 1, 1, 0, 0]), np.array([[1], [1], [0], [1], [0]])
    scores = np.tile(np.where(stressed == 1, 0.5, -0.5), (1, 40))
    scores[:, 0] = -1.0  # the first of the rounds is the constant answer
    found = curve_figures(scores, labels)
    balanced = (2 / 3 + 1 / 2) / 2
    assert found["curve.1"] == 0.5
    assert {name: found[name] for name in ("accuracy", "f1", "balanced", "balanced.late")} == pytest.approx(
        {"accuracy": 3 / 5, "f1": 2 / 3, "balanced": balanced, "balanced.late": balanced}
    )
    assert found["unsteady"] == pytest.approx(0.0)  # the first is not among the last thirty
    assert curve_figures(scores[:, :10], labels)["unsteady"] > 0.01


def test_verdicts_count_what_was_told_right() -> None:
    verdicts = Verdicts()
    for name in ("good", "bad", "good", "bad"):
        verdicts.on_update(name, {"x": np.ones(1)})
        if len(verdicts.all) == 2:
            verdicts.on_rejection()
        if len(verdicts.all) == 3:
            verdicts.on_refusal(name, UpdateError("no"))
    verdicts.on_update("good", {})  # had nothing to send
    assert verdicts.all == [("good", True), ("bad", False), ("good", False), ("bad", True)]
    assert verdicts.figures(["bad"]) == {"told_right": 0.5, "honest_counted": 0.5}


def test_the_trusted_check_refuses_who_flips_and_flips_alone(data: Path) -> None:
    answers = ("none", {"kind": "trusted"}, "honest only")
    undefended, guarded, honest = (measure(case_of(answer=each, attack={"kind": "flipped"}), data) for each in answers)
    assert guarded["told_right"] > 0.7 and guarded["honest_counted"] > 0.9
    assert guarded["balanced"] > 0.8 > undefended["balanced"]
    assert honest["told_right"] == 1.0


@pytest.mark.parametrize("answer", ["median", "printed", {"kind": "network"}])
def test_every_answer_is_a_training_of_its_own(answer: Any, data: Path) -> None:
    attack = {"kind": "noise", "amount": 5.0}
    found, undefended = (measure(case_of(answer=each, attack=attack), data) for each in (answer, "none"))
    assert found != undefended
    assert found["honest_counted"] == 1.0 or found["told_right"] != undefended["told_right"]


@pytest.mark.soak
def test_other_reservoirs_are_refused_but_by_the_probe(data: Path) -> None:
    case = case_of(reservoirs="different")
    fleet = fleet_of(case, data)
    clients, algorithm = reservoirs_beside(case, fleet), plain(case)
    name, rows = next(iter(clients.items()))
    server, phase = algorithm.start(generator(0, 0, "cloud")), algorithm.phases[0]
    _, update = phase.train({**server.global_state, **rows}, {}, rows, generator(0, 0, name))
    with pytest.raises(UpdateError, match=r"reservoir: expected .* have no meaning here"):
        phase.admit(server, update)
    found = run(with_own_reservoirs(algorithm), clients, rounds=1).server.global_state[READOUT]
    assert not np.allclose(found, run(algorithm, fleet.gateways, rounds=1).server.global_state[READOUT])
    assert measure(case, data) != measure(case_of(), data)


def test_a_round_in_which_nobody_counted_keeps_the_readout(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defence that refuses everybody leaves the constant answer, in as many rounds as were asked for."""

    def refuse(*_: Any) -> Algorithm:
        algorithm, asked = plain(case_of()), iter(range(1_000))

        def check(server: Any, update: Arrays) -> None:
            if next(asked) < 10:  # the first two rounds
                raise UpdateError("no")

        return algorithm._replace(phases=(algorithm.phases[0]._replace(check=check),))

    monkeypatch.setattr(esn_readout, "defended", refuse)
    found = measure(case_of(), data)
    assert [name for name in found if name.startswith("curve.")] == [f"curve.{at + 1}" for at in range(ROUNDS)]
    assert found["curve.1"] == found["curve.2"] == 0.5 != found["curve.3"]
    assert found["told_right"] < 1.0


@pytest.mark.parametrize("method", ["majority", "incfed", "local", "logistic"])
def test_what_stands_beside_is_scored_alike(method: str, data: Path) -> None:
    found = measure(case_of(method=method), data)
    constant = {"accuracy": 0.75, "f1": 0.0, "balanced": 0.5}
    assert found == constant if method == "majority" else found["balanced"] > 0.7


def test_no_label_of_the_scored_reaches_a_training(data: Path) -> None:
    case = case_of(answer={"kind": "trusted"}, attack={"kind": "flipped"})
    fleet = fleet_of(case, data)
    turned: Fleet = fleet._replace(scored=[{**rows, LABELS: 1 - rows[LABELS]} for rows in fleet.scored])
    expected, found = trained_figures(case, fleet), trained_figures(case, turned)
    assert found["balanced"] == pytest.approx(1.0 - expected["balanced"])
    assert found["told_right"] == expected["told_right"]


def test_the_printed_form_is_fedavg_bit_for_bit_and_its_sums_run_away(data: Path) -> None:
    found = measure(case_of(method="printed"), data)
    assert found["softmax.bits_differ"] == found["tape.bits_differ"] == 0.0
    assert found["sum.10"] / found["sum.9"] == pytest.approx(case_of().take_part, rel=1e-3)
    assert found["sum.10"] < -1e4 * abs(found["sum.1"])


def test_subjects_have_the_rows_of_their_files(data: Path) -> None:
    fleet = fleet_of(case_of(), data)
    assert [len(rows[LABELS]) for rows in (*fleet.scored, *fleet.trusted, *fleet.gateways.values())] == [ROWS] * 10
    assert fleet.feature_count == CHANNELS and len(fleet.labels) == 2 * ROWS
