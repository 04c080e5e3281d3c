"""Rounds that do not go as they should: a gateway that has nothing to say, an election whose elected are gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedgate.cloud_aggregator.events import BuildModel
from fedgate.cloud_aggregator.rounds.round import close_if_due
from fedgate.models.arrays import equal
from fedgate.models.federated.protocol.run import run
from tests.end_to_end.test_exchange import NAMES, SEED, site, training_data


@pytest.mark.soak
def test_a_gateway_without_labels_says_so_and_keeps_nobody_waiting() -> None:
    made = site("robust-svm-subgradient", gateways=NAMES, quorum=2)
    made.agents["west"] = replace(made.agents["west"], training=replace(made.agents["west"].training, labelled={}))
    made.commission()
    made.run(made.in_force, patience_s=60)  # far less than the deadline of a round
    said = [line for line in made.log if "name a table in training.labelled" in line]
    assert said and all(line.startswith("west: round ") for line in said)
    data = training_data(made)
    outcome = run(made.cloud.rounds.algorithm, {who: data[who] for who in ("east", "north")}, seed=SEED)
    assert equal(made.cloud.rounds.server.global_state, outcome.server.global_state, 1e-12)


def test_a_round_that_comes_to_nothing_half_way_is_none() -> None:
    """Who was elected is gone: the round begins anew, and the release waits for a whole one."""
    made = site("conditional-fedavg", quorum=2, per_release=1)
    made.weather = lambda: 0  # until everything waits to be delivered by hand
    made.commission()
    made.weather = lambda: 1
    while made.cloud.rounds.server.phase == 0:
        if made.on_the_way:
            made.deliver()
        elif made.jobs:
            made.train()
        else:
            made.tick()
    rounds = replace(made.cloud.rounds, total={}, counted={"east": "a", "north": "b"}, first_update_ns=0)
    context = replace(made.cloud.context, uptime_ns=10**19)
    closed, effects = close_if_due(rounds, context, made.cloud.access.gateways, set())
    assert (closed.server.phase, closed.since_release) == (0, 0)
    assert closed.opened and not [effect for effect in effects if isinstance(effect, BuildModel)]
