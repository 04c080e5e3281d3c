"""The evidence of an alarm as a message: its bounds, and what goes first where it is too long."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.protocol.evidence import (
    BANDS_MAX,
    CHANNELS_MAX,
    CONTRIBUTIONS_MAX,
    EVIDENCE_BYTES,
    LABEL_MAX,
    AlarmEvidence,
    count_json_bytes,
    fit,
    fit_text,
    make_trail,
    round_number,
)
from fedgate.config.protocol.messages import FARTHEST, TRAIL_MAX, MessageError, escape_text
from tests.support.evidence_samples import T0_NS, make_evidence

AIMED_BYTES = 8 * 1024


def test_its_item_follows_from_the_id_of_its_alarm() -> None:
    assert make_evidence().item == f"{hashlib.sha256(b'north.anomaly.1.boot').hexdigest()[:32]}.evidence"


def test_all_of_a_usual_gateway_is_in_the_length_that_is_aimed_at() -> None:
    whole = make_evidence("north.band[3.1-3.4Hz]", CONTRIBUTIONS_MAX, TRAIL_MAX, BANDS_MAX, channels=3)
    assert fit(whole) == whole and len(whole.to_bytes()) <= AIMED_BYTES


@settings(max_examples=30, deadline=None)
@given(
    label=st.sampled_from(
        ["x", '"' * LABEL_MAX, "\\" * LABEL_MAX, "\N{SNOWMAN}" * LABEL_MAX, "\U0001f30a" * LABEL_MAX]
    ),
    most=st.integers(3_000, EVIDENCE_BYTES),
    windows=st.integers(1, TRAIL_MAX),
)
def test_whatever_is_in_it_it_is_cut_to_its_bound_in_the_stated_order(label: str, most: int, windows: int) -> None:
    whole = make_evidence(label, CONTRIBUTIONS_MAX, windows, BANDS_MAX, CHANNELS_MAX)
    cut = fit(whole, most)
    assert len(cut.to_bytes()) <= most
    assert AlarmEvidence.from_bytes(cut.to_bytes()) == cut
    if cut.contributions != whole.contributions:  # the last that goes
        assert cut.trail is None and cut.spectrum is None and not cut.health
    if cut.spectrum is None:
        assert cut.no_spectrum == "cut for its length" and len(cut.health) < len(whole.health)


def test_cutting_keeps_the_newest_scores_their_levels_and_the_sum_of_bands() -> None:
    whole = make_evidence(windows=0, bands=64)
    trail = make_trail([(T0_NS + place * 10**9, float(place), 1.0 if place < 150 else 2.0) for place in range(200)])
    whole = whole.model_copy(update={"trail": trail})
    cut = fit(whole, 2_400)
    assert cut.trail is not None and cut.spectrum is not None and whole.spectrum is not None
    assert cut.trail.scores[-1] == 199.0 and cut.trail.first_ns == T0_NS + round(cut.trail.scores[0]) * 10**9
    assert cut.trail.list_levels() == [1.0 if score < 150 else 2.0 for score in cut.trail.scores]
    assert len(cut.spectrum.worst) < 64 and sum(cut.spectrum.worst) == pytest.approx(
        sum(whole.spectrum.worst), rel=1e-3
    )
    assert cut.spectrum.edges_hz[-1] == whole.spectrum.edges_hz[-1] and cut.cut == ("older scores", "narrow bands")


BAD: dict[str, dict[str, Any]] = {
    "number": {"score": 1e300},
    "cause": {"cause": "a/b"},
    "words": {"text": "\x1b[2J"},
    "level": {"level_of": "mine"},
    "feature": {"contributions": [{"feature": "x" * 121, "text": "", "amount": 0, "value": 0, "median": 0, "spread": 0,
                                   "deviation": 0}]},
    "scores": {"trail": {"first_ns": 0, "offsets_s": [0, 1], "scores": [1], "level_from": [0], "levels": [1]}},
    "no first level": {"trail": {"first_ns": 0, "offsets_s": [0], "scores": [1], "level_from": [1], "levels": [1]}},
    "no level": {"trail": {"first_ns": 0, "offsets_s": [0], "scores": [1], "level_from": [], "levels": []}},
    "too many windows": {"trail": {"first_ns": 0, "offsets_s": [0] * 201, "scores": [1] * 201, "level_from": [0],
                                   "levels": [1]}},
    "bands": {"spectrum": {"channel": "a", "t_ns": 0, "edges_hz": [0, 1], "worst": [1, 2], "healthy_5": [1],
                           "healthy_50": [1], "healthy_95": [1], "healthy_windows": 1}},
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_together_or_is_beyond_a_bound_is_refused(what: str) -> None:
    whole = make_evidence().model_dump(mode="json")
    with pytest.raises(MessageError, match="AlarmEvidence"):
        AlarmEvidence.from_bytes(json.dumps({**whole, **BAD[what]}).encode())


def test_what_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(MessageError, match="16385 bytes given, expected 16384 at most"):
        AlarmEvidence.from_bytes(b"[" * (EVIDENCE_BYTES + 1))


def test_numbers_keep_four_digits_and_stay_within_their_bounds() -> None:
    assert [round_number(value) for value in (1.23456, 0.0, -1e300, 1e300)] == [1.235, 0.0, -FARTHEST, FARTHEST]


@given(st.text(st.sampled_from('ab"\\\n\x1b\N{SNOWMAN}\U0001f30a'), max_size=300), st.integers(-5, 400))
def test_a_text_is_fitted_into_bytes_and_left_alone_where_it_fits(text: str, most: int) -> None:
    shown, fitted = escape_text(text), fit_text(text, most)
    assert not fitted or count_json_bytes(fitted) <= most
    assert (fitted == shown) is (count_json_bytes(shown) <= max(most, 0))
    assert shown.startswith(fitted.removesuffix("…"))
    assert fitted == shown or most < 20 or count_json_bytes(fitted) > most - 20
