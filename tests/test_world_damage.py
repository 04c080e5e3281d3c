"""The world sees damage of which nobody was told, and rounds in which somebody takes no part; each check can fail."""

from __future__ import annotations

import pytest

from cloud_aggregator.events import RecordRound
from config.messages import round_number
from firmware_sim import world
from firmware_sim.world_damage import Damages, Under
from firmware_sim.world_hosts import GatewayHost
from firmware_sim.world_rounds import Rounds
from gateway_agent import alarms
from gateway_agent.events import Outward, Train

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
