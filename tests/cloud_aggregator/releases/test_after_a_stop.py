"""A release that was stopped and another that begins: who had the model of the first leaves it all the same.

Found in the simulated world: what canaries were given back was forgotten as soon as the next release began, and a model
that had waited meanwhile was released under a version below the one that they had got.
"""

from __future__ import annotations

from fedgate.cloud_aggregator.events import Ordered
from fedgate.cloud_aggregator.orders import carry_out
from fedgate.cloud_aggregator.releases.releases import ModelRelease
from tests.cloud_aggregator.releases.test_staged_release import fleet
from tests.support.fleets import Fleet
from tests.support.sites import receive_model
from tests.support.watchers import CALM, DEVIATION, SENSITIVE, model


def stopped_while_away() -> Fleet:
    """Return a fleet with a release to south that was stopped while south was away, and another, to north."""
    made = fleet()
    made.order("release", SENSITIVE, gateways=["south"])
    made.told()
    assert made.versions()["south"] == 2
    made.connect("south", up=False)
    made.order("stop")
    assert made.order("release", model(9, DEVIATION, run="other"), gateways=["north"])[1] == ""
    made.told()
    return made


def test_who_was_away_at_a_stop_is_given_back_what_all_have_though_another_release_has_begun() -> None:
    made = stopped_while_away()
    made.connect("south")
    made.told()
    assert made.versions() == {"east": 1, "north": 4, "south": 3, "west": 1}
    south, east = made.agents["south"].deployment.manifest, made.agents["east"].deployment.manifest
    assert south is not None and east is not None and south.model == east.model
    made.order("go-on")
    made.told()
    assert set(made.versions().values()) == {4} and not any(made.own(name) for name in made.agents)


def test_a_restart_does_not_forget_it() -> None:
    made = stopped_while_away()
    made.restart("cloud")
    made.connect("south")
    made.told()
    assert made.versions()["south"] == 3


def test_a_model_that_has_waited_is_released_above_what_was_given_back() -> None:
    made = fleet()
    made.order("release", SENSITIVE, gateways=["south"])
    made.told()
    state, _ = receive_model(made.cloud, ModelRelease(*model(3, DEVIATION, run="other")))
    state, _ = carry_out(state, Ordered(8, "stop", {}))
    assert state.releases.recall is not None and state.releases.recall.manifest.version == 4
    for body in ({"gateways": ["south"]}, {"share": 1.0, "to_all": True}):
        released, _ = carry_out(state, Ordered(9, "release", body))
        assert released.releases.waiting is None
        given = released.releases.candidate or released.releases.everywhere or ModelRelease(*CALM)
        assert given.manifest.version == 5 and given.manifest.run == "other"
