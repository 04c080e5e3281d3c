"""What alarms rest on as a part of a page: the sentence, the picture, the features, and all of it as text."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape

from fedgate.config.evidence.text import render_evidence
from fedgate.config.protocol.evidence import AlarmEvidence, Standout
from fedgate.firmware_sim.demo.evidence_picture import draw_evidence

HEADS = ("feature", "adds", "value", "median", "spread", "spreads off")


def show_evidence(several: Iterable[tuple[str, AlarmEvidence]]) -> str:
    """Return the alarms of gateways, each by its name, with what they rest on as HTML; nothing where there are none."""
    return "".join(_show(gateway, one) for gateway, one in several)


def _show(gateway: str, one: AlarmEvidence) -> str:
    heads = "".join(f"<th>{head}</th>" for head in HEADS)
    rows = "".join(_row(each) for each in one.contributions)
    picture = base64.b64encode(draw_evidence(one)).decode()
    return (
        f"<h3>{escape(gateway)}</h3><p>{escape(one.text)}</p>"
        f'<div class="wide"><img alt="What the alarm rests on" src="data:image/png;base64,{picture}"></div>'
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"<details><summary>all of it, as text</summary><pre>{escape(render_evidence(one))}</pre></details>"
    )


def _row(one: Standout) -> str:
    off = "never moved" if one.deviation is None else f"{one.deviation:+.3g}"
    cells = [one.text, *(f"{value:.4g}" for value in (one.amount, one.value, one.median, one.spread)), off]
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
