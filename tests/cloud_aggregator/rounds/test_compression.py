"""Updates are compressed by the aggregator's settings, and a round is stored with what that saves."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedgate.cloud_aggregator import __main__ as cloud_aggregator
from fedgate.cloud_aggregator.events import Connection, RecordRound, Tick
from fedgate.cloud_aggregator.rounds.compression import describe_updates, settle_compression, size_of_update
from fedgate.cloud_aggregator.rounds.rounds import identify
from fedgate.cloud_aggregator.runtime.service import Service
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import RoundOpen
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.firmware_sim.demo.stage import toml
from fedgate.models.arrays import FEATURES, LABELS
from fedgate.models.federated.compression_default import BY_DEFAULT
from tests.support.cloud_service import READY, chunks_of, heard, said_under
from tests.support.sites import KEY, T0_NS, aggregator_settings


def site(**compression: object) -> AggregatorSettings:
    return aggregator_settings(algorithm={"name": "fedavg", "settings": {"loss": "logistic", **compression}})


def test_settings_that_say_nothing_are_compressed_and_gateways_are_told(tmp_path: Path) -> None:
    service = Service(site(), Store(tmp_path / "a.db"), KEY, uptime_ns=T0_NS, anchor_ns=0, beginning="first")
    try:
        (invitation,) = said_under("round", service.step_all(T0_NS, [Connection(True)]))
    finally:
        service.close()
    assert RoundOpen.from_bytes(invitation.payload).settings["compression"] == BY_DEFAULT
    said = describe_updates(service.state.context.settings)
    assert said == "updates travel as int8, 272 bytes of numbers each in place of 2,064: 7.6 times smaller"


@pytest.mark.parametrize(("chosen", "sizes"), [({}, (272, 2_064)), ({"compression": "none"}, (2_064, 2_064))])
def test_a_round_is_stored_with_the_size_of_an_update_as_it_travels_and_uncompressed(
    tmp_path: Path, chosen: dict[str, object], sizes: tuple[int, int]
) -> None:
    settings = site(**chosen)
    settings = settings.model_copy(update={"rounds": settings.rounds.model_copy(update={"quorum": 1})})
    store = Store(tmp_path / "a.db")
    with closing(Service(settings, store, KEY, uptime_ns=T0_NS, anchor_ns=0, beginning="first")) as service:
        service.step_all(T0_NS, [Connection(True), heard("north", "status", READY.to_bytes())])
        rounds = service.state.rounds
        rows = {FEATURES: np.random.default_rng(0).normal(size=(40, 3)), LABELS: np.arange(40) % 5 == 0}
        phase = rounds.algorithm.phases[rounds.server.phase]
        _, update = phase.train(rounds.server.global_state, {}, rows, np.random.default_rng(0))
        meta = {"run": rounds.run, "round_index": 0, "phase": rounds.server.phase, "counts_in": True}
        service.step_all(T0_NS, [*chunks_of("north", wire.encode(update, meta)), Tick()])
        (row,) = store.read_rows("rounds")
    assert row["gateways"] == "north" and (row["update_bytes"], row["uncompressed_bytes"]) == sizes


def test_the_list_of_rounds_is_of_what_was_stored_whatever_is_trained_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "aggregator.toml"
    config.write_text(toml({"aggregator": {"site": "bridge"}, "algorithm": {"name": "no longer installed"}}))
    names, most = tuple(f"gateway-{number}" for number in range(1_000)), 2**40
    late = tuple((name, 123_455) for name in names)
    wide = RecordRound("0123456789ab.01234567", 123_456, "robust-svm-subgradient", names, 1_000, most, most, names)
    wide = replace(wide, phase=12, late=late, update_bytes=2**24, uncompressed_bytes=2**27)
    with closing(Store(tmp_path / "aggregator.db")) as store:
        store.commit([RecordRound("other.first", 0, "fedavg", ("north",), 0, 1), wide])
    assert cloud_aggregator.main(["rounds", "-c", str(config)]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert max(map(len, (header, first, second))) <= 120
    assert (header.split()[-2:], first.split()[-2:]) == (["update", "uncompressed"], ["-", "-"])
    assert second.split()[3:] == ["1000", "1000", "1000", "1000", str(most), str(2**24), str(2**27)]
    assert cloud_aggregator.main(["rounds", "-c", str(config), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)[1]
    assert row["gateways"].split() == list(names) and row["late"].split()[0] == "gateway-0:123455"
    assert (row["run"], row["algorithm"], row["uncompressed_bytes"]) == (wide.run, wide.algorithm, 2**27)


def test_none_is_as_before() -> None:
    settled = settle_compression(site(compression="none"))
    assert "compression" not in settled.algorithm.settings
    assert describe_updates(settled) == "updates are not compressed, 2,064 bytes of numbers each"
    size = size_of_update(settled)
    assert size is not None and size.times_smaller == 1.0


def test_a_training_by_the_rule_is_that_of_settings_that_say_the_same() -> None:
    settled = settle_compression(site())
    assert settle_compression(site(compression=BY_DEFAULT)) == settle_compression(settled) == settled
    assert identify(settled) != identify(settle_compression(site(compression="none")))
