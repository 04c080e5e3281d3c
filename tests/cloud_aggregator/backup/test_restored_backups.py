"""What becomes of a site whose aggregator is put back to an earlier day, or loses its disk
(`docs/reference/operations.md`).

Method: a site of real machines; the store of its aggregator is set back while its gateways go on.
"""

from __future__ import annotations

import copy

import pytest

from tests.support.sites import CloudShelf, Site, aggregator_settings, gateway_settings

ROUNDS = {"quorum": 2, "deadline_s": 60.0, "rest_s": 1.0}
LONG_S = 900


def trained() -> tuple[Site, CloudShelf, int]:
    """Return a site with several models, its aggregator's store as it was early on, and the number of the newest."""
    site = Site(aggregator_settings(rounds=ROUNDS), [gateway_settings(one) for one in ("north", "south")])
    site.connect_all()
    site.commission()
    site.run(lambda: site.in_force(1) and site.settled())
    backup = copy.deepcopy(site.cloud_shelf)
    site.run(lambda: site.in_force(3) and site.settled())
    assert site.cloud.releases.manifest is not None
    return site, backup, site.cloud.releases.manifest.version


@pytest.mark.soak
def test_a_backup_of_an_earlier_day_waits_for_rounds_that_were_answered_until_its_training_begins_anew() -> None:
    site, backup, newest = trained()
    run, round_index = site.cloud.rounds.run, site.cloud.rounds.server.round_index
    site.cloud_shelf = backup
    site.restart("cloud")
    assert (site.cloud.rounds.run, site.cloud.rounds.server.round_index < round_index) == (run, True)
    with pytest.raises(AssertionError, match="this store is older than what north, south have answered"):
        site.run(lambda: bool(site.cloud.rounds.counted), LONG_S)
    assert site.in_force(newest)  # the older manifest is refused: gateways keep the newest model that they ever had
    site.cloud_settings = aggregator_settings(rounds=ROUNDS, algorithm={"seed": 7})
    site.restart("cloud")
    site.run(lambda: site.in_force(newest + 1))  # a number above every one that a gateway has seen
    assert site.cloud.rounds.run != run


def test_a_disk_that_is_gone_costs_the_training_at_hand_and_no_version_number() -> None:
    site, _, newest = trained()
    site.cloud_shelf = CloudShelf()
    site.cloud_settings = aggregator_settings(rounds=ROUNDS, algorithm={"seed": 7})  # a real one draws its beginning
    site.restart("cloud")
    assert site.cloud.rounds.server.round_index == 0 and not site.cloud.access.gateways
    for who in site.agents:  # their statuses are retained, and told again
        site.connect(who)
    site.run(lambda: site.in_force(newest + 1))
