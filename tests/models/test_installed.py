"""Goal: names of ours and of other packages are known side by side, and what is wrong with one package is said of it.

Method: packages of one module, each with the metadata that an installation leaves, in a folder on the path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgate.firmware_sim import children
from fedgate.models.installed import InstallationError, Registry
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S

Install = Callable[..., None]
LOADED = """
import sys
import fedgate.gateway_agent.__main__, fedgate.gateway_agent.runtime.agent
print(*sorted(sys.modules))
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a package whose one module has this code and these entry points."""
    monkeypatch.syspath_prepend(tmp_path)

    def installed(package: str, code: str, **points: str) -> None:
        (tmp_path / f"{package}.py").write_text(code, encoding="utf-8")
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {package}:{value}" for name, value in points.items()]
        (metadata / "entry_points.txt").write_text("\n".join(["[fedgate.numbers]", *lines, ""]))

    return installed


@pytest.fixture
def numbers() -> Registry[int]:
    return Registry("number", {"one": 1}, int)


def test_names_of_other_packages_stand_behind_ours(install: Install, numbers: Registry[int]) -> None:
    install("pack_a", "two, three = 2, 3", two="two", three="three")
    assert list(numbers) == ["one", "three", "two"] and len(numbers) == 3
    assert [numbers[name] for name in numbers] == [1, 3, 2]
    assert "two" in numbers and "four" not in numbers
    assert numbers.get("four") is None


def test_what_cannot_be_loaded_is_an_error_where_it_is_asked_for_and_names_the_package(
    install: Install, numbers: Registry[int]
) -> None:
    install("pack_good", "two = 2", two="two")
    install("pack_lacking", "import nowhere", three="three")
    install("pack_empty", "", four="four")
    install("pack_text", "five = 'five'", five="five")
    install("pack_failing", "raise RuntimeError('no GPU')", six="six")
    assert numbers["two"] == 2 and "three" in numbers
    lacking = r"number 'three' of the package pack_lacking 1.0 \(pack_lacking:three\) cannot be loaded: No module"
    for name, words in (
        ("three", lacking),
        ("four", "of the package pack_empty 1.0 .* cannot be loaded: module 'pack_empty' has no attribute 'four'"),
        ("five", r"of the package pack_text 1.0 \(pack_text:five\): expected int, got str"),
    ):
        with pytest.raises(InstallationError, match=words):
            numbers[name]
    with pytest.raises(RuntimeError, match="no GPU") as raised:
        numbers["six"]
    assert "of the package pack_failing 1.0" in raised.value.__notes__[0]


def test_ours_stays_where_a_package_takes_its_name_and_the_error_names_both(
    install: Install, numbers: Registry[int]
) -> None:
    install("pack_taker", "one, two = -1, 2", one="one", two="two")
    assert numbers["one"] == 1 and list(numbers) == ["one", "two"]
    with pytest.raises(
        InstallationError, match=r"number 'one' is fedgate's own, and the package pack_taker 1.0 registers"
    ):
        numbers["two"]


def test_a_name_of_two_packages_is_nobodys(install: Install, numbers: Registry[int]) -> None:
    for package in ("pack_x", "pack_y"):
        install(package, "two = 2", two="two")
    with pytest.raises(InstallationError, match=r"number 'two' is registered by pack_x 1.0, pack_y 1.0; expected one"):
        numbers["two"]


def test_a_name_of_ours_looks_for_no_entry_point(numbers: Registry[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", None)
    assert numbers["one"] == 1 and "one" in numbers


@pytest.mark.soak
def test_the_agent_has_no_registry_and_no_laws() -> None:
    run = children.run([sys.executable, "-c", LOADED], PATIENCE_S, text=True, cwd=ROOT)
    loaded = set(run.stdout.split())
    assert "fedgate.gateway_agent.runtime.agent" in loaded, run.stderr
    registries = {"fedgate.models.detectors", "fedgate.models.federated.registry", "fedgate.models.testing"}
    assert not loaded & registries
