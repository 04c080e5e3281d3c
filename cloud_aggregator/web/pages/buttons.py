"""The buttons of the pages: who may press each, and which order it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedgate.cloud_aggregator.alarms.workflow import LABELS
from fedgate.config.protocol.messages import NAME_MAX, escape_text
from fedgate.config.settings.web import Role
from fedgate.models.time_units import HOUR_S

Body = dict[str, Any]
SHELVED_H = ("1", "8", "24", "72")  # that the page offers
SHARES = ("1", "5", "10", "25", "50")  # percent of the gateways that may have a model first
VERSION_DIGITS = 18


class FormError(ValueError):
    """A form that does not say what its button needs; the text says what."""


class Button(NamedTuple):
    """What a button asks of whom, and how its form becomes the body of an order."""

    role: Role
    kind: str  # of the order
    read: Callable[[Mapping[str, str]], Body]
    asks_again: bool = False  # for the password


def _act(action: str, *fields: str) -> Callable[[Mapping[str, str]], Body]:
    """Return how a form about alarms is read; of its fields those named must be there."""

    def read(form: Mapping[str, str]) -> Body:
        if missing := [name for name in fields if not form.get(name)]:
            raise FormError(f"{missing[0]} is missing")
        body: Body = {"action": action, "alarms": form.get("alarms", "").split("\n"), "text": form.get("text", "")}
        if "hours" in fields:
            if form["hours"] not in SHELVED_H:
                raise FormError(f"hours: expected one of {', '.join(SHELVED_H)}")
            body["for_s"] = int(form["hours"]) * HOUR_S
        if "label" in fields:
            if form["label"] not in LABELS:
                raise FormError(f"label: expected one of {', '.join(LABELS)}")
            body["label"] = form["label"]
        if action == "assign":
            body["to"] = form.get("to", "")
        return body

    return read


def _fetch(form: Mapping[str, str]) -> Body:
    return {"alarms": [form.get("alarms", "")]}


def _decide(form: Mapping[str, str]) -> Body:
    """Return for which version the decision is: another may be under way by now."""
    version = form.get("version", "")
    if not (version.isascii() and version.isdigit() and len(version) <= VERSION_DIGITS):
        raise FormError("version: expected the number of a model")
    return {"version": int(version)}


def _release(form: Mapping[str, str]) -> Body:
    to = form.get("to", "")
    if to != "all" and to not in SHARES:
        raise FormError(f"to: expected all, or one of {', '.join(SHARES)} percent")
    share = 1.0 if to == "all" else int(to) / 100
    return {"gateways": [], "share": share, "to_all": to == "all", **_decide(form)}


def _revoke(form: Mapping[str, str]) -> Body:
    """Return which gateway is to be shut out; its name must be typed too, for that cannot be taken back."""
    gateway = form.get("gateway", "")
    if not gateway or form.get("typed", "").strip() != gateway:
        raise FormError(f"type the name of the gateway, {escape_text(gateway[:NAME_MAX])}, to shut it out")
    return {"gateway": gateway}


BUTTONS = {
    "acknowledge": Button("operator", "alarm", _act("acknowledge")),
    "shelve": Button("operator", "alarm", _act("shelve", "hours")),
    "unshelve": Button("operator", "alarm", _act("unshelve")),
    "note": Button("operator", "alarm", _act("note", "text")),
    "label": Button("operator", "alarm", _act("label", "label")),
    "assign": Button("operator", "alarm", _act("assign")),
    "fetch": Button("operator", "samples", _fetch),
    "release": Button("admin", "release", _release, asks_again=True),
    "go-on": Button("admin", "go-on", _decide, asks_again=True),
    "pause": Button("admin", "pause", _decide, asks_again=True),
    "stop": Button("admin", "stop", _decide, asks_again=True),
    "revoke": Button("admin", "revoke", _revoke, asks_again=True),
}
