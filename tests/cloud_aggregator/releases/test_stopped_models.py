"""What becomes of models after their release was stopped or is over: never again unasked, and stored while of use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedgate.cloud_aggregator.events import RecordModel, SaveRollout
from fedgate.cloud_aggregator.releases.releases import ModelRelease, Releases, Rollout, dump, find_needed, restore
from fedgate.cloud_aggregator.releases.rollout import draw_canaries
from fedgate.cloud_aggregator.storage.models_table import MODELS_KEPT
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import Status
from tests.cloud_aggregator.releases.test_staged_release import fleet
from tests.gateway_agent.deployment.test_gateway_models import FIRST, signed
from tests.support.fleets import Fleet
from tests.support.sites import T0_NS, receive_model, stop_rollout, with_record
from tests.support.watchers import DEVIATION, model

BAD, OTHER = model(7, np.array([1.0, 0.0, 0.0])), model(8, DEVIATION)
ABLE = Status(state="online", baseline_windows=60, baseline_needed=60)
AWAY = ABLE.model_copy(update={"state": "offline"})


def trained(made: Fleet, bad: tuple[object, bytes]) -> None:
    """Let the training have made a model."""
    body = bad[1]
    manifest = signed(BAD[0] if body == BAD[1] else OTHER[0], version=made.cloud.releases.highest_version + 1)
    made.cloud, effects = receive_model(made.cloud, ModelRelease(manifest, body))
    made.staged.commit(effects)


def staged_fleet() -> Fleet:
    made = fleet(mode="staged", canary=0.5)
    trained(made, BAD)
    assert made.stage.is_under_way
    return made


@pytest.mark.soak
def test_what_was_stopped_is_not_released_again_but_by_order() -> None:
    made = staged_fleet()
    assert made.order("stop")[1] == ""
    stopped = made.stage
    for _ in range(2):
        trained(made, BAD)
        assert made.stage == stopped and made.cloud.releases.waiting is None
        made.restart("cloud")
    trained(made, OTHER)
    assert made.stage.is_under_way and made.stage.version == 4
    assert made.order("stop")[1] == ""
    trained(made, BAD)
    trained(made, OTHER)
    assert made.stage.stage == "stopped" and made.stage.version == 4
    text, problem = made.order("release", made.staged.models[2], share=0.5)
    assert (text.partition(" to ")[0], problem) == ("model 6 is released", "")
    assert made.order("go-on")[1] == "" and made.cloud.releases.manifest is not None
    assert made.cloud.releases.manifest.model.digest == BAD[0].model.digest
    released = made.stage
    trained(made, OTHER)  # which was stopped, and is so still
    assert made.stage == released and made.cloud.releases.candidate is None


@pytest.mark.soak
def test_a_model_that_waits_for_the_release_of_its_own_bytes_does_not_follow_it() -> None:
    made = staged_fleet()
    trained(made, OTHER)
    trained(made, BAD)
    waiting = made.cloud.releases.waiting
    assert waiting is not None and waiting.body == BAD[1]
    made.order("stop")
    assert not made.stage.is_under_way and made.cloud.releases.waiting is None


@pytest.mark.soak
def test_what_is_given_back_is_stored_before_what_has_waited_goes_to_all() -> None:
    made = staged_fleet()
    trained(made, OTHER)
    canaries = made.stage.canaries
    to_all = made.cloud.context.settings.release.model_copy(update={"mode": "all"})
    state = with_record(
        made.cloud, "context", settings=made.cloud.context.settings.model_copy(update={"release": to_all})
    )
    after, effects = stop_rollout(state, "by order of the operator")
    stored = [json.loads(effect.body) for effect in effects if isinstance(effect, SaveRollout)]
    back, new = (effect.manifest.version for effect in effects if isinstance(effect, RecordModel))
    assert [(held.get("recall"), held["everywhere"]) for held in stored] == [(back, 1), (None, new)]
    assert stored[0]["rollout"]["recalled"] == [*canaries] and after.releases.recipients == ()


def test_canaries_are_drawn_among_those_who_are_here_as_many_as_the_share_of_all() -> None:
    begin = Rollout("watching", 2, share=0.2)
    gateways = {f"gateway-{index:02d}": ABLE if index < 6 else AWAY for index in range(20)}
    for seed in range(20):
        canaries = draw_canaries(begin, gateways, seed).canaries
        assert len(canaries) == 4 and all(gateways[name] == ABLE for name in canaries)
    few = {name: ABLE if name == "gateway-03" else AWAY for name in gateways}
    assert draw_canaries(begin, few, 0).canaries == ("gateway-03",)
    assert draw_canaries(begin, dict.fromkeys(gateways, AWAY), 0) == begin  # until somebody is


@pytest.mark.soak
def test_a_release_that_began_by_a_clock_ahead_is_not_waited_for_longer() -> None:
    made = staged_fleet()
    begun = Rollout(**{**vars(made.stage), "since_ns": made.now_ns + 10**18})
    made.staged.rollout = dump(replace(made.cloud.releases, rollout=begun))
    made.restart("cloud")
    assert made.stage.since_ns <= made.now_ns


@pytest.mark.soak
def test_the_store_keeps_models_that_are_new_or_of_use_and_what_is_said_of_all(tmp_path: Path) -> None:
    manifest, body = FIRST
    count = 3 * MODELS_KEPT
    with_store = Store(tmp_path / "aggregator.db")
    made = [ModelRelease(manifest.model_copy(update={"version": version}), body) for version in range(1, count + 1)]
    paused = Rollout("paused", 3, since_ns=T0_NS)
    release = Releases(made[1], paused, made[2], waiting=made[4], before=1)
    with_store.commit([*[RecordModel(*one) for one in made[:5]], SaveRollout(dump(release), 1)])
    for one in made[5:]:
        with_store.commit([RecordModel(*one)])
    kept = {version for version in range(1, count + 1) if with_store.models.read_version(version) is not None}
    assert kept == {1, 2, 3, 5} | set(range(count - MODELS_KEPT + 1, count + 1))
    assert [row["version"] for row in with_store.read_rows("models", "version")] == list(range(1, count + 1))
    found = restore(with_store.models.read_rollout(), with_store.models.read_version, with_store.models.read_latest())
    assert found.version == 2 and found == release
    with_store.close()


@pytest.mark.soak
def test_what_all_had_before_is_kept_through_releases_that_come_to_nothing() -> None:
    made = staged_fleet()
    made.order("go-on")
    trained(made, OTHER)
    made.order("stop")
    made.restart("cloud")
    assert made.cloud.releases.before == 1 and find_needed(made.staged.rollout) == {1, 2, 3, 4}
