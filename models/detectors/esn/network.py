"""The settings of an echo state network: a table of numbers that checks itself before a training can stumble on it.

    x(t) = (1 - a) x(t-1) + a tanh(Win u(t) + b + W x(t-1)),   a the leak            (Jaeger et al. 2007, Eq. 1)
    output = readout [x(t); u(t); 1]

Only the readout is learnt. What it is learnt for is the `task`: to predict the next input, to reconstruct some inputs
from the others, or to name the class.
"""

from __future__ import annotations

import math
import warnings
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from fedgate.models.options import Listed, Options

Task = Literal["predict", "reconstruct", "classify"]

MOST_UNITS = 2_000  # in all layers: the sums over as many are the 16 MB that an update may have
FORGETTING_TIMES = 5.0  # of 1 / leak: what a leaky unit keeps of its start is then below a hundredth
ECHO_STATE_RADIUS = 1.0


class EchoStateWarning(UserWarning):
    """The state may not forget where it started (echo state property), so that it is no function of the input."""


class Network(Options):
    """An echo state network of `layers` times `units`, each layer hearing the one below it, for rows of features.

    :param targets: input columns to reconstruct, from all others.
    :param density: share of the units that each unit hears.
    :param washout: steps after each beginning of a series that teach nothing; where not given 5 / leak.
    :param max_gap: missing rows that are bridged, the state carried on as if nothing had been; more begin a new series.
    :param steps: time steps in a row, whose features then are channel after channel, `channel * steps + step`.
    :param direct: whether the readout sees the inputs beside the states.
    :param clip: what the network hears of an input is at most so many of its deviations.
    """

    task: Task = "predict"
    targets: Listed[tuple[Annotated[int, Field(ge=0)], ...]] = ()
    classes: int = Field(default=2, ge=2)
    units: int = Field(default=200, ge=1, le=MOST_UNITS)
    layers: int = Field(default=1, ge=1)
    spectral_radius: float = Field(default=0.9, ge=0, allow_inf_nan=False)
    leak: float = Field(default=0.1, gt=0, le=1)
    input_scaling: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    bias_scaling: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    density: float = Field(default=0.1, gt=0, le=1)
    washout: int | None = Field(default=None, ge=0)
    max_gap: int = Field(default=2, ge=0)
    steps: int = Field(default=1, ge=1)
    direct: bool = True
    clip: float = Field(default=8.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.units * self.layers > MOST_UNITS:
            raise ValueError(f"units: {self.units} in each of {self.layers} layers given, expected {MOST_UNITS} in all")
        if self.task == "reconstruct" and not self.targets:
            raise ValueError("targets: no column given, expected those that task 'reconstruct' tells from the others")
        if self.task != "reconstruct" and self.targets:
            raise ValueError(f"targets {self.targets} given, expected none for task {self.task!r}; leave them out")
        if len(set(self.targets)) < len(self.targets):
            raise ValueError(f"targets {self.targets} given, expected every column once")
        if self.spectral_radius >= ECHO_STATE_RADIUS and self.leak == 1.0:
            warnings.warn(
                f"spectral_radius {self.spectral_radius:g} with leak 1 given, expected below 1: the network may lack "
                "the echo state property, its state then never forgets where it started",
                EchoStateWarning,
                stacklevel=2,
            )
        return self

    @property
    def washout_steps(self) -> int:
        """Steps after each beginning of a series that teach nothing."""
        return math.ceil(FORGETTING_TIMES / self.leak) if self.washout is None else self.washout

    def inputs(self, feature_count: int) -> int:
        """Return the number I of inputs in one time step of F features.

        Raises `ValueError` where F is no multiple of `steps` or `targets` leaves no input or names one there is not.
        """
        if feature_count % self.steps:
            raise ValueError(f"steps {self.steps} given for {feature_count} features, expected a divisor of them")
        count = feature_count // self.steps
        if any(column >= count for column in self.targets):
            raise ValueError(f"targets {self.targets} given, expected columns from 0 to {count - 1}, all inputs")
        if self.targets and len(self.targets) >= count:
            raise ValueError(f"targets {self.targets} are all {count} inputs, expected at least one to be left")
        return count

    def input_count(self, feature_count: int) -> int:
        """Return how many of the inputs the network hears: all but those that it is to reconstruct."""
        return self.inputs(feature_count) - len(self.targets)

    def outputs(self, feature_count: int) -> int:
        """Return the number c of outputs: inputs to predict or to reconstruct, or classes."""
        counts = {"predict": self.inputs(feature_count), "reconstruct": len(self.targets), "classify": self.classes}
        return counts[self.task]

    def readout_size(self, feature_count: int) -> int:
        """Return M, what the readout sees: all states, the inputs heard where they are `direct`, and a constant."""
        return self.layers * self.units + self.direct * self.input_count(feature_count) + 1


def _classifying(given: Any) -> Any:
    return {"task": "classify", **given} if isinstance(given, dict) else given


# The settings of an algorithm that can only tell classes apart, so that nobody has to say it.
Classifier = Annotated[Network, BeforeValidator(_classifying)]
