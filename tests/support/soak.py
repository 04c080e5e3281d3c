"""What every run tries and what is left to `make soak`, which tries it all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def crossed(*axes: Sequence[Any]) -> list[ParameterSet]:
    """Return every combination of some axes as parameters: each value of each axis in every run, the rest in soak."""
    steps = range(max(map(len, axes)))
    always = {tuple(step % len(axis) for axis in axes) for step in steps}
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(axes, places, strict=True)),
            marks=() if places in always else pytest.mark.soak,
        )
        for places in itertools.product(*(range(len(axis)) for axis in axes))
    ]


def some(values: Sequence[Any], count: int = 1) -> list[ParameterSet]:
    """Return values as parameters: so many of them, from the first on, in every run, the rest in soak."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=() if at < count else pytest.mark.soak)
        for at, value in enumerate(values)
    ]
