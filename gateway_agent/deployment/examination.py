"""What is asked of the process that tries a model before this one loads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fedgate.gateway_agent.feature_row import Row
from fedgate.gateway_agent.pipeline.recurrence import Gaps
from fedgate.models.arrays import Arrays


class UntriedError(RuntimeError):
    """No process could try the model; the message says why."""


class Examination(NamedTuple):
    """A model with this gateway's own tensors for it, and what it is run on."""

    model: bytes
    personal: Arrays
    golden_x: Row  # (k, F), of the golden pair
    rows: Row  # (n, F), the baseline
    gaps: Gaps  # (n,)
    recent: Row  # (m, F), the windows seen last


Examine = Callable[[Examination], object]  # raises `session.ModelRefusedError` or `UntriedError`


def take_any(_asked: Examination) -> None:
    """Try nothing, as a simulation does and a start, which loads what came through before."""
