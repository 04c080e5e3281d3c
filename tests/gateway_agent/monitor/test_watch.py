"""Rules, context and drift on a gateway: what a single score does not show, and what a restart must not lose."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedgate.config.protocol.messages import Manifest
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent.deployment.deployment import Examination
from fedgate.gateway_agent.pipeline import decision
from fedgate.gateway_agent.pipeline import pipeline as walk
from fedgate.gateway_agent.pipeline import recurrence as recall
from fedgate.gateway_agent.pipeline.decision import SCORE, DecisionState, ScoringModel
from fedgate.gateway_agent.pipeline.memory import find_owner as owner_of
from fedgate.gateway_agent.pipeline.pipeline import Pipeline, WindowResult
from fedgate.gateway_agent.pipeline.recurrence import BLANK, Owner
from fedgate.models.alarms.profile import ProfileError
from fedgate.models.alarms.threshold import CalibrationError
from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.onnx_policy import ModelRefusedError
from fedgate.models.time_units import NS
from fedgate.models.windows.grid import Block
from tests.support.message_samples import MESSAGES
from tests.support.sites import Shelf, Site, agent, aggregator_settings, gateway_settings, samples

HOUR_NS = 3_600 * NS
BASELINE, CALIBRATION = 480, 240  # windows of an hour: twenty days, of which ten calibrate
T0_NS = 1_800_000_000 * NS - 1_800_000_000 * NS % (24 * HOUR_NS)
FEATURES = {"rate_hz": 1 / 900, "window_s": 3_600.0, "channels": ["room"], "steps": [{"kind": "level"}]}
RULES = {"point": {"kind": "point"}, "slow": {"kind": "slow", "on": "score", "time_s": 43_200.0}}


class Level:
    """A model without memory whose score is the first feature."""

    washout_rows, max_gap_rows = 0, 0

    def __call__(self, x: Array) -> Floats:
        return np.asarray(x[:, 0], dtype=np.float64)

    def carried(self, x: Array, memory: Arrays) -> tuple[Floats, Arrays]:
        return self(x), memory


def settings_of(**alarm: Any) -> GatewaySettings:
    baseline = {"windows": BASELINE, "calibration_share": CALIBRATION / BASELINE}
    alarm = {"false_alarms_per_day": 0.2, **alarm}
    tables: dict[str, Any] = {"features": FEATURES, "alarm": alarm, "baseline": baseline}
    source = {"name": "room", "kind": "frames", "channels": [{"role": "room"}], "silent_after_s": 1e6}
    return gateway_settings(**tables, source=[source])


def values_of(hours: int, seed: int, shift: float = 0.0, daily: float = 0.0, start: int = 0) -> Floats:
    """Return an hour's level (n,): noise, a daily course, a shift; four samples each are drawn around it."""
    noise = np.random.default_rng(seed).normal(size=hours)
    return noise + shift + daily * np.sin(2 * np.pi * (start + np.arange(hours)) / 24)


def fed(pipeline: Pipeline, levels: Floats, start: int) -> tuple[Pipeline, list[WindowResult]]:
    """Show a pipeline hours of a constant level each, a little noise on top so that no sensor seems stuck."""
    noise = 1e-3 * np.tile([1.0, -1.0, 2.0, -2.0], len(levels))
    block = Block("room", T0_NS + start * HOUR_NS, 1 / 900, (np.repeat(levels, 4) + noise)[:, None])
    return walk.push(pipeline, block)


def commissioned(settings: GatewaySettings, daily: float = 0.0) -> Pipeline:
    begun = walk.start(settings.features, settings.streams, settings.alarm, BASELINE)
    pipeline, _ = fed(begun, values_of(BASELINE + 1, 1, daily=daily), 0)
    units = {"center": np.zeros(1), "scale": np.ones(1)}
    scored = recall.score(Level(), walk.stack_rows(pipeline.baseline), walk.count_gaps(pipeline))
    judge, watching = walk.calibrate_model(pipeline, Level(), scored, CALIBRATION, units, {})
    return walk.replace_model(pipeline, judge, watching)


def heights(readings: list[WindowResult]) -> list[tuple[str, float]]:
    return [(reading.height.rule, reading.height.value) for reading in readings if reading.height is not None]


@pytest.mark.soak
def test_a_small_shift_is_found_by_the_slow_rule_and_not_by_the_point_rule() -> None:
    shifted = 0.2 * values_of(48, 3) + 1.2  # no hour of which is remarkable
    _, with_rules = fed(commissioned(settings_of(rules={"rules": RULES})), shifted, BASELINE + 1)
    raised = [reading for reading in with_rules if reading.transition]
    assert raised and raised[0].height is not None and raised[0].height.rule == "slow"
    _, alone = fed(commissioned(settings_of()), shifted, BASELINE + 1)
    assert not any(reading.transition for reading in alone)


def test_without_rules_the_score_is_judged_as_ever() -> None:
    _, readings = fed(commissioned(settings_of()), values_of(24, 4), BASELINE + 1)
    told = [reading.height for reading in readings if reading.height is not None]
    assert told and all((each.rule, each.value) == (SCORE, each.statistic) for each in told)


def test_noon_at_midnight_is_found_by_the_profile_alone() -> None:
    contextual = {"block_h": 3, "days": "same", "least": 20}
    settings = settings_of(contextual=contextual)
    pipeline = commissioned(settings, daily=8.0)
    usual = values_of(48, 5, daily=8.0, start=BASELINE + 1)
    _, healthy = fed(pipeline, usual, BASELINE + 1)
    assert not any(reading.transition for reading in healthy)
    displaced = np.concatenate([usual[:12], usual[:12]])  # twelve hours later everything is twelve hours late
    _, readings = fed(pipeline, displaced, BASELINE + 1)
    assert [each.transition.kind for each in readings if each.transition][:1] == ["raised"]
    assert max(heights(readings), key=lambda each: each[1])[0] == "contextual"


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_restart_changes_no_height(cut: int) -> None:
    settings = settings_of(rules={"rules": RULES}, drift={})
    pipeline, levels = commissioned(settings), values_of(48, 6, shift=0.5)
    _, whole = fed(pipeline, levels, BASELINE + 1)
    before, first = fed(pipeline, levels[:cut], BASELINE + 1)
    again = replace(before, watching=decision.restore_watching(decision.dump_watching(before.watching)))
    _, rest = fed(again, levels[cut:], BASELINE + 1 + cut)
    assert heights([*first, *rest]) == heights(whole)


@pytest.mark.soak
def test_scores_that_stay_higher_make_the_level_outdated() -> None:
    pipeline = commissioned(settings_of(drift={"block_h": 24.0}, false_alarms_per_day=0.01))
    after, _ = fed(pipeline, values_of(24 * 30, 7, shift=1.0), BASELINE + 1)
    assert after.watching.drift.change == "higher"
    calm, _ = fed(pipeline, values_of(24 * 30, 8), BASELINE + 1)
    assert calm.watching.drift.change is None


def test_a_profile_that_nobody_has_seen_enough_for_is_refused() -> None:
    with pytest.raises(ProfileError, match="let the baseline run longer"):
        commissioned(settings_of(contextual={"least": 10_000}))


def test_windows_of_an_unset_clock_give_no_profile() -> None:
    settings = settings_of(contextual={"least": 2})
    pipeline = commissioned(settings)
    undated = tuple(seen._replace(end_ns=None) for seen in pipeline.baseline)
    judge = pipeline.judge
    assert isinstance(judge, ScoringModel)
    units = {"center": np.zeros(1), "scale": np.ones(1)}
    undated_pipeline = replace(pipeline, baseline=undated)
    scored = recall.score(Level(), walk.stack_rows(undated), walk.count_gaps(undated_pipeline))
    with pytest.raises((CalibrationError, ProfileError), match=r"time|baseline"):
        walk.calibrate_model(undated_pipeline, Level(), scored, CALIBRATION, units, {})


@pytest.mark.parametrize(
    ("alarm", "reason"),
    [
        ({"rules": {"rules": {"context": {"kind": "given"}}}}, "contextual"),
        ({"rules": {"rules": {"point": {"kind": "point"}}}, "contextual": {}}, "of kind 'given'"),
        ({"contextual": {"occupancy": "people"}}, "people"),
        ({"rules": {"rules": {"point": {"kind": "point"}}, "watched": ["hall.level"]}}, "hall.level"),
    ],
)
def test_what_does_not_go_together_is_refused_at_configuration(alarm: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        settings_of(**alarm)


class TestBorrowing:
    """A gateway that is new on a site: watched at the site's level at once, at its own when its baseline is whole."""

    @pytest.fixture
    def site(self) -> Site:
        settings = {"survey": {}, "normalisation": "own"}
        names = ("east", "north")
        cloud = aggregator_settings(
            algorithm={"name": "federated-subspace", "settings": settings}, rounds={"quorum": 2, "rest_s": 1e6}
        )
        alarm = {"false_alarms_per_day": 4_000.0}  # of windows of a second: sixty calibration windows show it
        made = Site(cloud, [gateway_settings(one, alarm=alarm) for one in (*names, "south")])
        made.connect_all()
        for index, who in enumerate(names):
            made.feed(who, samples(index, 60), 0.0)
        made.run(lambda: made.cloud.releases.manifest is not None)
        return made

    def test_it_watches_before_it_has_a_baseline_and_says_whose_level_it_is(self, site: Site) -> None:
        site.feed("south", samples(7, 30), 0.0)
        site.run(lambda: site.agents["south"].deployment.manifest is not None, patience_s=60)
        pipeline = site.agents["south"].monitor.pipeline
        assert not pipeline.commissioned and pipeline.judge is not None
        assert any("level of the site" in line for line in site.log)
        site.feed("south", samples(8, 3, 60.0), 30.0)
        site.run(site.settled, patience_s=60)
        assert site.agents["south"].monitor.pipeline.alarm.active
        assert any("of the site" in line and "alarm anomaly raised" in line for line in site.log)

    def test_its_own_level_takes_over_when_the_baseline_is_whole(self, site: Site) -> None:
        site.feed("south", samples(7, 30), 0.0)
        site.run(lambda: site.agents["south"].deployment.manifest is not None, patience_s=60)
        borrowed = site.agents["south"].monitor.pipeline.judge
        site.feed("south", samples(8, 31), 30.0)
        site.run(
            lambda: (
                site.agents["south"].monitor.pipeline.commissioned and site.agents["south"].deployment.candidate is None
            )
        )
        own = site.agents["south"].monitor.pipeline.judge
        assert borrowed is not None and own is not None and own.levels != borrowed.levels
        assert own.levels.samples == 20 and borrowed.levels.samples == 40

    def test_where_the_site_has_no_level_to_lend_the_model_waits_for_the_baseline(self, site: Site) -> None:
        site.settings["south"] = gateway_settings("south", alarm={"false_alarms_per_day": 1.0})  # rarer than they saw
        site.restart("south")
        site.feed("south", samples(7, 30), 0.0)
        site.run(lambda: any("waits for this gateway's own baseline" in line for line in site.log), patience_s=60)
        assert site.agents["south"].monitor.pipeline.judge is None
        site.feed("south", samples(8, 31), 30.0)
        site.run(lambda: site.agents["south"].monitor.pipeline.judge is not None, patience_s=60)
        held, released = site.agents["south"].deployment.manifest, site.cloud.releases.manifest
        assert held is not None and released is not None and held.content_bytes() == released.content_bytes()
        assert sum("waits for this gateway's own baseline" in line for line in site.log) == 1

    def test_a_model_that_is_refused_meanwhile_leaves_no_mark_of_its_load(self, site: Site) -> None:
        def refuse(_asked: Examination) -> None:
            raise ModelRefusedError("it is none of ours")

        south = site.agents["south"]
        site.agents["south"] = replace(south, deployment=replace(south.deployment, examine=refuse))
        site.feed("south", samples(7, 30), 0.0)
        site.run(lambda: any("refused: it is none of ours" in line for line in site.log), patience_s=60)
        assert not site.agents["south"].deployment.models.trying
        assert site.agents["south"].deployment.candidate is None

    def test_after_a_restart_it_borrows_again(self, site: Site) -> None:
        site.feed("south", samples(7, 30), 0.0)
        site.run(lambda: site.agents["south"].deployment.manifest is not None, patience_s=60)
        site.restart("south")
        assert site.agents["south"].monitor.pipeline.judge is None
        site.feed("south", samples(9, 2), 30.0)
        site.run(lambda: site.agents["south"].deployment.manifest is not None, patience_s=60)
        assert site.agents["south"].monitor.pipeline.judge is not None


def test_rules_that_were_changed_begin_anew() -> None:
    """What other rules remember fits no rule of these, in number or in kind."""
    owner = Owner("model", "boot", "synchronised", "these rules")
    stored = recall.to_bytes(BLANK, decision.dump_watching(DecisionState()), owner)
    assert recall.from_bytes(stored, owner) == (BLANK, decision.dump_watching(DecisionState()))
    assert recall.from_bytes(stored, owner._replace(rules="others")) == (BLANK, "")
    states = [agent(settings_of(rules={"rules": rules}), Shelf()) for rules in (RULES, {"point": {"kind": "point"}})]
    manifest = next(message for message in MESSAGES if isinstance(message, Manifest))
    assert len({owner_of(state.context, manifest).rules for state in states}) == 2


@pytest.mark.soak
def test_drift_is_watched_over_releases() -> None:
    """A fleet that trains every day releases every day; its gateways would never see two days of one model."""
    names = ("east", "north")
    cloud = aggregator_settings(
        algorithm={"name": "fedavg", "settings": {"rounds": 1, "components": 8}}, rounds={"quorum": 2, "rest_s": 40.0}
    )
    alarm = {"drift": {"block_h": 10.0 / 3_600}, "false_alarms_per_day": 1.0}
    made = Site(cloud, [gateway_settings(one, alarm=alarm) for one in names])
    made.connect_all()
    made.commission()
    made.run(made.in_force)
    first = made.agents["east"].monitor.pipeline.watching.drift.blocks
    for release in range(2, 6):
        for who in names:
            made.feed(who, samples(release, 20), 60.0 + 20.0 * release)
        made.run(partial(made.in_force, release), patience_s=200)
    assert made.agents["east"].monitor.pipeline.watching.drift.blocks >= first + 6


def test_nothing_is_remembered_at_first() -> None:
    assert decision.restore_watching(decision.dump_watching(DecisionState())) == DecisionState()
