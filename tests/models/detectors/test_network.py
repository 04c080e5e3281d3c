"""The settings of an echo state network check themselves, and say what they mean for so many features."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedgate.models.detectors.esn.network import EchoStateWarning, Network
from fedgate.models.federated import build


def test_defaults() -> None:
    network = Network()
    assert network.washout_steps == 50
    assert network.inputs(3) == network.input_count(3) == network.outputs(3) == 3
    assert network.readout_size(3) == 200 + 3 + 1


@pytest.mark.parametrize(
    ("settings", "features", "inputs", "heard", "outputs", "size"),
    [
        ({"units": 10, "direct": False}, 4, 4, 4, 4, 11),
        ({"units": 10, "layers": 3}, 4, 4, 4, 4, 35),
        ({"units": 10, "steps": 4}, 12, 3, 3, 3, 14),
        ({"units": 10, "task": "classify", "classes": 5}, 4, 4, 4, 5, 15),
        ({"units": 10, "task": "reconstruct", "targets": (1, 3)}, 4, 4, 2, 2, 13),
        ({"units": 10, "task": "reconstruct", "targets": [0], "steps": 2}, 4, 2, 1, 1, 12),
    ],
)
def test_sizes(settings: dict[str, Any], features: int, inputs: int, heard: int, outputs: int, size: int) -> None:
    network = Network.model_validate(settings)
    found = (network.inputs(features), network.input_count(features), network.outputs(features))
    assert found == (inputs, heard, outputs)
    assert network.readout_size(features) == size


@pytest.mark.parametrize(("leak", "washout", "steps"), [(0.3, None, 17), (1.0, None, 5), (0.3, 0, 0), (0.3, 40, 40)])
def test_the_washout(leak: float, washout: int | None, steps: int) -> None:
    assert Network(leak=leak, washout=washout).washout_steps == steps


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "reconstruct"}, "targets: no column given, expected those"),
        ({"targets": (0,)}, r"targets \(0,\) given, expected none for task 'predict'"),
        ({"task": "classify", "targets": (0,)}, "expected none for task 'classify'"),
        ({"task": "reconstruct", "targets": (1, 1)}, "expected every column once"),
        ({"task": "reconstruct", "targets": (-1,)}, "greater than or equal to 0"),
        ({"task": "forecast"}, "'predict', 'reconstruct' or 'classify'"),
        ({"classes": 1}, "greater than or equal to 2"),
        ({"units": 0}, "greater than or equal to 1"),
        ({"units": 10_001}, "less than or equal to 2000"),
        ({"layers": 0}, "greater than or equal to 1"),
        ({"spectral_radius": -0.1}, "greater than or equal to 0"),
        ({"spectral_radius": float("inf")}, "finite number"),
        ({"leak": 0.0}, "greater than 0"),
        ({"leak": 1.1}, "less than or equal to 1"),
        ({"input_scaling": 0.0}, "greater than 0"),
        ({"density": 0.0}, "greater than 0"),
        ({"density": 1.5}, "less than or equal to 1"),
        ({"washout": -1}, "greater than or equal to 0"),
        ({"max_gap": -1}, "greater than or equal to 0"),
        ({"steps": 0}, "greater than or equal to 1"),
        ({"clip": 0.0}, "greater than 0"),
        ({"ridge": 0.1}, "Extra inputs are not permitted"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Network.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "features", "message"),
    [
        ({"steps": 5}, 12, "steps 5 given for 12 features, expected a divisor"),
        ({"task": "reconstruct", "targets": (3,)}, 3, "targets .* expected columns from 0 to 2"),
        ({"task": "reconstruct", "targets": (0, 1)}, 2, "all 2 inputs, expected at least one to be left"),
        ({"task": "reconstruct", "targets": (1,), "steps": 3}, 3, "expected columns from 0 to 0"),
    ],
)
def test_features_that_do_not_fit_are_refused(settings: dict[str, Any], features: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Network.model_validate(settings).inputs(features)


def test_a_radius_of_one_without_a_leak_warns_of_the_echo_state_property() -> None:
    with pytest.warns(EchoStateWarning, match=r"spectral_radius 1\.25 with leak 1 given.*echo state property"):
        Network(spectral_radius=1.25, leak=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Network(spectral_radius=0.999, leak=1.0)
        Network(spectral_radius=1.25, leak=0.5)


def test_who_can_only_classify_need_not_say_so() -> None:
    for name in ("esn-fedavg", "esn-fedcurv"):
        shared = build(name, 3, {"network": {"units": 7}}).start(np.random.default_rng(0)).global_state
        assert shared["readout"].shape == (1, 7 + 3 + 1) and "targets" not in shared
        with pytest.raises(ValueError, match="task 'predict' given, expected 'classify'"):
            build(name, 3, {"network": {"task": "predict"}})
