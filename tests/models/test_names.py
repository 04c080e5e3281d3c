"""Goal: what a researcher imports from `fedgate.models` is there, and costs a gateway nothing.

Method: fresh interpreters, of which some lack packages.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fedgate.models
from fedgate.firmware_sim import children
from tests.support.some_packages import only
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S

WITHOUT_SIMULATOR = """
import sys
class Hides:
    def find_spec(self, name, path=None, target=None):
        if name == "fedgate.firmware_sim":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hides())
from fedgate.models import FeatureSpec
try:
    from fedgate.models import load_recording
except ImportError as error:
    print(error)
"""
WITHOUT_EXTRAS = """
from fedgate.models import FeatureSpec, extract_features, load_recording
spec = FeatureSpec(rate_hz=100, window_s=10, channels=("FRC-01",), steps=[{"kind": "level"}])
print(extract_features(load_recording("munich_bridge/ref_load_01"), spec).shape)
try:
    from fedgate.models import Federated
except ImportError as error:
    print(error)
"""


def printed(code: str, environment: dict[str, str] | None = None) -> list[str]:
    run = children.run([sys.executable, "-c", code], PATIENCE_S, text=True, cwd=ROOT, env=environment)
    assert run.returncode == 0, run.stderr
    return str(run.stdout).splitlines()


def test_importing_the_package_loads_nothing_of_it() -> None:
    loaded = set(printed("import sys, fedgate.models; print(*sys.modules, sep='\\n')"))
    assert {name for name in loaded if name.startswith("fedgate")} == {"fedgate", "fedgate.models"}
    assert not loaded & {"numpy", "sklearn", "scipy", "pydantic"}


def test_every_name_is_there_and_no_other() -> None:
    assert all(callable(getattr(fedgate.models, name)) for name in fedgate.models.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Fedrated'"):
        fedgate.models.__getattr__("Fedrated")


@pytest.mark.soak
def test_recordings_are_read_without_any_extra_and_the_estimator_names_the_one_it_needs(tmp_path: Path) -> None:
    shape, said = printed(WITHOUT_EXTRAS, only(tmp_path / "base"))
    assert shape == "(72, 1)"
    assert "needs the package sklearn" in said
    assert "fedgate's extra 'train'" in said


@pytest.mark.soak
def test_an_installation_without_the_simulator_says_so() -> None:
    (said,) = printed(WITHOUT_SIMULATOR)
    assert said == "fedgate.models.load_recording is part of fedgate.firmware_sim: install fedgate's wheel"
