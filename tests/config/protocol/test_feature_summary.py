"""Goal: a summary says what its windows were, however they are joined, and one that contradicts itself is refused."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.config.protocol.feature_summary import FeatureSummary, Gathered, Spread, join, summarise
from fedgate.config.protocol.messages import FARTHEST, MessageError

VALUES = st.floats(-1e9, 1e9, width=32)
GOOD = {
    "t_ns": 1,
    "last_ns": 2,
    "windows": 2,
    "features": ["a", "b"],
    "units": ["kN", ""],
    **{name: [1.0, 2.0] for name in ("means", "deviations", "least", "most")},
}


def measure(values: list[float]) -> Spread:
    """Return what holds of values, by numpy."""
    found = np.array(values)
    return Spread(len(values), found.mean(), found.std(), found.min(), found.max())


@given(st.lists(st.lists(VALUES, min_size=1, max_size=20), min_size=1, max_size=8), st.randoms())
def test_parts_joined_in_any_order_are_the_whole(parts: list[list[float]], order: Any) -> None:
    whole = measure([value for part in parts for value in part])
    order.shuffle(parts)
    found, pairwise = join([measure(part) for part in parts]), reduce(lambda *two: join(two), map(measure, parts))
    assert (pairwise.windows, pairwise.least, pairwise.most) == (found.windows, found.least, found.most)
    largest = max(abs(whole.least), abs(whole.most))
    assert pairwise[1:3] == pytest.approx(found[1:3], rel=1e-6, abs=1e-7 * largest)
    assert (found.windows, found.least, found.most) == (whole.windows, whole.least, whole.most)
    assert found.mean == pytest.approx(whole.mean, rel=1e-9, abs=1e-12 * largest)
    assert found.deviation == pytest.approx(whole.deviation, rel=1e-6, abs=1e-7 * largest)


@given(st.lists(VALUES, min_size=1, max_size=20), st.integers(-40, 40))
def test_the_unit_does_not_matter(values: list[float], power: int) -> None:
    factor = 2.0**power
    one = join([measure([value]) for value in values])
    other = join([measure([value * factor]) for value in values])
    scaled = (one.mean * factor, one.deviation * factor, one.least * factor, one.most * factor)
    assert (other.mean, other.deviation, other.least, other.most) == scaled


def test_it_says_what_was_gathered() -> None:
    spread = Spread(3, 1.0 / 3.0, 2.0, -1e300, 1e300)
    made = summarise(Gathered(5, 7, (spread, spread)), ("a", "b"), ("kN", ""), "synchronised", "boot")
    assert FeatureSummary.from_bytes(made.to_bytes()) == made
    assert (made.t_ns, made.last_ns, made.windows, made.clock, made.boot_id) == (5, 7, 3, "synchronised", "boot")
    assert made.by_feature() == {name: Spread(3, 0.333333, 2.0, -FARTHEST, FARTHEST) for name in ("a", "b")}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"means": [1.0]}, "expected 2 values of each kind"),
        ({"units": []}, "expected 2 values of each kind"),
        ({"features": []}, "features"),
        ({"features": ["a"] * 17}, "features"),
        ({"windows": 0}, "windows"),
        ({"last_ns": 0}, "last_ns: the last window ends at 0, before the first at 1"),
        ({"deviations": [1.0, -1.0]}, "deviations.1"),
        ({"least": [1.0, float("nan")]}, "least"),
        ({"features": ["a", "b\n"]}, "features.1"),
    ],
)
def test_one_that_contradicts_itself_is_refused(change: dict[str, Any], words: str) -> None:
    assert FeatureSummary.from_bytes(json.dumps(GOOD).encode()).windows == 2
    with pytest.raises(MessageError, match=words):
        FeatureSummary.from_bytes(json.dumps(GOOD | change).encode())
