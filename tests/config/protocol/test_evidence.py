"""The evidence of an alarm as a message: golden bytes, its bounds, and what goes first where it is too long."""

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
    FARTHEST,
    LABEL_MAX,
    SENTENCE_MAX,
    TRAIL_MAX,
    AlarmEvidence,
    BandSpectrum,
    ChannelHealth,
    Standout,
    cut_text,
    fit,
    make_trail,
    round_number,
)
from fedgate.config.protocol.messages import MessageError

T0_NS = 1_800_000_000 * 10**9
AIMED_BYTES = 8 * 1024
LONG = -1.234e-17  # no number of four digits is written longer


def make(
    label: str = "deck", contributions: int = 2, windows: int = 3, bands: int = 2, channels: int = 1
) -> AlarmEvidence:
    """Return evidence of so many of each."""
    of_bands = tuple(round_number(0.5 + band) for band in range(bands))
    return AlarmEvidence(
        alarm="north.anomaly.1.boot",
        cause="anomaly",
        t_ns=T0_NS,
        onset_ns=T0_NS - 10**9,
        window_s=1.0,
        model_version=1,
        model_digest="a" * 64,
        rule="score",
        score=3.58,
        level=0.681,
        level_of="own baseline",
        text=cut_text("deck: 3.1-3.4 Hz carries 6 times its usual energy", SENTENCE_MAX),
        contributions=tuple(
            Standout(feature=label, text=label, amount=2.5, value=3.0, median=LONG, spread=0.5, deviation=None)
            for _ in range(contributions)
        ),
        trail=make_trail([(T0_NS + place * 10**9, 0.1 * place, 0.681) for place in range(windows)]),
        spectrum=BandSpectrum(
            channel=label,
            t_ns=T0_NS,
            edges_hz=tuple(map(float, range(bands + 1))),
            worst=of_bands,
            healthy_5=of_bands,
            healthy_50=of_bands,
            healthy_95=of_bands,
            healthy_windows=256,
        ),
        health=tuple(ChannelHealth(channel=label, filled=2**40, windows_lost=7) for _ in range(channels)),
    )


def test_the_golden_bytes_of_one() -> None:
    golden = (
        b'{"version":1,"alarm":"north.anomaly.1.boot","cause":"anomaly","t_ns":1800000000000000000,'
        b'"onset_ns":1799999999000000000,"window_s":1.0,"model_version":1,"model_digest":"' + b"a" * 64 + b'",'
        b'"rule":"score","score":3.58,"level":0.681,"level_of":"own baseline",'
        b'"text":"deck: 3.1-3.4 Hz carries 6 times its usual energy",'
        b'"contributions":[{"feature":"deck","text":"deck","amount":2.5,"value":3.0,"median":-1.234e-17,"spread":0.5,'
        b'"deviation":null}],"trail":{"first_ns":1800000000000000000,"offsets_s":[0.0,1.0,2.0],"scores":[0.0,0.1,0.2],'
        b'"level_from":[0],"levels":[0.681]},"spectrum":{"channel":"deck","t_ns":1800000000000000000,'
        b'"edges_hz":[0.0,1.0,2.0],"worst":[0.5,1.5],"healthy_5":[0.5,1.5],"healthy_50":[0.5,1.5],'
        b'"healthy_95":[0.5,1.5],"healthy_windows":256},"no_spectrum":"",'
        b'"health":[{"channel":"deck","filled":1099511627776,"windows_lost":7,"is_faulty":false}],"cut":[]}'
    )
    evidence = make(contributions=1)
    assert evidence.to_bytes() == golden
    assert AlarmEvidence.from_bytes(golden) == evidence
    assert evidence.item == f"{hashlib.sha256(b'north.anomaly.1.boot').hexdigest()[:32]}.evidence"


def test_all_of_a_usual_gateway_is_in_the_length_that_is_aimed_at() -> None:
    whole = make("north.band[3.1-3.4Hz]", CONTRIBUTIONS_MAX, TRAIL_MAX, BANDS_MAX, channels=3)
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
    whole = make(label, CONTRIBUTIONS_MAX, windows, BANDS_MAX, CHANNELS_MAX)
    cut = fit(whole, most)
    assert len(cut.to_bytes()) <= most
    assert AlarmEvidence.from_bytes(cut.to_bytes()) == cut
    if cut.contributions != whole.contributions:  # the last that goes
        assert cut.trail is None and cut.spectrum is None and not cut.health
    if cut.spectrum is None:
        assert cut.no_spectrum == "cut for its length" and len(cut.health) < len(whole.health)


def test_cutting_keeps_the_newest_scores_their_levels_and_the_sum_of_bands() -> None:
    whole = make(windows=0, bands=64)
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
    whole = make().model_dump(mode="json")
    with pytest.raises(MessageError, match="AlarmEvidence"):
        AlarmEvidence.from_bytes(json.dumps({**whole, **BAD[what]}).encode())


def test_what_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(MessageError, match="16385 bytes given, expected 16384 at most"):
        AlarmEvidence.from_bytes(b"[" * (EVIDENCE_BYTES + 1))


def test_numbers_keep_four_digits_and_stay_within_their_bounds() -> None:
    assert [round_number(value) for value in (1.23456, 0.0, -1e300, 1e300)] == [1.235, 0.0, -FARTHEST, FARTHEST]
