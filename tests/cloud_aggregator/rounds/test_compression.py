"""Updates are compressed by the aggregator's settings, and a training that was begun without goes on without."""

from __future__ import annotations

from argparse import Namespace
from contextlib import closing
from pathlib import Path

from fedgate.cloud_aggregator.commands.lists import LISTS
from fedgate.cloud_aggregator.events import Connection, RecordRound, SaveTraining
from fedgate.cloud_aggregator.rounds.compression import (
    describe_updates,
    goes_on_uncompressed,
    settle_compression,
    size_of_update,
)
from fedgate.cloud_aggregator.rounds.rounds import run_name
from fedgate.cloud_aggregator.runtime.service import Service
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import RoundOpen
from fedgate.config.settings.settings import AggregatorSettings, load
from fedgate.firmware_sim.demo.stage import toml
from fedgate.models.federated.compression_default import BY_DEFAULT
from tests.support.cloud_service import said_under
from tests.support.sites import FEATURES, KEY, T0_NS, aggregator_settings


def site(**compression: object) -> AggregatorSettings:
    return aggregator_settings(algorithm={"name": "fedavg", "settings": {"loss": "logistic", **compression}})


def begun(settings: AggregatorSettings) -> SaveTraining:
    return SaveTraining({}, {"run": run_name(settings, "first")})


def test_settings_that_say_nothing_are_compressed_and_gateways_are_told(tmp_path: Path) -> None:
    service = Service(site(), Store(tmp_path / "a.db"), KEY, uptime_ns=T0_NS, anchor_ns=0, beginning="first")
    try:
        (invitation,) = said_under("round", service.step_all(T0_NS, [Connection(True)]))
    finally:
        service.close()
    assert RoundOpen.from_bytes(invitation.payload).settings["compression"] == BY_DEFAULT
    said = describe_updates(service.state.context.settings)
    assert said == "updates travel as int8, 272 bytes of numbers each in place of 2,064: 7.6 times smaller"


def test_the_list_of_rounds_says_how_large_an_update_is_and_by_how_much_smaller(tmp_path: Path) -> None:
    algorithm = {"name": "fedavg", "settings": {"loss": "logistic"}}
    config = tmp_path / "aggregator.toml"
    config.write_text(toml({"aggregator": {"site": "bridge"}, "features": FEATURES, "algorithm": algorithm}))
    settled = settle_compression(load(config, AggregatorSettings), None)
    size = size_of_update(settled)
    assert size is not None
    with closing(Store(tmp_path / "aggregator.db")) as store:
        for run in (run_name(settled, "first"), "another.first"):
            store.commit([RecordRound(run, 0, "fedavg", ("north",), 0, 1, phase=size.phase)])
        ours, other = LISTS["rounds"].rows_of(store, Namespace(config=config))
    assert (ours["update_bytes"], ours["times_smaller"], other["update_bytes"]) == (272, 7.6, None)


def test_none_is_as_before() -> None:
    plain, settled = site(compression="none"), settle_compression(site(compression="none"), None)
    assert "compression" not in settled.algorithm.settings and not goes_on_uncompressed(plain, settled)
    assert describe_updates(settled) == "updates are not compressed, 2,064 bytes of numbers each"
    size = size_of_update(settled)
    assert size is not None and size.times_smaller == 1.0


def test_a_training_that_was_begun_uncompressed_goes_on_so_until_the_settings_say_otherwise() -> None:
    training = begun(site())  # as a build did that compressed nothing by itself
    settled = settle_compression(site(), training)
    assert "compression" not in settled.algorithm.settings and goes_on_uncompressed(site(), settled)
    assert run_name(settled, "first") == training.meta["run"]
    said = settle_compression(site(compression="none"), training)
    assert said == settled and not goes_on_uncompressed(site(compression="none"), said)
    anew = settle_compression(site(compression=BY_DEFAULT), training)
    assert anew.algorithm.settings["compression"] == BY_DEFAULT
    assert run_name(anew, "first") != training.meta["run"]


def test_a_training_by_the_rule_goes_on_and_is_that_of_settings_that_say_the_same() -> None:
    settled = settle_compression(site(), None)
    assert settle_compression(site(), begun(settled)) == settled
    assert settle_compression(site(compression=BY_DEFAULT), begun(settled)) == settled
    other = settled.model_copy(update={"algorithm": settled.algorithm.model_copy(update={"seed": 1})})
    assert settle_compression(site(), begun(other)) == settled
