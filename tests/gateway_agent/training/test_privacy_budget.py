"""A privacy budget through both machines: what was spent outlives power cuts and trainings, is told, and ends it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.gateway_agent.events import Keep, Save
from fedgate.gateway_agent.state import SECRET
from fedgate.gateway_agent.storage.store import Store
from fedgate.models.federated.wrappers.differential_privacy import Privacy
from fedgate.models.federated.wrappers.privacy_ledger import EPSILON, RELEASES
from tests.support.sites import Site, aggregator_settings, gateway_settings

NAMES = ("east", "north", "west")
LOGISTIC: dict[str, Any] = {"rounds": 2, "components": 0, "loss": "logistic"}
NOISE: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 0.5}


def epsilon_after(releases: int) -> float:
    return Privacy(**NOISE, epsilon=1.0).epsilon_of(releases / 0.5**2)


def site(releases: int, **settings: Any) -> Site:
    """Return a site whose gateways may send so many updates."""
    privacy = {**NOISE, "epsilon": epsilon_after(releases) + 1e-6}
    algorithm = {"name": "fedavg", "seed": 5, "settings": {**LOGISTIC, "privacy": privacy, **settings}}
    cloud = aggregator_settings(algorithm=algorithm, rounds={"quorum": len(NAMES), "rest_s": 100.0, "deadline_s": 60.0})
    made = Site(cloud, [gateway_settings(name) for name in NAMES])
    for name in NAMES:
        made.shelves[name].blobs[SECRET] = name.encode().ljust(32)  # as each draws one at its first start
        made.restart(name)
    made.connect("cloud")
    made.commission()
    return made


def begin_anew(made: Site, seed: int) -> None:
    """Let the aggregator begin another training, as it does with another seed."""
    algorithm = made.cloud_settings.algorithm.model_copy(update={"seed": seed})
    made.cloud_settings = made.cloud_settings.model_copy(update={"algorithm": algorithm})
    made.restart("cloud")


def told(made: Site) -> list[float | None]:
    """Return what the gateways' statuses say of ε."""
    return [made.cloud.access.gateways[name].privacy_epsilon for name in NAMES]


@pytest.mark.soak
def test_the_budget_is_kept_over_power_cuts_and_trainings_and_then_a_gateway_falls_silent() -> None:
    made = site(releases=3)
    made.run(made.in_force)
    assert told(made) == [pytest.approx(epsilon_after(2))] * 3
    run = made.cloud.rounds.run
    for name in NAMES:
        made.restart(name)
    begin_anew(made, seed=6)
    assert made.cloud.rounds.run != run
    made.run(lambda: any("the privacy budget is spent" in line for line in made.log), patience_s=300)
    for _ in range(200):  # rounds that nobody answers
        made.flow()
        made.tick()
    for name in NAMES:
        made.restart(name)
    for _ in range(200):
        made.flow()
        made.tick()
    assert float(made.cloud.rounds.server.global_state["step"]) == 1.0, "of the second training one round was left"
    assert told(made) == [pytest.approx(epsilon_after(3))] * 3
    for state in made.agents.values():
        assert int(state.training.own[RELEASES]) == 3 and float(state.training.own[EPSILON]) == pytest.approx(
            epsilon_after(3)
        )
        # What the second training learned before it fell silent is not lost, and the gateways go on watching with it.
        assert state.deployment.manifest is not None and state.deployment.manifest.version == 2
    assert "nothing to send: its rows" not in "\n".join(made.log)
    assert sum("the privacy budget is spent" in line for line in made.log) >= len(NAMES)


def test_a_power_cut_between_training_and_sending_tells_nothing_twice() -> None:
    """What was trained again for the same exchange is another update, or the same one: never two for one entry."""
    made = site(releases=50)
    chance = np.random.default_rng(3)
    for _ in range(5_000):
        if not made.on_the_way and not made.jobs:
            if made.in_force() and made.settled():
                break
            made.tick(10.0)
        elif made.jobs and (not made.on_the_way or chance.random() < 0.3):
            made.train()
        elif chance.random() < 0.1:
            made.restart(made.deliver(cut=chance.random() < 0.5))
        else:
            made.deliver()
    assert made.in_force()
    for state in made.agents.values():
        assert int(state.training.own[RELEASES]) == 2  # one for each exchange, however often it was asked


@pytest.mark.soak
def test_noise_of_the_gateways_under_masks_ends_rests_and_releases() -> None:
    made = site(releases=50, masking={"fewest": 3})
    made.run(made.in_force)
    assert not made.cloud.rounds.opened and made.cloud.rounds.rest_until_ns > made.now_ns
    assert (
        float(made.cloud.rounds.server.global_state["step"]) == 2.0
        and np.isfinite(made.cloud.rounds.server.global_state["weights"]).all()
    )
    made.run(lambda: told(made) == [pytest.approx(epsilon_after(2))] * 3, patience_s=50)
    made.run(lambda: made.in_force(2), patience_s=300)
    assert told(made) == [pytest.approx(epsilon_after(4))] * 3


@pytest.mark.soak
@pytest.mark.parametrize("lost", [["own"], ["privacy"], ["own", "privacy"]])
def test_a_damaged_row_begins_no_account_anew(lost: list[str], tmp_path: Path) -> None:
    """One flipped byte dropped the account, and the gateway spent its whole budget again."""
    made = site(releases=3)
    made.run(made.in_force)
    held = made.shelves["north"].stored()
    with closing(Store(tmp_path / "gateway.db")) as store:
        store.commit([Save(key, body) for key, body in held.blobs.items()] + [Keep(seen) for seen in held.baseline])
    with closing(sqlite3.connect(tmp_path / "gateway.db")) as db, db:
        for key in lost:
            db.execute("UPDATE blob SET body = zeroblob(1) || substr(body, 2) WHERE key = ?", [key])
    with closing(Store(tmp_path / "gateway.db")) as store:
        found = store.read()
        assert store.damage
    made.shelves["north"].blobs = dict(found.blobs)
    made.restart("north")
    is_known = len(lost) == 1
    for _ in range(20):
        made.flow()
        made.tick()
    assert float(made.agents["north"].training.own[EPSILON]) == (
        pytest.approx(epsilon_after(2)) if is_known else np.inf
    )
    assert told(made) == [pytest.approx(epsilon_after(2))] * 3, "the aggregator keeps the most that it was told"
    begin_anew(made, seed=6)
    made.run(lambda: any("privacy budget is spent" in line for line in made.log), patience_s=400)
    unknown = [line for line in made.log if line.startswith("north: ") and "is not known any more" in line]
    assert bool(unknown) != is_known
    assert int(made.agents["north"].training.own[RELEASES]) == (3 if is_known else 0), "which then sends nothing"


def test_a_gateway_that_says_it_has_spent_less_than_before_is_noticed_and_not_believed() -> None:
    made = site(releases=3)
    made.run(made.in_force)
    before = epsilon_after(2)
    made.shelves["north"].blobs = {SECRET: b"another".ljust(32)}  # a new card
    made.shelves["north"].baseline.clear()
    made.restart("north")
    less = "says that it has spent epsilon 0 "
    made.run(lambda: any(less in line for line in made.log))  # a store that was not heard before counts from its second
    line = next(line for line in made.log if less in line)
    assert line.startswith("cloud: north ") and f"and said {before:.4g} before" in line
    assert made.cloud.access.gateways["north"].privacy_epsilon == pytest.approx(before)
    made.restart("cloud")
    assert made.cloud.access.gateways["north"].privacy_epsilon == pytest.approx(before)
