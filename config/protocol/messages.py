"""The JSON messages both ends exchange, checked on arrival.

Each is one JSON object. Unknown keys are ignored, for an older reader; missing or wrong ones are refused by name.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)

from fedgate.models.alarms.attribution import Evidence
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.time_units import DAY_NS

Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
SHORT_MAX, NAME_MAX = 4_096, 256
# What moves a cursor, ends a line or turns the direction of text has no place in a name, a terminal or a log.
CONTROLS = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
# Lengths are no part of the pattern: a counted one takes 10 MiB and 40 times as long.
Name = Annotated[str, StringConstraints(pattern=f"^[^{CONTROLS}]*$", max_length=NAME_MAX)]
AlarmId = Annotated[str, StringConstraints(pattern=f"^[^{CONTROLS}]+$", max_length=NAME_MAX)]
LongName = Annotated[str, StringConstraints(pattern=f"^[^{CONTROLS}]*$", max_length=SHORT_MAX)]
LARGEST, CHUNKS_MAX = 2**63 - 1, 100_000  # what a database holds; of one transfer
Count = Annotated[int, Field(ge=0, le=LARGEST)]
LISTED_MAX = 10_000  # of what one message lists
Pem = Annotated[str, StringConstraints(pattern=r"^[ -~\n]*$", max_length=SHORT_MAX)]
AUTHORITIES_MAX = 4  # of a site at a time; two while one takes the place of another
MEMBER_DIGITS = 32  # the first half of `pki.key_digest`, by which a key is named
Member = Annotated[str, StringConstraints(pattern=rf"^[0-9a-f]{{{MEMBER_DIGITS}}}$")]
MAINTENANCE_MAX = 200  # 30 kB in one message
# Of one window: whoever could announce a longer one could keep a gateway from ever learning.
MAINTENANCE_LONGEST_NS = 31 * DAY_NS
MEMBERS_MAX = 1_000  # 36 kB in one message
Counts = Annotated[dict[Name, Count], Field(max_length=LISTED_MAX)]
ClockQuality = Literal["synchronised", "unsynchronised", "unknown"]
Common = Literal["power", "weather", "undetermined"]  # the cause of anomalies of many gateways
Moment = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]  # ns of Unix time
FARTHEST = 1e30  # of a number: beyond what any sensor measures, and in the bounds of float32
Number = Annotated[float, Field(ge=-FARTHEST, le=FARTHEST)]
NotNegative = Annotated[float, Field(ge=0.0, le=FARTHEST)]
TRAIL_MAX, SENSORS_MAX = 200, 64  # windows; channels of all sources, of one status
Place = Annotated[int, Field(ge=0, lt=TRAIL_MAX)]


CONTROL = re.compile(f"[{CONTROLS}]")


def escape_text(text: str) -> str:
    """Return prose as far as it may be shown, in a terminal or a log: what is too long or unfit is cut or replaced."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text[:SHORT_MAX])


Short = Annotated[str, AfterValidator(escape_text)]
Words = Annotated[str, AfterValidator(lambda text: escape_text(text[:NAME_MAX]))]


class MessageError(ValueError):
    """A payload that is not the expected message; the text names the key and what was expected."""


class Message(BaseModel):
    """A message that can be read from and written to bytes."""

    # Built when first used: a gateway would pay a MiB for what only the aggregator reads.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)

    def to_bytes(self) -> bytes:
        """Return the message as one line of JSON."""
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """Return the message in `payload`; raises `MessageError`."""
        try:
            return cls.model_validate_json(payload)
        except ValidationError as error:
            raise MessageError(f"{cls.__name__}: {find_first_problem(error)}") from None


UNION_MEMBER = re.compile(r"^(constrained-|literal\[|float$|int$|str$|bool$)")


def find_first_problem(error: ValidationError) -> str:
    """Return the first problem of a pydantic error as `key: what was expected, got what`."""
    problem = error.errors(include_url=False)[0]
    # Behind the key pydantic names the member of a union that it tried, such as "constrained-float".
    key = ".".join(str(part) for part in problem["loc"] if not UNION_MEMBER.search(str(part)))[:80] or "payload"
    given = problem["input"]  # all that came, as bytes, where it is no JSON
    shown = given[:SHORT_MAX].decode(errors="replace") if isinstance(given, bytes) else str(given)
    return f"{escape_text(key)}: {problem['msg']}, got {shown[:80]!r}"


class Transfer(Message):
    """A body that travels in chunks: its name is its SHA-256."""

    digest: Digest
    size_bytes: Count
    chunks: Annotated[int, Field(ge=1, le=CHUNKS_MAX)]


class Part(BaseModel):
    """A part of a message, read as strictly as the whole."""

    model_config = Message.model_config


class Device(Message):
    """What a gateway watches, for whoever has to mend it; `fedgate.config.settings.settings.DeviceTable` says what
    may stand in it.
    """

    manufacturer: Words = ""
    model: Words = ""
    serial: Words = ""
    location: Words = ""
    category: Name = "other"


class Trail(Part):
    """Score and level of the latest windows, the oldest first; level i holds from place `level_from[i]` on."""

    first_ns: Moment
    offsets_s: Annotated[tuple[Number, ...], Field(min_length=1, max_length=TRAIL_MAX)]
    scores: Annotated[tuple[Number, ...], Field(max_length=TRAIL_MAX)]
    level_from: Annotated[tuple[Place, ...], Field(min_length=1, max_length=TRAIL_MAX)]  # places in the list
    levels: Annotated[tuple[Number, ...], Field(max_length=TRAIL_MAX)]

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        places = (*self.level_from, len(self.scores))
        is_rising = places[0] == 0 and all(one < other for one, other in pairwise(places))
        if len(self.scores) != len(self.offsets_s) or len(self.levels) != len(self.level_from) or not is_rising:
            raise ValueError("expected a score for each time, and levels from the first of them on, places rising")
        return self

    def list_levels(self) -> list[float]:
        """Return the level of each window."""
        places = (*self.level_from, len(self.scores))
        return [
            level for level, (first, end) in zip(self.levels, pairwise(places), strict=True) for _ in range(first, end)
        ]


class SourceReport(Part):
    """A source of a gateway as it was received last: its channels in order and, where they are published, the last
    value of each, None where it was not finite, with its unit.
    """

    age_s: NotNegative | None  # None: nothing came since the start
    rate_hz: NotNegative | None  # as the source says or, of single readings, between the last two
    channels: Annotated[tuple[Name, ...], Field(max_length=SENSORS_MAX)]
    units: Annotated[tuple[Name, ...], Field(max_length=SENSORS_MAX)] = ()
    values: Annotated[tuple[Number | None, ...], Field(max_length=SENSORS_MAX)] = ()

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if len(self.values) != len(self.units) or len(self.values) not in (0, len(self.channels)):
            raise ValueError(f"expected a value and a unit of each of {len(self.channels)} channels, or none")
        return self


STATUS = "agent"  # item under which a gateway publishes its status, and is answered


class Status(Message):
    """What a gateway (or, without the gateway fields, the aggregator) is doing; retained, `offline` as last will."""

    state: Literal["online", "offline"]
    version: Name = ""
    boot_id: Name = ""
    clock: ClockQuality = "unknown"
    can_train: bool = False
    # That some algorithms need besides, such as torch.
    libraries: Annotated[tuple[Name, ...], Field(max_length=LISTED_MAX)] = ()
    baseline_windows: Count = 0
    baseline_needed: Count = 0
    windows: Count = 0
    windows_lost: Count = 0
    values_filled: Counts = {}  # by channel: values of its windows that were bridged, not measured
    model_version: Count = 0
    model_digest: Name = ""
    settling: bool = False  # the model in force has not yet seen enough windows to be asked
    alarms_active: Count = 0
    outbox: Count = 0
    bytes_sent: Count = 0
    bytes_received: Count = 0
    dropped: Counts = {}
    refusal: Short = ""
    refused_round: Name = ""  # the `round_number` of the invitation that this gateway will not answer
    training_remarks: Short = ""  # what its trainings in this run warned of, or why they had nothing to send
    answered: Name = ""  # the `round_number` of the last update that it made
    candidate_version: Count = 0  # of a model on its way into force
    previous_version: Count = 0  # to go back to
    probation_s: Annotated[float, Field(ge=0)] = 0.0  # that the model in force will still be watched
    model_windows: Count = 0  # judged by the model in force
    model_alarms: Count = 0  # of the structure, raised under it
    promised_alarms_per_day: Annotated[float, Field(ge=0)] = 0.0
    # By version: why a model was not taken, or gone back from.
    rejected: Annotated[dict[Name, Short], Field(max_length=LISTED_MAX)] = {}
    privacy_epsilon: Annotated[float, Field(ge=0)] | None = None  # spent so far, where differential privacy is kept
    device: Device | None = None
    store_id: Name = ""  # names the store, whoever runs it: what distinguishes a copy or a new store from this one
    starts: Count = 0  # of agents on this store
    sequence: Count = 0  # items that this store has ever queued
    t_ns: Moment | None = None  # when this was said, and ...
    monotonic_ns: Moment | None = None  # ... how long after the boot: by both, earlier times of a boot can be corrected
    challenge: Count = 0  # the last that came from the aggregator, see `Receipt`: this was said after it
    link: Short = ""  # what keeps ending the connection, where something seems to
    outbox_bytes: Count = 0  # of what waits to be sent, see [store]
    flash_bytes_written: Count = 0  # in this day of the gateway's
    store_problem: Short = ""
    stale: Short = ""  # why what this gateway was told by the aggregator may not be the newest
    # Of the last window that was judged, where scores are published and the level is above 0: from 1 on it is unusual.
    score_over_level: float | None = None
    trail: Trail | None = None  # of the latest windows, where scores are published
    sources: Annotated[dict[Name, SourceReport], Field(max_length=SENSORS_MAX)] = {}
    compared_windows: Count = 0  # that the model in force and the one before have both judged, while it is on probation
    differing_windows: Count = 0  # of these: one is at its level, the other is not

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.differing_windows > self.compared_windows:
            raise ValueError(f"{self.differing_windows} of {self.compared_windows} windows cannot differ")
        if (channels := sum(len(one.channels) for one in self.sources.values())) > SENSORS_MAX:
            raise ValueError(f"sources: expected at most {SENSORS_MAX} channels, got {channels}")
        return self

    def compact(self) -> Status:
        """Return the same in a third of the memory: of which keys were given, only what the register of alarms asks is
        kept.
        """
        return self.model_construct(_fields_set=self.model_fields_set & {"alarms_active", "outbox"}, **self.__dict__)

    def ready(self, libraries: tuple[str, ...] = ()) -> bool:
        """Return True where the gateway can answer a round of an algorithm that needs such libraries."""
        equipped = self.can_train and set(libraries) <= set(self.libraries)
        return self.state == "online" and equipped and self.baseline_windows >= self.baseline_needed > 0

    @property
    def watching(self) -> bool:
        """True where the gateway judges its windows now."""
        return self.state == "online" and self.model_version > 0 and not self.settling

    def lacks(self, version: int) -> bool:
        """True where the gateway could have put a model in force, has not, and does not say why."""
        could = self.state == "online" and self.baseline_windows >= self.baseline_needed > 0
        return could and self.model_version < version and not self.refusal.startswith(f"model {version} ")


class Signed(Message):
    """A message that a key of the site signs, because it decides what leaves a gateway or what runs on it.

    The signature covers whom it is for and until when it may be taken too, so that nobody else takes it, or later.
    """

    audience: LongName = ""  # see `name_audience`
    expires_ns: Moment = 0  # 0: never, where the clock of who signed it was not set
    signature: Name = ""
    _received: dict[str, Any] | None = PrivateAttr(default=None)

    @classmethod
    def from_bytes(cls, payload: bytes) -> Self:
        """Return the message in `payload`; raises `MessageError`."""
        message = super().from_bytes(payload)
        message._received = json.loads(payload)
        return message

    def __eq__(self, other: object) -> bool:
        """Tell whether two messages say the same, however they came here."""
        return isinstance(other, Signed) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]  # a message with lists and tables in it has none

    def received_bytes(self) -> bytes:
        """Return the message to be kept or passed on: with what this version does not know of, which is signed too."""
        return self.to_bytes() if self._received is None else json.dumps(self._received).encode()

    def changed(self, **values: Any) -> Self:
        """Return the message with other values, for a signature of its own: what it was received as is over."""
        message = self.model_copy(update=values)
        message._received = None
        return message

    def signed_bytes(self) -> bytes:
        """Return what the signature covers: everything but itself, with what this version does not know of too."""
        return self._bytes_without("signature")

    def content_bytes(self) -> bytes:
        """Return what the message says, whomever it is for and until when: the same when it is signed anew."""
        return self._bytes_without("signature", "audience", "expires_ns")

    def _bytes_without(self, *keys: str) -> bytes:
        document = json.loads(self.to_bytes()) if self._received is None else self._received
        kept = {key: value for key, value in document.items() if key not in keys}
        return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()


def name_audience(site: str, gateway: str) -> str:
    """Return for whom a signed message is, as it is written in it: one gateway of a site, or `topics.ALL` of them."""
    return f"{site}/{gateway}"


class RoundOpen(Signed):
    """An invitation to train: everything a gateway needs to compute its update, and nothing that is code."""

    run: Id
    round_index: Count
    phase: Count
    algorithm: str
    settings: dict[str, Any]
    seed: Count
    features: FeatureSpec
    shared: Transfer
    cohort: tuple[Id, ...] | None = None  # None: everyone
    libraries: tuple[str, ...] = ()  # that training needs besides what every gateway has that can train
    training: Count = 0  # grows from one training to the next; 0: not reported, as before 0.5
    # Of this training, the newest last: what was acknowledged in these rounds is in no model.
    abandoned: Annotated[tuple[Count, ...], Field(max_length=LISTED_MAX)] = ()


def round_number(run: str, round_index: int) -> str:
    """Return the name of one round of one training."""
    return f"{run}/{round_index}"


class Want(Message):
    """A request for chunks of a transfer, by index; an empty list asks for all of them."""

    missing: tuple[Count, ...] = ()


class Receipt(Message):
    """The aggregator's word that an item is on its disk, or why it never will be."""

    accepted: bool
    reason: Short = ""
    challenge: Count = 0  # to be named in each status from now on; of the item `STATUS` alone
    # Of an update that is kept: the round it counts in. Of two in one round the later alone does. None: in its own.
    counts_in: Count | None = None


class Manifest(Signed):
    """What a released model is, so that a gateway can refuse it before it runs."""

    version: Annotated[int, Field(ge=1)]
    model: Transfer
    algorithm: str
    detector: str
    run: Id
    round_index: Count
    features: FeatureSpec
    personal: tuple[str, ...]
    opset: Count
    golden_x: tuple[tuple[float, ...], ...]  # (n, F) inputs, with neutral personal tensors
    golden_score: tuple[float, ...]  # (n,)
    # What a survey found, see `fedgate.models.federated.wrappers.site_thresholds`: base64 of the wire format, or empty.
    site: str = ""
    gateways: Count
    created_ns: Count


class Keys(Signed):
    """Which keys a site goes by. Its root key signs it, so that the newest alone says all: of two with good signatures
    the one with the higher number holds.
    """

    site: Id
    number: Annotated[int, Field(ge=1, le=LARGEST)]
    release_key: Pem  # public
    authorities: Annotated[tuple[Pem, ...], Field(min_length=1, max_length=AUTHORITIES_MAX)]  # the newest first
    members: Annotated[tuple[Member, ...], Field(max_length=MEMBERS_MAX)] = ()  # of masked sums; none: any gateway
    created_ns: Moment


class Newest(Signed):
    """The numbers that the aggregator has used last: whoever lost them, and whoever is new, takes nothing older.

    None of them ever gets smaller.
    """

    version: Count  # of the model that all gateways are to have; 0: none yet
    highest_version: Count  # that was given to any of them, or kept for later
    training: Count  # of the training at hand, see `RoundOpen`


class MaintenanceWindow(Message):
    """A time of maintenance of what a gateway watches, or of all of the site."""

    gateway: Id  # or `topics.ALL`
    from_ns: Moment
    to_ns: Moment


class MaintenanceWindows(Signed):
    """Maintenance windows, in which no gateway learns what is normal; of two messages the one changed later holds."""

    changed_ns: Moment
    windows: Annotated[tuple[MaintenanceWindow, ...], Field(max_length=MAINTENANCE_MAX)] = ()


class Score(Message):
    """One scored window, for whoever watches."""

    t_ns: Moment
    score: float
    level: float
    alarm: bool
    model_version: Count
    rule: str = "score"  # which stands out most; of others than `score` a height is reported, with 1 as its level


class Alarm(Message):
    """A change of an alarm: raised and cleared are both messages, each with where it comes from."""

    id: AlarmId
    cause: Id
    kind: Literal["anomaly", "sensor"]
    state: Literal["raised", "cleared"]
    severity: Literal["warning", "major", "critical"]
    text: Short
    onset_ns: Moment
    t_ns: Moment
    score: float | None = None
    level: float | None = None
    rule: Name = ""  # that raised it
    feature: LongName = ""  # that it is about, or that adds most to the score of an anomaly
    window_s: float | None = None
    model_version: Count = 0
    model_digest: Name = ""
    baseline_windows: Count = 0
    clock: ClockQuality = "unknown"
    boot_id: Name = ""
    monotonic_ns: Moment | None = None  # at `t_ns`: how long after the boot
    sequence: Count = 0  # its number among the items of its store: orders alarms whatever the clock says; 0: unknown
    store_id: Name = ""  # names that store, as in a status
    weather: Evidence = ""  # what the covariates of the gateway say of an anomaly, at its raising: see
    power: Evidence = ""  # `fedgate.models.alarms.attribution`; of power also whether it began with a boot

    def clear(self, t_ns: int, text: str) -> Self:
        """Return the end of this alarm at `t_ns`, for the reason that the text gives."""
        return self.model_copy(update={"state": "cleared", "t_ns": t_ns, "text": text})

    @property
    def item(self) -> str:
        """The name under which the aggregator acknowledges this change; short enough for a topic whatever the id."""
        return f"{hashlib.sha256(self.id.encode()).hexdigest()[:32]}.{self.state}"


class FleetAlarm(Alarm):
    """Anomalies of many gateways of a site as one alarm, and the cause that most of them have measured, if any."""

    common: Common
    gateways: tuple[Id, ...]  # whose anomalies it is made of


class ServiceRequest(Message):
    """An alarm as a building automation system wants it: which device, what, since when, until when.

    `since` and `until` are ISO 8601 in UTC; `until` is empty while the alarm is active. `rule` and `feature` say what
    raised it. Under `all` the device is the whole site, with the cause its `gateways` have in `common`.
    """

    id: str
    state: Literal["raised", "cleared"]
    site: Id
    device: Id
    manufacturer: str = ""
    model: str = ""
    serial: str = ""
    category: str = "other"
    location: str = ""
    what: Id
    rule: str = ""
    feature: str = ""
    common: str = ""
    gateways: tuple[Id, ...] = ()
    kind: Literal["anomaly", "sensor"]
    severity: Literal["warning", "major", "critical"]
    text: str
    since: str
    until: str = ""
    clock: ClockQuality = "unknown"

    @classmethod
    def of(cls, alarm: Alarm, site: str, gateway: str, device: Device) -> Self:
        """Return what a building receives of an alarm of a gateway (or of `all`) on this device."""
        fields = alarm.model_dump(include={"id", "state", "rule", "feature", "kind", "severity", "text", "clock"})
        return cls(
            **device.model_dump(),
            **fields,
            site=site,
            device=gateway,
            what=alarm.cause,
            common=alarm.common if isinstance(alarm, FleetAlarm) else "",
            gateways=alarm.gateways if isinstance(alarm, FleetAlarm) else (),
            since=format_iso(alarm.onset_ns),
            until=format_iso(alarm.t_ns) if alarm.state == "cleared" else "",
        )


# gateway/id, or the beginning of it or of the id.
AlarmName = Annotated[str, StringConstraints(pattern=f"^[^{CONTROLS}]*$", max_length=NAME_MAX + 65)]
ACTION_TEXT_MAX, PERSON_MAX, ALARMS_AT_ONCE_MAX = 1_000, 64, 100
Person = Annotated[str, StringConstraints(pattern=f"^[^{CONTROLS}]*$", max_length=PERSON_MAX)]
Seconds = Annotated[float, Field(ge=-9e9, le=9e9)]


class AlarmState(Message):
    """How an alarm is handled, for other systems: of a cause of a gateway, or of the whole site, the alarm that stands,
    else the last that is over and that nobody has acknowledged.

    `state` is one of ISA-18.2 but for `normal`, of which there is no message. Times are ISO 8601 in UTC, and empty
    where there is none; `time` is when this was said.
    """

    id: Name
    gateway: Id  # or `topics.ALL`
    cause: Id
    kind: Literal["anomaly", "sensor"]
    severity: Literal["warning", "major", "critical"]
    state: Literal[
        "unacknowledged", "acknowledged", "returned-unacknowledged", "shelved", "suppressed", "out-of-service"
    ]
    since: Name
    acknowledged_by: Person = ""
    acknowledged_at: Name = ""
    shelved_until: Name = ""
    label: Name = ""
    assignee: Person = ""
    time: Name = ""


class AlarmAction(Message):
    """What another system does about alarms. Who it is says the topic, under which the broker lets nobody else speak.

    `request` is the sender's own number of it: the same again is the same action, which is carried out once. Of the
    rest an action takes what it needs; `fedgate.cloud_aggregator.alarms.actions` checks that.
    """

    request: Id
    action: Literal[
        "acknowledge",
        "shelve",
        "unshelve",
        "note",
        "label",
        "assign",
        "out-of-service",
        "in-service",
        "window",
        "window-end",
    ]
    alarms: Annotated[tuple[AlarmName, ...], Field(max_length=ALARMS_AT_ONCE_MAX)] | None = None
    text: Annotated[str, StringConstraints(max_length=ACTION_TEXT_MAX)] | None = None
    for_s: Seconds | None = None  # how long to shelve
    label: Name | None = None
    to: Person | None = None  # to whom it is assigned; empty: to nobody
    gateway: Id | None = None
    cause: Id | None = None
    from_s: Seconds | None = None  # begin and ...
    to_s: Seconds | None = None  # ... end of a maintenance window, in s of Unix time
    window: Count | None = None  # its number, where it is ended


class ActionAnswer(Message):
    """What became of an action: it is stored, or, where `problem` is not empty, nothing was changed."""

    request: Name  # of the action; empty where none could be read
    answer: str
    problem: str = ""


def format_iso(t_ns: int) -> str:
    return datetime.fromtimestamp(t_ns // 10**9, UTC).isoformat()
