"""What an installed fedgate is: one top-level package with all modules and data, and the programs.

Method: the source archive is made of a copy of this checkout, the wheel of the archive, and the wheel is installed in
an environment that holds nothing else.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

from fedgate.firmware_sim import children
from tests.support.syntax import PACKAGES, ROOT
from tests.support.waiting import PATIENCE_S

BUILD = "from setuptools import build_meta; print(build_meta.build_{kind}({folder!r}))"
STUDIES = "firmware_sim/studies/"
IN_A_CLONE_ALONE = (STUDIES, "firmware_sim/studies/tables/")
NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", "*.egg-info", "build", "dist", "out", "*_cache", "__pycache__")


def build(kind: str, source: Path, folder: Path) -> Path:
    """Return the archive that the build backend makes of a source tree."""
    command = [sys.executable, "-c", BUILD.format(kind=kind, folder=str(folder))]
    run = children.run(command, PATIENCE_S, text=True, cwd=source)
    assert run.returncode == 0, run.stderr
    return folder / str(run.stdout.split()[-1])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "checkout", symlinks=True, ignore=NOT_COPIED)
    with tarfile.open(build("sdist", folder / "checkout", folder)) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    wheel = build("wheel", unpacked, folder)
    venv.create(folder / "env", with_pip=False)
    python = str(folder / "env" / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", str(wheel)]
    run = children.run(command, PATIENCE_S)
    assert run.returncode == 0, run.stderr
    return folder / "env"


@pytest.mark.soak
def test_the_wheel_brings_one_package_with_its_data_and_every_module_but_studies(installed: Path) -> None:
    (packages,) = installed.glob("lib/python*/site-packages")
    brought = {entry.name for entry in packages.iterdir() if not entry.name.endswith(".dist-info")}
    assert brought == {"fedgate"}
    ours = {
        path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        if not path.relative_to(ROOT).as_posix().startswith(IN_A_CLONE_ALONE)
    }
    there = {path.relative_to(packages / "fedgate") for path in (packages / "fedgate").rglob("*") if path.is_file()}
    assert {path for path in there if "__pycache__" not in path.parts} == ours


@pytest.mark.soak
@pytest.mark.parametrize("program", ["gateway-agent", "cloud-aggregator", "firmware-sim"])
def test_the_programs_of_the_wheel_run_anywhere(installed: Path, program: str, tmp_path: Path) -> None:
    """The packages that they need are those of this environment; fedgate itself is the wheel's."""
    needed = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    run = children.run([str(installed / "bin" / program), "--help"], PATIENCE_S, cwd=tmp_path, env=needed, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"usage: {program}")
