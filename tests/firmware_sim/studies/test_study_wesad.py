"""The study of Table B.3: nobody who is scored trains or chooses, bytes are those that travel, and losses are told.

The subjects are made here in the format of the real ones, which are not part of the project.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate import firmware_sim
from fedgate.firmware_sim.evaluate.datasets import DataError
from fedgate.firmware_sim.studies.__main__ import main
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, load_options
from fedgate.firmware_sim.studies.esn_wesad import methods
from fedgate.firmware_sim.studies.esn_wesad.baselines import LOCAL, LOGISTIC, MAJORITY, POOLED
from fedgate.firmware_sim.studies.esn_wesad.choice import chosen
from fedgate.firmware_sim.studies.esn_wesad.data import Fold, folds, gateway, present
from fedgate.firmware_sim.studies.esn_wesad.listed import PAPER_RIDGE, with_paper_ridge
from fedgate.firmware_sim.studies.esn_wesad.options import CHOSEN, Options
from fedgate.firmware_sim.studies.esn_wesad.report import report
from fedgate.firmware_sim.studies.esn_wesad.sketches import SKETCHES
from fedgate.firmware_sim.studies.esn_wesad.study import STUDY, cells, identity, measure
from fedgate.models.arrays import FEATURES, Arrays
from fedgate.models.federated.closed_form.incfed import CONDITION, incfed
from fedgate.models.federated.closed_form.partial_incfed import partial_incfed
from fedgate.models.federated.protocol.contributions import STEP
from fedgate.models.federated.protocol.run import Outcome, run
from tests.models.federated.closed_form.test_incfed import CLASSES, FEATURE_COUNT, close, lesson_of, series

EXPERIMENT = Path(firmware_sim.__file__).parent / "experiments" / "wesad-table-b3.toml"
ROWS = 240


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of four subjects whose channels move with the class, each in units of its own."""
    folder = tmp_path / "streams" / "wesad_features"
    folder.mkdir(parents=True)
    for index in range(2, 6):
        rng = np.random.default_rng(index)
        y = np.repeat([1, 2, 3], ROWS // 3)
        means = np.eye(3)[y - 1] * 2.0 + rng.normal(size=(ROWS, 3))
        X = np.stack([means, rng.normal(size=(ROWS, 3))], axis=2).reshape(ROWS, 6) * rng.uniform(0.1, 9.0) + 5.0
        names = [f"channel_{at}_{kind}" for at in range(3) for kind in ("mean", "std")]
        np.savez(folder / f"S{index}.npz", X=X, y=y.astype(np.int8), feature_names=np.array(names))
    return tmp_path


def options_of(**changes: Any) -> Options:
    options = load_options(EXPERIMENT, STUDY, "short")
    assert isinstance(options, Options)
    return Options.model_validate({**options.model_dump(), **changes})


def full_options() -> Options:
    options = load_options(EXPERIMENT, STUDY, "full")
    assert isinstance(options, Options)
    return options


def cell_of(method: str, **more: Any) -> Cell:
    return {"method": method, "network": "default", "normalisation": "recording", "share": 1.0, "seed": 0, **more}


def test_the_short_profile_gives_a_report(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = data / "results"
    command = ["measure", str(EXPERIMENT), "--data", str(data), "--profile", "short", "--jobs", "1"]
    assert main([*command, "--results", str(results)]) == 0
    text = (results / "wesad-table-b3-short.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.startswith(text)
    printed = ("IncFed, printed", "0.780", MAJORITY, LOGISTIC, LOCAL, "## Targets", "wesad-table-b3-short-bytes.png")
    for words in (
        *printed,
        "within 0.015 of IncFed",
        "Fewest bytes sent and received",
        "that the inner folds chose",
        *SKETCHES,
    ):
        assert words in text
    assert [each.name for each in results.glob("*.png")] == ["wesad-table-b3-short-bytes.png"]


def test_the_experiment_holds_the_papers_grid() -> None:
    options = full_options()
    found = cells(options)
    assert len(found) == len({str(sorted(cell.items())) for cell in found})
    paper = options.network("paper")
    assert (paper.units, paper.leak, paper.spectral_radius, paper.direct) == (500, 1.0, 0.99, False)
    assert options.shares == [0.25, 0.5, 0.75, 1.0]
    alphas = {
        each.settings.get("alpha") for each in options.methods.values() if each.settings.get("select") == "importance"
    }
    assert alphas == {0.3, 0.6, 0.8, 1.0}
    assert {method for method, _ in ((cell["method"], 0) for cell in found)} >= {
        *options.methods,
        CHOSEN,
        MAJORITY,
        POOLED,
    }


def test_who_is_scored_does_not_train(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []

    def watched(algorithm: Any, clients: dict[str, Arrays], **others: Any) -> Outcome:
        seen.append(set(clients))
        return run(algorithm, clients, **others)

    monkeypatch.setattr(methods, "run", watched)
    measure(options_of(), data, cell_of("IncFed", share=0.5))
    assert [len(names) for names in seen] == [1, 1]
    for names, fold in zip(seen, folds(options_of()), strict=True):
        assert names <= set(fold.others) and not names & set(fold.scored)


def test_a_smaller_share_is_part_of_a_larger_one() -> None:
    fold = Fold(0, ["x"], [f"S{index}" for index in range(8)])
    chain = [set(present(fold, share, 3)) for share in (0.25, 0.5, 0.75, 1.0)]
    assert [len(names) for names in chain] == [2, 4, 6, 8]
    assert chain[0] < chain[1] < chain[2] < chain[3]


def test_units_are_those_of_what_a_gateway_has_seen(data: Path) -> None:
    options = options_of(commissioning_rows=50)
    whole, first = (gateway(options, data, "S2", mode)[FEATURES] for mode in ("recording", "commissioning"))
    assert whole.shape == first.shape == (ROWS, 3)
    np.testing.assert_allclose([whole.mean(axis=0), first[:50].mean(axis=0)], 0.0, atol=1e-9)
    np.testing.assert_allclose([whole.std(axis=0), first[:50].std(axis=0)], 1.0)
    assert np.abs(first.mean(axis=0)).max() > 0.5


def test_one_place_and_many_gateways_are_the_same(data: Path) -> None:
    options = options_of()
    federated, pooled = (measure(options, data, cell_of(method)) for method in ("IncFed", POOLED))
    assert all(pooled[name] == pytest.approx(federated[name], rel=1e-6) for name in pooled)
    assert (
        federated["accuracy"] > measure(options, data, {"method": MAJORITY, "normalisation": "recording"})["accuracy"]
    )


def test_the_paper_takes_its_ridge_as_it_is() -> None:
    parts = {name: series(rows, 80, 3) for rows, name in enumerate("abc")}
    plain: dict[str, Any] = {"network": CLASSES, "normalisation": "none"}
    whole, several = incfed(FEATURE_COUNT, **plain), incfed(FEATURE_COUNT, **plain, rounds=2)
    elected = partial_incfed(FEATURE_COUNT, **plain, neurons=CLASSES.units)
    for algorithm in (whole, several, elected):
        shared = run(with_paper_ridge(algorithm), parts).server.global_state
        rows = [lesson_of(shared, data, CLASSES) for data in parts.values()]
        s, y = (np.concatenate(each) for each in zip(*rows, strict=True))
        expected = np.linalg.solve(s.T @ s + PAPER_RIDGE * np.eye(s.shape[1]), s.T @ y).T
        assert close(shared["readout"], expected, 1e-6)
        assert int(shared[STEP]) == algorithm.rounds


def test_the_papers_ridge_leaves_the_masked_sum_nearly_singular() -> None:
    parts = {name: series(rows, 80, 3) for rows, name in enumerate("abc")}
    ours = partial_incfed(FEATURE_COUNT, network=CLASSES, normalisation="none", select="importance", cohort=3)
    found, papers = (float(run(each, parts).server.global_state[CONDITION]) for each in (ours, with_paper_ridge(ours)))
    assert found < 100.0 and papers > 1e4


def test_what_is_scored_has_no_part_in_the_choice(data: Path) -> None:
    options = options_of(candidates=["default", "paper"])
    before = chosen(options, data, "recording", 0)
    file = data / "streams" / "wesad_features" / "S2.npz"
    with np.load(file) as archive:
        changed = {**archive, "X": archive["X"][::-1] * -3.0, "y": archive["y"][::-1]}
    other = data / "other"
    (other / "streams" / "wesad_features").mkdir(parents=True)
    for name in options.subjects[1:]:
        path = other / "streams" / "wesad_features" / f"{name}.npz"
        path.write_bytes((file.parent / f"{name}.npz").read_bytes())
    np.savez(other / "streams" / "wesad_features" / "S2.npz", **changed)
    after = chosen(options, other, "recording", 0)
    of_first_fold = ("candidate.0", "ridge.0")
    assert [before[name] for name in of_first_fold] == [after[name] for name in of_first_fold]
    assert before["accuracy"] != after["accuracy"]


def test_a_size_is_that_of_the_network_where_nothing_chooses_among_its_units(data: Path) -> None:
    options = options_of()
    small, mask, driven = (
        measure(options, data, cell_of(method, network="paper", size=8))
        for method in ("IncFed", "shared mask", "driven directions")
    )
    assert small["bytes_up"] < driven["bytes_up"] + 200 < mask["bytes_up"] < 2_000


def test_a_file_of_another_format_is_named(data: Path) -> None:
    file = data / "streams" / "wesad_features" / "S3.npz"
    np.savez(file, X=np.zeros((3, 2)), y=np.ones(3), feature_names=np.array(["a", "b"]))
    with pytest.raises(DataError, match=r"S3\.npz: expected columns named"):
        measure(options_of(), data, cell_of("IncFed"))


def test_a_measurement_is_known_by_what_it_depends_on() -> None:
    options, cell = full_options(), cell_of("IncFed")
    changed = {**options.networks, "default": {"units": 9}}
    assert identity(options.model_copy(update={"networks": changed}), cell) != identity(options, cell)
    assert identity(options.model_copy(update={"networks": changed}), {**cell, "network": "paper"}) == identity(
        options, {**cell, "network": "paper"}
    )
    assert identity(options.model_copy(update={"note": "x", "paper": {}, "targets": []}), cell) == identity(
        options, cell
    )
    assert identity(options.model_copy(update={"ridges": [1.0]}), {"method": CHOSEN}) != identity(
        options, {"method": CHOSEN}
    )


def test_the_report_says_what_was_missed(tmp_path: Path) -> None:
    options = options_of(sizes=[])
    accuracy = {"IncFed": 0.85, "Partial α 0.3": 0.82, "shared mask": 0.84, "driven directions": 0.86, CHOSEN: 0.85}
    made = [(cell, figures_of(accuracy.get(cell["method"], 0.5), cell["method"])) for cell in cells(options)]
    text = report(options, made, tmp_path / "label")
    assert f"| {CHOSEN} |  | whole recording | accuracy at least 0.84 | 0.850 | yes |" in text
    assert "| Partial α 0.3 | paper | whole recording | at most 0.015 below IncFed; at most 20% of" in text
    assert "0.820; IncFed 0.850; 6.9% | **no** |" in text
    assert "0.860; IncFed 0.850; 6.9% | **no** |" in text  # of the bytes alone


def figures_of(accuracy: float, method: str) -> Figures:
    places = {"candidate.0": 0.0, "ridge.0": 1.0} if method == CHOSEN else {}
    named = {
        "macro_f1": 0.5,
        "error": 0.3,
        "subject_deviation": 0.1,
        "bytes_up": 1e3,
        "bytes_down": 1e3,
        "condition": 1e3,
    }
    return {"accuracy": accuracy, **named, **places}
