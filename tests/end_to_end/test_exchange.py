"""Both machines together: whatever the link, the power and the order of things do, the service ends in the model that
`federated.run` defines, counts nobody twice and records every alarm once.

Goal: the promise of the design that loop and service are one. Method: the real machines and the real trainer in one
thread, joined by `tests.support.sites`; the loop is run on the baselines that the gateways really stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator.events import Received
from fedgate.cloud_aggregator.storage import store as disk
from fedgate.config.protocol.messages import Status
from fedgate.gateway_agent.pipeline import pipeline
from fedgate.gateway_agent.pipeline.pipeline import stack_rows
from fedgate.gateway_agent.runtime.training_worker import add_labelled
from fedgate.models.arrays import FEATURES as X
from fedgate.models.arrays import Arrays, equal
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import Outcome, run
from fedgate.models.federated.secure_aggregation.options import PREFIX
from tests.support.exchange_cases import (
    CASES,
    NOTHING_NEW,
    QUICK,
    SOLVED_TO,
    UNCHANGED_BY_THE_SAME_ROWS,
    one_of_a_rule,
    seeded,
)
from tests.support.sites import SITE, WINDOWS, Site, aggregator_settings, gateway_settings, samples, topic

NAMES = ("east", "north", "west")
SEED = 5
SHIFT = 60.0  # deviations: damage that nobody can miss
WATCHED_S = float(WINDOWS)  # where the commissioning ends


def site(name: str = "support-vector-election", seed: int = 0, gateways: tuple[str, ...] = (), **rounds: Any) -> Site:
    gateways = gateways or (*NAMES, *(("south", "yard") if "krum" in name else ()))  # which stands no lie among three
    cloud = aggregator_settings(
        algorithm={"name": name.partition(" ")[0], "seed": SEED, "settings": QUICK.get(name, {})},
        rounds={"quorum": len(gateways), **rounds},
        # Messages as small as they may be, so that a model is many chunks.
        limits={"max_payload_bytes": 1_024},
    )
    made = Site(cloud, [gateway_settings(one, limits={"max_payload_bytes": 1_024}) for one in gateways], seed)
    made.connect_all()
    return made


def training_data(made: Site) -> dict[str, Arrays]:
    data: dict[str, Arrays] = {}
    for who, state in made.agents.items():
        own, baseline = state.context.settings, state.monitor.pipeline.baseline
        data[who] = pipeline.collect_data(baseline, own.features.hop_s, own.baseline.calibration_windows)
        if made.cloud.rounds.algorithm.labels and state.training.labelled:
            data[who] = add_labelled(data[who], state.training.labelled)
    return data


def loop(made: Site, releases: int = 1, fraction: float = 1.0) -> Outcome:
    """Return what the loop over data sets makes of what the gateways have stored."""
    choice = made.cloud_settings.algorithm
    data = training_data(made)
    algorithm = build(choice.name, next(iter(data.values()))[X].shape[1], choice.settings)
    rounds = releases * algorithm.rounds
    secrets = {who: state.context.secret for who, state in made.agents.items()}
    return run(algorithm, data, seed=choice.seed, rounds=rounds, fraction=fraction, secrets=secrets)


def assert_same_as_loop(made: Site, outcome: Outcome, *, in_as_many_rounds: bool = True) -> None:
    additive = all(phase.reducer.additive for phase in made.cloud.rounds.algorithm.phases)
    server = made.cloud.rounds.server
    # Sums of floats depend on their order, stacked rows do not.
    choice = made.cloud_settings.algorithm
    roughest = max([1e-12, *(SOLVED_TO[key] for key in (choice.name, *choice.settings) if key in SOLVED_TO)])
    tolerance = roughest if additive else 0.0
    assert equal(server.global_state, outcome.server.global_state, tolerance)
    if in_as_many_rounds:
        assert server.round_index == outcome.server.round_index
        assert equal(server.server_state, outcome.server.server_state, tolerance)
    for who, own in outcome.local_states.items():
        held = made.agents[who].training.own
        of_models = {name: array for name, array in own.items() if not name.startswith(PREFIX)}  # keys
        assert equal({name: held[name] for name in of_models}, of_models, tolerance)


def cohorts(made: Site) -> set[tuple[str, ...]]:
    """Return who was counted together."""
    return {tuple(sorted(record.gateways)) for record in made.cloud_shelf.rounds}


def stormy(made: Site) -> None:
    """Let the link lose a fifth, repeat a fifth and reorder everything."""
    made.shuffled = True
    made.weather = lambda: int(made.rng.choice([0, 1, 1, 1, 2]))


@pytest.mark.parametrize("name", one_of_a_rule(CASES))
def test_the_service_ends_in_the_model_of_the_loop_and_goes_on_from_there(name: str) -> None:
    made = site(name, rest_s=100.0)
    made.commission()
    made.run(made.in_force)
    assert_same_as_loop(made, loop(made))
    assert cohorts(made) == {tuple(sorted(made.agents))}
    for state in made.agents.values():
        assert state.deployment.manifest is not None and made.cloud.releases.manifest is not None
        assert state.deployment.manifest.content_bytes() == made.cloud.releases.manifest.content_bytes()
        assert state.monitor.pipeline.judge is not None
        assert np.isfinite(state.monitor.pipeline.judge.model(stack_rows(state.monitor.pipeline.baseline))).all()
    if name == NOTHING_NEW:
        made.run(lambda: any("changes nothing: nobody had anything to send" in line for line in made.log))
        assert made.cloud.rounds.server.global_state["step"] == 1 and not made.in_force(2)
        return
    unchanged = "cloud: model 1 is as it was, nothing to release"
    made.run(lambda: made.in_force(2) or (unchanged in made.log and made.settled()), patience_s=200)
    assert_same_as_loop(made, loop(made, releases=2))
    assert (unchanged in made.log) == (name in UNCHANGED_BY_THE_SAME_ROWS) == (not made.in_force(2))


# What a gateway's settings say of it alone, and an algorithm that goes by it.
OWN_SETTINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "epochs": ("fedprox", {"local": "sgd", "epochs": 3, "rounds": 2, "components": 16}, {"epochs": 1}),
    "ball": ("robust-svm-admm", {"rounds": 2}, {"radius": 0.1, "kappa": 0.5}),
    "certain labels": ("robust-svm-subgradient", {"rounds": 2, "radius": 0.2}, {"kappa": "none"}),
    "election": ("support-vector-election", {}, {"nu": 0.3, "gamma": 0.2}),
    "member": ("ensemble-svdd", {"own_width": 4.0}, {"nu": 0.3, "gamma": 0.2}),
}


@pytest.mark.soak
@pytest.mark.parametrize("case", OWN_SETTINGS)
def test_what_a_gateway_sets_for_itself_reaches_its_training(case: str) -> None:
    name, settings, own = OWN_SETTINGS[case]
    cloud = aggregator_settings(
        algorithm={"name": name, "seed": SEED, "settings": settings}, rounds={"quorum": len(NAMES)}
    )
    made = Site(cloud, [gateway_settings(one, training=own if one == "east" else {}) for one in NAMES])
    made.connect_all()
    made.commission()
    made.run(made.in_force)
    algorithm, data = build(name, 3, cloud.algorithm.settings), training_data(made)
    secrets = {who: state.context.secret for who, state in made.agents.items()}
    numbers = {key: np.array(np.inf if value == "none" else value) for key, value in own.items()}
    as_set = {**data, "east": data["east"] | numbers}
    assert_same_as_loop(made, run(algorithm, as_set, seed=SEED, secrets=secrets))
    others = run(algorithm, data, seed=SEED, secrets=secrets).server
    assert not equal(made.cloud.rounds.server.global_state, others.global_state, 1e-6)


def test_a_share_of_the_gateways_is_drawn_as_by_the_loop() -> None:
    four = (*NAMES, "south")
    made = site("fedavg", gateways=four, quorum=2, fraction=0.5)
    made.commission()
    made.run(made.in_force)
    assert_same_as_loop(made, loop(made, fraction=0.5))
    assert {len(record.gateways) for record in made.cloud_shelf.rounds} == {2}


@pytest.mark.soak
@pytest.mark.parametrize(("name", "seed"), seeded(4))
def test_a_bad_link_changes_nothing(name: str, seed: int) -> None:
    made = site(name, seed)
    stormy(made)
    made.commission()
    for _ in range(600):
        made.flow()
        if made.in_force() and made.settled():
            break
        made.tick(10.0)  # what is lost comes again after minutes
    assert made.in_force() and made.settled()
    assert_same_as_loop(made, loop(made))
    assert cohorts(made) == {tuple(sorted(made.agents))}


@pytest.mark.parametrize(("name", "seed"), seeded(6))
def test_power_cuts_anywhere_change_nothing(name: str, seed: int) -> None:
    """Every few deliveries somebody is cut off, half of them after the commit and before anything was sent. A gateway
    that is cut off drops out of a masked round, as its secrets are in memory alone, and the round is repeated.
    """
    made = site(name, seed)
    chance, is_masked = made.rng, made.cloud.rounds.algorithm.stride > 1
    made.commission()
    for _ in range(10_000):
        if not made.on_the_way and not made.jobs:
            if made.in_force() and made.settled():
                break
            made.tick(10.0)
        elif made.jobs and (not made.on_the_way or chance.random() < 0.3):
            made.train()
        elif chance.random() < (0.01 if is_masked else 0.05):
            made.restart(made.deliver(cut=chance.random() < 0.5))
        else:
            made.deliver()
    assert made.in_force() and made.settled()
    assert_same_as_loop(made, loop(made), in_as_many_rounds=not is_masked)
    assert is_masked or cohorts(made) == {tuple(sorted(made.agents))}
    assert all(state.monitor.pipeline.judge for state in made.agents.values())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_alarms_reach_the_registry_once_whatever_the_link(tmp_path: Path, seed: int) -> None:
    made = site(seed=seed)
    made.commission()
    made.run(made.in_force)
    store = disk.Store(tmp_path / "aggregator.db")
    made.commits.append(store.commit)
    stormy(made)
    for who in NAMES:
        for start, shift in ((0, 0.0), (10, SHIFT), (20, 0.0), (30, SHIFT)):
            made.feed(who, samples(start, 10, shift), WATCHED_S + start)
        made.restart(who)
        made.feed(who, samples(40, 10), WATCHED_S + 40.0)
    made.restart("cloud")
    made.run(made.settled)
    rows = [
        row for row in store.read_rows("alarms") if row["gateway"] in NAMES
    ]  # there may be one of the fleet besides
    evidence = {row["id"]: store.read_evidence(row["gateway"], row["id"]) for row in rows}
    assert len(store.read_rows("evidence")) == len(rows)  # of each alarm one, whatever was sent how often
    store.close()
    assert sorted((row["gateway"], row["cause"]) for row in rows) == sorted([(who, "anomaly") for who in NAMES] * 2)
    for row in rows:
        assert row["onset_ns"] <= row["raised_ns"] < row["cleared_ns"]
        assert row["score"] > row["level"] and row["model_version"] == 1
        found = evidence[row["id"]]
        assert found is not None and (found.onset_ns, found.text) == (row["onset_ns"], row["text"])
        assert found.contributions[0].feature == row["feature"]
        assert found.no_spectrum == "cut for its length"  # of 1,024 bytes, which this site's broker takes
    assert not any(state.monitor.pipeline.alarm.active for state in made.agents.values())
    assert {
        b'"state":"cleared"' in payload for where, payload in made.retained.items() if "/alarm/anomaly" in where
    } == {True}


def test_a_gateway_commissioned_while_the_round_is_open_takes_part() -> None:
    made = site(quorum=2)
    for who in NAMES[:2]:
        made.feed(who, samples(len(who), WINDOWS - 1), 0.0)
    made.flow()
    assert made.cloud.rounds.opened and not made.jobs
    for who in NAMES[:2]:
        made.feed(who, samples(7, 2), WINDOWS - 1.0)
    made.feed(NAMES[2], samples(8, WINDOWS), 0.0)
    made.run(made.in_force)
    assert_same_as_loop(made, loop(made))


def test_a_gateway_that_comes_after_the_release_gets_the_model_and_no_stale_invitation() -> None:
    made = site(quorum=2)
    late = NAMES[2]
    for index, who in enumerate(NAMES[:2]):
        made.feed(who, samples(index, WINDOWS), 0.0)
    made.run(lambda: made.cloud.releases.manifest is not None)
    made.flow()
    assert topic("all", "round", "open") not in made.retained
    made.feed(late, samples(9, WINDOWS), 0.0)
    made.restart(late)
    made.run(made.in_force)
    assert made.agents[late].context.refusal == "" and made.agents[late].training.answered is None


def test_gateways_that_vanish_never_hang_a_round() -> None:
    """A drawn gateway is gone for good: the deadline asks everyone, and the quorum is found among the others."""
    four = (*NAMES, "south")
    made = site(gateways=four, quorum=2, fraction=0.5, deadline_s=60.0)
    made.commission()
    made.on_the_way = [message for message in made.on_the_way if message[0] == "cloud"]
    made.flow()
    made.tick()
    asked = made.cloud.rounds.asked
    assert made.cloud.rounds.opened and asked is not None and len(asked) == 2
    gone = asked[0]
    made.lose(gone)
    made.run(made.in_force, patience_s=400)
    assert len(made.cloud_shelf.rounds) == 1
    assert gone not in made.cloud_shelf.rounds[0].gateways and len(made.cloud_shelf.rounds[0].gateways) >= 2


def test_with_a_share_and_nobody_there_at_first_the_round_opens_when_they_come() -> None:
    made = site(quorum=2, fraction=0.4)
    made.tick()
    assert not made.cloud.rounds.opened
    made.commission()
    made.run(made.in_force, patience_s=30)


def test_a_quorum_beyond_the_gateways_waits_and_keeps_what_it_has() -> None:
    made = site(quorum=4)
    made.commission()
    for _ in range(50):
        made.flow()
        made.tick(60.0)
    assert made.cloud.rounds.opened and sorted(made.cloud.rounds.counted) == sorted(NAMES) and made.settled()
    made.cloud_settings = made.cloud_settings.model_copy(
        update={"rounds": made.cloud_settings.rounds.model_copy(update={"quorum": 3})}
    )
    made.restart("cloud")
    made.run(made.in_force, patience_s=5)
    assert_same_as_loop(made, loop(made))


@pytest.mark.soak
def test_an_aggregator_that_rests_rests_on_after_a_restart_and_no_longer() -> None:
    made = site(rest_s=1_000.0)
    made.commission()
    made.run(made.in_force)
    until_ns = made.cloud.rounds.rest_until_ns
    made.restart("cloud")
    assert made.cloud.rounds.rest_until_ns == until_ns and not made.cloud.rounds.opened
    made.now_ns -= 10**9 * 86_400 * 365  # the clock was a year ahead, and the machine restarts with the right time
    for who in ("cloud", *NAMES):  # all go by the same clock here
        made.restart(who)
    assert made.cloud.rounds.rest_until_ns == made.now_ns + 1_000 * 10**9
    made.run(lambda: made.in_force(2), patience_s=1_100)


def test_other_sites_on_the_same_broker_are_none_of_our_business() -> None:
    made = site()
    made.commission()
    foreign = f"fedgate/v1/{SITE}-2/{NAMES[0]}/alarm/anomaly"
    payload = Status(state="online", can_train=True, baseline_windows=9, baseline_needed=9).to_bytes()
    for where in (foreign, f"fedgate/v1/{SITE}-2/{NAMES[0]}/status/agent", topic("all", "status", "agent")):
        made.step_cloud(Received(where, payload))
    assert "all" not in made.cloud.access.gateways and set(made.cloud.access.gateways) <= set(NAMES)
