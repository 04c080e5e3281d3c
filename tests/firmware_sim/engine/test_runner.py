"""Every cell is measured once and kept, a stopped study goes on, and what goes wrong is named."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedgate.config.runtime.version import VERSION
from fedgate.firmware_sim import children
from fedgate.firmware_sim.engine import runner
from fedgate.firmware_sim.engine.runner import Outcome, Plan, run_study
from fedgate.firmware_sim.engine.spec import StudyError, load_spec
from fedgate.firmware_sim.studies.__main__ import main
from tests.support.powers import MEASURED
from tests.support.syntax import ROOT
from tests.support.waiting import until

CUBES = """
title = "Cubes"
about = "Of numbers."
probe = "tests.support.powers"
settings = { rounds = 40 }

[cells]
number = [1, 2, 3]

[[section]]
title = "Powers"
rows = ["number"]
figures = { power = { of = "power", digits = 0 }, nothing = "nothing" }

[[section]]
kind = "lines"
rows = ["number"]
figures = { power = "power" }
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cubes.toml"
    path.write_text(CUBES, "utf-8")
    return path


def run(path: Path, *options: str, jobs: int = 1) -> int:
    return main(["measure", str(path), "--data", str(path.parent), "--jobs", str(jobs), *options])


def measured(path: Path) -> list[int]:
    """Return the numbers that were measured, in order, whichever process has measured them."""
    kept = path.parent / MEASURED
    return [int(line) for line in kept.read_text("utf-8").split()] if kept.exists() else []


def rewrite(path: Path, before: str, after: str) -> None:
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after), "utf-8")


def lines(path: Path, name: str = "cubes") -> list[dict[str, Any]]:
    kept = path.parent / f"out/results/cells/{name}.jsonl"
    return [json.loads(line) for line in kept.read_text("utf-8").splitlines()]


@pytest.mark.soak
def test_a_report_holds_title_results_and_how_they_came_about(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(study) == 0
    text = (study.parent / "out/results/cubes.md").read_text("utf-8")
    assert capsys.readouterr().out.startswith(text)
    for words in (
        "# Cubes\n\nOf numbers.\n\n## Powers\n",
        "| 1 | 1 | - |\n| 2 | 8 | - |\n| 3 | 27 | - |\n",
        "](cubes-1.png)",
        "3 cells, ",
        "at most 1 at a time",
        "studies measure cubes.toml --data DATA\n",
    ):
        assert words in text
    assert str(study.parent) not in text and (study.parent / "out/results/cubes-1.png").exists()


@pytest.mark.soak
def test_a_stopped_study_goes_on_with_what_is_missing(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (study.parent / "raise-3").touch()
    assert run(study) == 2
    said, log = capsys.readouterr().err.splitlines()[-1], Path("out/results/cells/cubes.log")
    assert said.endswith(f"number=3: ValueError: this number is out of order; where it failed: {log}")
    assert re.search(r'powers\.py", line \d+, in measure', log.read_text("utf-8"))
    assert measured(study) == [1, 2] and not (study.parent / "out/results/cubes.md").exists()
    (study.parent / "raise-3").unlink()
    assert run(study) == 0 and measured(study) == [1, 2, 3] and not log.exists()
    assert run(study) == 0 and measured(study) == [1, 2, 3]


@pytest.mark.soak
@pytest.mark.parametrize("left", [b"\n", b"", b'{"key": "x"}\n', b'[1]\n{"key": 5', b"\xff\xfe{}\n"])
def test_a_line_that_cannot_be_read_is_measured_again(study: Path, left: bytes) -> None:
    run(study)
    cells = study.parent / "out/results/cells/cubes.jsonl"
    *whole, last = cells.read_bytes().splitlines(keepends=True)
    cells.write_bytes(b"".join(whole) + (left or last[:-9]))
    assert run(study) == 0 and measured(study) == [1, 2, 3, 3]
    assert run(study) == 0 and measured(study) == [1, 2, 3, 3]


@pytest.mark.soak
def test_words_measure_nothing_anew_and_other_settings_and_fresh_do(study: Path) -> None:
    run(study)
    for before, after in (("Cubes", "Powers of three"), ('"Powers"', '"Numbers"'), ("digits = 0", "digits = 1")):
        rewrite(study, before, after)
    rewrite(study, "[1, 2, 3]", "[3, 2, 4]")
    assert run(study) == 0 and measured(study) == [1, 2, 3, 4]
    text = (study.parent / "out/results/cubes.md").read_text("utf-8")
    assert text.startswith("# Powers of three\n") and "| 3 | 27.0 | - |\n| 2 | 8.0 | - |\n| 4 | 64.0 | - |\n" in text
    rewrite(study, "rounds = 40", "rounds = 41")
    assert run(study) == 0 and measured(study) == [1, 2, 3, 4, 3, 2, 4]
    assert run(study, "--fresh") == 0 and measured(study) == [1, 2, 3, 4, 3, 2, 4, 3, 2, 4]
    assert len(lines(study)) == 3


def test_cells_of_the_same_case_are_measured_once(study: Path) -> None:
    rewrite(
        study,
        "number = [1, 2, 3]",
        'number = [2]\nmethod = "*"\n[define.method]\na = { exponent = 2 }\nb = { like = "a" }',
    )
    rewrite(study, 'rows = ["number"]\nfigures = { power = {', 'rows = ["method"]\nfigures = { power = {')
    assert run(study) == 0 and measured(study) == [2]
    text = (study.parent / "out/results/cubes.md").read_text("utf-8")
    assert "| a | 4 | - |\n| b | 4 | - |\n" in text


@pytest.mark.soak
def test_a_short_run_has_files_of_its_own_and_says_so(study: Path) -> None:
    assert run(study, "--short") == 0 and measured(study) == [1]
    text = (study.parent / "out/results/cubes-short.md").read_text("utf-8")
    assert "A short run" in text and " --short\n" in text and "](cubes-short-1.png)" in text
    assert [line["cell"] for line in lines(study, "cubes-short")] == [
        {
            "number": 1,
        }
    ]
    assert run(study) == 0 and measured(study) == [1, 1, 2, 3], "with more rounds"


@pytest.mark.soak
def test_a_report_says_how_many_cells_other_code_has_measured(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(study)
    assert "before the code last changed" not in (study.parent / "out/results/cubes.md").read_text("utf-8")
    monkeypatch.setattr(runner, "_code", lambda module: "other")
    rewrite(study, "[1, 2, 3]", "[1, 2, 4]")
    run(study)
    text = (study.parent / "out/results/cubes.md").read_text("utf-8")
    assert "3 cells," in text and "2 of them were measured before the code last changed" in " ".join(text.split())
    assert [line["code"] == "other" for line in lines(study)] == [False, False, False, True]


def test_the_number_of_the_code_is_made_of_what_measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sources = ["models", "firmware_sim/engine", "firmware_sim/recordings", "cloud_aggregator/alarms"]
    sources += ["config/protocol", "gateway_agent/deployment", "their_probes/inside"]
    for folder in (*sources, "docs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "their_probes/__init__.py").touch()

    def number() -> str:
        runner._code.cache_clear()
        return runner._code("their_probes.inside.x")

    numbers = [number()]
    for folder in sources:
        (tmp_path / folder / "x.py").write_text(folder, "utf-8")
        numbers.append(number())
    assert len(set(numbers)) == len(numbers)
    (tmp_path / "docs/x.py").write_text("docs", "utf-8")
    assert number() == numbers[-1]
    runner._code.cache_clear()


@pytest.mark.soak
def test_a_report_says_where_its_cells_were_measured_and_of_none_more_than_is_known(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(study)
    text = " ".join((study.parent / "out/results/cubes.md").read_text("utf-8").split())
    assert f" with fedgate {VERSION} on " in text and "was not kept" not in text
    cells = study.parent / "out/results/cells/cubes.jsonl"
    first, second, third = lines(study)
    first["where"] = "fedgate 0.1 on tape, Python 1.5"
    del second["where"]
    cells.write_text("".join(json.dumps(line) + "\n" for line in (first, second)), "utf-8")
    run(study)
    text = " ".join((study.parent / "out/results/cubes.md").read_text("utf-8").split())
    assert f" with fedgate 0.1 on tape, Python 1.5 and {third['where']}: 3 cells" in text
    assert "where 1 of them were measured was not kept" in text
    cells.write_text("".join(json.dumps({**line, "where": ""}) + "\n" for line in lines(study)), "utf-8")
    run(study)
    text = " ".join((study.parent / "out/results/cubes.md").read_text("utf-8").split())
    assert re.search(r"Measured on [\d-]+: 3 cells", text)


@pytest.mark.soak
def test_json_holds_every_cell(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(study, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["cell"] for each in found["cells"]] == [{"number": number} for number in (1, 2, 3)]
    assert found["cells"][1]["figures"] == {"power": 8.0, "nothing": None}
    assert (found["study"], found["short"], found["report"]) == ("cubes", False, "out/results/cubes.md")


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ("", ["--jobs", "0"], "--jobs: expected at least 1, got 0"),
        ("", ["--data", "nowhere"], "--data: expected the folder that holds the data of this study, got nowhere"),
        ("", ["--json", "no/such/folder.json"], "lies in a folder that does not exist"),
        ("rounds = 40|rounds = 'x'", [], "number=1: rounds"),
        ("tests.support.powers|powers", [], "probe 'powers': No module named"),
        ("about = |abut = ", [], "cubes.toml"),
        ("title = |title ", [], "cubes.toml"),
        ('"Cubes"|" "', [], "title"),
        ("\nprobe|\njobs = 1\nprobe", ["--cluster", "tcp://127.0.0.1:1"], "--cluster: no more than 1 cells"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_measured(
    study: Path, capsys: pytest.CaptureFixture[str], change: str, options: list[str], words: str
) -> None:
    rewrite(study, *(change.split("|") if change else ("", "")))
    assert run(study, *options) == 2
    assert words in capsys.readouterr().err and measured(study) == []


def test_check_says_what_a_study_is_without_its_data(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(study)]) == 0
    assert capsys.readouterr().out == f"{study}: good; study of 3 cells: Cubes\n"
    assert main(["check", "--json", str(study)]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    rewrite(study, "number =", "nmber =")
    assert main(["check", str(study)]) == 2


@pytest.mark.soak
def test_another_run_of_the_same_study_is_refused_and_another_study_is_not(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(study)
    with (study.parent / "out/results/cells/cubes.jsonl").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for options in ([], ["--fresh"]):
            assert run(study, *options) == 2
            assert "another run measures this study; wait for it, or name other --results" in capsys.readouterr().err
        assert run(study, "--results", "other") == 0 and run(study, "--short") == 0
    assert len(lines(study)) == 3 and run(study) == 0


def run_here(study: Path, *, jobs: int = 1, cluster: str = "", say: Any = lambda _: None) -> Outcome:
    plan = Plan(study.parent, study.parent / "out/results", "test", jobs=jobs, cluster=cluster)
    return run_study("cubes", load_spec(study), plan, say)


@pytest.mark.soak
def test_progress_says_how_far_it_is_and_how_long_it_will_take(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, now_s = list[str](), iter(range(0, 10_000, 120))
    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: float(next(now_s))})  # of nobody else
    monkeypatch.setattr(runner, "time", clock)
    run_here(study, say=said.append)
    assert said == [
        "cubes: 3 cells, 0 of them measured before",
        "cubes: 1 of 3 cells, about 4 min left",
        "cubes: 2 of 3 cells, about 2 min left",
        "cubes: 3 of 3 cells, about 0 min left",
    ]
    said.clear()
    run_here(study, say=said.append)
    assert said == ["cubes: 3 cells, 3 of them measured before"]


@pytest.mark.soak
def test_workers_measure_what_one_process_measures(study: Path) -> None:
    found = run_here(study, jobs=2)
    assert sorted(measured(study)) == [1, 2, 3]
    assert [cell.coordinates["number"] for cell in found.cells] == [1, 2, 3]
    assert [done.figures["power"] for done in found.measured] == [1.0, 8.0, 27.0]
    assert {done.code for done in found.measured} == {runner._code("tests.support.powers")}
    assert "at most 2 at a time" in found.text
    assert run_here(study).text.partition("---\n\n")[0] == found.text.partition("---\n\n")[0]


@pytest.mark.soak
def test_a_study_whose_times_want_the_machine_is_measured_alone(study: Path) -> None:
    rewrite(study, "\nprobe", "\njobs = 1\nprobe")
    assert "at most 1 at a time" in run_here(study, jobs=2).text and measured(study) == [1, 2, 3]


@pytest.mark.soak
def test_a_cell_that_fails_in_a_worker_is_named_and_what_others_have_begun_is_kept(study: Path) -> None:
    rewrite(study, "[1, 2, 3]", "[1, 2, 3, 4, 5, 6, 7, 8, 9]")
    (study.parent / "raise-1").touch()
    with pytest.raises(StudyError, match="number=1: ValueError: this number is out of order"):
        run_here(study, jobs=2)
    kept = {line["cell"]["number"] for line in lines(study)}
    assert 1 not in kept and kept == set(measured(study))
    (study.parent / "raise-1").unlink()
    assert len(run_here(study, jobs=2).measured) == 9
    assert sorted(measured(study)) == list(range(1, 10)), "each once"


@pytest.mark.soak
def test_a_worker_that_is_killed_is_named_and_what_was_finished_is_kept(study: Path) -> None:
    (study.parent / "kill-3").touch()
    with pytest.raises(StudyError, match=r"a worker was killed, most likely for want of memory; .* fewer --jobs"):
        run_here(study, jobs=2)
    assert {line["cell"]["number"] for line in lines(study)} <= {1, 2}
    (study.parent / "kill-3").unlink()
    assert [done.figures["power"] for done in run_here(study, jobs=2).measured] == [1.0, 8.0, 27.0]


@pytest.mark.soak
def test_workers_end_with_the_process_that_started_them(study: Path) -> None:
    for number in (1, 2, 3):
        (study.parent / f"wait-{number}").touch()
    given = ["measure", str(study), "--data", str(study.parent), "--results", str(study.parent), "--jobs", "2"]
    command = [sys.executable, "-P", "-m", "fedgate.firmware_sim.studies", *given]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = children.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    until(lambda: len(children.family(parent.pid)) > 3)  # two workers and Python's own tracker of shared resources
    workers = children.family(parent.pid)[1:]
    parent.kill()
    parent.wait()
    until(lambda: not any(map(children.is_alive, workers)))


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[Any]]]]:
    """Start a Dask scheduler and a worker on free ports of this machine; yield its address and both processes."""
    file = tmp_path / "scheduler.json"
    here = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    log = (tmp_path / "dask.log").open("w", encoding="utf-8")
    started = list[subprocess.Popen[Any]]()

    def start(name: str, *options: str) -> None:
        command = [sys.executable, "-m", f"distributed.cli.{name}", *here, *options]
        started.append(children.start(command, cwd=tmp_path, env=environment, stdout=log, stderr=log))

    def address() -> str:
        found = re.search(r'"address": "([^"]+)"', file.read_text("utf-8")) if file.exists() else None
        return found[1] if found else ""

    try:
        start("dask_scheduler", "--port", "0")
        until(address, lambda: Path(log.name).read_text("utf-8"))
        start("dask_worker", "--no-nanny", "--nthreads", "1", "--nworkers", "1")
        until(lambda: "Registered to" in Path(log.name).read_text("utf-8"), lambda: Path(log.name).read_text("utf-8"))
        yield address(), started
    finally:
        for process in started:
            process.kill()
            process.wait()
        log.close()


@pytest.mark.soak
@pytest.mark.slow
def test_a_cluster_measures_what_one_process_measures(
    study: Path, scheduler: tuple[str, list[subprocess.Popen[Any]]]
) -> None:
    address, (_, worker) = scheduler
    (study.parent / "raise-2").touch()
    with pytest.raises(StudyError, match="number=2: ValueError: this number is out of order"):
        run_here(study, cluster=address)
    kept = {line["cell"]["number"] for line in lines(study)}
    (study.parent / "raise-2").unlink()
    found = run_here(study, cluster=address)
    assert [done.figures["power"] for done in found.measured] == [1.0, 8.0, 27.0]
    assert {1} <= kept <= {1, 3} and "on a Dask cluster" in found.text
    assert {done.code for done in found.measured} == {runner._code("tests.support.powers")}
    rewrite(study, "[1, 2, 3]", "[4, 5, 6]")
    (study.parent / "kill-5").touch()
    with pytest.raises(StudyError, match="--cluster: workers were killed, most likely for want of memory"):
        run_here(study, cluster=address)
    assert children.wait_for_end(worker, 10.0) < 0
    with pytest.raises(StudyError, match=f"--cluster: no worker has come to the scheduler at {address}"):
        run_here(study, cluster=address)


@pytest.mark.soak
def test_a_scheduler_that_does_not_answer_is_named(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CONNECT_S", 0.1)
    with pytest.raises(StudyError, match=r"--cluster: no Dask scheduler answers at 'tcp://127\.0\.0\.1:1'"):
        run_here(study, cluster="tcp://127.0.0.1:1")
    with pytest.raises(StudyError, match=r"--cluster: no Dask scheduler answers at 'nonsense://x'"):
        run_here(study, cluster="nonsense://x")
