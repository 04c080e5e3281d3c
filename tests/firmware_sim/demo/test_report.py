"""Goal: the report says what happened, the same in all its forms, and never more than was measured.

Method: one small trace whose figures can be counted by hand, read back from table, JSON, page and the picture's pixels.
"""

import base64
import dataclasses
import io
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedgate.firmware_sim.demo import picture, report
from fedgate.firmware_sim.demo.outcome import AlarmSpan, OutcomeError, Scenario, Trace, evaluate
from fedgate.firmware_sim.pictures import VERMILLION

SCENARIO = Scenario(
    title="A beam & its <support>",
    data="Recorded on a beam, CC0. The damage is injected.",
    damage=((100.0, 160.0, "support lowered"),),
    commissioning=(0.0, 20.0),
    notes=("It was warm.",),
)


def make_trace(**changes: Any) -> Trace:
    """Sixteen windows of 10 s: seven healthy, one across the change, five damaged, one across the end, two healthy."""
    t_s = np.arange(35.0, 186.0, 10.0)
    label = np.array([0] * 7 + [-1] + [1] * 5 + [-1] + [0] * 2)
    alarmed = np.zeros(16, dtype=np.bool_)
    alarmed[[3, 10, 11, 12, 13, 14]] = True
    trace = Trace(
        gateway="north",
        sensor="FRC-01 [kN]",
        t_s=t_s,
        score=np.where(label == 1, 5.0, 1.0) + 0.01 * np.arange(16),
        level=np.full(16, 3.0),
        label=label,
        alarmed=alarmed,
        model_version=np.array([1] * 5 + [2] * 11),
        alarms=(AlarmSpan("a", 55.0, 65.0, 75.0), AlarmSpan("b", 115.0, 135.0, 185.0)),
        window_s=10.0,
        bytes_sent=12_340,
        bytes_received=56_780,
        trivial=np.zeros(16),
    )
    return dataclasses.replace(trace, **changes)


def nothing() -> dict[str, Any]:
    """The columns of a gateway that scored no window."""
    empty = np.zeros(0)
    whole, state = empty.astype(np.int64), empty.astype(np.bool_)
    columns = {"t_s": empty, "score": empty, "level": empty, "label": whole, "alarmed": state, "model_version": whole}
    return {**columns, "alarms": (), "trivial": None, "gateway": "dead"}


def pixels(png: bytes) -> NDArray[np.float64]:
    return matplotlib.image.imread(io.BytesIO(png), format="png")[..., :3].astype(np.float64)  # (height, width, 3)


def count(image: NDArray[np.float64], colour: str) -> int:
    return int((np.abs(image - to_rgb(colour)).max(axis=2) < 0.01).sum())


def test_figures_that_can_be_counted_by_hand() -> None:
    result = evaluate(make_trace(), SCENARIO)
    assert (result.windows, result.windows_healthy, result.windows_damaged) == (16, 9, 5)
    assert result.hours_healthy == pytest.approx(90 / 3600)
    assert result.false_alarms == 1
    assert result.false_alarms_per_hour == pytest.approx(3600 / 90)
    assert result.false_alarms_per_hour_bound is None
    assert (result.detected, result.detection_delay_s) == (True, 35.0)
    assert result.recall == pytest.approx(3 / 5)
    assert result.precision == pytest.approx(3 / 5)  # of the six windows in alarm one is neither
    assert (result.auc, result.trivial_auc) == (1.0, 0.5)
    assert (result.bytes_sent, result.bytes_received, result.model_version) == (12_340, 56_780, 2)
    assert result.verdict == "detected after 35 s  ·  1 false alarm in 1.5 min  ·  AUC 1.000"


def test_alarm_that_stood_before_the_damage_is_no_detection() -> None:
    result = evaluate(make_trace(alarms=(AlarmSpan("a", 55.0, 65.0, None),)), SCENARIO)
    assert (result.detected, result.detection_delay_s, result.false_alarms) == (False, None, 1)
    assert result.verdict.startswith("not detected")


def test_replay_without_damage_and_gateway_without_windows() -> None:
    healthy = evaluate(make_trace(label=np.zeros(16, dtype=np.int64)), dataclasses.replace(SCENARIO, damage=()))
    assert (healthy.detected, healthy.false_alarms) == (False, 2)
    assert healthy.hours_healthy == pytest.approx(160 / 3600)
    assert healthy.verdict == "saw nothing damaged  ·  2 false alarms in 2.7 min"
    dead = evaluate(make_trace(**nothing()), SCENARIO)
    assert dead.model_version is None and math.isnan(dead.auc) and math.isnan(dead.false_alarms_per_hour)
    assert dead.verdict == "scored no window"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score": np.zeros(3)}, r"north: score has shape \(3,\), expected \(16,\)"),
        ({"trivial": np.zeros(3)}, "trivial has shape"),
        ({"t_s": np.full(16, 1.0)}, "does not ascend"),
        ({"label": np.full(16, 2)}, r"labels \[2\]"),
        ({"score": np.full(16, np.nan)}, "16 scores are nan"),
    ],
)
def test_trace_that_contradicts_itself_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(OutcomeError, match=message):
        make_trace(**changes)


def test_table_is_aligned_and_shows_a_dash_where_nothing_was_measured() -> None:
    results = [evaluate(make_trace(), SCENARIO), evaluate(make_trace(**nothing()), SCENARIO)]
    lines = report.table(results).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines[1:]}) == 1
    assert lines[2].split() == [
        *["north", "FRC-01", "[kN]", "9", "5", "0.025", "1", "40", "35.0", "0.600", "0.600", "1.000", "0.500"],
        *["12.3", "56.8", "2"],
    ]
    assert lines[3].split()[6:] == ["0", "-", "-", "-", "-", "-", "-", "12.3", "56.8", "-"]


def test_json_holds_the_same_figures_and_null_for_nan() -> None:
    results = [evaluate(make_trace(), SCENARIO), evaluate(make_trace(**nothing()), SCENARIO)]
    read = json.loads(json.dumps(report.to_json(SCENARIO, results, {"rounds": 3}), allow_nan=False))
    assert read["damage"] == [{"start_s": 100.0, "end_s": 160.0, "what": "support lowered"}]
    assert read["run"] == {"rounds": 3}
    assert read["gateways"][0] == dataclasses.asdict(results[0])
    assert read["gateways"][1]["auc"] is None and read["gateways"][1]["detection_delay_s"] is None
    assert read["limits"][-1] == "It was warm."


def test_limits_name_what_was_missed_and_where_the_model_adds_nothing() -> None:
    good = make_trace(alarms=make_trace().alarms[1:])
    said = " ".join(report.limits(SCENARIO, [evaluate(good, SCENARIO)]))
    assert "watched 1.5 min" in said and "40 per hour" in said
    assert f"up to {-math.log(0.05) * 3600 / 90:.3g} per hour" in said
    assert "not detected" not in said and "trivial" not in said
    blind = make_trace(gateway="south", alarms=(), trivial=make_trace().score)
    said = " ".join(report.limits(SCENARIO, [evaluate(good, SCENARIO), evaluate(blind, SCENARIO)]))
    assert "not detected by south." in said and "On south a trivial detector" in said
    assert "nothing is known" in report.limits(SCENARIO, [evaluate(make_trace(**nothing()), SCENARIO)])[0]


@pytest.mark.soak
def test_picture_shows_damage_alarms_and_every_gateway() -> None:
    png = picture.draw(SCENARIO, [make_trace()])
    assert png == picture.draw(SCENARIO, [make_trace()])
    image = pixels(png)
    share = count(image, picture.DAMAGED) / count(image, picture.COMMISSIONING)
    assert share == pytest.approx(60 / 20, rel=0.25)  # by length, but for what is drawn over it
    quiet = pixels(picture.draw(SCENARIO, [make_trace(alarms=(), alarmed=np.zeros(16, dtype=np.bool_))]))
    assert count(image, VERMILLION) > 1.5 * count(quiet, VERMILLION)
    two = pixels(picture.draw(SCENARIO, [make_trace(), make_trace(**nothing())]))
    assert two.shape[0] > image.shape[0] and two.shape[1] == image.shape[1]


@pytest.mark.soak
def test_picture_takes_names_as_they_are() -> None:
    picture.draw(dataclasses.replace(SCENARIO, title=r"$\oops$"), [make_trace(gateway="$x_{", sensor=r"50 $ [\%]")])


@pytest.mark.parametrize(
    ("score", "scale"), [([0.5, 4.0], "linear"), ([0.5, 400.0], "log"), ([-0.5, 400.0], "symlog"), ([-9, 9], "linear")]
)
def test_scores_that_dwarf_the_level_get_a_logarithmic_axis(score: list[float], scale: str) -> None:
    axes = Figure().add_subplot()
    picture._choose_scale(axes, np.array(score), np.array([np.nan, 1.0]))
    assert axes.get_yscale() == scale


def test_decades_of_an_axis_with_a_linear_part_keep_clear_of_zero() -> None:
    axes = Figure().add_subplot()
    picture._choose_scale(axes, np.array([-2.0, 3e4]), np.array([np.nan, 189.0]))
    assert list(axes.get_yticks()) == [0.0, 1e3, 1e4]
    axes.clear()
    picture._choose_scale(axes, np.array([-3e4, 2e3]), np.array([np.nan, 189.0]))
    assert sorted(axes.get_yticks()) == [-1e4, -1e3, 0.0, 1e3]


class Page(HTMLParser):
    """Checks nesting; gathers the text and all addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_page_stands_alone_and_says_everything(tmp_path: Path) -> None:
    extra = {"broker": "<amqtt>", "ports": [1, 2]}
    paths = report.write(SCENARIO, [make_trace(), make_trace(gateway="<b>south")], tmp_path / "new", extra)
    page = Page(paths.html.read_text(encoding="utf-8"))
    assert page.open == []
    assert page.addresses == ["data:image/png;base64," + base64.b64encode(paths.png.read_bytes()).decode()]
    text = " ".join(page.text)
    for expected in (SCENARIO.title, SCENARIO.data, "It was warm.", "<b>south", "<amqtt>", "[1, 2]", "0.600", "35.0"):
        assert expected in text


@pytest.mark.soak
def test_report_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    report.write(SCENARIO, [make_trace()], tmp_path, {})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {"report.json", "report.png", "report.html"}
    with pytest.raises(TypeError):
        report.write(SCENARIO, [make_trace(gateway="other")], tmp_path, {"unwritable": object()})
    with pytest.raises(ValueError, match="nan"):
        report.write(SCENARIO, [make_trace(gateway="other")], tmp_path, {"unwritable": math.nan})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    report.write(SCENARIO, [make_trace(gateway="other")], tmp_path, {})
    assert "other" in (tmp_path / "report.json").read_text(encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == set(before)
