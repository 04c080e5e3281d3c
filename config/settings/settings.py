"""The settings of both programs: one TOML file each, checked whole before anything starts.

An error names the file, the line, the key, the value given and what was expected. Types are taken strictly: a number
in quotes is a mistake and not a number. Relative paths are relative to the file.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator

from fedgate.config.protocol.feature_summary import FEATURES_MAX
from fedgate.config.protocol.messages import NAME_MAX, Id
from fedgate.config.protocol.messages import Name as Text
from fedgate.config.protocol.topics import ALL
from fedgate.config.protocol.transfer import FRAMING_BYTES, PACKET_BYTES_MAX, PAYLOAD_BYTES_MIN, TOPIC_BYTES_MAX
from fedgate.config.settings.alarm import AlarmTable
from fedgate.config.settings.base import FilePath, NotNegative, Positive
from fedgate.config.settings.base import Table as Table
from fedgate.config.settings.checks import check_algorithm
from fedgate.config.settings.database import StorePlace
from fedgate.config.settings.identity import Enrolment, Identity, Membership
from fedgate.config.settings.notifications import (
    AlarmsTable,
    Escalation,
    FleetSpec,
    HomeAssistant,
    NotifyChannel,
    Webhook,
)
from fedgate.config.settings.release import ModelsTable, ReleaseTable, Trust
from fedgate.config.settings.samples import FetchTable, SamplesTable
from fedgate.config.settings.training import AlgorithmChoice, DefenceChoice, Rounds, Training
from fedgate.config.settings.web import GatewayWebTable, MetricsTable, WebTable
from fedgate.models.alarms.false_alarm_test import block_windows
from fedgate.models.alarms.threshold import MINIMUM_SCORES
from fedgate.models.features.describe import Meaning, describe_features
from fedgate.models.features.spec import FeatureSpec, feature_names
from fedgate.models.windows.grid import Aggregate, StreamSpec

ENCODING = "utf-8-sig"  # UTF-8, with or without the mark that editors on Windows put at the beginning
MIB = 1024 * 1024
Feature = Annotated[str, StringConstraints(min_length=1, max_length=NAME_MAX)]
Words = Annotated[str, StringConstraints(max_length=120)]
Bytes = Annotated[int, Field(ge=PAYLOAD_BYTES_MIN)]  # of a body, which one message at least must bring
# A name that becomes part of an alarm's cause, such as faulty-<role>, and with it of a topic.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,56}$")]


class SettingsError(ValueError):
    """A settings file that cannot be used; the message names file, line, key, value and what was expected."""


class Broker(Table):
    """Where the MQTT broker is and how to log in."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65_535)] = 1883
    user: str = ""  # empty: the gateway id
    password_file: FilePath | None = None
    ca_file: FilePath | None = None  # given: TLS is on
    certificate_file: FilePath | None = None
    key_file: FilePath | None = None
    keepalive_s: Annotated[int, Field(ge=5, le=3_600)] = 30
    # It ends the connection of who sends more in one message, so such a message is never sent.
    max_packet_bytes: Annotated[int, Field(ge=2 * PAYLOAD_BYTES_MIN)] = PACKET_BYTES_MAX

    @model_validator(mode="after")
    def _check_together(self) -> Broker:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together; give both or neither")
        if self.certificate_file is not None and self.ca_file is None:
            raise ValueError("certificate_file needs ca_file, the certificate that the broker's own is checked against")
        return self


class SourceChannel(Table):
    """One measured quantity: the role it plays in the features and where it is found in a message."""

    role: Name
    unit: Text = ""
    path: str = ""  # JSON sources: dotted path of the value in the message
    gain: float = 1.0  # value in the unit = raw * gain + bias
    bias: float = 0.0


class Source(Table):
    """Where samples come from: fedgate's binary frames, or any topic with JSON values."""

    name: Name
    kind: Literal["frames", "json"]
    topic: str = ""  # JSON sources: the sensor's topic; frames arrive on this gateway's own sample topic
    channels: Annotated[tuple[SourceChannel, ...], Field(min_length=1)]
    fill: Literal["interpolate", "hold"] = "interpolate"
    gap_s: NotNegative | None = None  # longest gap bridged; None: the default of the fill
    aggregate: Aggregate | None = None  # of all samples nearest to a place; None: the first of them
    time_path: str = ""  # JSON sources: dotted path of a time stamp (ISO 8601, or Unix seconds); empty: time of arrival
    silent_after_s: Positive = 60.0

    @model_validator(mode="after")
    def _check_together(self) -> Source:
        if self.kind == "json" and not self.topic:
            raise ValueError("a json source needs the topic of its sensor")
        if set(self.topic) & set("+#\0"):
            raise ValueError(f"topic: expected one topic without wildcards, got {self.topic!r}")
        if self.kind == "frames" and (self.topic or self.time_path or any(c.path for c in self.channels)):
            raise ValueError("topic, time_path and path belong to json sources; frames have a topic of their own")
        if self.kind == "json" and not all(channel.path for channel in self.channels):
            raise ValueError("each channel of a json source needs the path of its value, e.g. path = 'temperature'")
        return self


class DeviceTable(Table):
    """What a gateway watches, in the words of its manufacturer and of the building, for whoever repairs it."""

    manufacturer: Words = ""
    model: Words = ""
    serial: Words = ""
    location: Words = ""
    category: Literal["lights", "thermostats", "occupancy", "water-leakage", "access", "other"] = "other"


class Gateway(Table):
    """Who this gateway is and where it keeps its state."""

    id: Id
    site: Id
    store: FilePath = Path("gateway.db")
    device: DeviceTable | None = None

    @field_validator("id")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name == ALL:
            raise ValueError(f"expected a name of this gateway's own; {ALL!r} stands for all gateways of a site")
        return name


class Sensors(Table):
    """The broker the sensors talk to, where it is not the one the aggregator is reached through."""

    broker: Broker | None = None


class Baseline(Table):
    """The commissioning period: the first windows train and calibrate, in that order."""

    windows: Annotated[int, Field(ge=60, le=20_000)] = 2_000
    calibration_share: Annotated[float, Field(gt=0, lt=1)] = 1 / 3

    @model_validator(mode="after")
    def _check_enough(self) -> Baseline:
        parts = {"calibrate": self.calibration_windows, "train": self.windows - self.calibration_windows}
        for purpose, count in parts.items():
            if count < MINIMUM_SCORES:
                raise ValueError(
                    f"windows * calibration_share leaves {count} windows to {purpose}; "
                    f"at least {MINIMUM_SCORES} are needed"
                )
        return self

    @property
    def calibration_windows(self) -> int:
        """How many windows, the last of the baseline, calibrate the threshold and train nothing."""
        return round(self.windows * self.calibration_share)


class Limits(Table):
    """What one message and one model may weigh."""

    max_payload_bytes: Annotated[int, Field(ge=PAYLOAD_BYTES_MIN, le=256 * 1024 * 1024)] = 64 * 1024
    max_model_bytes: Bytes = 16 * 1024 * 1024
    max_update_bytes: Bytes = 16 * 1024 * 1024
    # Of updates that an aggregator holds at once, on their way or late; the others are asked for when there is room.
    incoming_bytes: Bytes = 24 * 1024 * 1024

    @model_validator(mode="after")
    def _check_one_fits(self) -> Limits:
        if self.incoming_bytes < self.max_update_bytes:
            raise ValueError(
                f"incoming_bytes = {self.incoming_bytes} is less than max_update_bytes = {self.max_update_bytes}: an "
                "update of that size could never come; expected at least as much"
            )
        return self


def check_chunks_pass(limits: Limits, broker: Broker) -> None:
    """Raise `ValueError` where a chunk of a model or an update is more than the broker takes in one message."""
    most = broker.max_packet_bytes - TOPIC_BYTES_MAX - FRAMING_BYTES
    if limits.max_payload_bytes > most:
        raise ValueError(
            f"limits.max_payload_bytes: {limits.max_payload_bytes} given, and with broker.max_packet_bytes = "
            f"{broker.max_packet_bytes} at most {most} pass; set both as the broker has it"
        )


class Exchange(Table):
    """How patiently a gateway waits for answers, and what it publishes besides alarms."""

    resend_s: Positive = 30.0
    status_s: Positive = 60.0
    publish_scores: bool = True
    keep_scores: bool = True  # of those it publishes: while there is no link, for afterwards
    # Names of features of which a summary goes to the aggregator each hour, for the trends on its page.
    publish_features: Annotated[tuple[Feature, ...], Field(max_length=FEATURES_MAX)] = ()
    publish_values: bool = False  # with each status the last value of each channel: samples, which else never leave
    spread_s: NotNegative = 10.0  # within it a fleet sends what gathered in an outage


class StoreTable(Table):
    """What a gateway may keep on its flash, and how often it may write there."""

    max_bytes: Annotated[int, Field(ge=64 * 1024, le=4096 * MIB)] = 64 * MIB  # of what waits to be sent
    group_commit_s: Annotated[float, Field(ge=0, le=3_600)] = 60.0  # how long what may wait waits to be written
    flash_bytes_per_day: Annotated[int, Field(ge=MIB)] = 32 * MIB  # beyond that telemetry is not stored any more


class GatewaySettings(Table):
    """gateway.toml."""

    gateway: Gateway
    broker: Broker = Broker()
    sensors: Sensors = Sensors()
    source: Annotated[tuple[Source, ...], Field(min_length=1)]
    features: FeatureSpec
    baseline: Baseline = Baseline()
    alarm: AlarmTable = AlarmTable()
    training: Training = Training()
    trust: Trust = Trust()
    models: ModelsTable = ModelsTable()
    identity: Membership | None = None
    limits: Limits = Limits()
    exchange: Exchange = Exchange()
    store: StoreTable = StoreTable()
    samples: SamplesTable | None = None
    web: GatewayWebTable | None = None  # None: the gateway has no page of its own

    @property
    def streams(self) -> tuple[StreamSpec, ...]:
        """The sources as the window builder sees them."""
        return tuple(
            StreamSpec(
                name=source.name,
                channels=tuple(channel.role for channel in source.channels),
                fill=source.fill,
                aggregate=source.aggregate,
                **({} if source.gap_s is None else {"gap_s": source.gap_s}),
            )
            for source in self.source
        )

    def describe_features(self) -> dict[str, Meaning]:
        """Return what each feature is, by its name, with the units that the sources name."""
        units = {channel.role: channel.unit for source in self.source for channel in source.channels}
        return describe_features(self.features, units)

    @model_validator(mode="after")
    def _alarm_knows_its_features(self) -> GatewaySettings:
        check_chunks_pass(self.limits, self.broker)
        self.alarm.check_features(feature_names(self.features))
        self._check_published()
        self.alarm.check_windows(self.baseline.calibration_windows, 86_400.0 / self.features.hop_s)
        return self

    def _check_published(self) -> None:
        known, chosen = feature_names(self.features), self.exchange.publish_features
        if unknown := [name for name in chosen if name not in known]:
            raise ValueError(
                f"exchange.publish_features: {unknown[0]!r} is no feature; expected some of {', '.join(known)}"
            )
        if len(set(chosen)) != len(chosen):
            raise ValueError(f"exchange.publish_features: expected names that differ, got {list(chosen)}")

    @model_validator(mode="after")
    def _check_probation(self) -> GatewaySettings:
        windows, given_s = block_windows(self.features.hop_s), self.models.probation_s
        least_s = windows * self.features.hop_s
        if 0.0 < given_s < least_s:
            raise ValueError(
                f"models.probation_s: {given_s:g} s are too short to judge a model; expected at least {least_s:g} s, "
                f"one block of {windows} windows, or 0 for no probation"
            )
        return self

    @model_validator(mode="after")
    def _check_channels(self) -> GatewaySettings:
        names = [source.name for source in self.source]
        if len(set(names)) != len(names):
            raise ValueError(f"source: expected names that differ, got {names}")
        roles = [channel.role for source in self.source for channel in source.channels]
        if sorted(roles) != sorted(self.features.channels):
            raise ValueError(
                f"source: the roles of all sources are {sorted(roles)}; expected each of features.channels once, "
                f"{sorted(self.features.channels)}"
            )
        return self


class Site(Table):
    """Which site this aggregator serves and where it keeps its state."""

    site: Id
    store: StorePlace = Path("aggregator.db")
    release_key: FilePath = Path("release.key")


class SiteSettings(Table, extra="ignore"):
    """The tables of aggregator.toml that orders and tokens need, whatever is trained there: which site it is and who
    belongs to it.
    """

    aggregator: Site
    identity: Identity | None = None
    enrolment: Enrolment | None = None


class AggregatorSettings(SiteSettings, extra="forbid"):
    """aggregator.toml."""

    broker: Broker = Broker()
    features: FeatureSpec
    algorithm: AlgorithmChoice = AlgorithmChoice()
    defence: DefenceChoice = DefenceChoice()
    rounds: Rounds = Rounds()
    limits: Limits = Limits()
    release: ReleaseTable = ReleaseTable()
    fleet: FleetSpec = FleetSpec()
    webhook: Webhook | None = None
    escalation: Escalation | None = None
    alarms: AlarmsTable = AlarmsTable()
    notify: Annotated[tuple[NotifyChannel, ...], Field(max_length=8)] = ()
    home_assistant: HomeAssistant = HomeAssistant()
    samples: FetchTable = FetchTable()
    web: WebTable = WebTable()
    metrics: MetricsTable = MetricsTable()

    @model_validator(mode="after")
    def _check_channels(self) -> AggregatorSettings:
        names = [channel.name for channel in self.notify]
        if len(set(names)) != len(names):
            raise ValueError(f"notify: expected names that differ, got {names}")
        return self

    @model_validator(mode="after")
    def _check_algorithm(self) -> AggregatorSettings:
        check_chunks_pass(self.limits, self.broker)
        check_algorithm(self.algorithm, self.rounds, self.features)
        return self


AnySettings = TypeVar("AnySettings", bound=Table)


def load(path: Path, kind: type[AnySettings]) -> AnySettings:
    """Return the checked settings in a TOML file, paths made absolute; raises `SettingsError`."""
    try:
        text = path.read_text(encoding=ENCODING)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: byte {error.start} is not UTF-8, as settings are; save it as UTF-8") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        # By way of JSON, since pydantic's strict mode takes a list for a tuple and a string for a path only there.
        return kind.model_validate_json(_as_json(text), strict=True, context=path.parent.resolve())
    except ValidationError as error:
        from fedgate.config.settings.problems import list_problems  # late: a file without any is the rule

        raise SettingsError("\n".join(f"{path}:{problem}" for problem in list_problems(text, error, kind))) from None
    except RecursionError:
        raise SettingsError(f"{path}:1: nested deeper than any setting") from None
    except ValueError as error:  # it is no TOML
        found = re.search(r"at line (\d+)", str(error))
        line = found[1] if found else text.count("\n") + 1
        raise SettingsError(f"{path}:{line}: not TOML: {error}") from None


def _as_json(text: str) -> str:
    """Return a TOML document as JSON. A date, which JSON lacks, becomes what no setting is, and is named as such."""
    return json.dumps(tomllib.loads(text), default=lambda date: {"date": str(date)})
