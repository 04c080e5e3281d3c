"""What a fleet comes through: a lost store of the aggregator, changed settings of a gateway, a service that fails."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator.events import Connection
from fedgate.cloud_aggregator.rounds.rounds import TRAINING_FORMAT, save_training
from fedgate.cloud_aggregator.state import Stored
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Manifest
from fedgate.config.runtime import cli
from fedgate.config.runtime.sqlite import StoreError
from fedgate.gateway_agent.deployment.validation import describe_out_of_reach
from fedgate.gateway_agent.events import ALARM_PRIORITY, SENSOR_PRIORITY, UPDATE_PRIORITY
from fedgate.gateway_agent.pipeline import pipeline as walk
from fedgate.gateway_agent.pipeline.decision import ScoringModel
from fedgate.gateway_agent.pipeline.pipeline import GAP_HOPS, replace_model
from fedgate.gateway_agent.state import BaselineError
from fedgate.gateway_agent.storage.store import Store
from fedgate.models.alarms.threshold import AlarmState, Levels
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.time_units import NS
from fedgate.models.windows.grid import Block
from tests.cloud_aggregator.test_aggregator_machine import OPEN, after, opened, published, started, update
from tests.gateway_agent.deployment.test_gateway_models import FIRST
from tests.support.agents import Told, commissioned
from tests.support.sites import (
    T0_NS,
    WINDOWS,
    CloudShelf,
    Shelf,
    agent,
    aggregator_settings,
    gateway_settings,
    start_cloud,
    with_record,
)

FLEET = 3_000  # names of so many gateways are more than a header of the wire format holds


def test_the_round_of_a_large_fleet_survives_a_restart() -> None:
    counted = {f"gateway-with-a-long-name-{number:06d}": "d" * 64 for number in range(FLEET)}
    before = with_record(opened(), "rounds", counted=counted, counted_before=counted, asked=tuple(counted))
    shelf = CloudShelf(training=save_training(before.rounds, 0), gateways=dict(before.access.gateways))
    state = started(shelf)
    assert (state.rounds.counted, state.rounds.asked, state.rounds.run) == (
        counted,
        before.rounds.asked,
        before.rounds.run,
    )


def test_a_store_that_was_lost_begins_another_run_whose_rounds_are_not_those_answered() -> None:
    settings = aggregator_settings()
    first, second = (start_cloud(settings, Stored(), T0_NS, beginning) for beginning in ("a1", "b2"))
    assert first.rounds.run != second.rounds.run
    assert first.rounds.run.partition(".")[0] == second.rounds.run.partition(".")[0]
    resumed = start_cloud(settings, Stored(save_training(first.rounds, 0)), T0_NS, "c3")
    assert resumed.rounds.run == first.rounds.run


def test_a_training_of_another_format_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an older release kept of a training may lack what this one looks for."""
    settings = aggregator_settings()
    stored = save_training(start_cloud(settings, Stored(), T0_NS, "a1").rounds, 0)
    monkeypatch.setattr("fedgate.cloud_aggregator.rounds.rounds.TRAINING_FORMAT", 99)
    assert start_cloud(settings, Stored(stored), T0_NS, "b2").rounds.run.endswith(".b2")


def test_the_exchanges_of_a_stored_training_are_those_of_its_format() -> None:
    """A stored training names its phase by number. Where these change, `TRAINING_FORMAT` must, and this with it."""
    built = {name: build(name, 3, {}) for name in ALGORITHMS}
    exchanges = {name: (algorithm.setup, len(algorithm.phases)) for name, algorithm in built.items()}
    alone = {name for name, found in exchanges.items() if found == (0, 1)}
    assert alone == {
        *("esn-fedavg", "esn-fedcurv", "federated-subspace", "incfed", "recurrent-fedavg"),
        *("robust-svm-admm", "robust-svm-subgradient"),
    }
    assert exchanges.pop("conditional-fedavg") == (1, 4) and TRAINING_FORMAT == 4
    assert {exchanges[name] for name in exchanges.keys() - alone} == {(1, 2)}


def test_vectors_that_would_only_spoil_the_shared_model_are_refused() -> None:
    far = {"vectors": np.full((2, 3), 1e9)}
    _, effects = after(OPEN, Connection(True), *update("north", _body_with(far)))
    (receipt,) = published(effects, "receipt")
    assert b"within 1000 deviations" in receipt.payload


def _body_with(arrays: dict[str, Any]) -> bytes:
    meta = {"run": OPEN.rounds.run, "round_index": OPEN.rounds.server.round_index, "phase": OPEN.rounds.server.phase}
    return wire.encode(arrays, meta)


@pytest.mark.parametrize("windows", [WINDOWS + 1, 10 * WINDOWS])
def test_more_windows_of_baseline_than_a_gateway_was_commissioned_with_are_refused(windows: int) -> None:
    shelf = Shelf()
    commissioned(shelf)
    settings = gateway_settings(baseline={"windows": windows})
    with pytest.raises(BaselineError, match=f"is {windows}, but this gateway was commissioned with {WINDOWS}"):
        agent(settings, shelf)


def test_what_is_said_of_the_structure_goes_before_what_is_said_of_sensors_and_updates() -> None:
    assert ALARM_PRIORITY < SENSOR_PRIORITY < UPDATE_PRIORITY


def test_two_agents_cannot_share_a_store(tmp_path: Path) -> None:
    first = Store(tmp_path / "gateway.db")
    with pytest.raises(StoreError, match="another agent runs on this store"):
        Store(tmp_path / "gateway.db")
    Store(tmp_path / "gateway.db", read_only=True).close()  # looking is allowed
    first.close()
    Store(tmp_path / "gateway.db").close()


def test_a_level_that_nothing_can_reach_is_said() -> None:
    state = commissioned()
    judge = ScoringModel(Told(), Levels(raise_level=9.0, clear_level=0.5, median=0.0, samples=20, extrapolated=True))
    text = describe_out_of_reach(state.monitor.pipeline, judge)
    assert "no window can raise an alarm" in text and "asks for 9" in text
    reachable = judge._replace(levels=replace(judge.levels, raise_level=-1.0))
    assert describe_out_of_reach(state.monitor.pipeline, reachable) == ""


def test_two_high_windows_with_a_hole_between_are_no_lasting_alarm() -> None:
    told = Told()
    settings = gateway_settings(alarm={"minimum_duration_s": 30.0})
    spec = settings.features
    judge = ScoringModel(told, Levels(raise_level=1.0, clear_level=0.5, median=0.0, samples=20, extrapolated=True))
    state = replace_model(walk.start(spec, settings.streams, settings.alarm, 0), judge)
    rng = np.random.default_rng(0)

    def watch(state: walk.Pipeline, start_s: float, score: float) -> tuple[walk.Pipeline, list[walk.WindowResult]]:
        told.value = score
        values = rng.normal(size=(round(spec.window_s * spec.rate_hz), 1))
        return walk.push(state, Block("deck", T0_NS + round(start_s * NS), spec.rate_hz, values))

    state, first = watch(state, 0.0, 5.0)
    assert [reading.height.value for reading in first if reading.height is not None] == [5.0]
    readings: list[walk.WindowResult] = []
    for hop in range(1, 4):
        later_s = (10 + hop) * spec.window_s * GAP_HOPS
        state, more = watch(state, later_s, 5.0)
        readings += more
    assert not any(reading.transition for reading in readings)


def test_a_new_model_judges_an_active_alarm_on_its_own_scale() -> None:
    settings = gateway_settings()
    state = walk.start(settings.features, settings.streams, settings.alarm, 0)
    state = replace(state, alarm=AlarmState(active=True, run_ns=3, onset_ns=2, peak=50.0, last_ns=4))
    levels = Levels(raise_level=1.0, clear_level=0.5, median=0.1, samples=20, extrapolated=True)
    alarm = replace_model(state, ScoringModel(Told(), levels)).alarm
    assert alarm == AlarmState(active=True, run_ns=None, onset_ns=2, peak=0.1, last_ns=4)


def test_a_service_that_fails_while_it_runs_is_to_be_started_again(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise OSError("the disk is full")

    with caplog.at_level(logging.ERROR):
        assert cli.serve("gateway-agent", fail) == cli.SERVICE_ERROR != cli.USAGE_ERROR
    assert "the disk is full" in caplog.text
    assert cli.serve("gateway-agent", lambda: None) == 0


def test_a_manifest_of_a_newer_sender_keeps_its_signature_through_the_store() -> None:
    manifest, _ = FIRST
    assert Manifest.from_bytes(manifest.to_bytes()).signed_bytes() == manifest.signed_bytes()
