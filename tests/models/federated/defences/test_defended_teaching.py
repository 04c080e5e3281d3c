"""A defence whose trusted tables are summed as well."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.models.arrays import generator
from fedgate.models.federated import build
from fedgate.models.federated.defences.wrapper import Defence, DefenceError, with_update_filter
from fedgate.models.testing.fleet import FEATURE_COUNT
from tests.models.federated.defences.test_defended import NETWORK, trusted


def test_trusted_tables_may_teach_as_gateways_of_their_own() -> None:
    plain = build("esn-fedavg", FEATURE_COUNT, {"network": NETWORK})
    taught = with_update_filter(plain, Defence(teach=True), trusted())
    server = taught.start(generator(0, 0, "cloud"))
    _, update = plain.phases[0].train(server.global_state, {}, trusted()[0], generator(0, 0, "honest"))
    alone = taught.phases[0].advance(server, taught.phases[0].admit(server, update))
    sums = plain.phases[0].admit(server, update)
    for index, table in enumerate(trusted()):
        _, own = plain.phases[0].train(server.global_state, {}, table, generator(0, 0, f"trusted/{index}"))
        sums = plain.phases[0].reducer.merge(sums, plain.phases[0].admit(server, own))
    np.testing.assert_allclose(
        alone.global_state["readout"], plain.phases[0].advance(server, sums).global_state["readout"]
    )
    with pytest.raises(DefenceError, match="expected 'trusted', which has tables"):
        with_update_filter(plain, Defence(kind="statistic", teach=True))
    with pytest.raises(DefenceError, match="does not average"):
        incremental = build("incfed", FEATURE_COUNT, {"network": NETWORK})
        with_update_filter(incremental, Defence(teach=True), trusted())
