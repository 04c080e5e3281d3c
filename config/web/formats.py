"""Numbers and times as the pages show them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

from fedgate.models.time_units import NS, format_duration, format_moment

DASH = "–"
MOMENT = Markup('<time datetime="%s" title="%s">%s</time>')  # which escapes what is put into it


def show_time(t_ns: int | None) -> str:
    """Return a moment of Unix time in UTC, to the second."""
    return DASH if t_ns is None else format_moment(t_ns)


def show_minute(t_ns: int | None) -> str:
    """Return a moment of Unix time in UTC, to the minute, for tables that say so."""
    return show_time(t_ns).removesuffix(" UTC")[:16]


def show_iso(t_ns: int | None) -> str:
    """Return a moment as machines read it, for the attribute of an element; empty for none."""
    return "" if t_ns is None else show_time(t_ns).replace(" UTC", "Z").replace(" ", "T")


def show_ago(t_ns: int | None, now_ns: int) -> str:
    """Return how long ago a moment was, in whole seconds at least."""
    return DASH if t_ns is None else f"{show_duration(float(round(max(now_ns - t_ns, 0) / NS)))} ago"


def show_moment(t_ns: int | None, now_ns: int) -> str:
    """Return an element that says how long ago a moment was, and in full to machines and to who points at it. It is no
    macro: a large page has hundreds of them.
    """
    if t_ns is None:
        return DASH
    return MOMENT % (show_iso(t_ns), show_time(t_ns), show_ago(t_ns, now_ns))


def show_duration(seconds: float | None) -> str:
    """Return a duration in the unit that suits it, to three digits."""
    return DASH if seconds is None else format_duration(seconds)


def show_number(value: float | None) -> str:
    """Return a number with four digits; a dash for none."""
    return DASH if value is None else f"{value:.4g}"


def show_bytes(count: int | None) -> str:
    """Return bytes in the unit that suits them."""
    if count is None:
        return DASH
    for power, word in ((3, "GB"), (2, "MB"), (1, "kB")):
        if count >= 1000**power:
            return f"{count / 1000**power:.3g} {word}"
    return f"{count} bytes"


def write_json(value: Any) -> str:
    """Return a value as JSON for the attribute of an element, where jinja2 escapes it."""
    return json.dumps(value, allow_nan=False)


FILTERS: dict[str, Callable[..., str]] = {
    "time": show_time,
    "minute": show_minute,
    "iso": show_iso,
    "ago": show_ago,
    "moment": show_moment,
    "duration": show_duration,
    "number": show_number,
    "bytes": show_bytes,
    "as_json": write_json,
}
