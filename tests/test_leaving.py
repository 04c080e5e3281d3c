"""Gateways that leave a sum, and rounds in which nobody has anything to say, through both machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from models.arrays import equal
from models.federated.algorithm import Server
from tests.sites import Site, aggregator_settings, gateway_settings
from tests.test_exchange import SMALL, loop

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
    training = state.settings.training.model_copy(update={"weight": 0.0})
    made.agents[name] = replace(state, settings=state.settings.model_copy(update={"training": training}))


def test_who_leaves_is_as_if_it_had_never_been_there_and_an_empty_sum_releases_nothing() -> None:
    made = site(INCFED)
    made.run(made.in_force)
    both = made.cloud.server
    leave(made, "east")
    made.run(lambda: made.in_force(2), patience_s=300)
    expected, found = loop_of(made, "north"), made.cloud.server
    assert equal(found.kept, expected.kept, 1e-9)
    assert equal({**found.shared, "step": np.array(0)}, {**expected.shared, "step": np.array(0)}, 1e-9)
    assert not equal(found.kept, both.kept, 1e-3)
    leave(made, "north")
    made.run(lambda: any("nobody is left in its sums" in line for line in made.log), patience_s=300)
    made.run(lambda: made.settled() and not made.on_the_way)
    assert made.in_force(2)


def test_nobody_with_labels_is_asked_again_only_after_the_deadline() -> None:
    made = site({"name": "esn-fedavg", "settings": {"network": SMALL}}, deadline_s=600.0)
    for name in NAMES:
        made.agents[name] = replace(made.agents[name], labelled={})
    started = len(made.cloud_shelf.rounds)
    for _ in range(500):
        made.flow()
        made.tick()
    assert len(made.cloud_shelf.rounds) - started <= 2
    assert any("nobody had anything to send" in line for line in made.log)


def test_the_loop_agrees_on_who_has_left() -> None:
    made = site(INCFED)
    leave(made, "east")
    made.run(lambda: made.cloud.manifest is not None)
    assert equal(made.cloud.server.kept, loop_of(made, "north").kept, 1e-9)


def loop_of(made: Site, name: str) -> Server:
    """Return what the loop over data sets makes of one gateway alone."""
    others = {other: made.agents.pop(other) for other in list(made.agents) if other != name}
    server = loop(made).server
    made.agents = {**others, **made.agents}
    return server
