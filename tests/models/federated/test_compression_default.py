"""What is compressed where nobody says so: what follows from roles and the table, and is worth it."""

from __future__ import annotations

from typing import Any

import pytest

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import Arrays
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.compression_default import BY_DEFAULT, settle, update_size
from fedgate.models.federated.protocol.run import run
from fedgate.models.testing.fleet import FEATURE_COUNT, fleet

LOGISTIC = {"loss": "logistic", "gamma": 0.1}
PRIVACY = {"clip": 1.0, "noise_multiplier": 1.0, "epsilon": 1e6}


def test_of_the_algorithms_as_they_come_those_are_compressed_that_send_steps() -> None:
    assert {name for name in ALGORITHMS if "compression" in settle(name, 20, {})} == {"esn-fedavg", "recurrent-fedavg"}


@pytest.mark.parametrize(
    ("name", "chosen", "is_compressed"),
    [
        ("fedavg", LOGISTIC, True),
        ("fedper", {**LOGISTIC, "components": 512}, True),
        ("fedper", LOGISTIC, False),  # half of its numbers travel, and less than a kibibyte is saved
        ("fedavg", {}, False),  # says all anew, so that nothing is made good
        ("fedavg", {**LOGISTIC, "components": 0}, False),  # a few numbers
        ("fedavg", {**LOGISTIC, "masking": {}}, False),
        ("fedavg", {**LOGISTIC, "robust": {"rule": "median"}}, False),
        ("fedavg", {**LOGISTIC, "privacy": {**PRIVACY, "where": "cloud"}, "unit": "feature"}, False),
        ("fedavg", {**LOGISTIC, "privacy": PRIVACY, "unit": "feature"}, True),
        ("fedavg", {**LOGISTIC, "whiten": 2, "survey": {}}, True),
        ("robust-svm-subgradient", {}, False),
        ("incfed", {}, False),
    ],
    ids=str,
)
def test_what_stands_in_the_way_is_found_in_the_table(name: str, chosen: dict[str, Any], is_compressed: bool) -> None:
    settled = settle(name, FEATURE_COUNT, chosen)
    assert settled == {**chosen, **({"compression": BY_DEFAULT} if is_compressed else {})}
    assert ("compression" in build(name, FEATURE_COUNT, settled).traits) == is_compressed


def test_what_the_operator_says_holds() -> None:
    assert settle("fedavg", FEATURE_COUNT, {**LOGISTIC, "compression": "none"}) == LOGISTIC
    assert settle("incfed", FEATURE_COUNT, {"compression": "none"}) == {}
    given = {**LOGISTIC, "components": 0, "compression": {"number": "float16"}}
    assert settle("fedavg", FEATURE_COUNT, given) == given
    assert "compression" not in build("fedavg", FEATURE_COUNT, {**LOGISTIC, "compression": "none"}).traits


def updates_of(chosen: dict[str, Any]) -> list[Arrays]:
    data, sent = {name: each.data for name, each in fleet(2, labelled=True).items()}, list[Arrays]()
    run(build("fedavg", FEATURE_COUNT, chosen), data, rounds=1, on_update=lambda _, update: sent.append(update))
    return sent


def test_the_size_that_is_shown_is_that_of_what_travels() -> None:
    for chosen, times in ((LOGISTIC, 1.0), (settle("fedavg", FEATURE_COUNT, LOGISTIC), 7.6)):
        update, size = updates_of(chosen)[0], update_size(build("fedavg", FEATURE_COUNT, chosen), chosen)
        assert size is not None
        numbers = sum(array.nbytes for name, array in update.items() if name != "scales")
        assert size.sent_bytes == numbers < len(encode(update))
        assert round(size.times_smaller, 1) == times and (size.plain_bytes == 2_064)
    assert update_size(build("support-vector-election", FEATURE_COUNT, {}), {}) is None  # of any length
