"""Goal: an operator gets the very samples that a sensor sent around an alarm, where both sides allow it, and otherwise
the reason why not; no raw sample leaves unasked.

Method: both services as processes over a real broker, a sensor node, and the commands that an operator types.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.storage.store import Store as Registry
from fedgate.config.protocol.frames import Frame
from fedgate.firmware_sim.broker import broker, mosquitto_program
from fedgate.firmware_sim.recordings import read
from fedgate.models.arrays import Array
from tests.end_to_end.test_processes import ME, listening, running, speaking, stored_model, until, write
from tests.support.sites import FEATURES, T0_NS, WINDOWS, frame, samples, topic

RATE_HZ = float(FEATURES["rate_hz"])
CALM, LOUD = 4, 8  # seconds, of a frame each
ON = "[samples]\nbefore_s = 3.0\nafter_s = 3.0\n"
ALLOWED = "[samples]\nfetch = true\n"

Say = Callable[..., tuple[int, Any]]


@pytest.fixture
def say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*words: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = cloud_aggregator([*words, "-c", str(tmp_path / "aggregator.toml"), "--json"])
        told = capsys.readouterr()
        return code, json.loads(told.out) if code == 0 else told.err + told.out

    return run


def alarms(folder: Path) -> list[dict[str, Any]]:
    with closing(Registry(folder / "aggregator.db", create=False)) as registry:
        return registry.read_rows("alarms", "id")


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(("gateway", "site"), [(ON, ALLOWED), ("", ALLOWED), (ON, "")], ids=["on", "gateway", "site"])
def test_the_samples_of_an_alarm_are_exported_as_they_were_sent_or_refused(
    gateway: str, site: str, tmp_path: Path, say: Say
) -> None:
    with broker(tmp_path / "broker", "mosquitto" if mosquitto_program() else "embedded") as there:
        write(tmp_path, there.port)
        for name, more in (("gateway", gateway), ("aggregator", site)):
            path = tmp_path / f"{name}.toml"
            path.write_text(path.read_text() + more)
        stored_model(tmp_path)
        sent = [samples(number, 1, 60.0 if number >= CALM else 0.0) for number in range(CALM + LOUD)]
        with (
            running("gateway_agent", tmp_path) as agent,
            running("cloud_aggregator", tmp_path),
            listening(there.port, "samples", "status") as heard,
            speaking(there.port) as node,
        ):
            log = tmp_path / "gateway.log"
            until(lambda: topic(ME, "status", "agent") in heard, agent, log)
            for number, values in enumerate(sent):
                node.publish(topic(ME, "sample", "deck"), frame(values, WINDOWS + number))
                time.sleep(0.02)
            until(lambda: bool(alarms(tmp_path)), agent, log)
            if gateway:
                until(lambda: "are kept" in log.read_text(), agent, log)
            assert not [where for where in heard if "/samples/" in where]  # nothing leaves unasked
            code, told = say("samples", "fetch", f"{ME}/anomaly")
            if not site:
                assert code == 1 and "this site fetches no raw samples" in told
                assert say("samples", "list") == (0, [])
                return
            assert code == 0 and "its samples are asked for" in told["text"]
            until(lambda: say("samples", "list")[1][0]["state"] != "asked", agent, log)
            (row,) = say("samples", "list")[1]
            if not gateway:
                assert (row["state"], row["size_bytes"]) == ("refused", None)
                assert row["problem"] == (
                    "the gateway refuses: this gateway keeps no raw samples: its settings have no table [samples]"
                )
                assert not (tmp_path / "gateway.db.samples").exists()
                code, told = say("samples", "export", f"{ME}/anomaly", "--output", str(tmp_path / "x.csv"))
                assert code != 0 and "its samples do not come: the gateway refuses" in told
                return
            assert row["state"] == "here" and row["problem"] == ""
    check_files(tmp_path, say, sent)


def check_files(folder: Path, say: Say, sent: list[Array]) -> None:
    """Export the samples in both formats, and compare them with the frames that were sent."""
    raised_s = (say("samples", "show", f"{ME}/anomaly")[1]["t_ns"] - T0_NS) / 1e9 - WINDOWS
    first, last = int(raised_s - 3), int(raised_s + 3)  # the frames that share time with the clip, whole
    replayed = np.concatenate([Frame.from_bytes(frame(values)).values for values in sent])
    for name in ("alarm.csv", "alarm.mseed"):
        words = ("samples", "export", f"{ME}/anomaly", "--output", str(folder / name))
        assert say(*words)[0] == 0 and (folder / name).stat().st_mode & 0o777 == 0o600
        code, told = say(*words)
        assert code != 0 and "give --replace" in told and say(*words, "--replace")[0] == 0
        recording = read(folder / name)
        begin = round(((recording.t0_ns or 0) - T0_NS) / 1e9 - WINDOWS)
        assert first - 1 <= begin <= first and recording.channel_names == ("load",)
        assert recording.rate_hz == pytest.approx(RATE_HZ)
        end = begin + len(recording.values) // round(RATE_HZ)
        assert last <= end <= last + 1
        wanted = replayed[begin * round(RATE_HZ) : end * round(RATE_HZ)]
        np.testing.assert_array_equal(recording.values, wanted.astype(np.float64))
