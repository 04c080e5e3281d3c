"""What a link needs for TLS, from the files that the settings name."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from fedgate.config.settings.settings import Broker, SettingsError

REVOKED = (
    "our certificate counts no more. If another device has taken our place, switch this one off: a new token here "
    "would shut that one out. Else it was revoked; to come back: 'cloud-aggregator gateways token ID --replace' there, "
    "'gateway-agent enrol --new-key' with it here, then restart the broker"
)
TLS_MIN = ssl.TLSVersion.TLSv1_2


def make_context(broker: Broker) -> ssl.SSLContext | None:
    """Return how to talk to this broker, which must prove its name to us; None without TLS.

    Raises `SettingsError` where the files cannot be used.
    """
    if broker.ca_file is None:
        return None
    try:
        context = trust(broker.ca_file)
        if broker.certificate_file is not None:
            context.load_cert_chain(broker.certificate_file, broker.key_file)
    except (OSError, ValueError) as error:
        raise SettingsError(f"broker: TLS files cannot be used ({error}){_enrol(broker)}") from None
    return context


def trust(ca_file: Path | None = None, authorities: str | None = None) -> ssl.SSLContext:
    """Return a context that believes the authorities in a file or in PEM and no others, checks names and speaks TLS 1.2
    or newer.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = TLS_MIN
    context.load_verify_locations(ca_file, cadata=authorities)
    return context


class FromFiles(ssl.SSLContext):
    """A context that reads its files for each connection: a new certificate, or another authority, counts from the next
    connection on, and what they replaced counts no more.
    """

    _broker: Broker

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        """Return a secured socket; raises `OSError` where the files cannot be used."""
        try:
            context = make_context(self._broker)
        except SettingsError as error:
            raise OSError(str(error)) from None
        if context is None:
            raise AssertionError("a context of a broker without TLS")
        return context.wrap_socket(*arguments, **options)


def make_rereading_context(broker: Broker) -> ssl.SSLContext | None:
    """Return a context that reads the files of this broker for each connection; None without TLS.

    Raises `SettingsError` where the files cannot be used now.
    """
    if make_context(broker) is None:
        return None
    context = FromFiles(ssl.PROTOCOL_TLS_CLIENT)
    context._broker = broker
    return context


def advise(problem: str) -> str:
    """Return what the other side's end of a connection says, with what to do where it is about our certificate."""
    reason = problem.upper().replace(" ", "_")
    if "CERTIFICATE_REVOKED" in reason:
        return f"{problem}; {REVOKED}"
    if "CERTIFICATE_EXPIRED" in reason:
        return f"{problem}; our certificate has expired: see that it can be renewed"
    return problem


def _enrol(broker: Broker) -> str:
    """Return what to do about a certificate that was never there."""
    wanted = (broker.ca_file, broker.certificate_file, broker.key_file)
    lacking = [str(path) for path in wanted if path is not None and not path.exists()]
    return f"; there is no {', '.join(lacking)}: on a gateway 'gateway-agent enrol' makes them" if lacking else ""
