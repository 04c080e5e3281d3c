"""Gateways that leave a sum, and rounds in which nobody has anything to say, through both machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedgate.models.arrays import SECRET, WEIGHT, Arrays, equal, exchange_secret, generator
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Algorithm, Server, close_round
from fedgate.models.federated.secure_aggregation.options import PREFIX
from fedgate.models.testing.fleet import FEATURE_COUNT, fleet
from tests.end_to_end.test_exchange import loop
from tests.support.exchange_cases import SMALL
from tests.support.sites import Site, aggregator_settings, gateway_settings

NAMES = ("east", "north")
INCFED: dict[str, Any] = {"name": "incfed", "settings": {"network": SMALL}}


def site(algorithm: dict[str, Any], **rounds: Any) -> Site:
    cloud = aggregator_settings(algorithm=algorithm, rounds={"quorum": 1, "rest_s": 100.0, **rounds})
    made = Site(cloud, [gateway_settings(name) for name in NAMES])
    made.connect_all()
    made.commission()
    return made


def leave(made: Site, name: str) -> None:
    state = made.agents[name]
    training = state.context.settings.training.model_copy(update={"weight": 0.0})
    made.agents[name] = replace(
        state, context=replace(state.context, settings=state.context.settings.model_copy(update={"training": training}))
    )


@pytest.mark.soak
def test_who_leaves_is_as_if_it_had_never_been_there_and_an_empty_sum_releases_nothing() -> None:
    made = site(INCFED)
    made.run(made.in_force)
    both = made.cloud.rounds.server
    leave(made, "east")
    made.run(lambda: made.in_force(2), patience_s=300)
    expected, found = loop_of(made, "north"), made.cloud.rounds.server
    assert equal(found.server_state, expected.server_state, 1e-9)
    assert equal({**found.global_state, "step": np.array(0)}, {**expected.global_state, "step": np.array(0)}, 1e-9)
    assert not equal(found.server_state, both.server_state, 1e-3)
    leave(made, "north")
    made.run(lambda: any("nobody is left in its sums" in line for line in made.log), patience_s=300)
    made.run(lambda: made.settled() and not made.on_the_way)
    assert made.in_force(2)


@pytest.mark.soak
def test_nobody_with_labels_is_asked_again_only_after_the_deadline() -> None:
    made = site({"name": "esn-fedavg", "settings": {"network": SMALL}}, deadline_s=600.0)
    for name in NAMES:
        made.agents[name] = replace(made.agents[name], training=replace(made.agents[name].training, labelled={}))
    started = len(made.cloud_shelf.rounds)
    for _ in range(500):
        made.flow()
        made.tick()
    assert len(made.cloud_shelf.rounds) - started <= 2
    assert any("nobody had anything to send" in line for line in made.log)


def test_the_loop_agrees_on_who_has_left() -> None:
    made = site(INCFED)
    leave(made, "east")
    made.run(lambda: made.cloud.releases.manifest is not None)
    assert equal(made.cloud.rounds.server.server_state, loop_of(made, "north").server_state, 1e-9)


def loop_of(made: Site, name: str) -> Server:
    """Return what the loop over data sets makes of one gateway alone."""
    others = {other: made.agents.pop(other) for other in list(made.agents) if other != name}
    server = loop(made).server
    made.agents = {**others, **made.agents}
    return server


WRAPPINGS: list[dict[str, Any]] = [
    {},
    {"compensate": (0,)},
    {"whiten": 1},
    {"compensate": (2,), "whiten": 1, "whiten_residual": 0.0},
    {"survey": {}},
    {"masking": {"fewest": 3, "quantum": 9.3e-10}},
    {"compensate": (0,), "whiten": 1, "survey": {}, "masking": {"fewest": 3, "quantum": 9.3e-10}},
]


@pytest.mark.soak
@pytest.mark.parametrize("wrapping", WRAPPINGS, ids=str)
def test_leaving_takes_back_what_was_given_whatever_is_around_the_algorithm(wrapping: dict[str, Any]) -> None:
    """What is left is what the others alone would have given behind the same setup, whose sums stay."""
    algorithm = build("incfed", FEATURE_COUNT, {"ridge": 1.0, "network": SMALL, **wrapping})
    data = {f"{gateway} {at}": each.data for at in (0, 1) for gateway, each in fleet(4 + at).items()}
    round_of = len(algorithm.phases) - algorithm.setup
    server, own = algorithm.start(generator(0, 0, "cloud")), dict.fromkeys(data, Arrays())
    for _ in range(algorithm.setup):
        server, own = exchanged(algorithm, server, own, data)
    leavers = list(data)[:3]  # together, as under masks they must
    others = {gateway: rows for gateway, rows in data.items() if gateway not in leavers}
    expected, found, every = server, server, own
    for _ in range(round_of):
        expected, every = exchanged(algorithm, expected, every, others)
    for _ in range(round_of):
        found, own = exchanged(algorithm, found, own, data)
    assert not equal(sums_of(found), sums_of(expected), 1e-3)
    leaving = data | {gateway: {**data[gateway], WEIGHT: np.array(0.0)} for gateway in leavers}
    for _ in range(round_of):
        found, own = exchanged(algorithm, found, own, leaving)
    assert equal(sums_of(found), sums_of(expected), 1e-7)


def exchanged(
    algorithm: Algorithm, server: Server, own: dict[str, Arrays], data: dict[str, Arrays]
) -> tuple[Server, dict[str, Arrays]]:
    """Return the server and the gateways' states after one exchange with those of `data`."""
    phase, total, after = algorithm.phases[server.phase], Arrays(), dict(own)
    for gateway, rows in data.items():
        told = {**rows, SECRET: exchange_secret(b"s", "run", server.round_index, gateway)}
        rng = generator(0, server.round_index, gateway)
        after[gateway], update = phase.train(server.global_state, own[gateway], told, rng)
        total = phase.reducer.merge(total, phase.admit(server, update)) if update else total
    return close_round(algorithm, server, total), after


def sums_of(server: Server) -> Arrays:
    return {name: array for name, array in server.server_state.items() if not name.startswith(PREFIX)}
