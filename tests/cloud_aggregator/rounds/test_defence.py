"""A defence at work in the service: an update that makes things worse is refused, and its gateway told why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.runtime import defence
from fedgate.cloud_aggregator.runtime.defence import Material
from fedgate.config.settings.labelled import head
from fedgate.config.settings.settings import AggregatorSettings, SettingsError, load
from fedgate.models.arrays import FEATURES as X
from fedgate.models.arrays import LABELS, Arrays
from tests.support.sites import FEATURES, SITE, Site, aggregator_settings, faults, gateway_settings

NAMES = ("east", "north", "west")
NETWORK = {"task": "classify", "units": 12, "leak": 0.5, "washout": 4}
ALGORITHM: dict[str, Any] = {"name": "esn-fedavg", "settings": {"rounds": 2, "network": NETWORK}}


def trusted_table(seed: int = 7) -> Arrays:
    """Return windows of a gateway beyond doubt: normal ones, then faults."""
    rng = np.random.default_rng(seed)
    fault = faults(seed)
    return {
        X: np.concatenate([rng.normal([0.0, 1.0, 2.2], [0.2, 0.15, 0.4], (40, 3)), fault[X]]),
        LABELS: np.concatenate([np.zeros(40, dtype=np.int64), fault[LABELS]]),
    }


@pytest.mark.soak
def test_a_gateway_that_teaches_the_opposite_is_refused_and_told() -> None:
    cloud = aggregator_settings(
        algorithm=ALGORITHM,
        defence={"kind": "trusted", "trusted": ["a.csv"]},
        rounds={"quorum": 2, "deadline_s": 60.0},
    )
    made = Site(cloud, [gateway_settings(name) for name in NAMES], material=Material((trusted_table(),)))
    opposite = {X: -faults()[X], LABELS: faults()[LABELS]}
    made.agents["west"] = replace(
        made.agents["west"], training=replace(made.agents["west"].training, labelled=opposite)
    )
    made.connect_all()
    made.commission()
    made.run(lambda: made.in_force() and not made.on_the_way)
    assert [tuple(sorted(record.gateways)) for record in made.cloud_shelf.rounds] == [("east", "north")] * 2
    told = [line for line in made.log if "on the trusted tables" in line]
    assert {line.split(":")[0] for line in told} == {"cloud", "west"}


def write(folder: Path, **tables: str) -> Path:
    features = f"rate_hz = 20.0\nwindow_s = 1.0\nchannels = ['load']\nsteps = {FEATURES['steps']}".replace(
        "'kind': ", "kind = "
    )
    text = f"[aggregator]\nsite = '{SITE}'\n[features]\n{features}\n"
    path = folder / "aggregator.toml"
    path.write_text(text + "".join(f"[{name}]\n{body}\n" for name, body in tables.items()), encoding="utf-8")
    return path


def table_file(folder: Path, settings: AggregatorSettings) -> None:
    data = trusted_table()
    rows = [
        ",".join(map(repr, [*row, 0, int(label)])) for row, label in zip(data[X].tolist(), data[LABELS], strict=True)
    ]
    (folder / "trusted.csv").write_text("\n".join([*head(settings.features), *rows]) + "\n", encoding="utf-8")


CHOSEN = """name = 'esn-fedavg'
settings = { rounds = 2, network = { task = 'classify', units = 12, leak = 0.5, washout = 4 } }"""
BY_NETWORK = "kind = 'network'\nnetwork = 'discriminator.bin'"


@pytest.mark.soak
def test_a_discriminator_is_trained_stored_and_good_for_its_training_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write(tmp_path, algorithm=CHOSEN, defence="trusted = ['trusted.csv']")
    table_file(tmp_path, load(first, AggregatorSettings))
    out = tmp_path / "discriminator.bin"
    assert main(["train-discriminator", "-c", str(first), "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["size_bytes"] == out.stat().st_size and 0.0 <= said["accuracy"] <= 1.0
    judged = write(tmp_path, algorithm=CHOSEN, defence=BY_NETWORK)
    settings = load(judged, AggregatorSettings)
    defence.build_algorithm(settings, defence.read(settings))
    others = {"seed": f"seed = 9\n{CHOSEN}", "algorithm": CHOSEN.replace("esn-fedavg", "esn-fedcurv")}
    for other in others.values():
        wrong = load(write(tmp_path, algorithm=other, defence=BY_NETWORK), AggregatorSettings)
        with pytest.raises(defence.MaterialError, match=r"discriminator.bin: was trained for .*, expected the "):
            defence.read(wrong)


@pytest.mark.soak
def test_a_discriminator_that_is_no_better_than_a_coin_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, algorithm=CHOSEN, defence="trusted = ['trusted.csv']")
    table_file(tmp_path, load(path, AggregatorSettings))
    out = tmp_path / "discriminator.bin"
    assert main(["train-discriminator", "-c", str(path), "--out", str(out), "--noise", "0"]) == 2
    assert "cannot be told from noisy ones" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ("kind = 'trusted'", "defence: trusted: .*name the file"),
        ("kind = 'network'", "defence: network: .*name the file"),
        ("kind = 'statistic'\nsettings = { width = 0 }", "defence: settings.width: expected greater than 0"),
        ("kind = 'magic'", "defence.kind"),
    ],
)
def test_a_defence_that_cannot_be_is_refused_with_its_key(tmp_path: Path, chosen: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(write(tmp_path, defence=chosen), AggregatorSettings)


def test_a_file_that_is_no_discriminator_says_how_to_make_one(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_bytes(b"no")
    settings = load(
        write(tmp_path, algorithm=CHOSEN, defence="kind = 'network'\nnetwork = 'd.bin'"), AggregatorSettings
    )
    with pytest.raises(defence.MaterialError, match=r"d.bin: .*cloud-aggregator train-discriminator"):
        defence.read(settings)


def test_a_stacked_algorithm_has_no_sum_to_stand_before(tmp_path: Path) -> None:
    settings = load(write(tmp_path, defence="kind = 'statistic'"), AggregatorSettings)
    with pytest.raises(ValueError, match="made of rows that are kept apart, expected a sum"):
        defence.build_algorithm(settings, defence.read(settings))
