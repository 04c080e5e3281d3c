"""Environments in which nothing can be imported but what some extras bring, as after `make demo` alone."""

from __future__ import annotations

import os
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
HIDES = """import sys
class Hides:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name in {names!r} else self.finder.find_spec(name, path, target)
sys.meta_path = [Hides(finder) for finder in sys.meta_path]
"""


def only(folder: Path, *extras: str) -> dict[str, str]:
    """Return the environment of processes that import nothing else; what keeps them from it lies in `folder`."""
    chosen = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    brought = _brought([*PROJECT["dependencies"], *chosen])
    names = {name for name, of in packages_distributions().items() if not brought & set(map(canonicalize_name, of))}
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDES.format(names=names))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def _brought(wanted: list[str], extras: frozenset[str] = frozenset()) -> set[str]:
    """Return the distributions that requirements bring, fedgate's own among them."""
    found: set[str] = {"fedgate"}
    for requirement in map(Requirement, wanted):
        if requirement.marker and not any(requirement.marker.evaluate({"extra": one}) for one in (*extras, "")):
            continue
        name = canonicalize_name(requirement.name)
        if name == "fedgate":
            inner = [line for extra in requirement.extras for line in PROJECT["optional-dependencies"][extra]]
            found |= _brought(inner)
        elif name not in found:
            try:
                found |= {name} | _brought(requires(name) or [], frozenset(requirement.extras))
            except PackageNotFoundError:  # of another platform
                continue
    return found
