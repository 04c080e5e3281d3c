"""What the base install puts on a gateway's card."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedgate.firmware_sim import children
from tests.benchmarks.conftest import Note
from tests.benchmarks.station import ROOT
from tests.benchmarks.usage import MIB
from tests.support.syntax import PACKAGES
from tests.support.waiting import PATIENCE_S

FETCH_S = 600.0  # pip does nothing while the index is slow
LARGEST = 6  # packages that are named in the table
NOT_OURS = ("pip", "setuptools", "wheel", "_distutils_hack", "distutils-precedence.pth")
PROJECT = ("pyproject.toml", "README.md", "LICENSE", "THIRD_PARTY_NOTICES.md")

pytestmark = pytest.mark.slow


def checkout(folder: Path) -> Path:
    """Copy what is installed from, so that building it leaves nothing in the tree."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in PROJECT:
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / ".src", folder / ".src", symlinks=True)
    return folder


def pip(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", *arguments]
    return children.run([*command, "-c", str(ROOT / "constraints.txt")], FETCH_S, text=True)


def sizes_mib(site_packages: Path) -> dict[str, float]:
    """Return the size of each entry, with what came to it by `NAME.libs` and `NAME-VERSION.dist-info`."""
    found: dict[str, float] = {}
    for entry in site_packages.iterdir():
        files = [entry] if entry.is_file() else [path for path in entry.rglob("*") if path.is_file()]
        name = entry.name.removesuffix(".libs").split("-")[0]
        if name not in NOT_OURS and entry.name not in NOT_OURS:
            found[name] = found.get(name, 0.0) + sum(path.stat().st_size for path in files) / MIB
    return found


def test_base_install(tmp_path: Path, note: Note) -> None:
    made = children.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], PATIENCE_S, text=True)
    assert made.returncode == 0, made.stderr
    python = tmp_path / "venv" / "bin" / "python"
    reached = pip(python, "download", "--no-deps", "--dest", str(tmp_path / "probe"), "paho-mqtt")
    if reached.returncode != 0:
        pytest.skip(f"no package index within reach: {reached.stderr.strip().splitlines()[0]}")
    installed = pip(python, "install", str(checkout(tmp_path / "checkout")))
    assert installed.returncode == 0, installed.stderr
    version = children.run([python.with_name("gateway-agent"), "--version"], PATIENCE_S, text=True)
    assert version.returncode == 0 and "fedgate" in version.stdout, version.stderr
    sizes = sizes_mib(next((tmp_path / "venv" / "lib").glob("python*/site-packages")))
    note("base install", sum(sizes.values()), "MiB", at_most=170)
    for name in sorted(sizes, key=lambda name: -sizes[name])[:LARGEST]:
        note(f"base install: {name}", sizes[name], "MiB")
