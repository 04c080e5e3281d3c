"""The study of the gradient-trained readout: what it measures is what the algorithms do, and nobody scored leaks in.

The subjects are made here under the names of the real files, which are not part of the project.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate import firmware_sim
from fedgate.config.settings.settings import SettingsError
from fedgate.firmware_sim.studies.__main__ import main
from fedgate.firmware_sim.studies.engine.study import Cell, Profile, load_options
from fedgate.firmware_sim.studies.esn_readout import data as readout_data
from fedgate.firmware_sim.studies.esn_readout.beside import BESIDE, CONSTANT, beside_figures
from fedgate.firmware_sim.studies.esn_readout.data import gateways_of, roles, rows_of
from fedgate.firmware_sim.studies.esn_readout.figures import curve_figures, rates
from fedgate.firmware_sim.studies.esn_readout.listed import batch_fisher, listed_fedcurv, with_listed_discriminator
from fedgate.firmware_sim.studies.esn_readout.literal import literal_figures, softmax_of_one, sums_of_algorithm_2
from fedgate.firmware_sim.studies.esn_readout.memory import Memory
from fedgate.firmware_sim.studies.esn_readout.methods import (
    Watch,
    algorithm_of,
    discriminator,
    median,
    step_of,
    with_own_reservoirs,
)
from fedgate.firmware_sim.studies.esn_readout.options import Attack, Method, Options
from fedgate.firmware_sim.studies.esn_readout.study import STUDY, cells, identity, measure, trained
from fedgate.models.arrays import FEATURES, LABELS, Arrays, generator
from fedgate.models.detectors.esn import esn, reservoir
from fedgate.models.federated.averaging.esn_fedavg import READOUT, readout_fedavg
from fedgate.models.federated.averaging.esn_fedcurv import readout_fedcurv
from fedgate.models.federated.closed_form.series import lesson
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from tests.support.given_width import build

EXPERIMENT = Path(firmware_sim.__file__).parent / "experiments" / "wesad-tables-6.toml"
CHANNELS, ROWS = 4, 120
FEDAVG = Method(algorithm="esn-fedavg")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of subjects whose channels rise, by an amount of their own, while they are stressed."""
    folder = tmp_path / "streams" / "wesad_features"
    folder.mkdir(parents=True)
    for index in range(2, 12):
        rng = np.random.default_rng(index)
        y = np.repeat([1, 2, 3, 1], ROWS // 4)
        x = rng.normal(size=(ROWS, CHANNELS)) + (y == 2)[:, None] * rng.uniform(1.0, 3.0, CHANNELS)
        names = [f"channel{at}_mean" for at in range(CHANNELS)] + ["channel0_std"]
        np.savez(folder / f"S{index}.npz", X=np.column_stack([x, x[:, 0]]).astype(np.float32), y=y, feature_names=names)
    return tmp_path


def options_of(profile: Profile = "short", **changes: Any) -> Options:
    options = load_options(EXPERIMENT, STUDY, profile)
    assert isinstance(options, Options)
    return Options.model_validate({**options.model_dump(), **changes})


def cell_of(answer: str = "none", attack: str = "none", **more: Any) -> Cell:
    return {
        "part": "bad",
        "reservoirs": "same",
        "method": "FedAvg",
        "attack": attack,
        "answer": answer,
        "seed": 0,
    } | more


def test_the_experiment_file_holds_the_tables_of_the_paper() -> None:
    options = options_of("full")
    found = cells(options)
    assert len(found) == len({str(sorted(cell.items())) for cell in found})
    assert options.rounds == 78 and options.take_part == 5 and options.tables.rates == [1.0, 0.1, 0.01, 0.001]
    for printed in options.paper.values():
        names = {
            f"{name}-{rate}{end}"
            for name in ("FedAvg", "FedCurv")
            for rate in ("1.0", "0.1", "0.01", "0.001")
            for end in ("", "+Disc")
        }
        assert printed.keys() == names
    assert sum(value == 0.8693 for printed in options.paper.values() for value in printed.values()) == 8
    assert {cell["answer"] for cell in found if cell.get("attack") == "none" and cell["part"] == "tables"} == {"none"}
    direct = [cell for cell in found if cell["part"] == "tables" and cell["method"] == "FedAvg, direct"]
    assert direct and {cell["attack"] for cell in direct} == {"none"}


def test_who_is_scored_does_nothing_else_and_was_not_tuned_on() -> None:
    options = options_of("full")
    pairs = set()
    for seed in range(10):
        who = roles(options, seed)
        assert not set(who.scored) & {*who.trusted, *who.gateways}
        assert len({*who.scored, *who.trusted, *who.gateways}) == 10 and set(who.scored) <= set(options.scored)
        assert who.bad == who.gateways[:3]
        pairs.add(frozenset(who.scored))
    assert len(pairs) > 5
    with pytest.raises(ValueError, match="share a subject"):
        options_of(chosen_on=["S2", "S7"])


def test_rows_are_in_own_units_and_labels_are_stress(data: Path) -> None:
    rows = rows_of(options_of(), data, "S5")
    np.testing.assert_allclose(rows[FEATURES].mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(rows[FEATURES].std(axis=0), 1.0, rtol=1e-9)
    assert rows[LABELS].tolist() == [0] * 30 + [1] * 30 + [0] * 60 and rows[FEATURES].shape == (ROWS, CHANNELS)


def test_only_bad_gateways_are_changed(data: Path) -> None:
    options, who = options_of(), roles(options_of(), 0)
    for name, rows in gateways_of(options, data, who, Attack(kind="flipped"), 0).items():
        same = np.array_equal(rows[LABELS], rows_of(options, data, name)[LABELS])
        assert same == (name not in who.bad)


def test_the_memory_gives_what_the_detector_would(data: Path) -> None:
    options, memory = options_of(), Memory()
    shared = algorithm_of(options, memory, FEDAVG, 1.0, CHANNELS).start(generator(0, 0, "cloud")).global_state
    rows, network = rows_of(options, data, "S3"), options.network_of()
    for _ in range(2):
        found, expected = (each(network, shared, {}, rows, "none") for each in (memory.lesson, lesson))
        np.testing.assert_array_equal(found.regressors, expected.regressors)
        np.testing.assert_array_equal(found.classes, expected.classes)
        moved = {**shared, "readout": np.random.default_rng(0).normal(size=shared["readout"].shape)}
        np.testing.assert_allclose(memory.score(moved, rows[FEATURES]), esn.score(moved, rows[FEATURES]), atol=1e-5)
    with pytest.raises(ValueError, match="expected 'none'"):
        memory.lesson(network, shared, {}, rows, "own")


def test_a_cell_is_the_training_that_the_service_would_run(data: Path) -> None:
    """The study's way, with its memory and its watch, ends in the figures of the registered algorithm."""
    options, who = options_of(), roles(options_of(), 0)
    settings = {
        "network": options.network_of().model_dump(),
        "normalisation": "none",
        "rate": 0.1,
        "class_weights": (0.3, 0.7),
    }
    algorithm = build("esn-fedavg", CHANNELS, {**settings, "rounds": options.rounds})
    clients = {name: rows_of(options, data, name) for name in who.gateways}
    shared = run(algorithm, clients, seed=0, fraction=5 / 6).server.global_state
    scored = [rows_of(options, data, name) for name in who.scored]
    scores = np.concatenate([esn.score(shared, rows[FEATURES]) for rows in scored])
    expected = rates(scores[:, None] > 0.0, np.concatenate([rows[LABELS] for rows in scored]))
    found = measure(options, data, cell_of())
    for name, values in expected.items():
        assert found[f"0.1|{name}"] == pytest.approx(values[0])
    assert found["0.1|curve.3"] == found["0.1|balanced"]
    assert (found["0.1|told_right"], found["0.1|honest_counted"]) == (1.0, 1.0)


def test_figures_are_those_of_a_count() -> None:
    labels, stressed = np.array([1, 1, 1, 0, 0]), np.array([[1], [1], [0], [1], [0]], dtype=bool)
    found = {name: values[0] for name, values in rates(stressed, labels).items()}
    assert found == pytest.approx({"accuracy": 3 / 5, "f1": 2 / 3, "balanced": (2 / 3 + 1 / 2) / 2})
    curve = curve_figures(np.tile(stressed - 0.5, (1, 40)), labels)
    assert curve["unsteady"] == pytest.approx(0.0) and curve["balanced.late"] == pytest.approx(found["balanced"])


def test_the_trusted_check_refuses_who_flips_and_flips_alone(data: Path) -> None:
    plain, guarded, honest = (
        measure(options_of(), data, cell_of(answer, "flipped")) for answer in ("none", "trusted", "honest only")
    )
    assert guarded["1|told_right"] > 0.7 and guarded["1|honest_counted"] > 0.9
    assert guarded["1|balanced"] > 0.8 > plain["1|balanced"]
    assert honest["1|told_right"] == 1.0


def test_a_median_is_that_of_the_coordinates(data: Path) -> None:
    options = options_of()
    plain = algorithm_of(options, Memory(), FEDAVG, 1.0, CHANNELS)
    algorithm, sent = median(plain), list[Arrays]()
    clients = {name: rows_of(options, data, name) for name in ("S2", "S3", "S4")}
    outcome = run(algorithm, clients, rounds=1, on_update=lambda name, update: sent.append(update))
    changes = [update["readout"] / update["samples"] for update in sent]
    np.testing.assert_allclose(outcome.server.global_state["readout"], np.median(changes, axis=0), rtol=1e-9)


def test_other_reservoirs_are_refused_but_by_the_study(data: Path) -> None:
    options, clients = options_of(), {}
    for name in ("S2", "S3"):
        own = reservoir.initial(generator(0, 0, name), options.network_of(), CHANNELS)
        clients[name] = {**rows_of(options, data, name), **own}
    plain = algorithm_of(options, Memory(), FEDAVG, 1.0, CHANNELS)
    server, train = plain.start(generator(0, 0, "cloud")), plain.phases[0].train
    _, update = train({**server.global_state, **clients["S2"]}, {}, clients["S2"], generator(0, 0, "S2"))
    with pytest.raises(UpdateError, match=r"reservoir: expected .* have no meaning here"):
        plain.phases[0].admit(server, update)
    found = run(with_own_reservoirs(plain), clients, rounds=1).server.global_state["readout"]
    same = {name: {key: rows[key] for key in (FEATURES, LABELS)} for name, rows in clients.items()}
    assert not np.allclose(found, run(plain, same, rounds=1).server.global_state["readout"])


def test_a_round_in_which_nobody_counted_keeps_the_readout() -> None:
    plain = algorithm_of(options_of(), Memory(), FEDAVG, 1.0, CHANNELS)
    watch = Watch(plain)
    server = plain.start(generator(0, 0, "cloud"))
    one = np.ones_like(server.global_state["readout"])
    for index in (1, 3):
        total: Arrays = {"readout": one, "samples": np.array(1.0)}
        watch.algorithm.phases[0].advance(server._replace(round_index=index), total)
    found = watch.readouts(5, np.zeros_like(one))
    assert found[:, 0].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_the_printed_form_is_fedavg_bit_for_bit_and_its_sums_run_away(data: Path) -> None:
    options = options_of()
    found = literal_figures(options, data, roles(options, 0), 0)
    assert found["softmax.bits_differ"] == found["tape.bits_differ"] == 0.0
    assert found["sum.10"] / found["sum.9"] == pytest.approx(options.take_part, rel=1e-3)
    assert found["sum.10"] < -1e4 * abs(found["sum.1"])
    rng = np.random.default_rng(0)
    assert not softmax_of_one(rng.normal(size=(1, 3)), rng.normal(size=(7, 3))).any()
    assert sums_of_algorithm_2([np.array([1.0]), np.array([2.0])], 3) == [-3.0, -9.0, -21.0]


@pytest.mark.parametrize("method", BESIDE)
def test_what_stands_beside_is_scored_alike(data: Path, method: str) -> None:
    options = options_of()
    found = beside_figures(options, data, roles(options, 0), method, 0)
    constant = {"accuracy": 0.75, "f1": 0.0, "balanced": 0.5}
    assert found == constant if method == CONSTANT else found["balanced"] > 0.7


def test_no_label_of_the_scored_reaches_a_training(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, cell = options_of(), cell_of("trusted", "flipped")
    who = roles(options, 0)
    expected = trained(options, data, cell, who, Memory(), 1.0)
    known = readout_data.rows_of

    def turned(options: Options, data: Path, name: str) -> Arrays:
        rows = known(options, data, name)
        return {**rows, LABELS: 1 - rows[LABELS]} if name in who.scored else rows

    monkeypatch.setattr("fedgate.firmware_sim.studies.esn_readout.study.rows_of", turned)
    found = trained(options, data, cell, who, Memory(), 1.0)
    assert found["balanced"] == pytest.approx(1.0 - expected["balanced"])
    assert found["told_right"] == expected["told_right"]


def test_a_cell_is_measured_anew_when_what_it_depends_on_changes() -> None:
    plain, cell = options_of(), cell_of("trusted", "flipped")
    for changes in ({"rounds": 5}, {"noise": 2.0}, {"training": {"batch": 10}}, {"scored": ["S9", "S10"]}):
        assert identity(options_of(**changes), cell) != identity(plain, cell)
    assert identity(options_of(note="another", central=0.5), cell) == identity(plain, cell)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tables": {"methods": ["FedSGD"]}}, "'FedSGD' given, expected one of FedAvg"),
        ({"answers": {"x": {"means": "none", "defence": {"kind": "trusted"}}}}, "expected a table `defence`"),
        ({"network": {"leak": 2.0}}, "leak"),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, Any], reason: str) -> None:
    bench = options_of().tables.model_dump()
    if "tables" in changes:
        changes = {"tables": {**bench, **changes["tables"]}}
    with pytest.raises((ValueError, SettingsError), match=reason):
        assert options_of(**changes).network_of()


@pytest.mark.soak
def test_the_short_profile_writes_a_report_with_its_picture(data: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    command = ["measure", str(EXPERIMENT), "--data", str(data), "--results", str(results)]
    assert main([*command, "--profile", "short", "--jobs", "1"]) == 0
    text = (results / "wesad-tables-6-short.md").read_text(encoding="utf-8")
    for words in (
        "Table 6.4: same reservoirs",
        "Table 6.5: different",
        "always not stressed",
        "Bad gateways",
        "0.8693",
    ):
        assert words in text
    assert "not one bit of the readout differs from FedAvg" in text and "nan" not in text
    assert (results / "wesad-tables-6-short-rounds.png").stat().st_size > 5_000


def test_the_listed_form_is_another_than_fedcurv_and_fedavg_where_it_has_no_penalty(data: Path) -> None:
    options = options_of(rounds=5)
    clients = gateways_of(options, data, roles(options, 0), Attack(kind="none"), 0)
    step = step_of(options, Memory(), FEDAVG, 0.1)
    count = next(iter(clients.values()))[FEATURES].shape[1]
    plain, free, listed, ours = (
        run(algorithm, clients).server.global_state[READOUT]
        for algorithm in (
            readout_fedavg(step, count, 5),
            listed_fedcurv(step, 0.0, count, 5),
            listed_fedcurv(step, 1.0, count, 5),
            readout_fedcurv(step, 1.0, count, 5),
        )
    )
    assert np.array_equal(plain, free)
    assert np.abs(listed - free).max() > 1e-6 and np.abs(listed - ours).max() > 1e-6


def test_the_listed_fisher_information_is_that_of_autograd() -> None:
    torch = pytest.importorskip("torch", reason="torch is in the extra [lstm] only")
    rng = np.random.default_rng(0)
    for outputs in (1, 3):
        states, readout = rng.normal(size=(9, 4)), rng.normal(size=(outputs, 4))
        W = torch.tensor(readout, requires_grad=True)
        logits = torch.tensor(states) @ W.T
        logits = torch.cat([torch.zeros((9, 1)), logits], dim=1) if outputs == 1 else logits
        logs: Any = torch.log_softmax(logits, dim=1)
        (gradient,) = torch.autograd.grad(logs.sum(), W)
        np.testing.assert_allclose(batch_fisher(readout, states), np.square(gradient.numpy()) / 9, rtol=1e-10)


@pytest.mark.parametrize("is_rejected", [True, False])
def test_a_rejected_gateway_of_the_thesis_counts_with_its_rows_and_no_change(data: Path, is_rejected: bool) -> None:
    options, who = options_of(), roles(options_of(), 0)
    clients = gateways_of(options, data, who, Attack(kind="none"), 0)
    rows = next(iter(clients.values()))
    algorithm = algorithm_of(options, Memory(), FEDAVG, 1.0, rows[FEATURES].shape[1])
    trusted = [rows_of(options, data, name) for name in who.trusted]
    network = discriminator(options, algorithm, trusted, 0, other_reservoir=False)
    network["layer2.weights"] = 0.0 * network["layer2.weights"]
    network["layer2.bias"] = np.array([-9.0 if is_rejected else 9.0])  # takes everything for noisy, or for clean
    guarded = with_listed_discriminator(algorithm, network)
    server = guarded.start(generator(0, 0, "cloud"))
    _, update = algorithm.phases[0].train(server.global_state, {}, rows, generator(0, 0, "a"))
    found, plain = (each.phases[0].admit(server, update) for each in (guarded, algorithm))
    assert float(found["samples"]) == float(plain["samples"]) == float(update["samples"])
    assert np.array_equal(found[READOUT], 0.0 * plain[READOUT] if is_rejected else plain[READOUT])
