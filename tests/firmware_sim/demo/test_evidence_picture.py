"""Goal: evidence is drawn whatever is in it, the same way each time. Method: whole, empty and odd evidence."""

from __future__ import annotations

import pytest

from fedgate.config.protocol.evidence import BANDS_MAX, CHANNELS_MAX, AlarmEvidence, BandChange
from fedgate.config.protocol.messages import TRAIL_MAX
from fedgate.firmware_sim.demo.evidence_page import show_evidence
from fedgate.firmware_sim.demo.evidence_picture import draw_evidence
from tests.support.evidence_samples import make_evidence

WHOLE = make_evidence("deck.band[3.1-3.4Hz]", 5, TRAIL_MAX, BANDS_MAX, CHANNELS_MAX)


@pytest.mark.soak
@pytest.mark.parametrize(
    "evidence",
    [
        WHOLE,
        WHOLE.model_copy(update={"changes": (BandChange(channel="a $b$", decibels=(5,) * BANDS_MAX),)}),
        make_evidence("$x^", 0, 0, 2, 0).model_copy(update={"spectrum": None, "no_spectrum": "none is kept"}),
        WHOLE.model_copy(update={"t_ns": 10**9, "onset_ns": 0, "text": "x" * 400}),
    ],
    ids=["whole", "bands", "empty", "no clock"],
)
def test_whatever_it_holds_it_is_drawn_and_the_same_each_time(evidence: AlarmEvidence) -> None:
    png = draw_evidence(evidence)
    assert png.startswith(b"\x89PNG") and draw_evidence(evidence) == png


def test_the_page_escapes_what_a_gateway_says() -> None:
    page = show_evidence([("<b>", make_evidence("<script>"))])
    assert "<script>" not in page and "&lt;script&gt;" in page and "&lt;b&gt;" in page
    assert show_evidence([]) == ""
