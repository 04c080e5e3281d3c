"""Goal: no window spans a gap of a recording, whichever command cuts it, and each says how many windows that costs.

Method: a sensor whose level steps over a hole in its time stamps, so that a window over the hole measures what no other
does; and the live path of a gateway, which is given the frames of the replay, as the oracle of what is lost.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from fedgate.config.settings.labelled import read_labelled
from fedgate.config.settings.settings import GatewaySettings, load
from fedgate.firmware_sim.__main__ import main
from fedgate.firmware_sim.evaluate.folders import load_folder
from fedgate.firmware_sim.recordings import Channel, Recording, State, read
from fedgate.firmware_sim.recordings.cutting import cut_windows
from fedgate.firmware_sim.recordings.gaps import Gaps, find_gaps
from fedgate.firmware_sim.replay import node
from fedgate.gateway_agent.sources import frames as frames_source
from fedgate.models.arrays import FEATURES
from fedgate.models.windows.grid import Lost, StreamSpec, Window, push, start
from tests.support.windowing import spec_of

NS = 10**9
RATE_HZ, HOLE_S, LEVELS = 10, 30, (5.0, 905.0)
Capture = pytest.CaptureFixture[str]

DECK = """
[gateway]
id = "north"
site = "bridge"
[[source]]
name = "deck"
kind = "frames"
channels = [{ role = "load" }]
"""
CLIMATE = """
[[source]]
name = "climate"
kind = "json"
topic = "zigbee/deck"
channels = [{ role = "temperature", path = "t" }]
fill = "hold"
gap_s = 900.0
"""
FEATURES_TABLE = """
[features]
rate_hz = 10.0
window_s = 4.0
hop_s = 2.0
channels = ["load"]
steps = [{ kind = "level" }, { kind = "deviation" }]
"""
TWO_SOURCES = DECK + CLIMATE + FEATURES_TABLE.replace('["load"]', '["load", "temperature"]')
FOLDER = """
healthy = ["holed.csv"]
damaged = ["damaged.csv"]
train_share = 0.75
[gateways]
north = { load = "load" }
"""


def stamps(*spans_s: tuple[float, float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the seconds at which the rows of stretches were taken."""
    return np.concatenate([np.arange(round(a * RATE_HZ), round(b * RATE_HZ)) / RATE_HZ for a, b in spans_s])


def holed(folder: Path, suffix: str = ".csv", hole_s: float = HOLE_S) -> Path:
    """Write 20 s at one level and, after the hole, 20 s at another."""
    at_s = stamps((0, 20), (20 + hole_s, 40 + hole_s))
    load_kn = np.where(at_s < 20, *LEVELS) + np.sin(at_s)
    path = folder / f"holed{suffix}"
    if suffix == ".npz":
        np.savez(path, data=load_kn[:, None], channels=np.array(["load"]), t=at_s)
    elif suffix == ".npz.rated":
        path = folder / "rated.npz"
        np.savez(path, data=load_kn[:, None], channels=np.array(["load"]), t=at_s, fs=float(RATE_HZ))
    elif suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"t": at_s, "load": load_kn}), path)
    else:
        path.write_text("t,load\n" + "".join(f"{t},{x}\n" for t, x in zip(at_s, load_kn, strict=True)))
    return path


def settings_of(folder: Path, text: str = DECK + FEATURES_TABLE) -> Path:
    path = folder / "gateway.toml"
    path.write_text(text)
    return path


def live(recording: Recording, settings: GatewaySettings, frame_s: float = 1.0) -> list[Window | Lost]:
    """Return what the windows of a gateway come to that is sent the frames of a replay."""
    source, state = settings.source[0], start(settings.features, settings.streams)
    events: list[Window | Lost] = []
    for _, frame in node.frames(recording, frame_s, 7 * NS, "boot"):
        block, _ = frames_source.read(source, frame, 0, 0, {})
        state, more = push(state, block)
        events += more
    return events


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".npz.rated", ".parquet"])
def test_every_format_that_writes_times_tells_its_gaps(tmp_path: Path, suffix: str, capsys: Capture) -> None:
    path = holed(tmp_path, suffix)
    recording = read(path)
    assert recording.gaps.rows.tolist() == [200] and recording.gaps.lost_ns.tolist() == [HOLE_S * NS]
    assert recording.rate_hz == pytest.approx(RATE_HZ) and recording.length_s == pytest.approx(40 + HOLE_S)
    assert main(["info", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["gaps"] == {"count": 1, "lost_s": HOLE_S, "longest_s": HOLE_S}
    assert any(sentence.startswith("gaps in time, split there: 1") for sentence in said["found"])


def test_evaluate_joins_no_window_over_a_gap(tmp_path: Path) -> None:
    holed(tmp_path)
    (tmp_path / "damaged.csv").write_text((tmp_path / "holed.csv").read_text())
    (tmp_path / "evaluation.toml").write_text(FOLDER + FEATURES_TABLE)
    folder = load_folder(tmp_path)
    rows, _, missing = folder.gateways["north"]
    assert rows.x[:, 1].max() < 1.0  # a window over the hole deviates by half a step of 900
    # 9 windows before the hole, 4 behind it up to the border at three quarters, 4 behind that; twice. Of a hole of 30 s
    # those are lost that begin from 18 s up to, not including, 50 s.
    assert len(rows.x) == 2 * (9 + 4 + 4) and folder.lost == 2 * 16
    assert missing.tolist() == 2 * [-1, *[0] * 8, 16, 0, 0, 0, -1, 0, 0, 0]
    assert "; 32 windows lost to gaps" in folder.read_as


def test_label_joins_no_window_over_a_gap_and_counts_what_is_lost(tmp_path: Path, capsys: Capture) -> None:
    config, out = settings_of(tmp_path), tmp_path / "faults.csv"
    words = ["label", str(holed(tmp_path)), "-c", str(config), "--label", "1", "--out", str(out)]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["windows"], said["windows_lost_to_gaps"], said["windows_not_measurable"]) == (18, 16, 0)
    settings_of(tmp_path, DECK + FEATURES_TABLE + f'[training]\nlabelled = "{out.name}"\n')
    found = read_labelled(load(config, GatewaySettings))
    assert found[FEATURES][:, 1].max() < 1.0
    assert main([*words[:-1], str(tmp_path / "again.csv")]) == 0
    assert "18 windows with label 1 appended, 16 lost to gaps" in capsys.readouterr().out


@pytest.mark.parametrize("hole_s", [0.2, 0.5, 30.0, 39.0, 120.0, 86_400.0])
def test_what_a_replay_says_it_loses_is_what_the_gateway_loses(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, hole_s: float
) -> None:
    config, path = settings_of(tmp_path), holed(tmp_path, hole_s=hole_s)
    seen = live(read(path), load(config, GatewaySettings))
    restart = sum(isinstance(event, Lost) and "begins anew" in event.reason for event in seen)
    lost = sum(isinstance(event, Lost) for event in seen)
    assert (lost == 0) == (hole_s < 0.4)  # three places are bridged
    assert restart == (hole_s >= 40.0)
    if restart:  # a gateway counts one, whatever the time: its clock may have been set
        lost = int(hole_s) // 2 + 1  # those that begin from 18 s up to, not including, 20 s and the hole
    assert all(np.ptp(event.values) < 3.0 for event in seen if isinstance(event, Window)) or hole_s < 0.4
    monkeypatch.setattr(node, "replay", lambda *_, **__: 40)
    assert main(["replay", str(path), "--gateway-config", str(config), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["gaps"], said["windows_lost_to_gaps"]) == (1, lost)
    assert main(["replay", str(path), "--gateway-config", str(config)]) == 0
    assert f"gaps in time: 1; windows lost to gaps: {lost}\n" in capsys.readouterr().out
    assert main(["replay", str(path), "--gateway", "north", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["checked"], said["windows_lost_to_gaps"]) == (False, None)
    assert main(["replay", str(path), "--gateway", "north"]) == 0
    assert "lost windows are not checked: give --gateway-config" in capsys.readouterr().out


def test_frames_of_a_replay_carry_the_time_of_the_recording(tmp_path: Path) -> None:
    sent = [(due_s, frame) for due_s, frame in node.frames(read(holed(tmp_path)), 7.0, 0, "b")]
    assert [frame.meta.t_ns / NS for _, frame in sent] == pytest.approx([0, 7, 14, 50, 57, 64])
    assert [len(frame.values) for _, frame in sent] == [70, 70, 60, 70, 70, 60]  # none over the hole
    assert [due_s for due_s, _ in sent] == pytest.approx([7, 14, 20, 57, 64, 70])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--stream", "dekc"], "--stream dekc: GATEWAY has no [[source]] of kind 'frames' with this name"),
        (["--stream", "climate"], "so the gateway would drop all; expected one of: deck"),
        (["--stream", "deck"], "2 channels ('load', 'wind'); expected 1 for source 'deck' of GATEWAY: load; choose wi"),
    ],
)
def test_what_the_gateway_would_drop_is_refused(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.setattr(node, "replay", lambda *_, **__: 1)
    config, path = settings_of(tmp_path, TWO_SOURCES), tmp_path / "two.csv"
    path.write_text("load,wind\n" + "1,2\n" * 100)
    base = ["replay", str(path), "--read", "rate_hz=10", "--gateway-config", str(config)]
    assert main([*base, *words]) == 2
    assert told.replace("GATEWAY", str(config)) in capsys.readouterr().err
    assert main([*base, "--stream", "deck", "--channels", "load", "-q"]) == 0
    assert main([*base[:3], "rate_hz=200", *base[4:], "--stream", "deck", "--channels", "load"]) == 2
    assert "has 200.0 Hz; expected 0 to rate_hz = 10.0 Hz" in capsys.readouterr().err


def test_times_on_the_command_line_count_the_gaps(tmp_path: Path) -> None:
    whole = read(holed(tmp_path))
    late = whole.cut(60.0, 70.0)
    assert len(late.values) == 100 and not len(late.gaps.rows)
    assert late.values[0, 0] == whole.values[300, 0]
    over = whole.cut(15.0, 55.0)
    assert over.gaps.rows.tolist() == [50] and over.length_s == pytest.approx(40.0)
    inside = whole.cut(30.0, 51.0)  # begins in the hole, and with it behind it
    assert len(inside.values) == 10 and inside.values[0, 0] == whole.values[200, 0]


def test_states_go_on_in_gaps_and_move_along(tmp_path: Path) -> None:
    at_s = stamps((0, 20), (50, 70))
    path = tmp_path / "states.csv"
    path.write_text("t,load,label\n" + "".join(f"{t},1,{int(t >= 60)}\n" for t in at_s))
    whole = read(path)
    assert whole.states == (State(0.0, 60.0, 0, "healthy"), State(60.0, 70.0, 1, "damaged"))
    assert whole.cut(55.0, 70.0).states == (State(0.0, 5.0, 0, "healthy"), State(5.0, 15.0, 1, "damaged"))


def test_time_that_goes_back_begins_the_windows_anew(tmp_path: Path) -> None:
    back = Gaps(np.array([200]), np.array([-3_600 * NS]))
    recording = Recording("r", (Channel("load"),), float(RATE_HZ), np.repeat(LEVELS, 200)[:, None], gaps=back)
    assert recording.length_s == 40.0 and recording.rows(200, 400).length_s == 20.0
    spec = spec_of("load", rate_hz=10.0, window_s=4.0, hop_s=2.0)
    events = list(cut_windows(spec, [StreamSpec(name="deck", channels=("load",))], recording))
    assert [type(event).__name__ for event in events] == ["Window"] * 9 + ["Lost"] + ["Window"] * 9
    assert all(np.ptp(event.values) == 0.0 for event in events if isinstance(event, Window))
    assert "time jumped by -3600.000 s" in next(event.reason for event in events if isinstance(event, Lost))


def test_missing_values_at_the_end_are_counted_too() -> None:
    values = np.ones((80, 1))
    values[-2:] = np.nan  # two places would be bridged, had anything followed
    recording = Recording("r", (Channel("load"),), float(RATE_HZ), values)
    spec = spec_of("load", rate_hz=10.0, window_s=4.0)
    events = list(cut_windows(spec, [StreamSpec(name="deck", channels=("load",))], recording))
    assert [type(event).__name__ for event in events] == ["Window", "Lost"]


@pytest.mark.parametrize("more", [{}, {"aggregate": "mean"}, {"aggregate": "mean", "fill": "hold", "gap_s": 9.0}])
def test_the_last_window_of_a_recording_is_whole_without_a_sample_behind_it(more: dict[str, object]) -> None:
    recording = Recording("r", (Channel("load"),), float(RATE_HZ), np.arange(80.0)[:, None])
    spec = spec_of("load", rate_hz=10.0, window_s=4.0)
    stream = StreamSpec.model_validate({"name": "deck", "channels": ["load"], **more})
    events = list(cut_windows(spec, [stream], recording))
    assert [event.values.mean() for event in events if isinstance(event, Window)] == [19.5, 59.5] and len(events) == 2


def test_each_source_bridges_as_its_own_settings_say(tmp_path: Path) -> None:
    """A reading of the climate holds for 900 s, a sample of the deck for three places."""
    path, config = tmp_path / "both.csv", settings_of(tmp_path, TWO_SOURCES)
    for silent, windows in (("load", 6), ("temperature", 9)):
        rows = [f"{'' if silent == 'load' and 90 <= i < 110 else i},{'' if 90 <= i < 110 else 7}" for i in range(200)]
        path.write_text("load,temperature\n" + "\n".join(rows) + "\n")
        words = ["-c", str(config), "--label", "1", "--read", "rate_hz=10", "--out", str(tmp_path / f"{silent}.csv")]
        assert main(["label", str(path), *words]) == 0
        assert (tmp_path / f"{silent}.csv").read_text().count("\n") == 2 + windows


@pytest.mark.parametrize(
    ("at_s", "gaps"),
    [
        ([0, 1, 2, 3, 4], []),
        ([0, 1.1, 2, 2.9, 4], []),
        ([0, 1, 2, 5, 6], [(3, 2.0)]),
        ([0, 1, 2, 3, 0, 1, 2], [(4, -4.0)]),
        ([0, 0, 0, 1, 1, 1, 2, 2, 2, 9, 9, 9, 10, 10], [(9, 6.0)]),  # stamps coarser than the rows
        ([5, 5, 5], []),
        ([5], []),
    ],
)
def test_gaps_are_found_by_the_usual_interval(at_s: list[float], gaps: list[tuple[int, float]]) -> None:
    found = find_gaps(np.array([round(t * NS) for t in at_s], dtype=np.int64))
    assert list(zip(found.rows.tolist(), (found.lost_ns / NS).tolist(), strict=True)) == gaps


def test_a_clock_that_runs_wild_overflows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "wild.csv"
    path.write_text("t [ns],load\n" + "".join(f"{-((-1) ** i) * 4 * 10**18},1\n" for i in range(40)))
    whole = read(path)
    assert (whole.gaps.lost_ns < 0).all() and len(whole.cut(0.0, whole.length_s).values) == 40


def test_a_gap_does_not_slow_a_rate_from_coarse_stamps(tmp_path: Path) -> None:
    at_s = [t for t in (*range(20), *range(80, 100)) for _ in range(5)]
    path = tmp_path / "coarse.csv"
    path.write_text("t,load\n" + "".join(f"{t},1\n" for t in at_s))
    assert read(path).rate_hz == pytest.approx(5.0, rel=0.05)
