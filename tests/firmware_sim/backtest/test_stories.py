"""Goal: prepared stories are alarms of what happened in them and of nothing before. Method: all eight, with hours that
are shortened, through the agent's own machine.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedgate.config.evidence.likely_cause import find_likely_cause
from fedgate.config.protocol.evidence import EVIDENCE_BYTES
from fedgate.firmware_sim import progress
from fedgate.firmware_sim.__main__ import main as firmware_sim
from fedgate.firmware_sim.backtest import stories, stories_command
from fedgate.firmware_sim.backtest.stories import Story, make_stories, render_story
from fedgate.firmware_sim.backtest.story_causes import KINDS, lose_stiffness
from fedgate.firmware_sim.backtest.story_sites import AIR, RATE_HZ, play_bridge, start_bridge

HOUR_S, SEED = 420.0, 1
RIGHT_LEAST = 6  # of eight; with hours of full length 8, see docs/reference/alarms.md


@pytest.fixture(scope="module")
def told() -> list[Story]:
    return make_stories(SEED, HOUR_S)


@pytest.mark.soak
def test_each_kind_is_told_twice_and_its_alarm_begins_behind_its_cause(told: list[Story]) -> None:
    assert Counter(story.kind for story in told) == dict.fromkeys(KINDS, 2)
    for story in told:
        assert story.onset_ns < story.raised.onset_ns <= story.raised.t_ns
        assert not [one for one in story.messages if one.t_ns <= story.onset_ns]


@pytest.mark.soak
def test_a_disturbed_channel_is_named_first_and_a_sensor_stands_alone(told: list[Story]) -> None:
    for story in told:
        first = story.raised.feature.partition(".")[0]
        allowed = (*story.disturbed, AIR) if story.kind == "weather" else story.disturbed
        assert first in allowed, story.what
        health = {one.channel: one for one in story.shown.health}
        if story.kind == "sensor":
            others = [one for name, one in health.items() if name not in story.disturbed and not one.is_covariate]
            assert health[story.disturbed[0]].outside > max(one.outside for one in others), story.what


@pytest.mark.soak
def test_the_text_has_channels_and_how_it_came(told: list[Story]) -> None:
    for story in told:
        text = render_story(story)
        assert "outside of all that they were in the baseline" in text and "\n- rise: " in text
        assert story.what not in text and len(story.shown.to_bytes()) <= EVIDENCE_BYTES
        assert ("suppressed" in text) == bool(story.events)
    assert sum(bool(story.events) for story in told) == 1


@pytest.mark.soak
def test_the_rules_find_most_causes(told: list[Story]) -> None:
    kinds = [(find_likely_cause(one.shown).kind, one.kind) for one in told]
    assert sum(found == real for found, real in kinds) >= RIGHT_LEAST, kinds


@pytest.mark.soak
def test_pages_and_answers_stand_apart(told: list[Story], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stories, "make_stories", lambda _seed, say: told[:2])
    assert firmware_sim(["stories", "--output", str(tmp_path / "eight"), "--seed", "1"]) == 0
    names = {path.name for path in (tmp_path / "eight").iterdir()}
    assert names == {f"story-{number}.{ending}" for number in (1, 2) for ending in ("html", "png", "txt")}
    answers = json.loads((tmp_path / "eight-answers" / "answers.json").read_text())
    assert answers["stories"]["story-1"]["kind"] == told[0].kind
    assert (tmp_path / "eight" / "story-1.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "eight" / "story-1.html").read_text()
    assert told[0].what not in page and "sensor-1" in page


@pytest.mark.soak
def test_how_far_it_is_is_said_beside_what_it_writes(
    told: list[Story], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PROGRESS_S", 0.0)
    monkeypatch.setattr(stories, "_draw_story", lambda number, *_given, **_named: told[number - 1])
    assert firmware_sim(["stories", "--output", str(tmp_path / "eight"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [f"story {number} of 8" for number in range(1, 9)]
    assert len(json.loads(out)["files"]) == 25
    with pytest.raises(SystemExit):
        firmware_sim(["stories", "--help"])
    assert "some minutes" in " ".join(capsys.readouterr().out.split())


def test_answers_beside_their_stories_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["stories", "--output", str(tmp_path), "--answers", str(tmp_path)]
    assert firmware_sim(words) == 2 and "expected another one" in capsys.readouterr().err
    assert stories_command.MODE == 0o644 and not list(tmp_path.iterdir())


def find_peak_hz(values: np.ndarray, low_hz: float, high_hz: float) -> float:
    hz = np.fft.rfftfreq(4_000, 1 / 50.0)
    pieces = values[: len(values) // 4_000 * 4_000].reshape(-1, 4_000)
    power = (np.abs(np.fft.rfft(pieces, axis=1)) ** 2).mean(axis=0)
    inside = (hz >= low_hz) & (hz < high_hz)
    return float(hz[inside][power[inside].argmax()])


@pytest.mark.soak
def test_lost_stiffness_moves_a_frequency_by_its_root_and_leaves_what_was_before() -> None:
    healthy = play_bridge(start_bridge(np.random.default_rng(1), 300.0), np.random.default_rng(2))
    played = lose_stiffness(np.random.default_rng(3), 300.0)
    loss = float(played.what.partition("%")[0]) / 100.0
    row = round(played.onset_s * 50.0)
    before, after = played.values[:row, 0], played.values[row:, 0]
    usual = find_peak_hz(healthy[:, 0], 6.0, 9.0)
    assert find_peak_hz(before, 6.0, 9.0) == pytest.approx(usual, abs=0.15)
    assert find_peak_hz(after, 5.0, 9.0) == pytest.approx(usual * np.sqrt(1.0 - loss), abs=0.2)


@pytest.mark.soak
def test_no_band_near_half_of_the_rate_jumps_with_the_stiffness() -> None:
    """The recordings are of a far higher rate: no mode from beyond half of this one comes into sight with damage."""
    played = lose_stiffness(np.random.default_rng(5), 300.0)
    row = round(played.onset_s * RATE_HZ)
    edges_hz = np.linspace(0.0, RATE_HZ / 2.0, 65)
    for before, after in zip(played.values[:row].T, played.values[row:, :3].T, strict=False):
        usual, now = np.array(sum_bands(edges_hz, before)), np.array(sum_bands(edges_hz, after))
        changes = (10.0 * np.log10(now / usual)).tolist()
        assert max(map(abs, changes[-6:])) < 3.0 < max(map(abs, changes))


def sum_bands(edges_hz: np.ndarray, values: np.ndarray) -> list[float]:
    hz = np.fft.rfftfreq(4_000, 1 / RATE_HZ)
    power = (np.abs(np.fft.rfft(values[: len(values) // 4_000 * 4_000].reshape(-1, 4_000), axis=1)) ** 2).mean(axis=0)
    return [float(power[(hz >= low) & (hz < high)].sum()) for low, high in pairwise(edges_hz)]
