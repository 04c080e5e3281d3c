"""Windows of known condition: from a recording to the training of an algorithm that learns from labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol import wire
from fedgate.config.settings.labelled import LabelledError, head, read, read_labelled
from fedgate.config.settings.settings import GatewaySettings, load
from fedgate.firmware_sim.__main__ import main
from fedgate.gateway_agent.__main__ import main as gateway_agent
from fedgate.gateway_agent.runtime.training_worker import add_labelled, answer
from fedgate.models.arrays import FEATURES, LABELS, MISSING, NEW_SERIES, joined, parted
from fedgate.models.federated import build
from tests.support.sites import FEATURES as SPEC
from tests.support.sites import SITE, gateway_settings, samples

SETTINGS = gateway_settings()
MARK, WITH_GAPS = head(SETTINGS.features)
HEADER = WITH_GAPS.replace(",missing", "")
NAMES = HEADER.split(",")[:-1]


def table(folder: Path, *rows: str, header: str = HEADER, mark: str = MARK) -> Path:
    path = folder / "faults.csv"
    path.write_text("\n".join((mark, header, *rows)) + "\n", encoding="utf-8")
    return path


def test_columns_may_come_in_any_order_and_spreadsheets_may_mark_their_files(tmp_path: Path) -> None:
    shuffled = "label," + ",".join(reversed(NAMES))
    path = table(tmp_path, "2,3,2,1", "", "0,6,5,4", header=shuffled)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    found = read(path, SETTINGS.features)
    assert found[FEATURES].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert found[LABELS].tolist() == [2, 0] and found[LABELS].dtype == np.int64
    assert found[MISSING].tolist() == [NEW_SERIES, 0]


@pytest.mark.parametrize(
    ("rows", "header", "words"),
    [
        (["1,2,3,1"], HEADER.replace("load.peak", "load.rms"), r"faults.csv:2: .*differing: \['load.peak', 'load.rms"),
        (["1,2,3,1,1"], HEADER + ",label", "a column twice"),
        (["1,2,3,1", "", "1,2,1"], HEADER, r"faults.csv:5: expected 4 finite numbers, got '1,2,1'"),
        (["1,2,nan,1"], HEADER, "faults.csv:3: expected 4 finite numbers"),
        (["1,2,x,1"], HEADER, "faults.csv:3: expected 4 finite numbers"),
        (["1,2,3,0"], HEADER, "at least one window of a fault"),
        (["1,2,3,1.5"], HEADER, "faults.csv:3: label: expected a whole number from 0 to 999, got 1.5"),
        (["1,2,3,-1", "1,2,3,1"], HEADER, "got -1"),
        (["1,2,3,1e300"], HEADER, r"got 1e\+300"),
        (["1,2,3,-1,1", "1,2,3,-2,1"], WITH_GAPS, "faults.csv:4: missing: expected a whole number of windows"),
        (["1,2,3,0.5,1"], WITH_GAPS, "missing: .*got 0.5"),
        ([], HEADER, "at least one window of a fault"),
        (["1,2,3,1"] * 20_001, HEADER, "at most 20000 windows"),
    ],
)
def test_a_wrong_table_is_refused_with_file_and_line(tmp_path: Path, rows: list[str], header: str, words: str) -> None:
    with pytest.raises(LabelledError, match=words):
        read(table(tmp_path, *rows, header=header), SETTINGS.features)


def test_windows_of_another_length_are_other_windows(tmp_path: Path) -> None:
    """Columns have the same names whatever the window."""
    longer = SETTINGS.features.model_copy(update={"window_s": 2.0})
    with pytest.raises(LabelledError, match=r"faults.csv:1: expected '# features .*measure the windows again"):
        read(table(tmp_path, "1,2,3,1"), longer)


def test_no_table_and_no_file_are_told_apart(tmp_path: Path) -> None:
    assert read_labelled(gateway_settings()) == {}
    with pytest.raises(LabelledError, match=r"gone.csv: cannot be read"):
        read_labelled(gateway_settings(training={"labelled": tmp_path / "gone.csv"}))
    (tmp_path / "empty.csv").write_text("", encoding="utf-8")
    with pytest.raises(LabelledError, match="measure the windows again with firmware-sim label"):
        read_labelled(gateway_settings(training={"labelled": tmp_path / "empty.csv"}))


def settings_file(folder: Path) -> Path:
    steps = ", ".join(f'{{ kind = "{step["kind"]}" }}' for step in SPEC["steps"])
    path = folder / "gateway.toml"
    path.write_text(
        f"""
        [gateway]
        id = "north"
        site = "{SITE}"
        [[source]]
        name = "deck"
        kind = "frames"
        channels = [{{ role = "load" }}]
        [features]
        rate_hz = 20.0
        window_s = 1.0
        channels = ["load"]
        steps = [{steps}]
        [training]
        labelled = "faults.csv"
        """,
        encoding="utf-8",
    )
    return path


def test_check_reads_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gateway_agent(["check", "-c", str(settings_file(tmp_path))]) == 2
    assert "faults.csv: cannot be read" in capsys.readouterr().err


def test_a_recording_becomes_rows_that_a_gateway_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, shift in (("healthy", 0.0), ("fault", 4.0)):
        np.savetxt(tmp_path / f"{name}.csv", samples(1, 5, shift), header="value", comments="")
    config, out = settings_file(tmp_path), tmp_path / "faults.csv"
    base = ["-c", str(config), "--out", str(out), "--read", "rate_hz=20", "--channels", "value"]
    assert main(["label", str(tmp_path / "healthy.csv"), "--label", "0", *base]) == 0
    capsys.readouterr()
    assert main(["label", str(tmp_path / "fault.csv"), "--label", "3", "--json", *base]) == 0
    assert json.loads(capsys.readouterr().out)["windows"] == 5
    found = read_labelled(load(config, GatewaySettings))
    assert found[LABELS].tolist() == [0] * 5 + [3] * 5
    assert found[MISSING].tolist() == [NEW_SERIES, 0, 0, 0, 0] * 2
    assert found[FEATURES][5:, 0] - found[FEATURES][:5, 0] == pytest.approx(np.full(5, 4.0))
    assert main(["label", str(tmp_path / "fault.csv"), "--label", "-1", *base]) == 2
    assert main(["label", str(tmp_path / "fault.csv"), "--label", "1", *base[:-2]]) == 2
    assert "no channel 'load'" in capsys.readouterr().err
    assert main(["label", str(tmp_path / "fault.csv"), "--label", "3", *base]) == 2
    assert "holds the windows of this recording with label 3 already" in capsys.readouterr().err
    assert len(out.read_text(encoding="utf-8").splitlines()) == 12
    config.write_text(config.read_text(encoding="utf-8").replace('{ kind = "peak" }', '{ kind = "rms" }'), "utf-8")
    assert main(["label", str(tmp_path / "fault.csv"), "--label", "1", *base]) == 2
    assert "faults.csv: was measured with other [features]" in capsys.readouterr().err


def test_an_aggregator_makes_the_tables_that_it_trusts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savetxt(tmp_path / "fault.csv", samples(1, 5, 4.0), header="value", comments="")
    gateway = settings_file(tmp_path)
    features = gateway.read_text(encoding="utf-8").split("[features]")[1].split("[training]")[0]
    config, out = tmp_path / "aggregator.toml", tmp_path / "trusted.csv"
    config.write_text(f"[aggregator]\nsite = '{SITE}'\n[features]{features}", encoding="utf-8")
    base = ["--out", str(out), "--read", "rate_hz=20", "--channels", "value", "--label", "1"]
    assert main(["label", str(tmp_path / "fault.csv"), "-c", str(config), *base]) == 0
    assert read(out, load(gateway, GatewaySettings).features)[LABELS].tolist() == [1] * 5
    config.write_text("[aggregator", encoding="utf-8")
    assert main(["label", str(tmp_path / "fault.csv"), "-c", str(config), *base]) == 2
    assert "not TOML" in capsys.readouterr().err


def labelled_rows(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {FEATURES: rng.normal([6.0, 1.0, 6.0], 0.3, (30, 3)), LABELS: np.ones(30, dtype=np.int64)}


def test_labelled_windows_begin_a_series_of_their_own_behind_the_baseline() -> None:
    data = {FEATURES: np.zeros((3, 2)), MISSING: np.array([NEW_SERIES, 0, 4])}
    known = {FEATURES: np.ones((3, 2)), LABELS: np.array([1, 0, 1])}
    both = add_labelled(data, known)
    assert both[MISSING].tolist() == [NEW_SERIES, 0, 4, NEW_SERIES, 0, 0]
    assert both[LABELS].tolist() == [0, 0, 0, 1, 0, 1] and len(both[FEATURES]) == 6
    assert add_labelled(data, {**known, MISSING: np.array([NEW_SERIES, 0, NEW_SERIES])})[MISSING][-1] == NEW_SERIES


def test_without_labels_the_training_says_how_to_name_them() -> None:
    chosen = {"loss": "logistic", "components": 0}
    shared = build("fedavg", 3, chosen).start(np.random.default_rng(0)).global_state
    order = {"algorithm": "fedavg", "settings": chosen, "feature_count": 3, "phase": 0, "seed": 0, "round_index": 0}
    order |= {"run": "run"}
    data = {FEATURES: np.random.default_rng(0).normal(size=(40, 3))}
    job = joined({"shared": shared, "own": {}, "data": data})
    arrays, meta = wire.decode(answer(wire.encode(job, {**order, "gateway": "north", "secret": "", "drawn": ""})))
    assert arrays == {} and "name a table in training.labelled" in meta["remarks"][0]
    job = joined({"shared": shared, "own": {}, "data": data, "labelled": labelled_rows(0)})
    arrays, _ = wire.decode(answer(wire.encode(job, {**order, "gateway": "north", "secret": "", "drawn": ""})))
    update = parted(arrays)["update"]
    assert float(update["samples"]) == 70
