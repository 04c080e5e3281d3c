"""The table says of each figure what is true: met, missed, or without a target."""

from __future__ import annotations

import pytest

from tests.benchmarks.figures import Figure, Target, cells, table


def test_a_target_is_met_up_to_its_limit() -> None:
    assert Target(80.0).met(80.0)
    assert not Target(80.0).met(80.1)
    assert Target(3.0, at_least=True).met(3.0)
    assert not Target(3.0, at_least=True).met(2.9)


def test_a_target_beside_a_peer_is_one_of_the_ratio() -> None:
    fast = Figure("delay", 3.0, "ms", Target(0.5, of_peer=True), peer=12.0)
    assert (fast.ratio, fast.judged) == (0.25, 0.25)
    with pytest.raises(ValueError, match="expected the value of the peer too"):
        cells(fast._replace(peer=None))


def test_the_table_shows_figure_target_and_verdict() -> None:
    figures = [
        Figure("memory", 93.14, "MiB", Target(80.0), hardware_limit=75.0),
        Figure("speed", 12345.6, "1/s", Target(10.0, at_least=True)),
        Figure("round", 0.3, "s", Target(0.5, of_peer=True), 0.5, 0.02),
        Figure("delay", 0.0604, "ms"),
    ]
    assert table(figures) == [
        "figure   value  unit  target          met  peer  ratio  limit",
        "memory    93.1  MiB   <= 80           NO                75",
        "speed   12,346  1/s   >= 10           yes",
        "round      0.3  s     <= 0.5 of peer  NO   0.5   0.6    0.02",
        "delay   0.0604  ms",
    ]
