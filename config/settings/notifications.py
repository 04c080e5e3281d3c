"""How the aggregator notifies others of alarms: as one alarm of the whole site, by webhook, by channels that Apprise
serves, in Home Assistant.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, StringConstraints, field_validator, model_validator

from fedgate.config.settings.base import FilePath, NotNegative, Positive, Share, Table, is_loopback

SCHEMES = ("http", "https")
WEBHOOK = "webhook"  # as a receiver is called that is no channel
SEVERITIES = ("warning", "major", "critical")  # from the least
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class FleetSpec(Table):
    """When anomalies of many gateways are one alarm of their site; `fedgate.cloud_aggregator.alarms.fleet` says how it
    is judged.
    """

    enabled: bool = True
    share: Share = 0.5  # of the gateways that watch
    least: Annotated[int, Field(ge=2)] = 3  # and never fewer gateways than these
    window_s: Positive = 900.0  # within which their anomalies began
    clear_s: NotNegative = 300.0  # how long it stays below the quorum before it clears


class Receiver(Table):
    """How patiently something is sent that waits for the receiver's word."""

    timeout_s: Positive = 10.0
    retry_s: Positive = 5.0  # pause after the first failure; each further one doubles it ...
    retry_max_s: Positive = 900.0  # ... up to this
    queue: int = 1_000  # changes that wait; beyond that some are given up


class Webhook(Receiver):
    """Where each change of an alarm is posted, and how patiently."""

    url: str
    queue: Annotated[int, Field(ge=10, le=100_000)] = 10_000  # changes that wait; beyond that some are given up
    secret_file: FilePath | None = None  # its content is sent as the header ...
    header: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,64}$")] = "Authorization"
    ca_file: FilePath | None = None  # that signs the receiver's certificate; None: those of the system

    @field_validator("url")
    @classmethod
    def _check_receiver(cls, url: str) -> str:
        wanted = "expected http://host/path or https://host/path"
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise ValueError(f"{wanted}, got an address with a mistake in it ({error})") from None
        if parts.scheme not in SCHEMES or not parts.hostname or not url.isascii() or set(url) & set(" \t\r\n"):
            raise ValueError(f"{wanted} in ASCII without spaces, got {url!r}")
        if parts.username is not None:
            raise ValueError("a name and password do not belong into the address; put them into secret_file")
        return url

    @model_validator(mode="after")
    def _check_secret(self) -> Webhook:
        if self.secret_file is not None and self.parts.scheme == "http" and not is_loopback(self.parts.hostname or ""):
            raise ValueError(f"secret_file: over http everyone on the way to {self.parts.hostname} reads it; use https")
        return self

    @property
    def parts(self) -> SplitResult:
        """The parts of the address."""
        return urlsplit(self.url)


class Escalation(Table):
    """After how long an alarm that nobody has acknowledged is told once more."""

    after_s: Annotated[float, Field(ge=60.0)] = 3600.0
    severity: Literal["warning", "major", "critical"] = "major"  # and above


class NotifyChannel(Receiver):
    """Who gets which changes of alarms in plain words, by way of Apprise.

    Its addresses hold tokens and passwords, so they stand in a file or in the environment, one a line.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,32}$")]
    url_file: FilePath | None = None
    url_env: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] | None = None
    severity: Literal["warning", "major", "critical"] = "warning"  # and what is more severe
    kinds: Annotated[tuple[Literal["anomaly", "sensor", "fleet"], ...], Field(min_length=1)] = (
        "anomaly",
        "sensor",
        "fleet",
    )
    gateways: tuple[Id, ...] = ()  # whose alarms; none named: those of all
    timeout_s: Annotated[float, Field(gt=0, le=300)] = 30.0  # for all of its addresses together
    queue: Annotated[int, Field(ge=10, le=10_000)] = 1_000

    @model_validator(mode="before")
    @classmethod
    def _refuse_address(cls, given: Any) -> Any:
        """Refuse an address by the names it may have, without showing it."""
        if isinstance(given, dict) and given.keys() & {"url", "urls"}:
            raise ValueError(
                "an address holds tokens and has no place in the settings; put it into a file that url_file names"
            )
        return given

    @model_validator(mode="after")
    def _check_place(self) -> NotifyChannel:
        if (self.url_file is None) == (self.url_env is None):
            raise ValueError("expected one of url_file and url_env, which say where the addresses are")
        if self.name == WEBHOOK:
            raise ValueError(f"name: {WEBHOOK!r} given, which is what [webhook] is called; choose another")
        return self


class AlarmsTable(Table):
    """Which other systems may act on alarms over MQTT, by the user names that the broker knows them by."""

    actions_from: Annotated[tuple[Id, ...], Field(max_length=8)] = ()  # none named: nobody


class HomeAssistant(Table):
    """Whether Home Assistant is notified, by MQTT discovery, which alarms there are."""

    enabled: bool = False
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}(/[A-Za-z0-9_.-]{1,64}){0,7}$")] = (
        "homeassistant"
    )
