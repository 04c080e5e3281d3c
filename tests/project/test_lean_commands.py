"""Goal: a command of firmware-sim imports what it needs and no more, and says how to get what it lacks.

Method: processes that can import what a base installation brings, and nothing else.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from fedgate.config.settings.extras import EXTRA_OF
from fedgate.firmware_sim import children
from fedgate.firmware_sim.__main__ import COMMANDS
from tests.support.some_packages import PROJECT, only
from tests.support.syntax import ROOT, name_of, walk
from tests.support.waiting import PATIENCE_S

DISTRIBUTIONS = {
    "argon2": "argon2-cffi",
    "dp_accounting": "dp-accounting",
    "sklearn": "scikit-learn",
    "sqlalchemy": "SQLAlchemy",
}
HELPS = """
import contextlib, io
from fedgate.firmware_sim.__main__ import main
for words in {words!r}:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code
    print(words[0], code, out.getvalue().startswith("usage: firmware-sim"))
"""
LOADED = """
import sys
from fedgate.firmware_sim.__main__ import main
try:
    main(["--help"])
except SystemExit:
    print(*sys.modules)
"""


def said_by(folder: Path, *words: str) -> str:
    """Return what firmware-sim complains of where only the base is installed."""
    run = children.run(
        [sys.executable, "-P", "-m", "fedgate.firmware_sim", *words],
        PATIENCE_S,
        text=True,
        env=only(folder / "base"),
        cwd=ROOT,
    )
    assert run.returncode == 2 and run.stderr.count("\n") == 1, run.stderr
    return str(run.stderr)


@pytest.mark.soak
def test_every_help_is_shown_without_any_extra(tmp_path: Path) -> None:
    words = [["--help"], *([command, "--help"] for command in COMMANDS)]
    code = HELPS.format(words=words)
    run = children.run([sys.executable, "-c", code], PATIENCE_S, text=True, env=only(tmp_path / "base"), cwd=ROOT)
    assert run.stdout.splitlines() == [f"{first} 0 True" for first, *_ in words], run.stderr


def test_the_list_of_commands_loads_no_library() -> None:
    run = children.run([sys.executable, "-c", LOADED], PATIENCE_S, text=True, cwd=ROOT)
    loaded = set(run.stdout.splitlines()[-1].split())
    assert "fedgate.firmware_sim.__main__" in loaded and not loaded & {
        "numpy",
        "pydantic",
        "cryptography",
        "onnxruntime",
    }


@pytest.mark.soak
def test_recordings_are_looked_into_and_labelled_without_any_extra(tmp_path: Path) -> None:
    out = tmp_path / "faults.csv"
    config = ["-c", str(ROOT / "config" / "gateway.toml"), "--label", "1", "--out", str(out), "--channels", "FRC-01"]
    for words in (["info"], ["label", *config]):
        command = [sys.executable, "-P", "-m", "fedgate.firmware_sim", *words, "munich_bridge/lowered_load_01"]
        environment = only(tmp_path / words[0])
        run = children.run(command, PATIENCE_S, text=True, env=environment, cwd=ROOT)
        assert run.returncode == 0, run.stderr
    assert out.read_text().count("\n") > 100


@pytest.mark.soak
def test_what_is_lacking_is_named_with_the_extra_that_brings_it(tmp_path: Path) -> None:
    said = said_by(tmp_path, "demo", "--out", str(tmp_path / "out"))
    assert "needs the package matplotlib, which is not installed; it comes with fedgate's extra 'demo'" in said
    assert "pip install '.[demo]' in a checkout" in said and "'FILE.whl[demo]'" in said


@pytest.mark.soak
def test_an_algorithm_is_evaluated_without_what_only_tests_and_clusters_need(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.random.default_rng(0).normal(size=(60, 2)), label=np.arange(60) > 50)
    words = ["evaluate", "--data", str(tmp_path / "t.npz"), "--repeats", "1", "--clients", "2", "--jobs", "1"]
    environment = only(tmp_path / "sim", "sim")
    command = [sys.executable, "-P", "-m", "fedgate.firmware_sim", *words]
    run = children.run(command, PATIENCE_S, text=True, env=environment, cwd=ROOT)
    assert run.returncode == 0, run.stderr


@pytest.mark.soak
@pytest.mark.parametrize(("name", "extra"), [("x.mat", "train"), ("x.parquet", "sim"), ("x.mseed", "mseed")])
def test_a_format_names_the_extra_that_reads_it(tmp_path: Path, name: str, extra: str) -> None:
    (tmp_path / name).write_bytes(b"anything")
    assert f"{name}: this format needs the package" in (said := said_by(tmp_path, "info", str(tmp_path / name)))
    assert f"it comes with fedgate's extra '{extra}'" in said


def test_each_package_is_of_the_extra_that_is_said_to_bring_it() -> None:
    extras = PROJECT["optional-dependencies"]
    for module, extra in EXTRA_OF.items():
        assert DISTRIBUTIONS.get(module, module) in {Requirement(line).name for line in extras[extra]}
    named = {Requirement(line).name for extra in {*EXTRA_OF.values()} for line in extras[extra]} - {"fedgate"}
    assert named == {DISTRIBUTIONS.get(module, module) for module in EXTRA_OF}


def test_no_page_and_no_message_names_a_distribution_that_no_index_has() -> None:
    pages = [path for path in walk(ROOT) if path.suffix in (".py", ".md", ".toml") and path.name != "CHANGELOG.md"]
    wrong = re.compile(r"pip install '?fedgate(?!-)")
    assert not [name_of(path) for path in pages if path != Path(__file__) and wrong.search(path.read_text("utf-8"))]
