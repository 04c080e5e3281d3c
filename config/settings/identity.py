"""Settings of who belongs to a site; without them everybody belongs whom the broker lets in.

Apart from `fedgate.config.identity.pki`, which loads what only a process that works with keys needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from fedgate.config.settings.base import FilePath, Table

# Host and port. What is no port is found when it is used; a host may have any name.
Address = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}$")]


class Identity(Table):
    """[identity] of aggregator.toml: the site's own authority, and how the broker is notified of who was revoked."""

    folder: FilePath = Path()  # as 'cloud-aggregator init' made it: ca.key, ca.pem, revoked.crl, mosquitto.acl
    broker_pid_file: FilePath | None = None  # of a broker on this machine that we may signal; it gets a SIGHUP
    root_key: FilePath | None = None  # where 'init' wrote it: it belongs elsewhere, and is needed to change keys alone
    reload_command: tuple[str, ...] = ()  # for any other, such as systemctl reload mosquitto
    # Where something starts the broker again: ends it, so that a name that another device had is good again at once.
    restart_command: tuple[str, ...] = ()
    certificate_days: Annotated[float, Field(gt=0, le=3_650)] = 90.0
    grace_days: Annotated[float, Field(ge=0, le=3_650)] = 365.0  # in which one that has expired may still be renewed


class Enrolment(Table):
    """[enrolment] of aggregator.toml: where gateways ask for certificates."""

    listen: Address
    address: Address  # under which gateways reach it; stands in the tokens


class Membership(Table):
    """[identity] of gateway.toml: this gateway has a certificate and renews it by itself."""

    enrolment: Address  # of the aggregator
    renew_share: Annotated[float, Field(gt=0, lt=1)] = 2 / 3  # of its life, after which a certificate is renewed
    check_s: Annotated[float, Field(gt=0, le=86_400)] = 3_600.0  # how often that is looked at, spread by half
