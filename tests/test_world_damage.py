"""The world sees damage of which nobody was told, and rounds in which somebody takes no part; each check can fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from cloud_aggregator.events import RecordRound
from config.messages import round_number
from firmware_sim import world
from firmware_sim.world_damage import Damages, Under
from firmware_sim.world_hosts import GatewayHost
from firmware_sim.world_rounds import Rounds
from firmware_sim.world_setup import SHIFT
from gateway_agent import alarms
from gateway_agent.events import Outward, Train
from gateway_agent.memory import Seen
from models.arrays import Array, Floats

SAME = Under(1, 1, 0)
SILENT, DAMAGED = 2, 600015  # seeds: one with a quorum below its gateways, one in which damage reaches the level


class Said:
    """The witness of damages, what it complains of, and the time."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.now_s = 0.0
        self.damages = Damages(self.violations.append, lambda: self.now_s)
        self.damages.known("north", [(100.0, 200.0)], 5.0)

    def hear(
        self, until_s: float, under: Under | None = SAME, *, reaches: bool = True, is_handled: bool = False
    ) -> None:
        self.now_s = until_s + 5.0
        self.damages.heard("north", until_s, under, lambda: reaches, is_handled=is_handled)


def test_damage_that_reaches_the_level_is_told() -> None:
    said = Said()
    for until_s in (60.0, 90.0, 120.0):
        said.hear(until_s)
    assert len(said.violations) == 1
    said.damages.told("north", "raised")
    said.hear(150.0)
    assert len(said.violations) == 1 and said.damages.counts == {"damaged": 2}


def test_one_that_stands_is_as_good_and_one_that_is_over_is_not() -> None:
    for states, count in ((("raised",), 0), (("raised", "cleared"), 1)):
        said = Said()
        for state in states:
            said.damages.told("north", state)
        said.hear(90.0)
        said.hear(120.0)
        assert len(said.violations) == count


def test_what_nobody_could_see_is_no_damage() -> None:
    said = Said()
    said.hear(90.0, Under(1, 1, 0))
    for under in (Under(2, 1, 0), Under(2, 2, 0), Under(2, 2, 7), None):
        said.hear(120.0, under)
    said.hear(150.0)
    said.hear(150.0, reaches=False)
    said.hear(150.0, is_handled=True)
    said.hear(240.0)
    said.damages.heard("west", 150.0, SAME, lambda: True, is_handled=False)
    assert said.violations == []


def test_who_takes_part_was_counted_or_refuses() -> None:
    rounds = Rounds({}, pytest.fail)
    record = RecordRound("run", 3, "fedavg", ("north",), 0, 0, 0, late=(("west", 2),))
    for gateway, index in (("east", 3), ("south", 2)):
        rounds.refuses(gateway, round_number("run", index))
    rounds.closed(record)
    assert rounds.took_part == {"north", "west", "east"}
    rounds.calm()
    assert rounds.took_part == set()


def test_a_world_sees_a_gateway_that_never_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "of_transition", lambda state, *_: (state, []))
    assert any("raised no alarm" in text for text in world.run(DAMAGED).violations)


@pytest.mark.soak
def test_a_world_sees_a_gateway_that_never_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    real = GatewayHost.carry_out

    def carry_out(host: GatewayHost, effect: Outward) -> None:
        if not (isinstance(effect, Train) and host.name == "east"):
            real(host, effect)

    monkeypatch.setattr(GatewayHost, "carry_out", carry_out)
    assert any("east took no part" in text for text in world.run(SILENT).violations)


class Counting:
    """A model that remembers: its score is how many windows it has seen without a gap."""

    washout_rows, max_gap_rows = 3, 0

    def __call__(self, x: Array) -> Floats:
        return 1.0 + np.arange(len(x), dtype=np.float64)


@pytest.mark.parametrize(
    ("windows", "missing", "level", "is_seen"),
    [
        (30, 0, 30.0, True),  # however long ago what the model remembers began
        (30, 0, 31.0, False),
        (30, 25, 5.0, True),
        (30, 25, 6.0, False),  # it has begun anew behind a gap
        (30, 28, 1.0, False),  # and says nothing yet
    ],
)
def test_a_model_that_remembers_is_asked_with_all_that_it_remembers(
    windows: int, missing: int, level: float, is_seen: bool
) -> None:
    spec = SimpleNamespace(window_s=15.0, hop_s=15.0)  # two windows a frame
    ends_s = [15.0 * (number + (number >= missing > 0)) for number in range(windows)]
    recent = tuple(Seen(np.array([SHIFT], np.float32), round(end_s * 1e9)) for end_s in ends_s)
    judge = SimpleNamespace(model=Counting(), levels=SimpleNamespace(raise_level=level))
    pipeline = SimpleNamespace(spec=spec, recent=recent, judge=judge)
    host = SimpleNamespace(service=SimpleNamespace(state=SimpleNamespace(pipeline=pipeline)))
    assert GatewayHost.reaches(cast(GatewayHost, host)) == is_seen
