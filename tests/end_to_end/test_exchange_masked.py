"""Both machines together under masks, and not all of them there: gateways that vanish, a share that is drawn, a fleet
that has nothing to say. Only a part of those who began a round is in its sum, and time passes between its exchanges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedgate.models.arrays import equal
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.secure_aggregation.client import STEPS
from fedgate.models.federated.secure_aggregation.options import split
from tests.end_to_end.test_exchange import NAMES, SEED, assert_same_as_loop, loop, training_data
from tests.support.exchange_cases import LINEAR, LOGISTIC, SMALL
from tests.support.given_width import build
from tests.support.masked_rounds import INPUT, SHARES, UNMASK
from tests.support.sites import Site, aggregator_settings, gateway_settings

FOUR = (*NAMES, "south")
DEADLINE_S = 60.0
MASKED: dict[str, Any] = LINEAR | {"masking": {"fewest": 3}}


def masked_site(name: str, settings: dict[str, Any], gateways: tuple[str, ...] = FOUR, **rounds: Any) -> Site:
    cloud = aggregator_settings(
        algorithm={"name": name, "seed": SEED, "settings": settings},
        rounds={"quorum": 3, "deadline_s": DEADLINE_S, **rounds},
    )
    made = Site(cloud, [gateway_settings(one) for one in gateways])
    made.connect_all()
    made.commission()
    return made


def go_to(made: Site, until: Callable[[], bool]) -> None:
    """Let things happen one by one until something is so."""
    for _ in range(10_000):
        if until():
            return
        if made.on_the_way:
            made.deliver()
        elif made.jobs:
            made.train()
        else:
            made.tick()
    raise AssertionError(f"it never was so; the last words were {made.log[-8:]}")


@pytest.mark.soak
@pytest.mark.parametrize("step", [SHARES, INPUT, UNMASK])
def test_a_gateway_that_vanishes_after_an_exchange_holds_up_nobody_and_counts_where_its_input_came(step: int) -> None:
    """After its keys, after its shares, after its input: the sum is that of those whose inputs are here."""
    made = masked_site("incfed", {"network": SMALL, "ridge": 1.0, "masking": {"fewest": 3, "quantum": 2.0**-30}})
    go_to(made, lambda: made.cloud.rounds.server.phase == step)
    data = training_data(made)
    made.lose("south")
    made.run(made.in_force, patience_s=200)
    assert len(made.cloud_shelf.rounds) == STEPS  # none failed
    in_sum = FOUR if step == UNMASK else NAMES
    expected = run(build("incfed", 3, {"network": SMALL, "ridge": 1.0}), {who: data[who] for who in in_sum}, seed=SEED)
    assert equal(split(made.cloud.rounds.server.server_state)[0], expected.server.server_state, 1e-6)


@pytest.mark.soak
def test_too_few_who_are_left_begin_anew_and_nothing_they_sent_is_lost_to_the_sum() -> None:
    """With all needed the round fails once one is gone, and the sum of changes is whole when the others repeat it."""
    settings = {"network": SMALL, "ridge": 1.0, "masking": {"fewest": 3, "quantum": 2.0**-30, "threshold": 0.99}}
    made = masked_site("incfed", settings)
    go_to(made, lambda: made.cloud.rounds.server.phase == UNMASK)
    data = training_data(made)
    made.lose("south")
    made.run(made.in_force, patience_s=400)
    assert any("changes nothing: RoundFailedError: unmasking" in line for line in made.log)
    assert len(made.cloud_shelf.rounds) == 2 * STEPS
    expected = run(build("incfed", 3, {"network": SMALL, "ridge": 1.0}), {who: data[who] for who in NAMES}, seed=SEED)
    assert equal(split(made.cloud.rounds.server.server_state)[0], expected.server.server_state, 1e-6)


def test_a_drawn_share_goes_through_all_exchanges_of_a_round() -> None:
    made = masked_site("fedavg", MASKED, fraction=0.75)
    made.run(made.in_force)
    assert_same_as_loop(made, loop(made, fraction=0.75))
    cohorts = [tuple(sorted(record.gateways)) for record in made.cloud_shelf.rounds]
    assert {len(cohort) for cohort in cohorts} == {3}
    assert all(len(set(cohorts[at : at + STEPS])) == 1 for at in range(0, len(cohorts), STEPS))


SILENT: dict[str, tuple[str, dict[str, Any]]] = {
    "rows too few": ("incfed", {"network": {**SMALL, "washout": 100}}),
    "budget spent": ("fedavg", LOGISTIC | {"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "epsilon": 1e-3}}),
}


@pytest.mark.soak
@pytest.mark.parametrize("why", SILENT)
def test_a_fleet_that_has_nothing_to_send_rests_and_does_not_spin(why: str) -> None:
    """It has keys, and only in the third exchange turns out to have no input."""
    name, settings = SILENT[why]
    made = masked_site(name, settings | {"masking": {"fewest": 3}}, NAMES, rest_s=DEADLINE_S)
    began_ns = made.now_ns
    for _ in range(round(3.5 * DEADLINE_S)):
        made.flow()
        made.tick()
    assert made.now_ns - began_ns > 3 * DEADLINE_S * 10**9
    assert 3 * (INPUT + 1) <= made.cloud.rounds.server.round_index <= 4 * (INPUT + 1)
    assert made.cloud.releases.manifest is None
    assert {tuple(sorted(record.gateways)) for record in made.cloud_shelf.rounds} == {NAMES}


def test_a_first_exchange_that_fails_is_no_round() -> None:
    """Its range is too large for so many: nothing was done, so there is nothing to release."""
    made = masked_site("fedavg", LINEAR | {"rounds": 1, "masking": {"fewest": 3, "range": 8.7e12}}, NAMES)
    for _ in range(round(2.5 * DEADLINE_S)):
        made.flow()
        made.tick()
    assert any("changes nothing: RingError: masking.range" in line for line in made.log)
    assert (made.cloud.rounds.since_release, len(made.cloud_shelf.rounds)) == (0, 3)
    assert made.cloud.rounds.server.phase == 0
