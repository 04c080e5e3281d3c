"""The drill of docs/reference/operations.md: the disk of aggregator and broker is gone, and a backup brings it back.

Goal: alarms and models are as they were, gateways that were never touched go on, and a model is made and taken again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.field import BROKER, CLOUD, command, field
from tests.support.sites import WINDOWS, samples

NAMES = ("east", "north")
SHIFT = 60.0
OF_ITS_RAISE = ("id", "gateway", "onset_ns", "raised_ns", "text", "model_digest")
MINIMUM_WINDOWS = 12
OF_GATEWAYS = ("ca.pem", "release.pub", *(f"{who}{end}" for who in NAMES for end in (".toml", ".db", ".pem", ".key")))


@pytest.mark.slow
@pytest.mark.soak
def test_a_site_whose_disk_is_gone_comes_back_from_its_backup(tmp_path: Path) -> None:
    passphrase, file, new = tmp_path / "passphrase", tmp_path / "site.fedgate", tmp_path / "new"
    passphrase.write_text("kept in another house\n")
    passphrase.chmod(0o600)
    with field(tmp_path / "site", NAMES, rounds={"quorum": 2}) as made:
        old = made.folder
        made.begin()
        made.start(*NAMES)
        made.commission()
        made.settle(lambda: {row["model_version"] for row in made.statuses().values()} == {1})
        made.feed(NAMES[0], samples(7, MINIMUM_WINDOWS, SHIFT), WINDOWS)
        made.settle(lambda: [row["cause"] for row in made.rows("alarms")] == ["anomaly"])
        words = ["-c", str(old / "aggregator.toml"), "--passphrase-file", str(passphrase)]
        said = command("cloud_aggregator", "backup", str(file), *words)
        assert "sealed, with the keys" in said and "1 alarms" in said
        alarms, models = made.rows("alarms"), made.rows("models")

        made.kill(CLOUD)
        made.kill(BROKER)
        for path in old.iterdir():
            if path.is_file() and not path.name.startswith(OF_GATEWAYS):
                path.unlink()

        words = ["-c", str(new / "aggregator.toml"), "--passphrase-file", str(passphrase)]
        said = command("cloud_aggregator", "restore", str(file), *words)
        assert "MISSING" not in said and "1 alarms" in said and "the training begins anew" in said
        made.folder = new
        assert (made.rows("alarms"), made.rows("models")) == (alarms, models)
        made.start(BROKER, CLOUD)

        made.feed(NAMES[0], samples(8, 2 * MINIMUM_WINDOWS), WINDOWS + MINIMUM_WINDOWS)  # the structure is well again
        made.settle(lambda: [row["cleared_ns"] is None for row in made.rows("alarms")] == [False])
        (after,) = made.rows("alarms")
        assert {name: after[name] for name in OF_ITS_RAISE} == {name: alarms[0][name] for name in OF_ITS_RAISE}
        made.settle(lambda: len({row["model_version"] for row in made.statuses().values()} - {1}) == 1)
        versions = [row["version"] for row in made.rows("models")]
        assert versions[:2] == [1, 2]  # the next number is that which the gateways have signed
        assert {row["run"] for row in made.rounds()[:1]} != {row["run"] for row in made.rounds()[-1:]}
        assert "store is older" not in made.words(CLOUD)
