"""Goal: another package brings an algorithm and a detector without a line of ours being touched.

Method: the package in tests/packages/example, which is what the page on extending shows, installed into a folder by pip
and used by real processes.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.firmware_sim import children
from fedgate.models.arrays import FEATURES
from fedgate.models.federated.protocol.algorithm import MAX_SAMPLES
from fedgate.models.federated.protocol.run import run
from fedgate.models.testing import check_detector
from fedgate.models.testing.fleet import FEATURE_COUNT, fleet
from tests.config.settings.test_settings import AGGREGATOR
from tests.packages.example.fedgate_example.distance import DISTANCE
from tests.packages.example.fedgate_example.fedprox_decay import fedprox_decay
from tests.packages.example.fedgate_example.mean_distance import mean_distance
from tests.project.test_docs import blocks
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S

PACKAGE = ROOT / "tests" / "packages" / "example"
NAMES = ("mean_distance", "fedprox_decay", "distance")
ALGORITHM, VARIANT, DETECTOR = (PACKAGE / "fedgate_example" / f"{name}.py" for name in NAMES)
PAGE = ROOT / "docs" / "reference" / "extend.md"
ALGORITHM_LINES_MAX, DETECTOR_LINES_MAX = 60, 20
LAWS = """
from functools import partial
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.testing import check_detector, check_laws

def built(feature_count, **settings):
    return build("mean-distance", feature_count, settings)

check_detector(DETECTORS["distance"])
check_laws(ALGORITHMS["mean-distance"])
check_laws(ALGORITHMS["fedprox-decay"], {"mu_0": 100.0})
check_laws(built, {"normalisation": "none", "whiten": 1})
check_laws(built, {"whiten": 2})
check_laws(built, {"masking": {"fewest": 3}})
"""
LACKING = """
from fedgate_example.mean_distance import mean_distance

def blind(feature_count, rounds=1):
    return mean_distance(feature_count)._replace(detector="unseen")

def forgetful(feature_count):
    mean_distance(feature_count)

def countless(count=3):
    return mean_distance(count)
"""
POINTS = "forgetful = lacking:forgetful\ncountless = lacking:countless\n"
SETTINGS = """
import sys
from pathlib import Path
from fedgate.config.settings.settings import AggregatorSettings, load
print(load(Path(sys.argv[1]), AggregatorSettings).algorithm.name)
"""
GATEWAY = """
import numpy as np
from fedgate.config.protocol import wire
from fedgate.models import onnx_policy
from fedgate.gateway_agent.runtime.training_worker import answer
from fedgate.models.arrays import joined, parted
from fedgate.models.detectors import DETECTORS, PERSONAL
from fedgate.models.federated import build
from tests.gateway_agent.training.test_trainer import ORDER, ROWS

algorithm = build("mean-distance", 3, {})
shared = algorithm.start(np.random.default_rng(0)).global_state
order = {**ORDER, "algorithm": "mean-distance", "settings": {}}
told, _ = wire.decode(answer(wire.encode(joined({"shared": shared, "own": {}, "data": {"x": ROWS}}), order)))
assert parted(told)["update"]["samples"] == len(ROWS)
onnx_policy.check(DETECTORS[algorithm.detector].graph(shared, PERSONAL))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes for which the package is installed."""
    folder = tmp_path_factory.mktemp("extend")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    target = str(folder / "target")
    words = [sys.executable, "-m", "pip", "install", *offline, "--target", target, str(folder / "source")]
    done = children.run(words, PATIENCE_S, text=True, env={**os.environ, "TMPDIR": str(folder)})
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": os.pathsep.join([target, str(ROOT)])}


def called(environment: dict[str, str], *words: str) -> Any:
    return children.run([sys.executable, *words], PATIENCE_S, text=True, env=environment, cwd=ROOT)


@pytest.mark.soak
@pytest.mark.parametrize("code", [LAWS, GATEWAY], ids=["laws", "gateway"])
def test_the_installed_package_keeps_the_laws_and_runs_on_a_gateway(environment: dict[str, str], code: str) -> None:
    done = called(environment, "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table with rows of which a few are far from the others."""
    odd = np.arange(60) > 50
    rows = np.random.default_rng(0).normal(size=(60, 2)) + 6.0 * odd[:, None]
    np.savez(tmp_path / "t.npz", x=rows, label=odd)
    return str(tmp_path / "t.npz")


def evaluated(environment: dict[str, str], table: str, algorithm: str) -> Any:
    words = ["evaluate", "--data", table, "--repeats", "2", "--clients", "2", "--jobs", "1", "--json", "-"]
    words += ["--algorithm", algorithm]
    return called(environment, "-P", "-m", "fedgate.firmware_sim", *words)


@pytest.mark.soak
def test_its_algorithm_is_evaluated(environment: dict[str, str], table: str) -> None:
    done = evaluated(environment, table, "mean-distance")
    assert done.returncode == 0, done.stderr
    assert '"method": "mean-distance"' in done.stdout and '"mean": 1.0' in done.stdout
    done = evaluated({**environment, "PYTHONPATH": str(ROOT)}, table, "mean-distance")
    assert done.returncode == 2 and "algorithm 'mean-distance' is unknown; expected one of fedavg," in done.stderr


@pytest.mark.soak
def test_its_settings_are_shown_and_a_demo_takes_its_name(environment: dict[str, str]) -> None:
    done = called(environment, "-P", "-m", "fedgate.firmware_sim", "evaluate", "--help")
    assert "  mean-distance: normalisation=own\n" in done.stdout, done.stderr
    done = called(environment, "-P", "-m", "fedgate.firmware_sim", "demo", "--help")
    assert ",mean-distance," in "".join(done.stdout.split()), done.stderr  # which argparse breaks at the hyphen


@pytest.mark.soak
def test_what_another_package_lacks_is_told_in_a_line(environment: dict[str, str], table: str, tmp_path: Path) -> None:
    metadata = tmp_path / "lacking-2.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lacking\nVersion: 2.0\n")
    (metadata / "entry_points.txt").write_text(
        "[fedgate.algorithms]\nlost = nowhere:lost\nblind = lacking:blind\n" + POINTS
    )
    (tmp_path / "lacking.py").write_text(LACKING)
    installed = {**environment, "PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])}
    for algorithm, words in (
        ("lost", "algorithm 'lost' of the package lacking 2.0 (nowhere:lost) cannot be loaded: No module named"),
        ("blind", "blind needs the detector 'unseen', which is not installed here"),
    ):
        done = evaluated(installed, table, algorithm)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
        done = called(installed, "-c", SETTINGS, settings_file(tmp_path, algorithm, "rounds = 1"))
        assert done.returncode == 1 and f"algorithm.name: {words.removeprefix('--algorithm: ')[:30]}" in done.stderr
    for algorithm, words in (
        ("forgetful", "(lacking:forgetful): expected a factory that returns an Algorithm, got NoneType"),
        ("countless", "(lacking:countless): expected a factory with a parameter feature_count"),
        ("distance", "'distance' is a detector; an algorithm must name it; expected one of"),
    ):
        done = evaluated(installed, table, algorithm)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert evaluated(installed, table, "mean-distance").returncode == 0


def settings_file(folder: Path, algorithm: str, settings: str) -> str:
    path = folder / "aggregator.toml"
    text = AGGREGATOR.replace('"fedavg"', f'"{algorithm}"').replace("rounds = 3\nnu = 0.5", settings)
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.soak
def test_the_settings_of_an_aggregator_may_name_it(environment: dict[str, str], tmp_path: Path) -> None:
    path = settings_file(tmp_path, "mean-distance", 'normalisation = "none"')
    done = called(environment, "-c", SETTINGS, path)
    assert done.stdout == "mean-distance\n", done.stderr


def test_the_fleet_learns_what_one_gateway_with_all_rows_would() -> None:
    data = {name: {FEATURES: gateway.x} for name, gateway in fleet(0, alike=True).items()}
    shared = run(mean_distance(FEATURE_COUNT, "none"), data).server.global_state
    rows = np.concatenate([rows[FEATURES] for rows in data.values()])
    fitted = DISTANCE.fit(rows)
    np.testing.assert_allclose(DISTANCE.score(shared, rows), DISTANCE.score(fitted, rows), rtol=1e-9, atol=1e-9)


def test_a_pull_that_decays_lets_later_rounds_go_further() -> None:
    algorithm = fedprox_decay(2, mu_0=100.0, gamma=0.3)
    shared = algorithm.start(np.random.default_rng(0)).global_state
    rows = {FEATURES: np.random.default_rng(0).normal(size=(60, 2))}

    def moved(step: int) -> float:
        _, update = algorithm.phases[0].train({**shared, "step": np.array(step)}, {}, rows, np.random.default_rng(0))
        return float(np.linalg.norm(update["weights"]))

    assert moved(99) > 2.0 * moved(0)


def test_a_gateway_with_more_rows_than_may_count_counts_as_one_with_so_many() -> None:
    algorithm = mean_distance(2)
    server, rng = algorithm.start(np.random.default_rng(0)), np.random.default_rng(0)
    (phase,) = algorithm.phases
    _, update = phase.train(server.global_state, {}, {FEATURES: rng.normal(size=(MAX_SAMPLES + 1, 2))}, rng)
    assert phase.admit(server, update)["samples"] == MAX_SAMPLES


def test_a_detector_that_divides_by_the_spread_of_a_feature_that_never_changes_breaks_a_law() -> None:
    unbounded = DISTANCE._replace(fit=lambda x: {"mean": x.mean(axis=0), "deviation": x.std(axis=0)})
    with (
        np.errstate(all="ignore"),
        pytest.raises(AssertionError, match="far rows have scores"),
    ):
        check_detector(unbounded)


def test_the_page_shows_the_package_as_it_is() -> None:
    shown = [*blocks(PAGE, "toml"), *blocks(PAGE, "python")]
    files = [PACKAGE / "pyproject.toml", ALGORITHM, VARIANT, DETECTOR]
    assert shown == [file.read_text(encoding="utf-8") for file in files]


def test_what_is_shown_is_short() -> None:
    for file in (ALGORITHM, VARIANT):
        assert len(file.read_text("utf-8").splitlines()) <= ALGORITHM_LINES_MAX
    assert sum(code_lines(DETECTOR.read_text("utf-8"))) <= DETECTOR_LINES_MAX


def code_lines(text: str) -> Iterator[int]:
    """Yield of each function how many lines it has without its docstring and empty lines."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            behind = node.body[0].end_lineno or 0  # the docstring's end
            yield 1 + len([line for line in lines[behind : node.end_lineno] if line])
