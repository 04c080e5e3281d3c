"""The step of the cloud along the averaged change: plain, with momentum, or adaptive (Reddi et al. 2021, Algorithm 2).

With Δ = Σ n Δw / Σ n of one round and moments that begin at m = 0, v = τ²,

    sgd    m <- β m + Δ,                 w <- w + η m                    plain averaging at η = 1, β = 0
    adam   m <- β m + (1 - β) Δ,         v <- β₂ v + (1 - β₂) Δ²
    yogi   as adam but                   v <- v - (1 - β₂) Δ² sign(v - Δ²)
                                         w <- w + η m / (sqrt(v) + τ)    without the bias correction of Adam, as printed

The moments never leave the cloud: they rest in `server_state` under `moment.`. What is summed is as in FedAvg, so it
may travel masked. Only the adaptive kinds are of that algorithm; momentum in the cloud is Hsu et al. 2019.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedgate.models.arrays import Array, Arrays
from fedgate.models.options import Options

FIRST, SECOND = "moment.first.", "moment.second."
ADAPTIVE: dict[str, Any] = {"rate": 0.01, "momentum": 0.9}

Decay = Annotated[float, Field(ge=0, lt=1)]


class ServerOptimiser(Options):
    """How the cloud steps along the averaged change.

    :param rate: η, by default 1 of `sgd` and 0.01 of the adaptive kinds, whose steps have that size in each weight.
    :param momentum: β, by default 0 of `sgd` and 0.9 of the adaptive kinds.
    :param second_momentum: β₂ of the adaptive kinds.
    :param adaptivity: τ of the adaptive kinds; the larger, the nearer they are to `sgd`.
    """

    kind: Literal["sgd", "adam", "yogi"] = "sgd"
    rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    momentum: Decay = 0.0
    second_momentum: Decay = 0.99
    adaptivity: float = Field(default=1e-3, gt=0, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _of_the_kind(cls, given: Any) -> Any:
        return {**ADAPTIVE, **given} if isinstance(given, dict) and given.get("kind") in ("adam", "yogi") else given

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("second_momentum", "adaptivity") if self.kind == "sgd" else ():
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise ValueError(f"{name} {value:g} given, expected none for kind 'sgd'; leave it out")
        return self

    def stepped(
        self, global_state: Arrays, server_state: Arrays, total: Arrays, weight: Array, names: Iterable[str]
    ) -> tuple[Arrays, Arrays]:
        """Return what the named arrays of `global_state` become, in their own precision, and `server_state` with its
        moments.

        `total` holds Σ n Δw of each name, of the shape of w, and `weight` () is Σ n.
        """
        moved, moments = Arrays(), Arrays()
        for name in names:
            step = self._step(name, server_state, moments, total[name], weight)
            moved[name] = np.asarray(global_state[name] + step, dtype=global_state[name].dtype)
        return moved, {**server_state, **moments}

    def _step(self, name: str, server_state: Arrays, moments: Arrays, sums: Array, weight: Array) -> Array:
        if self.kind == "sgd" and self.momentum == 0.0:
            return np.asarray(self.rate * sums / weight)
        change = np.asarray(sums, dtype=np.float64) / weight
        before = server_state.get(FIRST + name, np.zeros_like(change))
        if self.kind == "sgd":
            moments[FIRST + name] = np.asarray(self.momentum * before + change)
            return np.asarray(self.rate * moments[FIRST + name])
        first = np.asarray(self.momentum * before + (1.0 - self.momentum) * change)
        square, old = np.square(change), server_state.get(SECOND + name, np.full_like(change, self.adaptivity**2))
        toward = square - old if self.kind == "adam" else square * np.sign(square - old)
        second = np.asarray(old + (1.0 - self.second_momentum) * toward)
        moments |= {FIRST + name: first, SECOND + name: second}
        return np.asarray(self.rate * first / (np.sqrt(second) + self.adaptivity))


def stepping(rate: float, given: ServerOptimiser | None) -> ServerOptimiser:
    """Return the optimiser that two settings ask for: plain averaging with a rate, or the table where it is given.

    Raises `ValueError` where both say a rate.
    """
    if given is None:
        return ServerOptimiser(rate=rate)
    if rate != 1.0:
        raise ValueError(f"rate {rate:g} given beside server_optimiser, expected it in there; leave out the other one")
    return given
