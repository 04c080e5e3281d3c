"""The evidence of an anomaly: it is stored with its alarm and leaves behind it, and says what the gateway saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.protocol.evidence import EVIDENCE_BYTES, AlarmEvidence, count_json_bytes
from fedgate.config.protocol.messages import CONTROL, TRAIL_MAX, Alarm
from fedgate.gateway_agent.events import EVIDENCE_PRIORITY, ClockSet, Effect, Enqueue, Log, Save
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.monitor import evidence
from fedgate.gateway_agent.monitor.sentence import describe_start
from fedgate.gateway_agent.pipeline import spectra
from fedgate.gateway_agent.pipeline.decision import ScoringModel
from fedgate.gateway_agent.pipeline.pipeline import WindowResult, start
from fedgate.gateway_agent.pipeline.spectra import SPECTRA
from fedgate.gateway_agent.state import State
from fedgate.models.alarms.contributions import Contribution
from fedgate.models.alarms.rules import Height
from fedgate.models.alarms.threshold import Levels
from fedgate.models.features.spec import FeatureSpec, feature_names
from fedgate.models.time_units import NS
from tests.gateway_agent.deployment.test_gateway_models import in_force
from tests.gateway_agent.monitor.test_gateway_sensors import START_S, feed, watched
from tests.support.agents import Told, after, commissioned, kinds, sent
from tests.support.sites import FEATURES, SITE, T0_NS, WINDOWS, Shelf, agent, gateway_settings, samples


def evidence_of(effects: list[Effect]) -> list[AlarmEvidence]:
    queued = [one.item for one in kinds(effects, Enqueue) if one.item.priority == EVIDENCE_PRIORITY]
    return [AlarmEvidence.from_bytes(item.payloads[0]) for item in queued]


def test_evidence_follows_its_alarm_in_one_step_and_says_what_was_seen() -> None:
    _, effects = feed(watched(), np.concatenate([samples(0, 4), samples(4, 3, 50.0)]), START_S)
    first, second = kinds(effects, Enqueue)
    assert effects.index(first) < effects.index(second) and second.item.priority == EVIDENCE_PRIORITY
    alarm, (found,) = Alarm.from_bytes(first.item.payloads[0]), evidence_of(effects)
    assert second.name == found.item and [one.topic for one in sent(effects, "evidence")] == [second.item.topic]
    assert (found.alarm, found.text, found.onset_ns, found.level_of) == (
        alarm.id, alarm.text, alarm.onset_ns, "own baseline"
    )  # fmt: skip
    assert found.contributions[0].feature == alarm.feature == "load.level"
    assert found.contributions[0].text.startswith("load: mean is ") and found.contributions[0].value > 40
    assert found.trail is not None and len(found.trail.scores) == 5 and found.trail.scores[-1] == found.score
    assert found.trail.list_levels() == [found.level] * 5 and found.score > found.level > found.trail.scores[0]
    assert found.trail.offsets_s == (0.0, 1.0, 2.0, 3.0, 4.0)
    assert found.spectrum is not None and found.spectrum.channel == "load" and found.spectrum.t_ns == alarm.t_ns
    assert found.spectrum.healthy_windows == WINDOWS and len(found.spectrum.worst) == 10
    assert [one.channel for one in found.health] == ["load"] and not found.health[0].is_faulty
    assert len(second.item.payloads[0]) < EVIDENCE_BYTES / 2


@pytest.mark.parametrize("wanted", ["reduced", "off"])
def test_a_site_may_want_less_of_it_or_nothing(wanted: str) -> None:
    _, effects = feed(watched_with(alarm={"evidence": wanted}), samples(4, 3, 50.0), START_S)
    found = evidence_of(effects)
    assert len(found) == (wanted == "reduced")
    for one in found:
        assert one.contributions and one.health and one.level and one.trail is None and one.spectrum is None
        assert one.no_spectrum == "the settings want reduced evidence"


@pytest.mark.parametrize(("most", "count"), [(300, 0), (1_024, 1), (4_096, 1)])
def test_evidence_is_no_longer_than_what_the_line_carries(most: int, count: int) -> None:
    """A broker that takes less drops the rest, and whatever is under way holds up the next alarm."""
    state = watched_with()
    state = replace(state, context=replace(state.context, line_payload_bytes=most))
    _, effects = feed(state, samples(4, 3, 50.0), START_S)
    found = evidence_of(effects)
    assert len(sent(effects, "alarm")) == 1 and len(found) == count
    assert all(len(one.to_bytes()) <= most for one in found)
    assert count or any("300 bytes are too few for it" in one.text for one in kinds(effects, Log))


def test_no_score_of_before_stands_beside_those_of_a_clock_that_was_set_since() -> None:
    state, _ = feed(watched(), samples(0, 4), START_S)
    assert len(state.monitor.trail) > 1
    assert after(state, ClockSet(0))[0].monitor.trail == ()


def test_an_error_of_the_evidence_takes_no_alarm_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "list_health", lambda *_: (np.nan,))
    _, effects = feed(watched(), samples(4, 3, 50.0), START_S)
    (item,) = kinds(effects, Enqueue)
    assert Alarm.from_bytes(item.item.payloads[0]).state == "raised"
    assert any("has no evidence" in one.text for one in kinds(effects, Log))


def watched_with(**tables: Any) -> State:
    state = in_force(**tables)
    return replace(state, context=replace(state.context, uptime_ns=T0_NS + WINDOWS * NS))


@pytest.mark.parametrize(("shifts", "lasts_s", "shown_s"), [
    ((20.0, 500.0, 30.0, 30.0), 3.0, 1.0),  # windows that follow share no sample with the first: the highest of these
    ((500.0, 30.0, 40.0, 30.0), 3.0, 2.0),  # not the first, though it is the highest
    ((500.0,), 0.0, 0.0),  # the only one
])  # fmt: skip
def test_the_worst_window_behind_the_transition_is_the_one_whose_spectrum_is_shown(
    shifts: tuple[float, ...], lasts_s: float, shown_s: float
) -> None:
    state = watched_with(alarm={"minimum_duration_s": lasts_s})
    _, effects = feed(state, np.concatenate([samples(4, 1, shift) for shift in shifts]), START_S)
    (found,) = evidence_of(effects)
    assert found.spectrum is not None and (found.spectrum.t_ns - found.onset_ns) / 1e9 == shown_s


def test_where_windows_overlap_none_that_holds_the_step_is_taken_while_there_is_another() -> None:
    worst, spec = None, SPEC.model_copy(update={"hop_s": 0.25})
    found = spectra.start(spec, ("load",), is_wanted=True)
    for place, height in enumerate((50.0, 900.0, 800.0, 700.0, 3.0, 4.0, 3.5)):
        values = np.full((200, 1), float(place))
        worst = spectra.note_worst(worst, found, spec, values, height, place * NS // 4, 0)
        assert worst is not None
        assert worst.t_ns * 4 // NS == (place if place < 5 else 5)
    assert worst is not None and worst.height == 4.0 and worst.is_behind


def test_each_channel_says_how_many_features_are_where_they_never_were_and_which_bands_changed() -> None:
    names = ["load", "other"]
    tables: dict[str, Any] = {
        "features": {**FEATURES, "channels": names},
        "source": [{"name": "deck", "kind": "frames", "channels": [{"role": name} for name in names]}],
    }
    made = gateway_settings(**tables, alarm={"covariates": {"weather": ["other.level"]}})
    rng = np.random.default_rng(0)
    rows = tuple(FeatureRow(row, None) for row in rng.normal(size=(60, len(feature_names(made.features)))))
    pipeline = start(made.features, made.streams, made.alarm, 60, rows)
    row = np.median([one.row for one in rows], axis=0)
    row[feature_names(made.features).index("other.level")] = 50.0
    found = evidence.find_outside(pipeline, made.describe_features(), WindowResult(0, row))
    assert [found[name]["outside"] for name in names] == [0, 1] and found["other"]["farthest"] == "other.level"
    assert found["other"]["deviation"] > 30.0 and found["load"]["features"] == len(row) // 2
    low = spectra.Spectra(("load", "other"), tuple(np.full((2, 4), level, np.float32) for level in (1.0, 2.0, 3.0)))
    worst = spectra.Worst(1.0, 0, np.array([[2, 2, 200, 2], [0.02, 2, 2, 2]], np.float32), is_behind=True)
    assert [one.decibels for one in evidence.compare_bands(low, worst)] == [(0, 0, 20, 0), (-20, 0, 0, 0)]


def test_a_sensor_of_slow_readings_has_no_spectrum_and_it_is_said_why() -> None:
    source = [{"name": "deck", "kind": "frames", "channels": [{"role": "load"}], "fill": "hold", "gap_s": 60.0}]
    _, effects = feed(watched_with(source=source), samples(4, 3, 50.0), START_S)
    (found,) = evidence_of(effects)
    assert found.spectrum is None and found.no_spectrum.startswith("load has no spectrum: it is slow")


def test_the_trail_is_bounded_and_its_windows_are_the_latest() -> None:
    state = watched()
    for place in range(3 * TRAIL_MAX):
        state = replace(state, monitor=state.monitor.note_height(place, float(place)))
    assert [height for _, height, _ in state.monitor.trail] == [float(n) for n in range(2 * TRAIL_MAX, 3 * TRAIL_MAX)]


def test_healthy_spectra_are_stored_with_the_end_of_the_baseline_and_come_back() -> None:
    shelf = Shelf()
    state = commissioned(shelf)
    assert len(state.monitor.pipeline.healthy.rows) == WINDOWS and SPECTRA in shelf.blobs
    again = agent(gateway_settings(), shelf).monitor.pipeline.healthy
    assert again.seen == WINDOWS and again.channels == ("load",)
    np.testing.assert_array_equal(again.rows, state.monitor.pipeline.healthy.rows)


SPEC = FeatureSpec.model_validate({**FEATURES, "rate_hz": 200.0, "window_s": 1.0})


def test_a_tone_is_in_its_band_and_all_bands_add_up_to_the_variance() -> None:
    times = np.arange(200) / 200.0
    values = (3.0 * np.sin(2 * np.pi * 20.0 * times) + 100.0)[:, None]
    (bands,) = spectra.measure(SPEC, ("load",), values)
    edges_hz = spectra.list_edges(SPEC)
    place = int(bands.argmax())
    assert len(bands) == 64 and edges_hz[place] < 20.0 < edges_hz[place + 1]
    assert bands.sum() == pytest.approx(values.var(), rel=1e-5) and bands[place] == pytest.approx(4.5, rel=1e-5)


@pytest.mark.soak
@settings(max_examples=20, deadline=None)
@given(windows=st.integers(1, 3 * spectra.KEPT))
def test_of_many_healthy_windows_some_are_kept_evenly_spread_over_all(windows: int) -> None:
    found, values = spectra.start(SPEC, ("load",), is_wanted=True), np.zeros((200, 1))
    saves = 0
    for place in range(windows):
        values[0] = place
        found = spectra.gather(found, SPEC, values)
        if spectra.has_grown(found):
            found, stored = spectra.save(found)
            saves += len(stored)
    assert found.seen == windows and 0 < len(found.rows) <= spectra.KEPT
    assert len(found.rows) >= min(windows, spectra.KEPT // 2)
    expected = [(place * (199 / 200) ** 0.5 / 200**0.5) ** 2 for place in range(0, windows, found.stride)]
    np.testing.assert_allclose([float(rows.sum()) for rows in found.rows], expected, rtol=1e-4)
    assert saves <= windows.bit_length()  # what flash wears out by
    blob = spectra.to_bytes(found)
    back = spectra.restore(blob, spectra.start(SPEC, ("load",), is_wanted=True), SPEC)
    assert (back.seen, back.stride, len(back.rows)) == (found.seen, found.stride, len(found.rows))
    assert spectra.restore(blob, spectra.NONE, SPEC) == spectra.NONE


JUDGE = ScoringModel(Told(1.0), Levels(0.681, 0.5, 0.0, 20, False))
NORTH = {"id": "north", "site": SITE, "device": {"location": "north pier"}}
IN_BANDS: dict[str, Any] = {
    "features": {**FEATURES, "channels": ["vertical"], "steps": [{"kind": "bands", "edges_hz": [3.1, 3.4, 3.7]}],
                 "window_s": 10.0},
    "source": [{"name": "deck", "kind": "frames", "channels": [{"role": "vertical"}]}],
}  # fmt: skip


def say(found: list[Contribution], since: str = "", most: int = 300, **tables: Any) -> str:
    made = gateway_settings(**{**IN_BANDS, "gateway": NORTH, **tables})
    return describe_start(JUDGE, Height(3.58, "score", 3.58, 0.681, None), found, settings=made, since=since, most=most)


def test_the_sentence_names_place_channel_hertz_factor_and_since_when() -> None:
    found = [
        Contribution("vertical.band[3.1-3.4Hz]", 2.0, -2.222, -3.0, 0.1),
        Contribution("vertical.band[3.4-3.7Hz]", 1.0, -2.7, -3.0, 0.1),
    ]
    assert say(found, " since 08:01 UTC") == (
        "north pier, vertical: 3.1-3.4 Hz carries 6 times its usual energy, 3.4-3.7 Hz carries 2 times its usual energy"
        " since 08:01 UTC (score 3.58, level 0.681 of this gateway's own baseline)"
    )
    assert say(found, most=150).startswith("north pier, vertical: 3.1-3.4 Hz carries 6 times its usual energy (score")
    assert say([], " since 08:01 UTC") == (
        "north pier: score 3.58 is above the level 0.681 of this gateway's own baseline since 08:01 UTC"
    )


def test_the_sentence_says_of_several_channels_how_many_and_of_how_many() -> None:
    found = [Contribution("vertical.band[3.1-3.4Hz]", 2.0, -2.222, -3.0, 0.1)]
    made = gateway_settings(**{**IN_BANDS, "gateway": NORTH})
    of_several = " since 08:01 UTC; 3 of 8 channels are clearly outside of their baseline (score"
    for outside, words in (((3, 8), of_several), ((1, 8), " since 08:01 UTC (score")):
        height = Height(3.58, "score", 3.58, 0.681, None)
        assert words in describe_start(JUDGE, height, found, settings=made, since=" since 08:01 UTC", outside=outside)


ODD = st.text(st.characters(codec="utf-8"), max_size=120)


@pytest.mark.soak
@settings(max_examples=60, deadline=None)
@given(location=ODD, name=st.one_of(ODD, st.sampled_from(['"' * 500, "\N{SNOWMAN}" * 500])), most=st.integers(200, 400))
def test_whatever_names_hold_the_sentence_is_one_line_of_bounded_bytes(location: str, name: str, most: int) -> None:
    text = say(
        [Contribution(name, 2.0, 5.0, 3.0, 1.0)] * 3, most=most, gateway={**NORTH, "device": {"location": location}}
    )
    assert count_json_bytes(text) <= most and not CONTROL.search(text) and "level 0.681" in text


@pytest.mark.parametrize("sign", ["\N{SNOWMAN}", '"', "\U0001f30a", "\x1b"])
def test_an_alarm_with_the_longest_names_stays_below_a_kibibyte(sign: str) -> None:
    state = watched_with(gateway={"id": "north", "site": SITE, "device": {"location": sign * 120}})
    context = replace(state.context, boot_id="b" * 64, secret=bytes(32))
    _, effects = feed(replace(state, context=context), samples(4, 3, 50.0), START_S)
    first, second = kinds(effects, Enqueue)
    alarm = Alarm.from_bytes(first.item.payloads[0])
    assert len(first.item.payloads[0]) < 1_024 and "load" in alarm.text and alarm.store_id
    assert len(second.item.payloads[0]) < EVIDENCE_BYTES and evidence_of(effects)[0].text == alarm.text


def test_spectra_are_saved_at_a_clean_stop_while_the_baseline_is_gathered() -> None:
    found = spectra.start(SPEC, ("load",), is_wanted=True)
    assert spectra.save(found) == (found, [])
    found, stored = spectra.save(spectra.gather(found, SPEC, np.ones((200, 1))))
    assert [type(one) for one in stored] == [Save] and spectra.save(found)[1] == []
