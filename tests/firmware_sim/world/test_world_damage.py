"""The world sees damage of which nobody was told, and rounds in which somebody takes no part; each check can fail."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.cloud_aggregator.events import RecordRound
from fedgate.config.protocol.messages import round_number
from fedgate.firmware_sim.world import world
from fedgate.firmware_sim.world.actors.hosts import GatewayHost
from fedgate.firmware_sim.world.environment.setup import FEATURES, FRAME_S, SHIFT
from fedgate.firmware_sim.world.promises.alarms.damage import Damages, Under, reaches_level
from fedgate.firmware_sim.world.promises.rounds import Rounds
from fedgate.gateway_agent.events import Outward, Train
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.monitor import alarms
from fedgate.gateway_agent.pipeline.decision import ScoringModel
from fedgate.models.alarms.threshold import Levels
from fedgate.models.arrays import Array, Floats
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.time_units import NS
from tests.support.agents import Told

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
        self.damages.note_frame("north", until_s, under, lambda: reaches, is_handled=is_handled)


def test_damage_that_reaches_the_level_is_told() -> None:
    said = Said()
    for until_s in (60.0, 90.0, 120.0):
        said.hear(until_s)
    assert len(said.violations) == 1
    said.damages.note_alarm("north", "raised")
    said.hear(150.0)
    assert len(said.violations) == 1 and said.damages.counts == {"damaged": 2}


def test_one_that_stands_is_as_good_and_one_that_is_over_is_not() -> None:
    for states, count in ((("raised",), 0), (("raised", "cleared"), 1)):
        said = Said()
        for state in states:
            said.damages.note_alarm("north", state)
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
    said.damages.note_frame("west", 150.0, SAME, lambda: True, is_handled=False)
    assert said.violations == []


class Remembering(Told):
    """A model that scores the level of the load, and says nothing of two windows after a gap of more than one."""

    washout_rows, max_gap_rows = 2, 1

    def __call__(self, x: Array) -> Floats:
        return x[:, 0].astype(np.float64)


@pytest.mark.parametrize(
    ("missing", "damaged", "is_asked"),
    [
        (2, (0, 1), False),
        (2, (0, 1, 2), True),  # the third after the gap was seen
        (2, (5,), True),
        (1, (0,), True),  # the memory outlives this gap
        (0, (0,), True),
        (-20, (0, 1), False),  # the clock was set back
        (-20, (2,), True),
        (0, (-1,), False),  # before the last frame
        (0, (), False),
    ],
)
def test_damage_is_asked_for_where_the_model_had_seen_enough(
    missing: int, damaged: tuple[int, ...], is_asked: bool
) -> None:
    spec = FeatureSpec.model_validate(FEATURES | {"window_s": 5.0})
    judge = ScoringModel(Remembering(), Levels(30.0, 1.0, 0.0, 20, extrapolated=False))
    last = round(FRAME_S / 5.0)  # windows of the last frame, of which the first is window 0
    ends_ns = {place: (place + (missing if place >= 0 else 0)) * 5 * NS for place in range(-10, last)}
    recent = [
        FeatureRow(np.full(3, SHIFT if place in damaged else 0.0, np.float32), end_ns)
        for place, end_ns in ends_ns.items()
    ]
    assert reaches_level(judge, recent, spec) == is_asked
    assert not reaches_level(judge, [], spec)


def test_who_takes_part_was_counted_or_refuses() -> None:
    rounds = Rounds({}, pytest.fail)
    record = RecordRound("run", 3, "fedavg", ("north",), 0, 0, 0, late=(("west", 2),))
    for gateway, index in (("east", 3), ("south", 2)):
        rounds.refuses(gateway, round_number("run", index))
    rounds.closed(record)
    assert rounds.took_part == {"north", "west", "east"}
    rounds.calm()
    assert rounds.took_part == set()


@pytest.mark.soak
def test_a_world_sees_a_gateway_that_never_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "queue_anomaly", lambda state, *_: (state, []))
    assert any("raised no alarm" in text for text in world.run(DAMAGED).violations)


@pytest.mark.soak
def test_a_world_sees_a_gateway_that_never_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    real = GatewayHost.carry_out

    def carry_out(host: GatewayHost, effect: Outward) -> None:
        if not (isinstance(effect, Train) and host.name == "east"):
            real(host, effect)

    monkeypatch.setattr(GatewayHost, "carry_out", carry_out)
    monkeypatch.setattr(world, "SETTLE_S", 600.0)
    assert any("east took no part" in text for text in world.run(SILENT).violations)
