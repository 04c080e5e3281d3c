"""Goal: an aggregator whose store is older than what its gateways have answered says so, and no other does.

Method: the word itself, the command that shows it, and an update that answers a round to come; what becomes of such a
site is in `test_restored_backups`.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.events import RecordGateway
from fedgate.cloud_aggregator.rounds.rounds import save_training
from fedgate.cloud_aggregator.rounds.set_back import describe_set_back
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web.pages.overview import describe_older, read_gateways, read_service
from fedgate.cloud_aggregator.web.pages.page import Context
from fedgate.config.protocol.messages import Status, round_number
from fedgate.config.settings.settings import AggregatorSettings, load
from tests.cloud_aggregator.test_aggregator_machine import OPEN, after, body, receipts, update
from tests.support.sites import T0_NS

Capture = pytest.CaptureFixture[str]


def status(answered: str) -> Status:
    return Status(state="online", answered=answered)


@pytest.mark.parametrize(
    ("answered", "is_later"),
    [
        (round_number("run.1", 3), False),
        (round_number("run.1", 4), True),
        (round_number("run.2", 4), False),
        (round_number("run.10", 4), False),
        ("", False),
        ("run.1/", False),
        ("run.1/-4", False),
        ("run.1/four", False),
        (f"run.1/{'9' * 200}", False),
    ],
)
def test_a_later_round_of_the_same_training_is_the_sign_and_nothing_else(answered: str, is_later: bool) -> None:
    text = describe_set_back({"north": answered, "south": ""}, "run.1", 3)
    assert ("what north have answered: it asks for round 3" in text) == is_later == bool(text)


def test_status_says_that_the_store_is_older(tmp_path: Path, capsys: Capture) -> None:
    assert cloud_aggregator(["init", str(tmp_path / "site"), "--loopback"]) == 0
    look = ["status", "-c", str(tmp_path / "site" / "aggregator.toml")]
    with closing(Store(tmp_path / "site" / "aggregator.db")) as store:
        store.commit(
            [save_training(OPEN.rounds, 0), RecordGateway("north", status(round_number(OPEN.rounds.run, 0)), T0_NS)]
        )
        capsys.readouterr()
        assert cloud_aggregator(look) == 0 and "WARNING" not in capsys.readouterr().out
        store.commit([RecordGateway("north", status(round_number(OPEN.rounds.run, 7)), T0_NS)])
    assert cloud_aggregator(look) == 0
    assert "WARNING: this store is older than what north have answered" in capsys.readouterr().out
    assert cloud_aggregator([*look, "--json"]) == 0
    assert "set another [algorithm] seed" in json.loads(capsys.readouterr().out)["store_is_older"]
    settings = load(tmp_path / "site" / "aggregator.toml", AggregatorSettings)
    with closing(Store(tmp_path / "site" / "aggregator.db", is_read_only=True)) as store:
        context = Context(settings, store, T0_NS)
        gateways = read_gateways(context, (), service=read_service(context))
        assert "older than what north have answered" in describe_older(context, gateways)


def test_an_update_for_a_round_to_come_is_refused_with_what_that_means() -> None:
    _, effects = after(OPEN, *update("north", body(OPEN, round_index=OPEN.rounds.server.round_index + 1)))
    (receipt,) = receipts(effects)
    assert "older than what its gateways answered, see docs/reference/operations.md" in receipt.reason
