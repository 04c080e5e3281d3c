"""Evidence at the aggregator: stored once under its gateway and alarm, bounded, and shown."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.alarms import evidence as receiving
from fedgate.cloud_aggregator.events import RecordEvidence
from fedgate.cloud_aggregator.storage import evidence_table
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.evidence.likely_cause import find_likely_cause
from fedgate.config.evidence.observation import measure_onset
from fedgate.config.evidence.text import WIDTH, render_evidence
from fedgate.config.protocol.evidence import (
    BANDS_MAX,
    CHANNELS_MAX,
    SENTENCE_MAX,
    AlarmEvidence,
    BandChange,
    ChannelHealth,
    make_trail,
)
from fedgate.config.protocol.messages import CONTROL, TRAIL_MAX, Receipt
from fedgate.config.settings.database import DatabaseUrl
from fedgate.config.web.charts import draw_evidence
from tests.cloud_aggregator.test_aggregator_machine import ALARM
from tests.support.cloud_service import Cloud, cloud, heard, mean_of, receipts
from tests.support.evidence_samples import make_evidence
from tests.support.sites import T0_NS


def of_alarm(alarm: str, **changes: object) -> AlarmEvidence:
    return make_evidence().model_copy(update={"alarm": alarm, **changes})


EVIDENCE = of_alarm(ALARM.id, cause=ALARM.cause)


def give(made: Cloud, gateway: str, one: AlarmEvidence, item: str = "") -> list[Receipt]:
    return receipts(made.hear(heard(gateway, "evidence", one.to_bytes(), item or one.item)))


@pytest.mark.parametrize("is_first", [True, False])
def test_evidence_is_kept_whether_its_alarm_is_here_or_comes_later(tmp_path: Path, is_first: bool) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        messages = [heard("north", "evidence", EVIDENCE.to_bytes(), EVIDENCE.item)]
        alarm = heard("north", "alarm", ALARM.to_bytes(), ALARM.cause)
        messages = [*messages, alarm] if is_first else [alarm, *messages]
        assert receipts(made.hear(*messages)) == [Receipt(accepted=True)] * 2
        assert made.service.store.read_evidence("north", ALARM.id) == EVIDENCE


def test_the_first_of_an_alarm_stays_and_no_gateway_speaks_for_another(tmp_path: Path) -> None:
    other = EVIDENCE.model_copy(update={"score": 9.0})
    with cloud(tmp_path, mean_of(2)) as made:
        for gateway, one in (("north", EVIDENCE), ("north", EVIDENCE), ("north", other), ("east", other)):
            assert give(made, gateway, one) == [Receipt(accepted=True)]
        store = made.service.store
        assert store.read_evidence("north", ALARM.id) == EVIDENCE and store.read_evidence("east", ALARM.id) == other
        assert len(store.read_rows("evidence")) == 2
        assert store.read_evidence("north", "x") is None


def test_what_makes_no_sense_is_refused_for_good_and_strangers_are_not_answered(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        for body in (b"x", b"[" * 20_000, EVIDENCE.to_bytes().replace(b'"own baseline"', b'"mine"')):
            (receipt,) = receipts(made.hear(heard("north", "evidence", body, EVIDENCE.item)))
            assert not receipt.accepted and "AlarmEvidence" in receipt.reason
        (receipt,) = give(made, "north", EVIDENCE, of_alarm("other").item)
        assert not receipt.accepted and "and of its alarm" in receipt.reason
        assert give(made, "north", EVIDENCE, "other") == []
        assert give(made, "stranger", EVIDENCE) == []
        assert not made.service.store.read_rows("evidence")


def test_who_sends_without_end_waits_and_nobody_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "AT_ONCE", 3)
    with cloud(tmp_path, mean_of(2)) as made:
        answers = [give(made, "north", of_alarm(f"north.{number}")) for number in range(5)]
        assert answers == [[Receipt(accepted=True)]] * 3 + [[]] * 2
        assert give(made, "east", EVIDENCE) == [Receipt(accepted=True)]


@pytest.mark.parametrize("bound", ["KEPT", "KEPT_BYTES"])
def test_the_newest_of_each_gateway_are_kept_by_number_and_by_bytes(
    place: Path | DatabaseUrl, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    wide = "\N{SNOWMAN}" * SENTENCE_MAX  # three bytes each: a store that counted letters would keep one more
    size = len(of_alarm(ALARM.id, text=wide).to_bytes()) + evidence_table.ROW_BYTES
    monkeypatch.setattr(evidence_table, "BETWEEN", 1)
    monkeypatch.setattr(evidence_table, bound, {"KEPT": 3, "KEPT_BYTES": 3 * size + 50}[bound])
    with closing(Store(place)) as store:
        store.commit([RecordEvidence("east", EVIDENCE, T0_NS)])
        for number in range(6):
            one = of_alarm(f"{ALARM.id[:-1]}{number}", text=wide)
            store.commit([RecordEvidence("north", one, T0_NS)])
        kept = [(row["gateway"], row["alarm"][-1]) for row in store.read_rows("evidence", "gateway", "alarm")]
        assert kept == [("east", ALARM.id[-1]), ("north", "3"), ("north", "4"), ("north", "5")]
        assert store.read_evidence("north", f"{ALARM.id[:-1]}2") is None


def test_the_text_says_what_stands_out_which_bands_are_beyond_and_which_sensor_is_ill() -> None:
    whole = make_evidence("vertical.band[3.1-3.4Hz]", 1, bands=4)
    assert whole.spectrum is not None
    spectrum = whole.spectrum.model_copy(update={"worst": (0.5, 9.0, 2.5, 3.5)})
    trail = make_trail([(T0_NS + place * 10**9, 0.1 if place < 150 else 3.0, 0.68) for place in range(TRAIL_MAX)])
    text = render_evidence(whole.model_copy(update={"spectrum": spectrum, "trail": trail}))
    assert "1 of 4 bands are above their healthy 95 % quantile" in text and "x 6" in text and "1 - 2" in text
    assert "never moved" in text and "1099511627776 values bridged, 7 windows lost" in text
    assert (
        "the window that raised it: score 3.58 at the level 0.681 of its own baseline" in text
        and "╌" in text
        and "█" in text
    )
    plain = make_evidence(contributions=0, channels=0).model_copy(
        update={"spectrum": None, "trail": None, "no_spectrum": "x"}
    )
    assert "none stands out alone" in render_evidence(plain) and "spectrum: none (x)" in render_evidence(plain)


@pytest.mark.parametrize("sign", ["\N{SNOWMAN}", "x ", '"'])
def test_whatever_it_holds_the_text_fits_a_terminal(sign: str) -> None:
    whole = make_evidence((sign * 120)[:120], 5, TRAIL_MAX, BANDS_MAX, CHANNELS_MAX)
    assert whole.spectrum is not None
    beyond = whole.spectrum.model_copy(update={"worst": (1e30,) * BANDS_MAX, "t_ns": 2**63 - 1})
    text = render_evidence(whole.model_copy(update={"spectrum": beyond, "onset_ns": -(2**63) + 1}))
    assert max(map(len, text.split("\n"))) <= WIDTH and not CONTROL.search(text.replace("\n", ""))


def test_a_score_far_above_its_level_leaves_the_others_to_be_seen() -> None:
    seen = [(T0_NS + place * 10**9, 0.2 + 0.1 * (place % 3) if place < 60 else 5_000.0, 1.0) for place in range(70)]
    text = render_evidence(make_evidence().model_copy(update={"trail": make_trail(seen)}))
    rows = [line.partition("│")[2] for line in text.split("\n") if "│" in line]
    assert "the axis is logarithmic" in text
    assert len(set(rows[-1][:60])) == 3  # three heights of healthy scores
    assert rows[0][60:].strip() == "█" * 10 and not rows[0][:60].strip("╌ ")


@pytest.mark.parametrize("level", [5e-324, 1e-300, 1e-30, -1e-300])
def test_a_level_as_small_as_a_number_can_be_breaks_no_drawing(level: float) -> None:
    trail = make_trail([(T0_NS + place * 10**9, 1e30 * (place == 9), level) for place in range(10)])
    whole = make_evidence().model_copy(update={"trail": trail, "level": level})
    assert "the axis is logarithmic" in render_evidence(whole)
    drawn = draw_evidence(whole)["trail"]
    assert math.log10(drawn["linear_to"]).is_integer()


def rising(windows: int, before: int = 60) -> AlarmEvidence:
    """Scores that rise to the level within so many windows."""
    scores = [0.1 * (place % 2) for place in range(before)] + [(place + 1) / windows for place in range(windows)]
    trail = make_trail([(T0_NS + place * 10**9, score, 1.0) for place, score in enumerate(scores)])
    return make_evidence().model_copy(update={"trail": trail, "onset_ns": T0_NS + (len(scores) - 1) * 10**9})


def test_nothing_is_said_of_an_onset_before_which_little_was_seen() -> None:
    for early in (rising(3, before=4), make_evidence(windows=0)):
        assert measure_onset(early) is None and "rise" not in find_likely_cause(early).signs


def test_bands_that_fell_are_shown_beside_those_that_rose() -> None:
    whole = make_evidence(bands=20)
    assert whole.spectrum is not None
    low, high = (tuple(0.5 * one for one in whole.spectrum.worst), tuple(2.0 * one for one in whole.spectrum.worst))
    now = (*(0.001 * one for one in low[:9]), *whole.spectrum.worst[9:11], *(10.0 * one for one in high[11:]))
    spectrum = whole.spectrum.model_copy(update={"worst": now, "healthy_5": low, "healthy_95": high})
    text = render_evidence(whole.model_copy(update={"spectrum": spectrum}))
    assert "9 of 20 bands are above their healthy 95 % quantile, 9 below their 5 %, of which the 12" in text
    assert text.count("x 0.0005") == 9 and text.count("x 20") == 3
    calm = whole.spectrum.model_copy(update={"healthy_5": low, "healthy_95": high})
    text = render_evidence(whole.model_copy(update={"spectrum": calm}))
    assert "no band is outside of its healthy 5 to 95 % quantiles" in " ".join(text.split())


def test_channels_outside_of_their_baseline_are_counted_and_covariates_apart() -> None:
    names = ("north", "south", "air")
    health = tuple(
        ChannelHealth(channel=name, features=9, outside=outside, farthest=f"{name}.level", deviation=outside + 0.5,
                      is_covariate=name == "air")
        for name, outside in zip(names, (0, 4, 9), strict=True)
    )  # fmt: skip
    changes = (BandChange(channel="north", decibels=(0, 3)), BandChange(channel="south", decibels=(-12, 40)))
    whole = make_evidence().model_copy(update={"health": health, "changes": changes, "weather": "explained"})
    lines = render_evidence(whole).split("\n")
    said = " ".join(" ".join(lines).split())
    assert "; of the structure one of 2 (south: mean is 4.5 healthy" in said
    assert [line.split()[-1] for line in lines if line.strip().startswith(("north  ", "south  "))][-2:] == ["·+", "=#"]
    assert any("south" in line and "4 of   9 features, farthest level: +4.5 spreads off" in line for line in lines)
    assert "- weather: outside of the baseline, which accounts for the alarm" in said
