"""The table says of each figure what is true: met, missed, or without a target."""

from __future__ import annotations

from tests.benchmarks.figures import Figure, Target, table


def test_a_target_is_met_up_to_its_limit() -> None:
    assert Target(80.0).met(80.0)
    assert not Target(80.0).met(80.1)
    assert Target(3.0, at_least=True).met(3.0)
    assert not Target(3.0, at_least=True).met(2.9)


def test_the_table_shows_figure_target_and_verdict() -> None:
    figures = [
        Figure("memory", 93.14, "MiB", Target(80.0)),
        Figure("speed", 12345.6, "1/s", Target(10.0, at_least=True)),
        Figure("delay", 0.0604, "ms"),
    ]
    assert table(figures) == [
        "figure   value  unit  target  met",
        "memory    93.1  MiB   <= 80   NO",
        "speed   12,346  1/s   >= 10   yes",
        "delay   0.0604  ms",
    ]
