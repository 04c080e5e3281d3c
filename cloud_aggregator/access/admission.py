"""Who gets in and who is put out, decided by the machine: enrolment, renewal, revocation.

Everything here rests on the registry and is stored before anybody hears of it. A device that asks again, because the
answer or the power was lost, gets the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from fedgate.cloud_aggregator.access import duplicates
from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.access.registry import (
    Bar,
    Certificate,
    CertificateRequested,
    ForgetCertificates,
    ForgetGateway,
    ForgetPasses,
    Issue,
    Pass,
    Reason,
    RecordCertificate,
    RecordPass,
    Registry,
    TurnAway,
)
from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.context import SET_NS, Context
from fedgate.cloud_aggregator.events import DropUploads, ForgetDevice, Log, OrderError, Publish, Wanted
from fedgate.config.settings.identity import Identity

DAY_NS = 86_400 * 1_000_000_000
HOUR_NS = 3_600 * 1_000_000_000
KEPT = 8  # certificates of a gateway that are never forgotten: a year of renewals, or some clocks that were ahead
NEW_KEY = "on a device that is trusted again, 'gateway-agent enrol --new-key' makes another"
Result = tuple[Access, list[Wanted]]
Answer = tuple[Access, list[Wanted], str]


class AdmissionError(ValueError):
    """A device that gets no certificate; the message says why and what to do."""


class SecondDeviceError(AdmissionError):
    """A device came with a good token under a name that another device has."""


def decide_request(access: Access, context: Context, alarms: Alarms, request: CertificateRequested) -> Result:
    """Decide on a request for a certificate."""
    try:
        return _admitted(access, context, alarms, request) if request.digest else _renewed(access, context, request)
    except AdmissionError as error:
        count = access.uncertified + 1
        access = replace(access, uncertified=count)
        raised: list[Wanted] = []
        if count.bit_count() == 1:  # told at 1, 2, 4, 8, ...: strangers ask as often as they like
            raised.append(Log("warning", f"no certificate for {request.gateway}: {error}; turned away so far: {count}"))
        if isinstance(error, SecondDeviceError):  # of others strangers could raise as many as they like
            raised.append(duplicates.turned_away(request.gateway))
        return access, [*raised, TurnAway(request.number, str(error))]


def _site(access: Access, context: Context) -> tuple[Registry, Identity]:
    if access.registry is None or context.settings.identity is None:
        raise AdmissionError("this site has no [identity]; 'cloud-aggregator init' makes one")
    if context.now_ns < SET_NS:
        raise AdmissionError("the clock of the aggregator is not set, so nothing it signs would be good; set it")
    return access.registry, context.settings.identity


def _admitted(access: Access, context: Context, alarms: Alarms, request: CertificateRequested) -> Result:
    registry, _ = _site(access, context)
    token = registry.passes.get(request.digest)
    if token is None or token.gateway != request.gateway:
        raise AdmissionError("the token is not known here, or is for another gateway; have one made")
    if token.expires_ns <= context.now_ns:
        raise AdmissionError("the token has expired; have another made")
    if token.key not in ("", request.key):
        raise SecondDeviceError("the token was used by another device; if that was not you, revoke this gateway")
    _check_key(registry, request)
    held = registry.of(request.gateway)
    if ended := [one.reason for one in held if one.key == request.key and one.reason]:
        raise AdmissionError(f"this key of {request.gateway} was {ended[-1]}; {NEW_KEY}")
    others = [one for one in held if one.key != request.key and one.reason != "removed"]
    if others and not token.replaces:
        raise SecondDeviceError(
            f"another device is or was {request.gateway}; take another name, or a token with --replace"
        )
    is_first = not any(one.key == request.key for one in held)
    access, ends = _end(access, context, (one for one in others if not one.reason), "replaced")
    # Of the same device with another key, what it says of itself and its alarms go on.
    is_another = bool(others) and is_first and not request.is_same_device
    access, left = _forget_device(access, context, alarms, request.gateway, "replaced") if is_another else (access, [])
    access = _with_pass(access, used := replace(token, key=request.key))
    access, effects = _issued(access, context, request)
    stored = [one for one in ends if not isinstance(one, Bar)]
    cut = (request.gateway,) if stored else ()
    if cut or request.gateway in registry.barred:  # and is so no more
        effects = [_bar(access, cut), *effects]
    return access, [RecordPass(used), *stored, *effects, *left]


def _check_key(registry: Registry, request: CertificateRequested) -> None:
    """Raise `AdmissionError` for a key that was revoked under any name: whoever copied it has it still."""
    if (whose := registry.revoked_keys.get(request.key)) is not None:
        raise AdmissionError(f"this key was revoked as that of {whose}, and is let in under no name; {NEW_KEY}")


def _renewed(access: Access, context: Context, request: CertificateRequested) -> Result:
    registry, identity = _site(access, context)
    _check_key(registry, request)
    held = [one for one in registry.of(request.gateway) if one.key == request.key]
    if all(one.reason for one in held):
        why = held[-1].reason if held else "not enrolled with this key"
        raise AdmissionError(f"{request.gateway} is {why}; it needs a token")
    if held[-1].not_after_ns + identity.grace_days * DAY_NS < context.now_ns:
        raise AdmissionError(
            f"the last certificate expired more than {identity.grace_days:g} days ago; it needs a token"
        )
    return _issued(access, context, request)


def _issued(access: Access, context: Context, request: CertificateRequested) -> Result:
    """Hand out the certificate that this key has, where half of its life is left, else a new one."""
    registry, identity = _site(access, context)
    held = [one for one in registry.of(request.gateway) if one.key == request.key and not one.reason]
    # What was made while our clock was ahead is not good yet, and nobody could use it.
    held = [one for one in held if one.issued_ns <= context.now_ns]
    held = [one for one in held if one.authority == request.authority]  # others may be believed by nobody soon
    if held and held[-1].not_after_ns - context.now_ns > (held[-1].not_after_ns - held[-1].issued_ns) / 2:
        return access, [Issue(request.number, held[-1])]
    not_after_ns = context.now_ns + round(identity.certificate_days * DAY_NS)
    made = Certificate(
        request.serial, request.gateway, request.key, context.now_ns, not_after_ns, authority=request.authority
    )
    old = _expired_long_ago(registry, request.gateway, context.now_ns - round(identity.grace_days * DAY_NS))
    kept = {serial: one for serial, one in registry.certificates.items() if serial not in old}
    access = replace(access, registry=replace(registry, certificates={**kept, made.serial: made}))
    log = Log("info", f"{request.gateway} has a certificate for {identity.certificate_days:g} days")
    stored: list[Wanted] = [ForgetCertificates(old)] if old else []
    return access, [*stored, RecordCertificate(made), Issue(request.number, made), log]


def _expired_long_ago(registry: Registry, gateway: str, before_ns: int) -> tuple[str, ...]:
    """Return which certificates of a gateway nobody can use any more. The newest are not among them, whatever our clock
    says: it may be ahead for a moment, and what is forgotten cannot be revoked. Nor are those that were ended, which
    the broker's list would know more of than we.
    """
    held = sorted((one for one in registry.of(gateway) if not one.reason), key=lambda one: one.issued_ns)
    return tuple(one.serial for one in held[:-KEPT] if one.not_after_ns < before_ns)


def _with_pass(access: Access, token: Pass) -> Access:
    registry = access.registry or Registry()
    return replace(access, registry=replace(registry, passes={**registry.passes, token.digest: token}))


def _end(access: Access, context: Context, certificates: Iterable[Certificate], reason: Reason) -> Result:
    """End certificates, and shut out whoever uses them."""
    over = [replace(one, reason=reason, ended_ns=context.now_ns) for one in certificates]
    if not over:
        return access, []
    registry = access.registry or Registry()
    held = {**registry.certificates, **{one.serial: one for one in over}}
    access = replace(access, registry=replace(registry, certificates=held))
    bar = _bar(access, tuple(sorted({one.gateway for one in over})))
    return access, [*(RecordCertificate(one) for one in over), bar]


def _bar(access: Access, cut: tuple[str, ...]) -> Bar:
    registry = access.registry or Registry()
    return Bar(registry.ended(), registry.barred, cut, registry.outlived())


def token_ordered(access: Access, context: Context, body: dict[str, Any]) -> Answer:
    """Let a device in that will come with a token of this digest."""
    gateway, replaces = str(body["gateway"]), bool(body["replaces"])
    registry = _registry(access)
    if any(one.reason != "removed" for one in registry.of(gateway)) and not replaces:
        raise OrderError(f"{gateway} is or was enrolled; give --replace to put another device in its place")
    expires_ns = context.now_ns + round(float(body["hours"]) * HOUR_NS)
    token = Pass(str(body["digest"]), gateway, expires_ns, replaces)
    passes = {digest: one for digest, one in registry.passes.items() if one.expires_ns > context.now_ns}
    access = replace(access, registry=replace(registry, passes={**passes, token.digest: token}))
    text = f"{gateway} may enrol within {body['hours']:g} hours"
    if registry.of(gateway) and not (context.settings.identity or Identity()).restart_command:
        text += "; then restart the broker, which denies the name until it has forgotten the device that had it"
    return access, [ForgetPasses(context.now_ns), RecordPass(token)], text


def certified(access: Access, context: Context, body: dict[str, Any]) -> Answer:
    """Take note of a certificate that was made for who is no gateway, so that it can be revoked."""
    registry, name = _registry(access), str(body["name"])
    authority = str(body.get("authority", ""))
    made = Certificate(
        str(body["serial"]), name, str(body["key"]), context.now_ns, int(body["not_after_ns"]), authority=authority
    )
    was_barred = name in registry.barred
    access = replace(access, registry=replace(registry, certificates={**registry.certificates, made.serial: made}))
    effects: list[Wanted] = [RecordCertificate(made)]
    return access, [*effects, _bar(access, ())] if was_barred else effects, f"{name} has a certificate"


def revoke_gateway(access: Access, context: Context, body: dict[str, Any]) -> Answer:
    """Shut a gateway out. What of it was counted stays in the sum; what is on its way is dropped."""
    gateway = str(body["gateway"])
    held = [one for one in _registry(access).of(gateway) if not one.reason]
    access, voided = _without_passes(access, gateway)
    if not held and not voided:
        raise OrderError(f"no gateway {gateway!r} is enrolled; 'cloud-aggregator gateways list' shows which are")
    access, ends = _end(access, context, held, "revoked")
    access = access.without(gateway)
    return access, [*voided, *ends, DropUploads(gateway)], f"{gateway} is revoked: its messages count no more"


def remove_gateway(access: Access, context: Context, alarms: Alarms, body: dict[str, Any]) -> Answer:
    """Forget a gateway that is gone for good: nobody waits for it, its alarms are ended."""
    gateway = str(body["gateway"])
    held = [] if access.registry is None else [one for one in access.registry.of(gateway) if not one.reason]
    if not held and gateway not in access.gateways and gateway not in alarms.book:
        raise OrderError(f"no gateway {gateway!r} is known; 'cloud-aggregator gateways list' shows which are")
    access, voided = _without_passes(access, gateway)
    access, ends = _end(access, context, held, "removed")
    access, left = _forget_device(access, context, alarms, gateway, "removed")
    return access, [*voided, *ends, *left], f"{gateway} is forgotten"


def _forget_device(
    access: Access, context: Context, alarms: Alarms, gateway: str, how: Literal["removed", "replaced"]
) -> Result:
    """Forget what a device that is gone said of itself, end its alarms, and take away what the broker shows of it."""
    causes = {known.alarm.cause for known in alarms.book.get(gateway, {}).values()}
    access = access.without(gateway)
    access = replace(access, spent={name: most for name, most in access.spent.items() if name != gateway})
    retained = [("status", "agent"), ("manifest", "current"), *(("alarm", cause) for cause in sorted(causes))]
    cleared = [Publish(context.topic(gateway, channel, item), b"", retain=True) for channel, item in retained]
    return access, [ForgetGateway(gateway), ForgetDevice(gateway, how), *cleared]


def _registry(access: Access) -> Registry:
    if access.registry is None:
        raise OrderError("this site has no [identity]; 'cloud-aggregator init' makes one")
    return access.registry


def _without_passes(access: Access, gateway: str) -> Result:
    """Void the tokens of a gateway, so that nobody comes in by one that lies about."""
    registry = access.registry
    if registry is None:
        return access, []
    void = [replace(one, expires_ns=0) for one in registry.passes.values() if one.gateway == gateway]
    passes = {digest: one for digest, one in registry.passes.items() if one.gateway != gateway}
    return replace(access, registry=replace(registry, passes=passes)), [RecordPass(one) for one in void]
