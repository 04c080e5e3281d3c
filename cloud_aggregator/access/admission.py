"""Who gets in and who is put out, decided by the machine: enrolment, renewal, revocation.

Everything here rests on the registry and is stored before anybody is notified of it. A device that asks again, because
the answer or the power was lost, gets the same answer.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any, Literal

from fedgate.cloud_aggregator.access import attendance, duplicates
from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.access.registry import Registry, list_changes
from fedgate.cloud_aggregator.context import SET_NS, Context
from fedgate.cloud_aggregator.enrolment import Certificate, CertificateRequested, ForgetGateway, Issue, Reject, Token
from fedgate.cloud_aggregator.events import DropUploads, ForgetDevice, Log, OrderError, Publish, Wanted
from fedgate.config.settings.identity import Identity
from fedgate.models.time_units import DAY_NS, HOUR_NS

KEPT = 8  # certificates of a gateway that are never forgotten: a year of renewals, or some clocks that were ahead
NEW_KEY = "on a device that is trusted again, 'gateway-agent enrol --new-key' makes another"
Result = tuple[Access, list[Wanted]]
Answer = tuple[Access, list[Wanted], str]


class AdmissionError(ValueError):
    """A device that gets no certificate; the message says why and what to do."""


class SecondDeviceError(AdmissionError):
    """A device came with a good token under a name that another device has."""


def decide_request(access: Access, context: Context, request: CertificateRequested) -> Result:
    """Decide on a request for a certificate."""
    try:
        return _admit(access, context, request) if request.digest else _renew(access, context, request)
    except AdmissionError as error:
        count = access.uncertified + 1
        access = replace(access, uncertified=count)
        raised: list[Wanted] = []
        if count.bit_count() == 1:  # logged at 1, 2, 4, 8, ...: strangers ask as often as they like
            raised.append(Log("warning", f"no certificate for {request.gateway}: {error}; turned away so far: {count}"))
        if isinstance(error, SecondDeviceError):  # of others strangers could raise as many as they like
            access, alarm = duplicates.raise_alarm(access, context, request.gateway, "identity-refused")
            raised += alarm
        return access, [*raised, Reject(request.number, str(error))]


def _site(access: Access, context: Context) -> tuple[Registry, Identity]:
    if access.registry is None or context.settings.identity is None:
        raise AdmissionError("this site has no [identity]; 'cloud-aggregator init' makes one")
    if context.now_ns < SET_NS:
        raise AdmissionError("the clock of the aggregator is not set, so nothing it signs would be good; set it")
    return access.registry, context.settings.identity


def _admit(access: Access, context: Context, request: CertificateRequested) -> Result:
    registry, _ = _site(access, context)
    token = registry.passes.get(request.digest)
    if token is None or token.gateway != request.gateway:
        raise AdmissionError("the token is not known here, or is for another gateway; have one made")
    if token.expires_ns <= context.now_ns:
        raise AdmissionError("the token has expired; have another made")
    if token.key not in ("", request.key):
        raise SecondDeviceError("the token was used by another device; if that was not you, revoke this gateway")
    _check_key(registry, request)
    held = registry.list_certificates(request.gateway)
    if ended := [one.reason for one in held if one.key == request.key and one.reason]:
        raise AdmissionError(f"this key of {request.gateway} was {ended[-1]}; {NEW_KEY}")
    others = [one for one in held if one.key != request.key and one.reason != "removed"]
    if others and not token.replaces:
        raise SecondDeviceError(
            f"another device is or was {request.gateway}; take another name, or a token with --replace"
        )
    changed = registry.with_ended(others, "replaced", context.now_ns).with_pass(replace(token, key=request.key))
    access, effects = _issue(access, changed, context, request)
    is_first = not any(one.key == request.key for one in held)
    if others and is_first and not request.is_same_device:  # else what it says of itself and its alarms go on
        access, left = _forget_device(access, context, request.gateway, "replaced")
        effects += left
    return access, effects


def _check_key(registry: Registry, request: CertificateRequested) -> None:
    """Raise `AdmissionError` for a key that was revoked under any name: whoever copied it has it still."""
    if (whose := registry.revoked_keys.get(request.key)) is not None:
        raise AdmissionError(f"this key was revoked as that of {whose}, and is let in under no name; {NEW_KEY}")


def _renew(access: Access, context: Context, request: CertificateRequested) -> Result:
    registry, identity = _site(access, context)
    _check_key(registry, request)
    held = [one for one in registry.list_certificates(request.gateway) if one.key == request.key]
    if all(one.reason for one in held):
        why = held[-1].reason if held else "not enrolled with this key"
        raise AdmissionError(f"{request.gateway} is {why}; it needs a token")
    if held[-1].not_after_ns + identity.grace_days * DAY_NS < context.now_ns:
        raise AdmissionError(
            f"the last certificate expired more than {identity.grace_days:g} days ago; it needs a token"
        )
    return _issue(access, registry, context, request)


def _issue(access: Access, registry: Registry, context: Context, request: CertificateRequested) -> Result:
    """Hand out the certificate that this key has, where half of its life is left, else a new one; `registry` is what
    will be true with it.
    """
    identity, now_ns = context.settings.identity or Identity(), context.now_ns
    usable = [
        one
        for one in registry.list_certificates(request.gateway)
        # What was made while our clock was ahead is not good yet, and others than ours may be believed by nobody soon.
        if one.key == request.key and not one.reason and one.issued_ns <= now_ns and one.authority == request.authority
    ]
    if usable and usable[-1].not_after_ns - now_ns > (usable[-1].not_after_ns - usable[-1].issued_ns) / 2:
        access, effects = _change_registry(access, registry)
        return access, [*effects, Issue(request.number, usable[-1])]
    not_after_ns = now_ns + round(identity.certificate_days * DAY_NS)
    made = Certificate(request.serial, request.gateway, request.key, now_ns, not_after_ns, authority=request.authority)
    old = _list_expired(registry, request.gateway, now_ns - round(identity.grace_days * DAY_NS))
    access, effects = _change_registry(access, registry.without_certificates(old).with_certificates(made))
    log = Log("info", f"{request.gateway} has a certificate for {identity.certificate_days:g} days")
    return access, [*effects, Issue(request.number, made), log]


def _change_registry(access: Access, registry: Registry) -> Result:
    """Return the record with what is true now of who belongs here; that is stored, and the broker is notified of it."""
    return replace(access, registry=registry), [*list_changes(access.registry or Registry(), registry)]


def _list_expired(registry: Registry, gateway: str, before_ns: int) -> list[str]:
    """Return which certificates of a gateway nobody can use any more. The newest are not among them, whatever our clock
    says: it may be ahead for a moment, and what is forgotten cannot be revoked. Nor are those that were ended, which
    the broker's list would know more of than we.
    """
    held = sorted((one for one in registry.list_certificates(gateway) if not one.reason), key=lambda one: one.issued_ns)
    return [one.serial for one in held[:-KEPT] if one.not_after_ns < before_ns]


def admit_token(access: Access, context: Context, body: dict[str, Any]) -> Answer:
    """Let a device in that will come with a token of this digest."""
    gateway, replaces = str(body["gateway"]), bool(body["replaces"])
    registry = _require_registry(access)
    check_token(registry, gateway, replaces=replaces)
    expires_ns = context.now_ns + round(float(body["hours"]) * HOUR_NS)
    token = Token(str(body["digest"]), gateway, expires_ns, replaces)
    expired = [one.digest for one in registry.passes.values() if one.expires_ns <= context.now_ns]
    access, stored = _change_registry(access, registry.without_passes(expired).with_pass(token))
    text = f"{gateway} may enrol within {body['hours']:g} hours"
    if registry.list_certificates(gateway) and not (context.settings.identity or Identity()).restart_command:
        text += "; then restart the broker, which denies the name until it has forgotten the device that had it"
    return access, stored, text


def check_token(registry: Registry, gateway: str, *, replaces: bool) -> None:
    """Raise `OrderError` where a token under this name needs `--replace`."""
    if any(one.reason != "removed" for one in registry.list_certificates(gateway)) and not replaces:
        raise OrderError(f"{gateway} is or was enrolled; give --replace to put another device in its place")


def note_certificate(access: Access, context: Context, body: dict[str, Any]) -> Answer:
    """Take note of a certificate that was made for who is no gateway, so that it can be revoked."""
    name, authority = str(body["name"]), str(body.get("authority", ""))
    made = Certificate(
        str(body["serial"]), name, str(body["key"]), context.now_ns, int(body["not_after_ns"]), authority=authority
    )
    access, stored = _change_registry(access, _require_registry(access).with_certificates(made))
    return access, stored, f"{name} has a certificate"


def revoke_gateway(access: Access, context: Context, body: dict[str, Any]) -> Answer:
    """Shut a gateway out. What of it was counted stays in the sum; what is on its way is dropped."""
    gateway, registry = str(body["gateway"]), _require_registry(access)
    check_enrolled(registry, gateway)
    access, stored = _change_registry(access, registry.without(gateway, "revoked", context.now_ns))
    access, ended = attendance.note_end(access, context, gateway)
    text = f"{gateway} is revoked: its messages count no more"
    return access.without(gateway), [*stored, *ended, DropUploads(gateway)], text


def check_enrolled(registry: Registry, gateway: str) -> None:
    """Raise `OrderError` where a gateway has neither a certificate nor a token that could be revoked."""
    has_token = any(one.gateway == gateway for one in registry.passes.values())
    if not has_token and all(one.reason for one in registry.list_certificates(gateway)):
        raise OrderError(f"no gateway {gateway!r} is enrolled; 'cloud-aggregator gateways list' shows which are")


def remove_gateway(access: Access, context: Context, alarmed: Container[str], body: dict[str, Any]) -> Answer:
    """Forget a gateway that is gone for good: nobody waits for it, its alarms are ended; `alarmed` have any."""
    gateway, stored = str(body["gateway"]), list[Wanted]()
    check_known(access, alarmed, gateway)
    if access.registry is not None:
        access, stored = _change_registry(access, access.registry.without(gateway, "removed", context.now_ns))
    access, left = _forget_device(access, context, gateway, "removed")
    return access, [*stored, *left], f"{gateway} is forgotten"


def check_known(access: Access, alarmed: Container[str], gateway: str) -> None:
    """Raise `OrderError` where a gateway is not enrolled, and has sent nothing that could be forgotten."""
    held = access.registry.list_certificates(gateway) if access.registry is not None else []
    if gateway not in access.gateways and gateway not in alarmed and all(one.reason for one in held):
        raise OrderError(f"no gateway {gateway!r} is known; 'cloud-aggregator gateways list' shows which are")


def _forget_device(access: Access, context: Context, gateway: str, how: Literal["removed", "replaced"]) -> Result:
    """Forget what a device that is gone said of itself, end its alarms, and take away what the broker shows of it."""
    access, ended = attendance.note_end(access, context, gateway)
    access = access.without(gateway)
    access = replace(access, spent={name: most for name, most in access.spent.items() if name != gateway})
    retained = (("status", "agent"), ("manifest", "current"))
    cleared = [Publish(context.topic(gateway, channel, item), b"", retain=True) for channel, item in retained]
    return access, [ForgetGateway(gateway), *ended, *cleared, ForgetDevice(gateway, how)]


def _require_registry(access: Access) -> Registry:
    if access.registry is None:
        raise OrderError("this site has no [identity]; 'cloud-aggregator init' makes one")
    return access.registry
