"""The end of a demo: the same figures as a table, as JSON and as one page with the picture in it.

A report that only shows off is worth nothing to the engineer who must decide, so every page says what its figures
cannot say: how short the healthy time was, where a trivial detector does as well, which damage was missed.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.demo import picture
from fedgate.firmware_sim.demo.evidence_page import show_evidence
from fedgate.firmware_sim.demo.outcome import AlarmSpan, GatewayResult, Scenario, Trace, duration, evaluate

__all__ = ["AlarmSpan", "GatewayResult", "Paths", "Scenario", "Trace", "evaluate", "html", "table", "to_json", "write"]

AUC_TIE = 0.005
NO_EVIDENCE: Mapping[str, Sequence[AlarmEvidence]] = MappingProxyType({})


class Paths(NamedTuple):
    """Where a report was written."""

    json: Path
    png: Path
    html: Path


def write(
    scenario: Scenario,
    traces: Sequence[Trace],
    folder: Path,
    extra: Mapping[str, object],
    evidence: Mapping[str, Sequence[AlarmEvidence]] = NO_EVIDENCE,
) -> Paths:
    """Write report.json, report.png and report.html, each whole or not at all.

    Args:
        folder: made if absent; an older report in it is replaced.
        extra: facts about the run, by name; values that JSON can hold.
        evidence: of the alarms of each gateway, by its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = [evaluate(trace, scenario) for trace in traces]
    paths = Paths(folder / "report.json", folder / "report.png", folder / "report.html")
    png = picture.draw(scenario, traces)
    figures = json.dumps(
        {**to_json(scenario, results, extra), "evidence": list_evidence(evidence)},
        indent=2,
        ensure_ascii=False,
        allow_nan=False,
    )
    page = html(scenario, results, png, extra, evidence)
    for path, content in zip(paths, (figures.encode(), png, page.encode()), strict=True):
        written = path.with_name(path.name + ".new")
        written.write_bytes(content)
        written.replace(path)
    return paths


def table(results: Sequence[GatewayResult]) -> str:
    """Aligned text, a line per gateway; "-" where nothing was measured."""
    rows = [[cell(result) for _, cell in COLUMNS] for result in results]
    heads = [head.split("\n") for head, _ in COLUMNS]
    lines = [[head[0] for head in heads], [head[1] for head in heads], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < TEXT_COLUMNS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def to_json(scenario: Scenario, results: Sequence[GatewayResult], extra: Mapping[str, object]) -> dict[str, object]:
    """The figures of `table` and more, unrounded; None where nothing was measured."""
    return {
        "title": scenario.title,
        "data": scenario.data,
        "commissioning_s": list(scenario.commissioning),
        "damage": [{"start_s": start, "end_s": end, "what": what} for start, end, what in scenario.damage],
        "gateways": [{name: metrics.as_json(value) for name, value in asdict(result).items()} for result in results],
        "limits": limits(scenario, results),
        "run": dict(extra),
    }


def limits(scenario: Scenario, results: Sequence[GatewayResult]) -> list[str]:
    """What the figures do not say, one sentence each; the scenario's own notes come last."""
    missed = [result.gateway for result in results if result.windows_damaged and not result.detected]
    matched = [result.gateway for result in results if _is_matched(result)]
    return [
        *_limits_of_false_alarms(results),
        *([f"The damage was not detected by {_listed(missed)}."] if missed else []),
        *([f"On {_listed(matched)} a trivial detector separates as well as the model."] if matched else []),
        "Neighbouring windows resemble one another, so recall, precision and AUC look surer than they are.",
        "Windows that contain the moment of change are neither healthy nor damaged and are not counted.",
        *scenario.notes,
    ]


def html(
    scenario: Scenario,
    results: Sequence[GatewayResult],
    png: bytes,
    extra: Mapping[str, object],
    evidence: Mapping[str, Sequence[AlarmEvidence]] = NO_EVIDENCE,
) -> str:
    """One page that needs nothing else: picture, table, what was replayed, how it ran, and what it does not say."""
    heads = "".join(f"<th>{escape(head).replace(chr(10), '<br>')}</th>" for head, _ in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell(result))}</td>" for _, cell in COLUMNS) + "</tr>" for result in results
    )
    verdicts = "".join(
        f'<li class="{"hit" if result.detected else "miss"}"><b>{escape(result.gateway)}</b>'
        f"<span>{escape(result.verdict)}</span></li>"
        for result in results
    )
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(_plain(value))}</dd>" for name, value in extra.items())
    return _PAGE.format(
        title=escape(scenario.title),
        verdicts=verdicts,
        picture=base64.b64encode(png).decode(),
        table=f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>",
        evidence=_show_evidence(evidence),
        data=escape(scenario.data),
        facts=f"<h2>How it ran</h2><dl>{facts}</dl>" if facts else "",
        limits="".join(f"<li>{escape(limit)}</li>" for limit in limits(scenario, results)),
    )


def list_evidence(evidence: Mapping[str, Sequence[AlarmEvidence]]) -> list[dict[str, object]]:
    """Return what alarms rest on, with the gateway they are of, as JSON can hold it."""
    found = [(gateway, one) for gateway, several in evidence.items() for one in several]
    return [{"gateway": gateway, **one.model_dump(mode="json")} for gateway, one in found]


def _show_evidence(evidence: Mapping[str, Sequence[AlarmEvidence]]) -> str:
    parts = show_evidence((gateway, one) for gateway, several in evidence.items() for one in several)
    return f"<h2>What the alarms rest on</h2>{parts}" if parts else ""


def _limits_of_false_alarms(results: Sequence[GatewayResult]) -> list[str]:
    hours = [result.hours_healthy for result in results if result.hours_healthy > 0]
    if not hours:
        return ["No gateway watched anything healthy, so nothing is known about false alarms."]
    sentences = [
        f"The gateway that watched least of what is healthy watched {duration(min(hours))}: "
        f"one false alarm in that time would read as {1 / min(hours):.3g} per hour."
    ]
    bounds = [result.false_alarms_per_hour_bound for result in results if result.false_alarms_per_hour_bound]
    if bounds:
        sentences.append(
            f"Where no false alarm was seen, a rate of up to {max(bounds):.3g} per hour is possible all the same."
        )
    return sentences


def _is_matched(result: GatewayResult) -> bool:
    return result.trivial_auc is not None and result.trivial_auc >= result.auc - AUC_TIE


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _number(value: float | None, digits: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, digits)


def _kilobytes(count: int | None) -> str:
    return _number(None if count is None else count / 1000, ".1f")


def _rate(result: GatewayResult) -> str:
    bound = result.false_alarms_per_hour_bound
    rate = _number(result.false_alarms_per_hour, ".3g")
    return rate if bound is None else f"{rate} (<{bound:.3g})"


TEXT_COLUMNS = 2  # the first columns hold text, the rest numbers
COLUMNS: tuple[tuple[str, Callable[[GatewayResult], str]], ...] = (
    ("\ngateway", lambda result: result.gateway),
    ("\nsensor", lambda result: result.sensor),
    ("windows\nhealthy", lambda result: str(result.windows_healthy)),
    ("windows\ndamaged", lambda result: str(result.windows_damaged)),
    ("hours\nhealthy", lambda result: f"{result.hours_healthy:.3g}"),
    ("false\nalarms", lambda result: str(result.false_alarms)),
    ("per hour\n(95 %)", _rate),
    ("delay\n[s]", lambda result: _number(result.detection_delay_s, ".1f")),
    ("\nrecall", lambda result: _number(result.recall, ".3f")),
    ("\nprecision", lambda result: _number(result.precision, ".3f")),
    ("\nAUC", lambda result: _number(result.auc, ".3f")),
    ("trivial\nAUC", lambda result: _number(result.trivial_auc, ".3f")),
    ("sent\n[kB]", lambda result: _kilobytes(result.bytes_sent)),
    ("received\n[kB]", lambda result: _kilobytes(result.bytes_received)),
    ("\nmodel", lambda result: "-" if result.model_version is None else str(result.model_version)),
)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
  body {{ font: 16px/1.55 system-ui, sans-serif; color: #22272b; background: #f6f7f8; margin: 0; }}
  main {{ max-width: 80rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }}
  h1 {{ font-size: 1.6rem; line-height: 1.25; margin: .5rem 0 1rem; }}
  h2 {{ font-size: 1.1rem; margin: 2.2rem 0 .5rem; }}
  p, .notes {{ max-width: 46rem; }}
  .verdicts {{ list-style: none; padding: 0; display: grid; gap: .5rem; }}
  .verdicts li {{ display: flex; flex-wrap: wrap; gap: 0 1rem; background: #fff; padding: .5rem .8rem; }}
  .verdicts b {{ min-width: 8rem; }}
  .hit {{ border-left: .3rem solid #0072b2; }}
  .miss {{ border-left: .3rem dashed #d55e00; }}
  .wide {{ overflow-x: auto; background: #fff; }}
  .wide img {{ display: block; width: 100%; min-width: 46rem; }}
  table {{ border-collapse: collapse; font-size: .78rem; width: 100%; font-variant-numeric: tabular-nums; }}
  th, td {{ padding: .45rem .5rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e6eaed; }}
  th {{ font-weight: 600; vertical-align: bottom; color: #4b545c; }}
  td:first-child, th:first-child {{ position: sticky; left: 0; background: #fff; font-weight: 600; }}
  td:nth-child(-n+2), th:nth-child(-n+2) {{ text-align: left; }}
  dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: 0; }}
  h3 {{ font-size: 1rem; margin: 1.6rem 0 0; }}
  pre {{ background: #fff; padding: .8rem; overflow-x: auto; font-size: .78rem; line-height: 1.2; }}
  dt {{ color: #4b545c; }} dd {{ margin: 0; overflow-wrap: anywhere; }}
</style>
<main>
<h1>{title}</h1>
<ul class="verdicts">{verdicts}</ul>
<h2>Score, raise level and alarms</h2>
<div class="wide"><img alt="Score over time for every gateway" src="data:image/png;base64,{picture}"></div>
<h2>In figures</h2>
<div class="wide">{table}</div>
<p>False alarms are those raised outside of damage; in brackets the bound that the healthy time puts on their rate
at 95 %. The delay runs from the first moment of damage to the first alarm raised. Recall is the share of damaged
windows in alarm, precision the share of windows in alarm that are damaged. AUC is the chance that a damaged window
scores above a healthy one. A dash means that there was nothing to measure.</p>
{evidence}
<h2>What was replayed</h2>
<p>{data}</p>
{facts}
<h2>What these figures do not say</h2>
<ul class="notes">{limits}</ul>
</main>
</html>
"""
