"""What a model remembers: the pipeline carries it from window to window, over gaps, model swaps and restarts."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.gateway_agent.events import Connection, Publish
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.pipeline import pipeline as walk
from fedgate.gateway_agent.pipeline import recurrence as recall
from fedgate.gateway_agent.pipeline.decision import ScoringModel
from fedgate.gateway_agent.pipeline.memory import save_memory
from fedgate.gateway_agent.pipeline.recurrence import BLANK, Memory, Owner
from fedgate.gateway_agent.state import State
from fedgate.models.alarms.threshold import Levels
from fedgate.models.arrays import NEW_SERIES, Array, Arrays, Floats
from fedgate.models.time_units import NS
from fedgate.models.windows.grid import Block
from tests.support.agents import after, heard
from tests.support.sites import T0_NS, WINDOWS, Site, agent, aggregator_settings, frame, gateway_settings, samples

HOP_S = 1.0
LEVELS = Levels(raise_level=1e9, clear_level=0.5, median=0.0, samples=20, extrapolated=True)


class Sum:
    """A model that scores how much it has seen: the sum of all rows since the beginning."""

    def __init__(self, washout_rows: int = 0, max_gap_rows: int = 0) -> None:
        self.washout_rows, self.max_gap_rows = washout_rows, max_gap_rows

    def __call__(self, x: Array) -> Floats:
        return self.carried(x, {})[0]

    def carried(self, x: Array, memory: Arrays) -> tuple[Floats, Arrays]:
        scores = float(memory.get("sum", np.zeros(()))) + np.cumsum(x.sum(axis=1), dtype=np.float64)
        return scores, {"sum": scores[-1:].reshape(())}


def seen(*ends: float, value: float = 1.0) -> list[FeatureRow]:
    return [FeatureRow(np.array([value], dtype=np.float32), T0_NS + round(end * NS)) for end in ends]


@given(gaps=st.lists(st.integers(0, 4), min_size=1, max_size=30), washout=st.integers(0, 5), max_gap=st.integers(0, 3))
def test_a_stream_scores_like_its_series_one_by_one(gaps: list[int], washout: int, max_gap: int) -> None:
    model = Sum(washout, max_gap)
    ends = np.cumsum([0, *(gap + 1 for gap in gaps)]).tolist()
    windows = seen(*ends)
    missing = recall.count_missing_rows([window.end_ns for window in windows], HOP_S)
    assert missing.tolist() == [NEW_SERIES, *gaps]
    scores, is_settled = recall.score(model, walk.stack_rows(windows), missing)
    memory = BLANK
    for index, window in enumerate(windows):
        score, settled, memory = recall.take_in(model, memory, window, HOP_S)
        assert (score, settled) == (scores[index], is_settled[index])
    assert memory == recall.replay(model, windows, HOP_S)
    run = 0
    for index, gap in enumerate(missing):
        run = 1 if not 0 <= gap <= max_gap else run + 1
        assert scores[index] == run and is_settled[index] == (run > washout)


@pytest.mark.parametrize(("gap", "expected"), [(0, [12.0, 13.0]), (1, [12.0, 13.0]), (2, [2.0, 3.0])])
def test_what_could_come_next_is_scored_each_on_its_own(gap: int, expected: list[float]) -> None:
    memory, rows = Memory({"sum": np.array(10.0)}, 1, T0_NS), np.array([[2.0], [3.0]])
    found = recall.score_each(Sum(max_gap_rows=1), memory, rows, T0_NS + (gap + 1) * NS, HOP_S)
    assert found.tolist() == expected


def test_time_that_goes_backwards_or_is_unknown() -> None:
    assert recall.count_missing(T0_NS, T0_NS - NS, HOP_S) == NEW_SERIES == recall.count_missing(T0_NS, T0_NS, HOP_S)
    assert recall.count_missing_rows([None, None, T0_NS], HOP_S).tolist() == [NEW_SERIES, 0, 0]
    assert recall.count_missing_rows([], HOP_S).shape == (0,)


TOLD = '{"what": "the rules remember"}'


def test_a_memory_is_stored_with_its_model() -> None:
    memory = Memory({"sum": np.array(3.5)}, 7, T0_NS)
    owner = Owner("one", "boot", "unsynchronised")
    stored = recall.to_bytes(memory, TOLD, owner)
    assert recall.from_bytes(stored, owner) == (memory, TOLD)
    assert recall.from_bytes(stored, owner._replace(model="other")) == (BLANK, "")


def test_a_clock_that_may_have_stood_still_makes_a_memory_worth_nothing() -> None:
    """A gateway without a clock of its own resumes at the time at which it stopped, days later."""
    memory, owner = Memory({"sum": np.array(3.5)}, 7, T0_NS), Owner("one", "boot", "synchronised")
    again = owner._replace(boot_id="next")
    assert recall.from_bytes(recall.to_bytes(memory, TOLD, owner), again) == (memory, TOLD)
    for before, after_boot in (
        (owner, again._replace(clock="unsynchronised")),
        (owner._replace(clock="unknown"), again),
    ):
        assert recall.from_bytes(recall.to_bytes(memory, TOLD, before), after_boot) == (BLANK, "")


def watched(model: Sum, windows: int = 6) -> tuple[walk.Pipeline, list[walk.WindowResult]]:
    settings = gateway_settings()
    pipeline = walk.start(settings.features, settings.streams, settings.alarm, 0)
    pipeline = walk.replace_model(pipeline, ScoringModel(model, LEVELS))
    return walk.push(pipeline, Block("deck", T0_NS, settings.features.rate_hz, samples(0, windows)))


def test_a_fresh_memory_scores_nothing_and_the_gateway_says_so() -> None:
    pipeline, readings = watched(Sum(washout_rows=4))
    assert [reading.height is None for reading in readings] == [True] * 4 + [False] * (len(readings) - 4)
    assert not pipeline.settling and watched(Sum(washout_rows=40))[0].settling


def test_a_new_model_remembers_what_it_would_have_seen() -> None:
    pipeline, readings = watched(Sum(washout_rows=1))
    swapped = walk.replace_model(pipeline, ScoringModel(Sum(washout_rows=4), LEVELS))
    assert swapped.memory == replace(pipeline, judge=swapped.judge).memory and not swapped.settling
    height = readings[-1].height
    assert height is not None and height.value == swapped.memory.tensors["sum"]


def test_recent_windows_are_kept_for_the_next_model_and_shown_to_one_that_remembers() -> None:
    for washout_rows in (0, 1):
        assert len(watched(Sum(washout_rows=washout_rows), 9)[0].recent) == 9
    swapped = walk.replace_model(watched(Sum(), 9)[0], ScoringModel(Sum(), LEVELS))
    assert swapped.memory.rows == 0


def scores_of(state: State, start_s: float, windows: int) -> tuple[State, list[float]]:
    """Feed windows of noise, each its own, and return the scores that the gateway publishes."""
    found: list[float] = []
    for index in range(windows):
        at_s = start_s + index
        state, effects = after(state, heard("sample", "deck", frame(samples(round(at_s), 1), at_s), "east"))
        sent = [effect for effect in effects if isinstance(effect, Publish) and "/score/" in effect.topic]
        found += [json.loads(effect.payload)["score"] for effect in sent]
    return state, found


def test_a_restart_between_two_windows_changes_no_score() -> None:
    network = {"units": 12, "leak": 0.5, "washout": 4}
    cloud = aggregator_settings(algorithm={"name": "incfed", "settings": {"network": network}}, rounds={"quorum": 1})
    made = Site(cloud, [gateway_settings("east")])
    made.connect_all()
    made.commission()
    made.run(made.in_force)
    shelf, state = made.shelves["east"], made.agents["east"]
    unbroken, whole = scores_of(state, WINDOWS, 12)
    assert len(whole) >= 11 and not unbroken.monitor.pipeline.settling
    halfway, first = scores_of(state, WINDOWS, 6)
    shelf.commit(save_memory(halfway.monitor.pipeline, halfway.context, halfway.deployment.manifest))
    again, _ = after(agent(made.settings["east"], shelf, made.now_ns), Connection(True))  # scores are told over a link
    assert not again.monitor.pipeline.settling
    _, second = scores_of(again, WINDOWS + len(first), 12 - len(first))
    assert first + second == pytest.approx(whole[: len(first + second)], abs=1e-5) and len(second) >= 5
    late, third = scores_of(
        again, WINDOWS + 100.0, 8
    )  # beyond the longest gap: a new series, and nothing said at first
    assert len(third) == 8 - network["washout"] - 1 + (len(first) - 6 + 1) or len(third) < 8
    assert late.monitor.pipeline.memory.rows < 10
    del shelf.blobs["memory"]
    assert agent(made.settings["east"], shelf, made.now_ns).monitor.pipeline.settling
