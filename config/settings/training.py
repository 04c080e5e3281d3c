"""What an operator chooses to train: at the aggregator what, in which rounds and how updates are judged, at a gateway
with what it takes part.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedgate.config.protocol.messages import Count, find_first_problem
from fedgate.config.settings.base import FilePath, NotNegative, Positive, Share, Table


def _allow_endless(value: Any) -> Any:
    return math.inf if value == "none" else value


# "none" for what no cost allows; as a number it has no end.
LabelCost = Annotated[float, Field(gt=0, allow_inf_nan=True), BeforeValidator(_allow_endless)]


class AlgorithmChoice(Table):
    """Which federated algorithm runs, with which settings (`firmware-sim evaluate --help` lists both)."""

    name: str = "support-vector-election"
    seed: Count = 0
    settings: dict[str, Any] = Field(default_factory=dict)


class Rounds(Table):
    """When a round closes and when a model is released."""

    quorum: Annotated[int, Field(ge=1)] = 2
    deadline_s: Positive = 600.0  # from the first update of the round
    fraction: Share = 1.0
    redraw: bool = True  # whether another share of the gateways is drawn each round, or once and for all
    per_release: Annotated[int, Field(ge=1)] | None = None  # None: as many as the algorithm asks for
    rest_s: NotNegative = 86_400.0  # from a release to the next round
    # What becomes of an update whose round is closed: kept for the next where the algorithm bears that, or refused.
    late: Literal["next-round", "refuse"] = "next-round"
    late_rounds: Annotated[int, Field(ge=1, le=100)] = 1  # how long ago its round may have been closed


class Training(Table):
    """What this gateway trains on besides its baseline, and how the child process that trains behaves."""

    enabled: bool = True
    labelled: FilePath | None = None  # CSV: windows of known condition, for algorithms that learn from labels
    # Of this gateway alone, under the names of `fedgate.models.arrays.OF_ONE_GATEWAY`; None: as for all.
    weight: NotNegative | None = None  # where gateways are weighed; 0 takes back what it sent
    epochs: Annotated[int, Field(ge=1, le=1_000)] | None = None  # fewer than the others make, if its time is short
    radius: Positive | None = None  # of its ambiguity set, for the robust SVM
    kappa: LabelCost | None = None  # cost of a changed label there; "none": its labels are certain
    nu: Share | None = None  # share of rows outside its sphere, for ensemble-svdd and support-vector-election
    gamma: Positive | None = None  # width of its kernel there
    nice: Annotated[int, Field(ge=0, le=19)] = 10
    timeout_s: Positive = 600.0


class DefenceChoice(Table):
    """What judges each update before the sum; `settings` are those of `fedgate.models.federated.defences.wrapper`."""

    kind: Literal["none", "trusted", "statistic", "network", "norm"] = "none"
    trusted: tuple[FilePath, ...] = ()  # labelled tables of gateways beyond doubt, as firmware-sim label makes them
    network: FilePath | None = None  # what cloud-aggregator train-discriminator made
    settings: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_together(self) -> DefenceChoice:
        if self.kind == "none" and not self.settings:
            return self
        from fedgate.models.federated.defences.wrapper import (
            Defence,  # late: a gateway reads settings too, and never judges
        )

        if "kind" in self.settings:
            raise ValueError("settings.kind: the kind stands beside the settings, in defence.kind")
        needs = {"trusted": ("trusted", self.trusted), "network": ("network", self.network)}.get(self.kind)
        if needs is not None and not needs[1]:
            raise ValueError(f"{needs[0]}: kind {self.kind!r} judges by it; name the file")
        try:
            Defence.model_validate({**({} if self.kind == "none" else {"kind": self.kind}), **self.settings})
        except ValidationError as error:
            raise ValueError(f"settings.{find_first_problem(error)}") from None
        return self
