"""Every topic, in one place, with two inverse functions.

    fedgate/v1/<site>/<gateway | all>/<channel>/<item>

Always six segments, so one wildcard reaches all of a kind and parsing is splitting on `/`. The gateway id is the broker
user name, so one access pattern serves a whole fleet. No topic is used in both directions, but for the doctor's own.

| channel    | direction        | item            | retained | payload                                         |
|------------|------------------|-----------------|----------|-------------------------------------------------|
| `sample`   | node to gateway  | stream          | no       | sample frame (`wire`)                           |
| `status`   | up               | `agent`         | yes      | `Status`, with a last will                      |
| `score`    | up               | `window`        | no       | `Score`                                         |
| `telemetry` | up              | digest         | no       | `scores.Scores`    of a time without a link     |
| `alarm`    | up               | cause           | yes      | `Alarm`; under `all/alarm/fleet`: `FleetAlarm`  |
| `evidence` | up               | alarm           | no       | `AlarmEvidence`: what an anomaly rests on       |
| `samples`  | up               | alarm           | no       | chunk of a clip (`samples`), or `SampleRefusal` |
| `update`   | up               | digest          | no       | chunk of an update                              |
| `summary`  | up               | digest          | no       | `FeatureSummary`: chosen features in an hour    |
| `tombstone` | up            | class           | no       | `Tombstone`: what a gateway had to give up      |
| `want`     | up               | digest          | no       | `Want`: chunks the gateway lacks                |
| `round`    | down (`all`)     | `open`          | yes      | `RoundOpen`; empty: no round is open            |
| `keys`     | down (`all`)     | `current`       | yes      | `Keys`: which keys the site goes by             |
| `manifest` | down             | `current`       | yes      | `Manifest`; empty to one gateway: what all have |
| `newest`   | down (`all`), up | `current`       | yes      | `Newest`; a gateway keeps it for the aggregator |
| `maintenance-windows` | down (`all`) | `current`    | yes      | `MaintenanceWindows`: nothing is learned within |
| `chunk`    | down             | digest          | no       | chunk of a model or of shared parameters        |
| `receipt`  | down             | item            | no       | `Receipt`: the aggregator has it on disk        |
| `resend`   | down             | digest, alarm   | no       | `Want`: chunks the aggregator lacks             |
| `fetch`    | down             | alarm           | no       | `SampleRequest`: raw samples are wanted         |
| `service-request` | out       | cause           | yes      | `ServiceRequest`: what a building has to mend   |
| `alarm-state` | out           | cause           | yes      | `AlarmState`; empty: there is nothing to handle |
| `action`   | in (`cloud`)     | user            | no       | `AlarmAction` of another system on alarms       |
| `answer`   | out (`cloud`)    | user            | no       | `ActionAnswer`: what became of its action       |
| `doctor`   | to itself        | what is tried   | no       | what a doctor tries a broker with               |
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, get_args

ROOT = ("fedgate", "v1")
ALL = "all"
CLOUD = "cloud"
TRIED = "doctor"  # an item: an empty message under it asks the broker whether it may be said, and says nothing
ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Channel = Literal[
    "sample",
    "status",
    "score",
    "telemetry",
    "summary",
    "tombstone",
    "alarm",
    "evidence",
    "samples",
    "update",
    "want",
    "round",
    "keys",
    "manifest",
    "newest",
    "maintenance-windows",
    "chunk",
    "receipt",
    "resend",
    "fetch",
    "service-request",
    "alarm-state",
    "action",
    "answer",
    "doctor",
]
CHANNELS = frozenset(get_args(Channel))
ALARMS, TALK, BULK, IDLE, LAST = range(5)  # how urgent a message is, see `urgency`
LESS_URGENT = {"update": BULK, "chunk": BULK, "telemetry": IDLE, "summary": IDLE, "score": IDLE, "samples": LAST}


class TopicError(ValueError):
    """A topic or an id that is not fedgate's; the message says which part."""


class Topic(NamedTuple):
    """The parts of a topic that vary."""

    site: str
    gateway: str
    channel: str
    item: str


def topic_of(topic: Topic) -> str:
    """Return the topic string; raises `TopicError` where a part is not an id or the channel is unknown."""
    if topic.channel not in CHANNELS:
        raise TopicError(f"channel {topic.channel!r} is unknown; expected one of {sorted(CHANNELS)}")
    for name, part in (("site", topic.site), ("gateway", topic.gateway), ("item", topic.item)):
        if not ID.fullmatch(part):
            raise TopicError(f"{name} {part!r} is not an id; expected 1 to 64 of A-Z a-z 0-9 _ . -")
    return "/".join((*ROOT, *topic))


def parse(text: str) -> Topic:
    """Return the parts of a topic string; raises `TopicError` for anything that `topic_of` cannot have made."""
    parts = text.split("/")
    if len(parts) != len(ROOT) + len(Topic._fields) or tuple(parts[: len(ROOT)]) != ROOT:
        raise TopicError(f"topic {text!r}: expected {'/'.join(ROOT)}/<site>/<gateway>/<channel>/<item>")
    topic = Topic(*parts[len(ROOT) :])
    topic_of(topic)
    return topic


def channel_of(text: str) -> str:
    """Return the channel of a topic, empty where it is not ours."""
    parts = text.split("/")
    is_ours = len(parts) == len(ROOT) + len(Topic._fields) and tuple(parts[: len(ROOT)]) == ROOT
    return parts[-2] if is_ours else ""


def urgency(text: str) -> int:
    """Return in which order messages of a topic go where the line is slow, the first with 0: alarms, what is said of
    state and of transfers (and all that is not ours), bodies, what nobody waits for, and raw samples.
    """
    channel = channel_of(text)
    return ALARMS if channel == "alarm" else LESS_URGENT.get(channel, TALK)


def party(text: str) -> str:
    """Return whose topic it is: the gateway's, `all`, or the node of an entity of Home Assistant; empty where none."""
    parts = text.rsplit("/", 3)
    return parts[1] if len(parts) == 4 else ""


def watch(site: str, gateway: str, channel: Channel) -> str:
    """Return the subscription for every item of a channel; `gateway` may be `+` for all gateways.

    Raises `TopicError` like `topic_of`.
    """
    topic_of(Topic(site, ALL if gateway == "+" else gateway, channel, ALL))
    return "/".join((*ROOT, site, gateway, channel, "+"))
