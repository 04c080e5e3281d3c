"""A disk that somebody else fills, under an agent that goes on: a real file system of a few megabytes.

Goal: the agent neither ends nor forgets: with not one byte free an alarm is raised, arrives and clears, and somebody
is told of the disk. What becomes of it when even its own log is full is shown by `test_store_full`.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from fedgate.firmware_sim import children
from tests.chaos.field import Field, field
from tests.support.sites import WINDOWS, samples
from tests.support.waiting import PATIENCE_S

NAMES = ("east", "north")
SMALL = NAMES[0]
SIZE = "8m"
SHIFT = 60.0
# A process that changes its user, as one does in a name space of its own, is no longer ended with its parent.
EXEC = 'exec setpriv --pdeathsig KILL "$0" "$@"'
MOUNTED = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")


def may_mount() -> bool:
    """Tell whether this user may have a file system of its own."""
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return children.run(probe, PATIENCE_S).returncode == 0


def fill(made: Field) -> Path:
    """Fill the small disk to the last byte, and return the file that does it; it is seen from outside through the
    process that has it mounted.
    """
    filler = Path(f"/proc/{made.processes[SMALL].pid}/root{made.folder}/disk/filler")
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4_096)
    return filler


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(not may_mount(), reason="this user may not mount a file system of its own (unshare --user --mount)")
def test_an_agent_outlives_a_full_disk_and_loses_no_alarm(tmp_path: Path) -> None:
    with field(tmp_path, NAMES, rounds={"quorum": 2}) as made:
        disk = tmp_path / "disk"
        disk.mkdir()
        made.write_settings(SMALL, store="disk/gateway.db")
        made.begin()
        made.start(NAMES[1])
        made.start(SMALL, wrapped=(*MOUNTED, f'mount -t tmpfs -o size={SIZE} none "{disk}" && {EXEC}'))
        made.commission()
        made.settle(lambda: {row["model_version"] for row in made.statuses().values()} == {1})

        filler = fill(made)
        made.feed(SMALL, samples(100, 10, SHIFT), WINDOWS)
        made.feed(SMALL, samples(101, 30), WINDOWS + 10)
        made.settle(lambda: any(row["cleared_ns"] for row in made.rows("alarms") if row["cause"] == "anomaly"))
        assert shutil.disk_usage(filler).free == 0
        rows = {row["cause"]: row for row in made.rows("alarms")}
        assert set(rows) == {"anomaly", "disk-full"} and rows["disk-full"]["cleared_ns"] is None
        assert rows["anomaly"]["gateway"] == SMALL
        assert rows["anomaly"]["onset_ns"] <= rows["anomaly"]["raised_ns"] < rows["anomaly"]["cleared_ns"]
        filler.unlink()
        made.feed(SMALL, samples(102, 5), WINDOWS + 40)
        assert made.processes[SMALL].poll() is None, made.words(SMALL)
