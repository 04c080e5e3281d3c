"""The runner of studies: every cell once, a stopped study goes on, wrong options are named."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedgate.firmware_sim import children
from fedgate.firmware_sim.__main__ import main as firmware_sim
from fedgate.firmware_sim.studies.__main__ import main
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Study, StudyOptions
from fedgate.firmware_sim.studies.registry import STUDIES
from tests.support.syntax import ROOT
from tests.support.waiting import until

MEASURED: list[int] = []  # the cells that were measured, in order
BROKEN: set[int] = set()


class Powers(StudyOptions):
    exponent: int
    numbers: tuple[int, ...]


def measure(options: Powers, data: Path, cell: Cell) -> Figures:
    if cell["number"] in BROKEN:
        raise ValueError("this number\nis out of order")
    MEASURED.append(cell["number"])
    return {"power": float(cell["number"] ** options.exponent), "nothing": float("nan")}


def report(options: Powers, results: Any, prefix: Path) -> str:
    prefix.with_name(f"{prefix.name}-powers.txt").write_text("a picture", encoding="utf-8")
    return "\n".join(f"{cell['number']} -> {figures['power']:g}" for cell, figures in results)


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    study = Study(
        Powers,
        lambda options: [{"number": number} for number in options.numbers],
        measure,
        report,
        lambda options, cell: options.exponent,
    )
    monkeypatch.setitem(STUDIES, "powers", study)
    monkeypatch.chdir(tmp_path)
    MEASURED.clear()
    BROKEN.clear()
    path = tmp_path / "cubes.toml"
    path.write_text(
        'study = "powers"\ntitle = "Cubes"\nexponent = 3\nnumbers = [1, 2, 3]\n[short]\nnumbers = [2]\n', "utf-8"
    )
    return path


def run(path: Path, *options: str) -> int:
    return main(["measure", str(path), "--data", str(path.parent), "--jobs", "1", *options])


def test_a_report_holds_title_results_and_how_they_came_about(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(experiment) == 0
    text = (experiment.parent / "out/results/cubes.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.startswith(text)
    for words in ("# Cubes", "1 -> 1\n2 -> 8\n3 -> 27", "3 cells", "studies measure cubes.toml --data DATA"):
        assert words in text
    assert str(experiment.parent) not in text and (experiment.parent / "out/results/cubes-powers.txt").exists()


def test_a_stopped_study_goes_on_with_what_is_missing(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    BROKEN.add(3)
    assert run(experiment) == 2
    assert capsys.readouterr().err.strip().endswith("number=3: ValueError: this number is out of order")
    assert MEASURED == [1, 2]
    BROKEN.clear()
    assert run(experiment) == 0 and MEASURED == [1, 2, 3]
    assert run(experiment) == 0 and MEASURED == [1, 2, 3]


def test_a_line_that_was_cut_off_is_measured_again(experiment: Path) -> None:
    run(experiment)
    cells = experiment.parent / "out/results/cells/cubes.jsonl"
    cells.write_bytes(cells.read_bytes()[:-9])
    assert run(experiment) == 0 and MEASURED == [1, 2, 3, 3]
    assert len(cells.read_text(encoding="utf-8").splitlines()) == 3


def test_other_options_and_fresh_begin_anew(experiment: Path) -> None:
    run(experiment)
    assert run(experiment, "--fresh") == 0 and MEASURED == [1, 2, 3] * 2
    experiment.write_text(experiment.read_text(encoding="utf-8").replace("exponent = 3", "exponent = 2"), "utf-8")
    assert run(experiment) == 0 and MEASURED == [1, 2, 3] * 3
    assert "3 -> 9" in (experiment.parent / "out/results/cubes.md").read_text(encoding="utf-8")


def test_a_short_profile_has_files_of_its_own_and_says_so(experiment: Path) -> None:
    assert run(experiment, "--profile", "short", "--results", "kept") == 0
    assert MEASURED == [2]
    assert "A short profile" in (experiment.parent / "kept/cubes-short.md").read_text(encoding="utf-8")


def test_json_holds_every_cell(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(experiment, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["cell"]["number"] for each in found["cells"]] == [1, 2, 3]
    assert found["cells"][1]["figures"] == {"power": 8.0, "nothing": None}


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", ["--jobs", "0"], "--jobs: expected at least 1, got 0"),
        ("", ["--data", "nowhere"], "--data: expected the folder that holds the data of this study, got nowhere"),
        ("", ["--json", "no/such/folder.json"], "lies in a folder that does not exist"),
        ("exponent = 3|exponent = 'x'", [], "cubes.toml:3: exponent"),
        ("[2]|['x']", ["--profile", "short"], "cubes.toml: short.numbers"),
        ("powers|power", [], "study 'power' is unknown; expected one of"),
        ("study = |stud = ", [], "cubes.toml:1: study"),
    ],
)
def test_a_wrong_option_is_named(
    experiment: Path, capsys: pytest.CaptureFixture[str], text: str, options: list[str], words: str
) -> None:
    before, _, after = text.partition("|")
    experiment.write_text(experiment.read_text(encoding="utf-8").replace(before, after or before), "utf-8")
    assert run(experiment, *options) == 2
    assert words in capsys.readouterr().err
    assert MEASURED == []


@pytest.mark.parametrize("words", [["check"], ["evaluate", "--experiment"]])
def test_the_program_that_is_installed_says_where_a_study_is_measured(
    experiment: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert firmware_sim([*words, str(experiment)]) == 2
    assert "python -m fedgate.firmware_sim.studies measure" in capsys.readouterr().err


def test_check_says_what_a_study_is(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(experiment)]) == 0
    assert "study of 3 cells: Cubes" in capsys.readouterr().out


MUNICH = ROOT / "firmware_sim/experiments/munich.toml"


@pytest.mark.slow
@pytest.mark.soak
def test_workers_measure_what_one_process_measures(tmp_path: Path) -> None:
    """The figures do not depend on how many work on them."""
    given = ["measure", str(MUNICH), "--data", str(tmp_path), "--profile", "short", "--json"]
    for jobs in ("1", "2"):
        assert main([*given, str(tmp_path / f"{jobs}.json"), "--results", str(tmp_path / jobs), "--jobs", jobs]) == 0
    one, two = (json.loads((tmp_path / f"{jobs}.json").read_text())["cells"] for jobs in ("1", "2"))
    assert [each["cell"] for each in one] == [each["cell"] for each in two]
    for first, second in zip(one, two, strict=True):
        assert first["figures"] == pytest.approx(second["figures"], rel=1e-9, nan_ok=True)


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    given = ["measure", str(MUNICH), "--data", str(tmp_path), "--results", str(tmp_path), "--jobs", "2"]
    command = [sys.executable, "-P", "-m", "fedgate.firmware_sim.studies", *given]
    parent = children.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: len(children.family(parent.pid)) > 3)  # two workers and Python's own tracker of shared resources
    workers = children.family(parent.pid)[1:]
    time.sleep(0.5)  # so that the workers have begun
    parent.kill()
    parent.wait()
    until(lambda: not any(map(children.is_alive, workers)))
