"""How the aggregator notifies others of alarms: as one alarm of the whole site, by webhook, in Home Assistant."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, StringConstraints, field_validator, model_validator

from fedgate.config.settings.base import FilePath, NotNegative, Positive, Share, Table, is_loopback

SCHEMES = ("http", "https")


class FleetSpec(Table):
    """When anomalies of many gateways are one alarm of their site; `fedgate.cloud_aggregator.alarms.fleet` says how it
    is judged.
    """

    enabled: bool = True
    share: Share = 0.5  # of the gateways that watch
    least: Annotated[int, Field(ge=2)] = 3  # and never fewer gateways than these
    window_s: Positive = 900.0  # within which their anomalies began
    clear_s: NotNegative = 300.0  # how long it stays below the quorum before it clears


class Webhook(Table):
    """Where each change of an alarm is posted, and how patiently."""

    url: str
    timeout_s: Positive = 10.0
    retry_s: Positive = 5.0  # pause after the first failure; each further one doubles it ...
    retry_max_s: Positive = 900.0  # ... up to this
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


class HomeAssistant(Table):
    """Whether Home Assistant is notified, by MQTT discovery, which alarms there are."""

    enabled: bool = False
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}(/[A-Za-z0-9_.-]{1,64}){0,7}$")] = (
        "homeassistant"
    )
