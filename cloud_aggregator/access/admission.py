"""Who gets in and who is put out, decided by the machine: enrolment, renewal, revocation.

Everything here rests on the registry and is stored before anybody hears of it. A device that asks again, because the
answer or the power was lost, gets the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from fedgate.cloud_aggregator.access import duplicates
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
from fedgate.cloud_aggregator.alarms import handling
from fedgate.cloud_aggregator.alarms.register import SET_NS
from fedgate.cloud_aggregator.events import Effect, Log, OrderError, Publish
from fedgate.cloud_aggregator.rounds import round as rounds
from fedgate.cloud_aggregator.state import State, topic
from fedgate.config.protocol.messages import MessageError
from fedgate.config.settings.identity import Identity
from fedgate.models.records import replace

DAY_NS = 86_400 * 1_000_000_000
HOUR_NS = 3_600 * 1_000_000_000
KEPT = 8  # certificates of a gateway that are never forgotten: a year of renewals, or some clocks that were ahead
NEW_KEY = "on a device that is trusted again, 'gateway-agent enrol --new-key' makes another"
Result = tuple[State, list[Effect]]
Answer = tuple[State, list[Effect], str]


class AdmissionError(ValueError):
    """A device that gets no certificate; the message says why and what to do."""


class SecondDeviceError(AdmissionError):
    """A device came with a good token under a name that another device has."""


def start_with_registry(state: State, registry: Registry) -> State:
    """Return a state that goes on with this registry where the site has one; who is not in it counts no more."""
    if state.settings.identity is None:
        return state
    state = replace(state, registry=registry)
    for gateway in (state.gateways.keys() | state.held.keys()) - registry.admitted:
        state = _without(state, gateway)
    return state


def check(state: State, gateway: str) -> None:
    """Raise `MessageError` where what this gateway says does not count."""
    if state.registry is not None and gateway not in state.registry.admitted:
        raise MessageError(f"{gateway} is not enrolled; 'cloud-aggregator gateways token {gateway}' lets it in")


def decide_request(state: State, request: CertificateRequested) -> Result:
    """Decide on a request for a certificate."""
    try:
        return _admitted(state, request) if request.digest else _renewed(state, request)
    except AdmissionError as error:
        count = state.uncertified + 1
        state = replace(state, uncertified=count)
        raised: list[Effect] = []
        if count.bit_count() == 1:  # told at 1, 2, 4, 8, ...: strangers ask as often as they like
            raised.append(Log("warning", f"no certificate for {request.gateway}: {error}; turned away so far: {count}"))
        if isinstance(error, SecondDeviceError):  # of others strangers could raise as many as they like
            state, alarm = duplicates.turned_away(state, request.gateway)
            raised += alarm
        return state, [*raised, TurnAway(request.number, str(error))]


def _site(state: State) -> tuple[Registry, Identity]:
    if state.registry is None or state.settings.identity is None:
        raise AdmissionError("this site has no [identity]; 'cloud-aggregator init' makes one")
    if state.now_ns < SET_NS:
        raise AdmissionError("the clock of the aggregator is not set, so nothing it signs would be good; set it")
    return state.registry, state.settings.identity


def _admitted(state: State, request: CertificateRequested) -> Result:
    registry, _ = _site(state)
    token = registry.passes.get(request.digest)
    if token is None or token.gateway != request.gateway:
        raise AdmissionError("the token is not known here, or is for another gateway; have one made")
    if token.expires_ns <= state.now_ns:
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
    state, ends = _end(state, (one for one in others if not one.reason), "replaced")
    # Of the same device with another key, what it says of itself and its alarms go on.
    is_another = bool(others) and is_first and not request.is_same_device
    state, left = _forget_device(state, request.gateway, "replaced") if is_another else (state, [])
    state = _with_pass(state, used := replace(token, key=request.key))
    state, effects = _issued(state, request)
    stored = [one for one in ends if not isinstance(one, Bar)]
    cut = (request.gateway,) if stored else ()
    if cut or request.gateway in registry.barred:  # and is so no more
        effects = [_bar(state, cut), *effects]
    return state, [RecordPass(used), *stored, *effects, *left]


def _check_key(registry: Registry, request: CertificateRequested) -> None:
    """Raise `AdmissionError` for a key that was revoked under any name: whoever copied it has it still."""
    if (whose := registry.revoked_keys.get(request.key)) is not None:
        raise AdmissionError(f"this key was revoked as that of {whose}, and is let in under no name; {NEW_KEY}")


def _renewed(state: State, request: CertificateRequested) -> Result:
    registry, identity = _site(state)
    _check_key(registry, request)
    held = [one for one in registry.of(request.gateway) if one.key == request.key]
    if all(one.reason for one in held):
        why = held[-1].reason if held else "not enrolled with this key"
        raise AdmissionError(f"{request.gateway} is {why}; it needs a token")
    if held[-1].not_after_ns + identity.grace_days * DAY_NS < state.now_ns:
        raise AdmissionError(
            f"the last certificate expired more than {identity.grace_days:g} days ago; it needs a token"
        )
    return _issued(state, request)


def _issued(state: State, request: CertificateRequested) -> Result:
    """Hand out the certificate that this key has, where half of its life is left, else a new one."""
    registry, identity = _site(state)
    held = [one for one in registry.of(request.gateway) if one.key == request.key and not one.reason]
    # What was made while our clock was ahead is not good yet, and nobody could use it.
    held = [one for one in held if one.issued_ns <= state.now_ns]
    held = [one for one in held if one.authority == request.authority]  # others may be believed by nobody soon
    if held and held[-1].not_after_ns - state.now_ns > (held[-1].not_after_ns - held[-1].issued_ns) / 2:
        return state, [Issue(request.number, held[-1])]
    not_after_ns = state.now_ns + round(identity.certificate_days * DAY_NS)
    made = Certificate(
        request.serial, request.gateway, request.key, state.now_ns, not_after_ns, authority=request.authority
    )
    old = _expired_long_ago(registry, request.gateway, state.now_ns - round(identity.grace_days * DAY_NS))
    kept = {serial: one for serial, one in registry.certificates.items() if serial not in old}
    state = replace(state, registry=replace(registry, certificates={**kept, made.serial: made}))
    log = Log("info", f"{request.gateway} has a certificate for {identity.certificate_days:g} days")
    stored: list[Effect] = [ForgetCertificates(old)] if old else []
    return state, [*stored, RecordCertificate(made), Issue(request.number, made), log]


def _expired_long_ago(registry: Registry, gateway: str, before_ns: int) -> tuple[str, ...]:
    """Return which certificates of a gateway nobody can use any more. The newest are not among them, whatever our clock
    says: it may be ahead for a moment, and what is forgotten cannot be revoked. Nor are those that were ended, which
    the broker's list would know more of than we.
    """
    held = sorted((one for one in registry.of(gateway) if not one.reason), key=lambda one: one.issued_ns)
    return tuple(one.serial for one in held[:-KEPT] if one.not_after_ns < before_ns)


def _with_pass(state: State, token: Pass) -> State:
    registry = state.registry or Registry()
    return replace(state, registry=replace(registry, passes={**registry.passes, token.digest: token}))


def _end(state: State, certificates: Iterable[Certificate], reason: Reason) -> Result:
    """End certificates, and shut out whoever uses them."""
    over = [replace(one, reason=reason, ended_ns=state.now_ns) for one in certificates]
    if not over:
        return state, []
    registry = state.registry or Registry()
    held = {**registry.certificates, **{one.serial: one for one in over}}
    state = replace(state, registry=replace(registry, certificates=held))
    bar = _bar(state, tuple(sorted({one.gateway for one in over})))
    return state, [*(RecordCertificate(one) for one in over), bar]


def _bar(state: State, cut: tuple[str, ...]) -> Bar:
    registry = state.registry or Registry()
    return Bar(registry.ended(), registry.barred, cut, registry.outlived())


def token_ordered(state: State, body: dict[str, Any]) -> Answer:
    """Let a device in that will come with a token of this digest."""
    gateway, replaces = str(body["gateway"]), bool(body["replaces"])
    registry = _registry(state)
    if any(one.reason != "removed" for one in registry.of(gateway)) and not replaces:
        raise OrderError(f"{gateway} is or was enrolled; give --replace to put another device in its place")
    expires_ns = state.now_ns + round(float(body["hours"]) * HOUR_NS)
    token = Pass(str(body["digest"]), gateway, expires_ns, replaces)
    passes = {digest: one for digest, one in registry.passes.items() if one.expires_ns > state.now_ns}
    state = replace(state, registry=replace(registry, passes={**passes, token.digest: token}))
    text = f"{gateway} may enrol within {body['hours']:g} hours"
    if registry.of(gateway) and not (state.settings.identity or Identity()).restart_command:
        text += "; then restart the broker, which denies the name until it has forgotten the device that had it"
    return state, [ForgetPasses(state.now_ns), RecordPass(token)], text


def certified(state: State, body: dict[str, Any]) -> Answer:
    """Take note of a certificate that was made for who is no gateway, so that it can be revoked."""
    registry, name = _registry(state), str(body["name"])
    authority = str(body.get("authority", ""))
    made = Certificate(
        str(body["serial"]), name, str(body["key"]), state.now_ns, int(body["not_after_ns"]), authority=authority
    )
    was_barred = name in registry.barred
    state = replace(state, registry=replace(registry, certificates={**registry.certificates, made.serial: made}))
    effects: list[Effect] = [RecordCertificate(made)]
    return state, [*effects, _bar(state, ())] if was_barred else effects, f"{name} has a certificate"


def revoke_gateway(state: State, body: dict[str, Any]) -> Answer:
    """Shut a gateway out. What of it was counted stays in the sum; what is on its way is dropped."""
    gateway = str(body["gateway"])
    held = [one for one in _registry(state).of(gateway) if not one.reason]
    state, voided = _without_passes(state, gateway)
    if not held and not voided:
        raise OrderError(f"no gateway {gateway!r} is enrolled; 'cloud-aggregator gateways list' shows which are")
    state, ends = _end(state, held, "revoked")
    state, closing = rounds.close_if_due(_without(state, gateway))
    return state, [*voided, *ends, *closing], f"{gateway} is revoked: its messages count no more"


def remove_gateway(state: State, body: dict[str, Any]) -> Answer:
    """Forget a gateway that is gone for good: nobody waits for it, its alarms are ended."""
    gateway = str(body["gateway"])
    held = [] if state.registry is None else [one for one in state.registry.of(gateway) if not one.reason]
    if not held and gateway not in state.gateways and gateway not in state.outward.alarms:
        raise OrderError(f"no gateway {gateway!r} is known; 'cloud-aggregator gateways list' shows which are")
    state, voided = _without_passes(state, gateway)
    state, ends = _end(state, held, "removed")
    state, left = _forget_device(state, gateway, "removed")
    return state, [*voided, *ends, *left], f"{gateway} is forgotten"


def _forget_device(state: State, gateway: str, how: Literal["removed", "replaced"]) -> Result:
    """Forget what a device that is gone said of itself, end its alarms, and take away what the broker shows of it."""
    causes = {known.alarm.cause for known in state.outward.alarms.get(gateway, {}).values()}
    state, ends = handling.end_alarms_of_device(state, gateway, how)
    state, closing = rounds.close_if_due(_without(state, gateway))
    state = replace(state, spent={name: most for name, most in state.spent.items() if name != gateway})
    retained = [("status", "agent"), ("manifest", "current"), *(("alarm", cause) for cause in sorted(causes))]
    cleared = [Publish(topic(state, gateway, channel, item), b"", retain=True) for channel, item in retained]
    return state, [ForgetGateway(gateway), *ends, *closing, *cleared]


def _registry(state: State) -> Registry:
    if state.registry is None:
        raise OrderError("this site has no [identity]; 'cloud-aggregator init' makes one")
    return state.registry


def _without_passes(state: State, gateway: str) -> Result:
    """Void the tokens of a gateway, so that nobody comes in by one that lies about."""
    registry = state.registry
    if registry is None:
        return state, []
    void = [replace(one, expires_ns=0) for one in registry.passes.values() if one.gateway == gateway]
    passes = {digest: one for digest, one in registry.passes.items() if one.gateway != gateway}
    return replace(state, registry=replace(registry, passes=passes)), [RecordPass(one) for one in void]


def _without(state: State, gateway: str) -> State:
    """Forget in memory what a gateway said of itself and what it had on its way."""
    return replace(
        state,
        gateways={name: one for name, one in state.gateways.items() if name != gateway},
        incoming={name: one for name, one in state.incoming.items() if name != gateway},
        held={name: one for name, one in state.held.items() if name != gateway},
        sessions={name: one for name, one in state.sessions.items() if name != gateway},
        seen={name: one for name, one in state.seen.items() if name != gateway},
    )
