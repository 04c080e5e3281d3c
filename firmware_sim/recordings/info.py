"""What there is to know about a recording before it is replayed: for `firmware-sim info`, on screen and as JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedgate.firmware_sim.recordings.recording import LABEL_TEXT, Recording
from fedgate.models.time_units import NS

_MAX_STATES_SHOWN = 20


def describe(recording: Recording) -> dict[str, Any]:
    """Everything about a recording but its samples, in values that `json.dumps` takes.

    Minimum, maximum and mean leave missing samples out and are None for a channel without any sample.
    """
    return {
        "name": recording.name,
        "rate_hz": recording.rate_hz,
        "samples": len(recording.values),
        "length_s": recording.length_s,
        "gaps": _gaps(recording),
        "t0_ns": recording.t0_ns,
        "start": _date(recording.t0_ns),
        "channels": [
            {"name": channel.name, "unit": channel.unit, **_statistics(recording, i)}
            for i, channel in enumerate(recording.channels)
        ],
        "states": [
            {"start_s": s.start_s, "end_s": s.end_s, "label": s.label, "text": s.text} for s in recording.states
        ],
        "found": list(recording.found),
    }


def _gaps(recording: Recording) -> dict[str, float | int]:
    """How often rows do not follow one another, and how long nothing was recorded, together and at the longest."""
    lost_s = np.maximum(recording.gaps.lost_ns, 0) / NS
    return {"count": len(lost_s), "lost_s": float(lost_s.sum()), "longest_s": float(lost_s.max(initial=0.0))}


def _statistics(recording: Recording, index: int) -> dict[str, float | int | None]:
    values = recording.values[:, index]
    known = values[~np.isnan(values)]
    missing = len(values) - len(known)
    if not len(known):
        return {"min": None, "max": None, "mean": None, "missing": missing}
    # Divided before summing, so that no finite samples have an infinite mean.
    mean = float(np.sum(known / len(known)))
    return {"min": float(known.min()), "max": float(known.max()), "mean": mean, "missing": missing}


def _date(t0_ns: int | None) -> str | None:
    return None if t0_ns is None else f"{np.datetime64(t0_ns, 'ns')}Z"


def render(description: dict[str, Any]) -> str:
    """The same as a page of text."""
    start = description["start"] or "not in the file"
    count = f"{description['samples']} samples at {description['rate_hz']:.6g} Hz"
    length = f"{_duration(description['length_s'])}, {count}"
    lines = [description["name"], f"  length  {length}", f"  start   {start}"]
    if description["gaps"]["count"]:
        lines.append(
            f"  gaps    {description['gaps']['count']}, {_duration(description['gaps']['lost_s'])} not recorded"
        )
    lines += ["", *_channel_table(description), ""]
    states = description["states"]
    if states:
        lines.append("states")
        lines += [f"  {_span(s)}  {LABEL_TEXT[s['label']]}{_words(s)}" for s in states[:_MAX_STATES_SHOWN]]
        if len(states) > _MAX_STATES_SHOWN:
            lines.append(f"  and {len(states) - _MAX_STATES_SHOWN} more")
        lines.append("")
    lines += ["found", *(f"  - {sentence}" for sentence in description["found"])]
    return "\n".join(lines)


def _channel_table(description: dict[str, Any]) -> list[str]:
    head = ("channel", "unit", "min", "max", "mean", "missing")
    rows = [head, *(_channel_row(channel) for channel in description["channels"])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return [_aligned(row, widths) for row in rows]


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    words = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
    return "  ".join(["", *words, *numbers]).rstrip()


def _channel_row(channel: dict[str, Any]) -> tuple[str, ...]:
    numbers = ("" if channel[key] is None else f"{channel[key]:.6g}" for key in ("min", "max", "mean"))
    return (channel["name"], channel["unit"] or "?", *numbers, str(channel["missing"]))


def _span(state: dict[str, Any]) -> str:
    return f"{state['start_s']:10.3f} s to {state['end_s']:10.3f} s"


def _words(state: dict[str, Any]) -> str:
    return "" if state["text"] == LABEL_TEXT[state["label"]] else f": {state['text']}"


def _duration(length_s: float) -> str:
    if length_s < 60:
        return f"{length_s:.6g} s"
    minutes, seconds = divmod(length_s, 60)
    hours, minutes = divmod(math.floor(minutes), 60)
    return f"{hours} h {minutes:02d} min {seconds:04.1f} s" if hours else f"{minutes} min {seconds:04.1f} s"
