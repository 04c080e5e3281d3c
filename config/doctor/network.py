"""The way to a broker, one step at a time, so that the step that fails is named: name, port, TLS, certificates."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from fedgate.config.doctor.report import Finding, failure, fit_line, ok, warning
from fedgate.config.settings.base import is_loopback
from fedgate.config.settings.settings import Broker, SettingsError
from fedgate.config.transport import mqtt, tls
from fedgate.models.time_units import DAY_S

STEP_S = 3.0
SOON_DAYS = 30.0
LATE_SHARE = 1 / 3  # of a certificate's life, below which it should have been renewed


class Validity(NamedTuple):
    """From when to when a certificate holds, in Unix seconds, and whose it is."""

    begins_s: float
    ends_s: float
    subject: str


def reach(broker: Broker) -> tuple[list[Finding], bool]:
    """Return what is found on the way to a broker, and whether it is worth talking to."""
    found: list[Finding] = []
    for step in (_check_files, _name, _port, _check_tls):
        finding = step(broker)
        found.append(finding)
        if finding.level == "failure":
            return found, False
    return found, True


def _check_files(broker: Broker) -> Finding:
    named = [path for path in (broker.password_file, broker.ca_file, broker.certificate_file, broker.key_file) if path]
    try:
        mqtt.check(broker)
    except SettingsError as error:
        return failure("broker files", fit_line(error), "put the file there, readable by the user of the service")
    return ok("broker files", f"{len(named)} files can be used" if named else "none needed: no password, no TLS")


def _name(broker: Broker) -> Finding:
    name, found = "broker name", list[str]()
    problem: list[str] = []

    def look_up() -> None:
        try:
            found.extend(sorted({str(entry[4][0]) for entry in socket.getaddrinfo(broker.host, broker.port)}))
        except (OSError, UnicodeError) as error:
            problem.append(str(error))

    asking = threading.Thread(target=look_up, daemon=True)  # a resolver may wait for minutes and cannot be broken off
    asking.start()
    asking.join(STEP_S)
    if found:
        return ok(name, f"{broker.host} is {', '.join(found[:3])}")
    why = problem[0] if problem else f"no answer within {STEP_S:g} s"
    return failure(name, f"{broker.host} has no address ({why})", "check broker.host, the resolver, the link")


def _port(broker: Broker) -> Finding:
    name, place, started_s = "broker port", f"{broker.host}:{broker.port}", time.monotonic()
    try:
        with socket.create_connection((broker.host, broker.port), timeout=STEP_S):
            took_s = time.monotonic() - started_s
    except OSError as error:
        advice = "does the broker run, does it listen on this port, does a firewall stand between?"
        return failure(name, f"{place} takes no connection ({error})", advice)
    return ok(name, f"{place} answers within {took_s * 1e3:.0f} ms")


def _check_tls(broker: Broker) -> Finding:
    name, context = "broker TLS", tls.make_context(broker)
    if context is None:
        if is_loopback(broker.host):
            return ok(name, "none, on a broker that is reached without leaving this machine")
        advice = "give broker.ca_file; cloud-aggregator init makes certificates"
        return warning(name, f"none: everyone on the way to {broker.host} can read and change messages", advice)
    try:
        with (
            socket.create_connection((broker.host, broker.port), timeout=STEP_S) as plain,
            context.wrap_socket(plain, server_hostname=broker.host) as secured,
        ):
            shown, version = secured.getpeercert() or {}, secured.version()
    except ssl.SSLCertVerificationError as error:
        return failure(name, f"the broker's certificate is refused ({error.verify_message})", _advise(error, broker))
    except (OSError, ValueError) as error:
        problem = fit_line(error)
        advice = tls.REVOKED if tls.REVOKED in tls.advise(problem) else "is this the port with TLS?"
        return failure(name, f"no secured connection ({problem})", advice)
    begins_s, ends_s = (ssl.cert_time_to_seconds(str(shown[key])) for key in ("notBefore", "notAfter"))
    validity = Validity(begins_s, ends_s, "the broker's certificate")
    renewal = "renew it at the aggregator and restart the broker"
    return age(name, validity, time.time(), renewal, f"{version}; ")


def _advise(error: ssl.SSLCertVerificationError, broker: Broker) -> str:
    message = error.verify_message.lower()
    if "not yet valid" in message:
        return f"set the clock, which says {_format_day(time.time())}"
    if "expired" in message:
        return f"renew it at the broker; or set the clock, which says {_format_day(time.time())}"
    if "mismatch" in message or "hostname" in message:
        return f"broker.host must be a name in that certificate, {broker.host} is none"
    return f"broker.ca_file {broker.ca_file} must be of the authority that made it"


def age(name: str, validity: Validity, now_s: float, renewal: str, problem: str = "") -> Finding:
    """Return what the age of a certificate means."""
    left_days, whole_days = (validity.ends_s - now_s) / DAY_S, (validity.ends_s - validity.begins_s) / DAY_S
    # Our authority's own begin in 1970, so that a gateway without a clock can use them; so their age is not known.
    late_days = whole_days * LATE_SHARE if validity.begins_s > DAY_S else 0.0
    text = f"{problem}{validity.subject} holds until {_format_day(validity.ends_s)}"
    if now_s < validity.begins_s:
        return failure(
            name,
            f"{validity.subject} holds from {_format_day(validity.begins_s)}",
            f"set the clock, which says {_format_day(now_s)}",
        )
    if left_days < 0:
        return failure(name, f"{validity.subject} expired on {_format_day(validity.ends_s)}", renewal)
    if left_days < min(SOON_DAYS, whole_days / 2) or left_days < late_days:
        return warning(name, f"{text}, {left_days:.0f} days", renewal)
    return ok(name, f"{text}, {left_days:.0f} days")


def _format_day(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="minutes")


def check_certificates(broker: Broker, user: str, renewal: str) -> Iterator[Finding]:
    """Yield the ages of our own certificate and of its authority's, and whether the name in ours is the user's."""
    from fedgate.config.identity.pki import IdentityError, load_certificate, read_common_name

    of_site = "have another authority take its place before then: cloud-aggregator keys rotate --authority"
    files = (("certificate", broker.certificate_file, renewal), ("authority", broker.ca_file, of_site))
    for name, path, advice in files:
        if path is None:
            continue
        try:
            shown = load_certificate(path)
        except IdentityError as error:
            yield failure(name, fit_line(error), renewal)
            continue
        validity = Validity(shown.not_valid_before_utc.timestamp(), shown.not_valid_after_utc.timestamp(), path.name)
        yield age(name, validity, time.time(), advice)
        if name == "certificate" and read_common_name(shown) != user:
            text = f"{path.name} is of {read_common_name(shown) or 'nobody'}, this is {user}"
            yield failure("certificate name", text, "the broker takes the name in it for the user: enrol under it")
