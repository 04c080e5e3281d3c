"""A change of an alarm in plain words, as people get it from a channel of `[[notify]]`.

What a gateway says may be hostile, and a chat renders more than is meant: markup, links, mentions of everybody. So the
text is plain, each part has a length, and of the characters only those stay that mean nothing to any receiver we know.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from fedgate.cloud_aggregator.events import AlarmEvent, Post
from fedgate.cloud_aggregator.names import list_first
from fedgate.cloud_aggregator.notifications.webhook import ID_LENGTH
from fedgate.config.protocol.messages import Alarm, Device, FleetAlarm
from fedgate.config.protocol.topics import ALL
from fedgate.config.settings.notifications import SEVERITIES, NotifyChannel
from fedgate.models.time_units import NS

TITLE_MAX, PART_MAX, TEXT_MAX = 160, 100, 800  # characters
BODY_MAX = 1_600
# Markup of HTML, Markdown, Slack, Telegram and Discord, and mentions. `://` is what most clients make a link of.
PLAIN = str.maketrans(
    {**dict.fromkeys("<[{", "("), **dict.fromkeys(">]}", ")"), "`": "'", "*": "x", "~": "-", "|": "/"}
    | {"\\": "/", "@": "(at)", "&": "+", "$": "S", "^": "'"}
)
# Control, format (direction, zero width), private, unassigned, surrogates; line and paragraph separators.
INVISIBLE = ("Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp")
Kind = Literal["info", "success", "warning", "failure"]  # as Apprise calls them
KIND_OF: dict[str, Kind] = {"warning": "warning", "major": "warning", "critical": "failure"}


class Notice(NamedTuple):
    """What is sent to a channel."""

    title: str
    body: str
    kind: Kind = "info"

    def to_bytes(self) -> bytes:
        """Return it as the store keeps it."""
        return json.dumps(self._asdict(), ensure_ascii=False).encode()


def is_wanted(spec: NotifyChannel, gateway: str, alarm: Alarm) -> bool:
    """Tell whether a channel is for an alarm of this gateway; an alarm of the whole site is of no gateway."""
    is_severe = SEVERITIES.index(alarm.severity) >= SEVERITIES.index(spec.severity)
    if gateway == ALL:
        return is_severe and "fleet" in spec.kinds
    return is_severe and alarm.kind in spec.kinds and (not spec.gateways or gateway in spec.gateways)


def post_of(
    channel: str,
    site: str,
    gateway: str,
    alarm: Alarm,
    device: Device | None,
    *,
    active: bool,
    again: AlarmEvent | None = None,
) -> Post:
    """Return the change as it waits for a channel; its id is made of what it says, so one change has one id there."""
    body = describe(site, gateway, alarm, device, active=active, again=again).to_bytes()
    which = f"{channel}\0{alarm.id}\0{alarm.state}\0{again.t_ns if again else ''}\0".encode()
    change = hashlib.sha256(which + body).hexdigest()[:ID_LENGTH]
    return Post(change, body, gateway, channel)


def describe(
    site: str, gateway: str, alarm: Alarm, device: Device | None, *, active: bool, again: AlarmEvent | None = None
) -> Notice:
    """Return a change of an alarm in words; `active` tells of the alarm, where the change may be told of late. `again`
    is why one is told of once more.
    """
    place = "" if device is None else clean_text(device.location)
    who = "the whole site" if gateway == ALL else clean_text(gateway)
    change: str = alarm.state if active or alarm.state == "cleared" else "raised, and over meanwhile"
    if again is not None:
        change = "not acknowledged" if again.kind == "escalate" else "raised again, since it is no longer masked"
    what = f"{clean_text(alarm.cause)} {change}, {alarm.severity}"
    lines = {
        "Site": clean_text(site),
        "Gateway": who,
        "Place": place,
        "What": what,
        "Since": _format_moment(alarm.onset_ns, alarm),
        "Until": _format_moment(alarm.t_ns, alarm) if alarm.state == "cleared" else "",
        "Gateways": clean_text(list_first(alarm.gateways)) if isinstance(alarm, FleetAlarm) else "",
    }
    shown = [f"{name}: {line}" for name, line in lines.items() if line]
    body = "\n".join([*shown, clean_text(alarm.text, TEXT_MAX)])
    title = f"{clean_text(site)}, {place or who}: {what}"
    return Notice(_cut(title, TITLE_MAX), _cut(body, BODY_MAX), KIND_OF[alarm.severity] if active else "success")


def clean_text(text: str, most: int = PART_MAX) -> str:
    """Return a text as one line of at most so many characters, with nothing in it that a receiver could render.

    >>> clean_text("<b>see</b> [here](https://example.org) @everyone")
    '(b)see(/b) (here)(https: //example.org) (at)everyone'
    """
    shown = "".join(" " if unicodedata.category(one) in INVISIBLE else one for one in text[: 4 * most])
    return _cut(" ".join(shown.translate(PLAIN).replace("://", ": //").split()), most)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _format_moment(t_ns: int, alarm: Alarm) -> str:
    moment = datetime.fromtimestamp(t_ns // NS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return moment if alarm.clock == "synchronised" else f"{moment} by the gateway's clock, which may be wrong"
