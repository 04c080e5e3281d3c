"""The settings of a recurrent network: a table of numbers that checks itself before a training can stumble on it.

A row of features is a window of T steps of several channels, `channel * T + step`, and is read from zero state:

    LSTM or GRU layers -> last state -> dense, ReLU -> one output a class, or a channel      (fslstm paper, Eq. 4, 7, 8)

`linear` puts one layer on the window as it is: logistic or linear regression, the paper's FLR. The defaults are what
worked: one small layer that predicts the change. The paper's form is 3 x 128 with 100 dense nodes.

Dropout is where torch has it and the paper can mean it: "regular" dropout on what goes from one recurrent layer to the
next, another mask in every step, and once more before the dense layer. The paper's "recurrent" dropout, inside the
recurrence, is what no fused kernel offers, so it is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fedgate.models.options import Listed, Options

Cell = Literal["lstm", "gru", "linear"]
Task = Literal["predict", "classify"]
Optimiser = Literal["adam", "sgd"]

MOST_LAYERS = 3
MOST_UNITS = 256  # of a layer: three of them are 5 MB, a third of what an update may have
PAPER: dict[str, Any] = {"layers": 3, "hidden": 128, "dense": 100, "dropout": 0.2}
OF_LAYERS = ("layers", "hidden", "dense", "dropout")  # what a linear cell has none of


class Window(NamedTuple):
    """How a row is read: `channels` of `steps`, of which the network hears the first `heard`."""

    channels: int
    steps: int
    observed: int


class PrecisionWarning(UserWarning):
    """This processor does not train in the precision that was asked for."""


class Descent(NamedTuple):
    """How a network trains: passes over its rows, rows in a step, kind and size of the steps.

    `largest_gradient` is the norm to which a longer slope is cut, `proximity` is µ of FedProx. `bfloat16` multiplies in
    that precision and keeps weights and states in float32: faster on processors with AVX-512 BF16 or the like, slower
    on some others, and not possible on the rest, which train in float32 and say so.
    """

    epochs: int = 3
    batch: int = 64
    optimiser: Optimiser = "adam"
    learning_rate: float = 5e-3
    largest_gradient: float = 1.0
    proximity: float = 0.0
    bfloat16: bool = False


class Recurrent(Options):
    """A recurrent network for rows that are windows.

    :param task: `predict` the last step of a window from those up to `horizon` steps before it, or `classify` windows.
    :param layers: recurrent layers of `hidden` units each.
    :param dense: nodes with ReLU between the last state and the outputs.
    :param steps: time steps T in a row; where not given the whole row is one channel.
    :param targets: channels to predict, all where none is named.
    :param change: predict how far a target goes from the last value heard, and not where it is.
    :param class_weights: whether errors count by the inverse frequency of their class.
    :param paper: what is not given is as in the paper: 3 x 128, 100 dense nodes, dropout 0.2, the level and not the
        change, and random first states while it trains.
    """

    cell: Cell = "lstm"
    layers: int = Field(default=1, ge=1, le=MOST_LAYERS)
    hidden: int = Field(default=16, ge=1, le=MOST_UNITS)
    dense: int = Field(default=16, ge=1, le=MOST_UNITS)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    task: Task = "predict"
    classes: int = Field(default=2, ge=2)
    steps: int | None = Field(default=None, ge=1)
    horizon: int = Field(default=1, ge=1)
    targets: Listed[tuple[Annotated[int, Field(ge=0)], ...]] = ()
    change: bool = True
    class_weights: bool = False
    paper: bool = False

    @model_validator(mode="before")
    @classmethod
    def _as_in_the_paper(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("paper") is not True:
            return given
        sizes = {} if given.get("cell") == "linear" else PAPER
        return {**sizes, "change": False, **given}

    @model_validator(mode="after")
    def _check(self) -> Self:
        defaults = type(self).model_fields
        foreign = ("horizon", "targets") if self.task == "classify" else ("classes", "class_weights")
        for name in foreign:
            if (value := getattr(self, name)) != defaults[name].default:
                raise ValueError(f"{name} {value} given, expected none for task {self.task!r}; leave it out")
        for name in OF_LAYERS if self.cell == "linear" else ():
            if (value := getattr(self, name)) != defaults[name].default:
                raise ValueError(f"{name} {value} given, expected none for cell 'linear', one layer on the window")
        if len(set(self.targets)) < len(self.targets):
            raise ValueError(f"targets {self.targets} given, expected every channel once")
        return self

    def window(self, feature_count: int) -> Window:
        """Return how rows of F features are read.

        Raises `ValueError` where F is no multiple of `steps`, no step is left to hear or a target is no channel.
        """
        steps = feature_count if self.steps is None else self.steps
        if feature_count % steps:
            raise ValueError(f"steps {steps} given for {feature_count} features, expected a divisor of them")
        channels, observed = feature_count // steps, steps
        if self.task == "predict":
            observed = steps - self.horizon
            if observed < 1:
                raise ValueError(f"horizon {self.horizon} given for windows of {steps} steps, expected fewer than them")
            if any(channel >= channels for channel in self.targets):
                raise ValueError(f"targets {self.targets} given, expected channels from 0 to {channels - 1}")
        return Window(channels, steps, observed)

    def predicted(self, feature_count: int) -> tuple[int, ...]:
        """Return the channels that task `predict` tells of rows of F features."""
        return self.targets or tuple(range(self.window(feature_count).channels))

    def outputs(self, feature_count: int) -> int:
        """Return the number c of outputs: classes, or channels to predict."""
        return self.classes if self.task == "classify" else len(self.predicted(feature_count))


def layers_of(params: Iterable[str]) -> int:
    """Return how many recurrent layers there are among parameters, none of a linear cell."""
    return sum(name.startswith("cell.") and name.endswith(".state") for name in params)


def as_in_the_paper(network: Recurrent) -> Recurrent:
    """Return the network with what its author left open as in the paper."""
    return Recurrent.model_validate({**network.model_dump(exclude_unset=True), "paper": True})
