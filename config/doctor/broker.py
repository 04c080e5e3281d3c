"""A broker tried for real: what it lets through, what it keeps, whom it lets write what.

What is tried happens on topics of the channel `doctor` under the caller's own name, to which nobody else listens, and
is taken back; so it works while the service of that name runs. Two trials leave that channel: whether this client may
say what it will have to say is asked with empty messages that are not retained, which every receiver drops; and whether
it is refused what is another's, with a topic of a gateway that does not exist.

What no client can see is said where it matters: whether sessions outlive a restart of the broker.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fedgate.config.doctor.report import Finding, failure, fit_line, ok, warning
from fedgate.config.protocol.topics import TRIED, Topic, topic_of, watch
from fedgate.config.protocol.transfer import PAYLOAD_BYTES_MIN
from fedgate.config.settings.base import is_loopback
from fedgate.config.settings.settings import Broker
from fedgate.config.transport import tls
from fedgate.config.transport.probe import Probe, ProbeError, RefusedError
from fedgate.config.transport.protocol_version import MQTT_3, MQTT_5
from fedgate.config.transport.send_queue import UNKNOWN

QUEUED = 300  # messages for an absent client; brokers that keep fewer keep about 100, or 10
FINENESS = 1.05  # of the largest message that passes
LISTEN_S = 0.3
SESSION_ADVICE = (
    "what is sent while nobody listens must be sent again, which takes longer; let the broker keep sessions "
    "(Mosquitto: persistence true, no short persistent_client_expiration)"
)


@dataclass(frozen=True)
class Trial:
    """Who tries which broker, and what it will have to send."""

    broker: Broker
    user: str  # as the service logs in
    site: str
    name: str  # the second part of its own topics: a gateway's id, or `all`
    largest_bytes: int  # of one message
    topics: tuple[str, ...]  # topics that it must be allowed to publish to
    never: tuple[str, ...]  # topics that it must not be allowed to publish to
    others: str = ""  # a subscription that must not tell it anything of others; empty: it may hear all
    why_mute: Callable[[], str] = str  # asks somebody else why nothing passes; empty where he does not know
    speaks_5: bool = True  # as the services do where the broker does

    def own(self, item: str) -> str:
        """Return a topic of its own to try things with."""
        return topic_of(Topic(self.site, self.name, "doctor", item))

    def probe(self, part: str = "", *, keeps_session: bool = False) -> Probe:
        """Connect under a client id that is not the service's, which goes on undisturbed."""
        protocol, name = MQTT_5 if self.speaks_5 else MQTT_3, f"{self.user}.doctor{part}"
        return Probe(self.broker, self.user, name, keeps_session=keeps_session, protocol=protocol)

    def connect(self) -> tuple[Trial, Probe]:
        """Return the first connection, and the trial by the version that the broker speaks: 3.1.1 where it does not let
        anybody in by 5. Raises `ProbeError`.
        """
        try:
            return self, self.probe()
        except ProbeError:
            older = replace(self, speaks_5=False)
            return older, older.probe()


def try_gateway(broker: Broker, site: str, name: str, largest_bytes: int) -> Trial:
    """Return what a gateway tries."""
    up = ("status", "score", "alarm", "evidence", "update", "want", "telemetry", "summary", "tombstone", "samples")
    topics = tuple(topic_of(Topic(site, name, channel, TRIED)) for channel in up)
    nobody = f"not-{name}"[:64]
    never = (topic_of(Topic(site, nobody, "doctor", "x")), topic_of(Topic(site, name, "receipt", TRIED)))
    return Trial(broker, broker.user or name, site, name, largest_bytes, topics, never, watch(site, "+", "status"))


def try_aggregator(broker: Broker, user: str, site: str, largest_bytes: int) -> Trial:
    """Return what an aggregator tries: it may hear and say everything at its site, so topics of nobody will do."""
    topics = tuple(topic_of(Topic(site, "no-gateway", channel, TRIED)) for channel in ("receipt", "chunk", "resend"))
    return Trial(broker, broker.user or user, site, "all", largest_bytes, topics, ())


REFUSED = (
    "see the broker's log; with TLS 1.3 a refused certificate looks like this, also one that was revoked or whose name "
    "another device has now: then switch this one off"
)


def examine(trial: Trial, until_s: float) -> Iterator[Finding]:
    """Yield what is found, one thing after the other; ends early where nothing further can be tried, and begins nothing
    after `until_s` (monotonic seconds).
    """
    try:
        trial, first = trial.connect()
        with first as probe:
            by = "MQTT 5" if trial.speaks_5 else "MQTT 3.1.1"
            yield ok("broker login", f"user {trial.user} is let in by {_place(trial.broker)}, which speaks {by}")
            received = _check_echo(trial, probe, b"here")
    except ProbeError as error:
        yield _explain_refusal(trial, error)
        return
    if not received:
        own = watch(trial.site, trial.name, "doctor")
        advice = trial.why_mute() or (
            f"if another device had the name {trial.user} before, restart the broker (docs/reference/security.md, A "
            f"name that another device gets); else allow it to read and write {own} (config/mosquitto.acl)"
        )
        yield failure("broker echo", f"user {trial.user} does not hear what it says on {trial.own('echo')}", advice)
        return
    tests: tuple[tuple[str, Callable[[Trial], Finding]], ...] = (
        ("broker protocol", _check_protocol),
        ("broker message size", _size),
        ("broker session", _check_session),
        ("broker retained", _check_retained),
        ("broker may say", _check_publish),
        ("broker others' topics", _check_isolation),
    )
    for name, test in tests:
        if time.monotonic() > until_s:
            yield warning(name, "not tried: the others took too long", "ask again when the line is better")
            continue
        try:
            yield test(trial)
        except ProbeError as error:
            yield failure(name, fit_line(error), "see the broker's log")


def _place(broker: Broker) -> str:
    return f"{broker.host}:{broker.port}"


def _explain_refusal(trial: Trial, error: ProbeError) -> Finding:
    if isinstance(error, RefusedError):
        advice = f"user {trial.user}: check its password, its certificate, whether it was revoked"
        return failure("broker login", f"{_place(trial.broker)} refuses user {trial.user}: {error}", advice)
    if tls.REVOKED in str(error):
        return failure("broker login", f"{_place(trial.broker)} ended the connection", tls.REVOKED)
    advice = REFUSED if trial.broker.ca_file else ""
    return failure("broker login", f"{_place(trial.broker)}: {fit_line(error)}", advice or "see the broker's log")


def _check_echo(trial: Trial, probe: Probe, payload: bytes, item: str = "echo") -> bool:
    """Tell whether a message comes back; a small one behind it tells that a lost one will not come any more."""
    where = trial.own(item)
    probe.subscribe(where)
    marker = secrets.token_bytes(8)
    probe.publish(where, payload)
    probe.publish(where, marker)
    while (message := probe.receive(where)) is not None and message.payload != marker:
        if message.payload == payload:
            return True
    return False


def _check_protocol(trial: Trial) -> Finding:
    name = "broker protocol"
    if not trial.speaks_5:
        return ok(name, "MQTT 3.1.1 only, in which the broker names no limits and hides what it refuses")
    with trial.probe() as probe:
        largest = probe.limits.packet_bytes
    return ok(name, "MQTT 5" if largest == UNKNOWN.packet_bytes else f"MQTT 5, packets of up to {largest} bytes")


def _can_pass(trial: Trial, size: int) -> bool:
    try:
        with trial.probe() as probe:
            return _check_echo(trial, probe, secrets.token_bytes(8) + bytes(size - 8), "size")
    except ProbeError:  # some brokers end the connection instead
        return False


def _size(trial: Trial) -> Finding:
    name, largest = "broker message size", trial.largest_bytes
    if _can_pass(trial, largest):
        return ok(name, f"{largest} bytes pass, the largest message of these settings")
    passes, fails = 0, largest
    while fails > max(passes, PAYLOAD_BYTES_MIN // 2) * FINENESS:
        size = max(int((passes * fails) ** 0.5) if passes else fails // 4, 16)
        passes, fails = (size, fails) if _can_pass(trial, size) else (passes, size)
    least = f"at least {PAYLOAD_BYTES_MIN} must" if passes < PAYLOAD_BYTES_MIN else f"set it to {passes} at both ends"
    text = f"{passes} bytes pass, {fails} do not; limits.max_payload_bytes is {largest}"
    return failure(name, text, f"let the broker take more (Mosquitto: message_size_limit, max_packet_size), or {least}")


def _check_session(trial: Trial) -> Finding:
    """Return whether a session is kept for a client that goes away, and how many of the messages that it misses."""
    name, where, payloads = "broker session", trial.own("away-queue"), {secrets.token_bytes(8) for _ in range(QUEUED)}
    with trial.probe("-queue", keeps_session=True) as absent:
        if not absent.subscribe(where):
            raise ProbeError(f"no subscription to {where} is granted")
    try:
        with trial.probe() as speaker:
            for payload in payloads:
                speaker.publish(where, payload)
        with trial.probe("-queue", keeps_session=True) as back:
            waiting, kept = set(payloads), back.session_present
            while waiting and (message := back.receive(where, 1.0)) is not None:
                waiting.discard(bytes(message.payload))
    finally:
        with trial.probe("-queue"):  # a clean session takes the place of the kept one, which is forgotten
            pass
    if not kept or waiting == payloads:
        what = "what was sent meanwhile is lost" if kept else "the session is gone"
        return warning(name, f"after a moment without a connection {what}", SESSION_ADVICE)
    if waiting:
        text = f"of {QUEUED} messages to an absent client {QUEUED - len(waiting)} came"
        advice = "raise it (Mosquitto: max_queued_messages 100000); the rest is sent again, which takes longer"
        return warning(name, text, advice)
    return ok(name, f"{QUEUED} messages wait for an absent client (a restart of the broker is not tried)")


def _check_retained(trial: Trial) -> Finding:
    name, where, payload = "broker retained", trial.own("retained"), secrets.token_bytes(8)
    with trial.probe() as probe:
        probe.publish(where, payload, retain=True)
        try:
            probe.subscribe(where)
            message = probe.receive(where)
            kept = message is not None and message.payload == payload
        finally:
            probe.publish(where, b"", retain=True)
    with trial.probe() as late:
        late.subscribe(where)
        if kept and late.receive(where, LISTEN_S) is not None:
            return failure(name, "a retained message cannot be taken back", "use another broker")
    if not kept:
        advice = (
            "let it keep them (Mosquitto: retain_available true): who connects later learns of models and alarms so"
        )
        return failure(name, "a retained message is not kept", advice)
    return ok(name, "a retained message reaches who comes later, and goes when it is taken back")


def _check_publish(trial: Trial) -> Finding:
    name = "broker may say"
    if not trial.speaks_5:
        return ok(name, "not tried: the broker speaks MQTT 3.1.1 only, which hides what it refuses")
    with trial.probe() as probe:
        refused = {where: reason for where in trial.topics if (reason := probe.publish(where, b""))}
    if refused:
        where = ", ".join(refused)
        advice = "allow it in the broker's access list (config/mosquitto.acl)"
        return failure(name, f"user {trial.user} may not write {where} ({next(iter(refused.values()))})", advice)
    return ok(name, f"user {trial.user} may write all {len(trial.topics)} kinds of topics that it has to")


def _check_isolation(trial: Trial) -> Finding:
    name = "broker others' topics"
    if not trial.never:
        return ok(name, "not tried: an aggregator may hear and say everything at its site")
    with trial.probe() as probe:
        probe.subscribe(trial.others)
        probe.listen(LISTEN_S)
        own = "/".join(trial.own("x").split("/")[:4]) + "/"
        seen = sorted({message.topic for message in probe.messages if not message.topic.startswith(own)})
    allowed = _list_allowed(trial)
    if not seen and not allowed:
        return ok(name, f"user {trial.user} is refused what is another's")
    done = [f"write {', '.join(allowed)}"] * bool(allowed) + [f"read {', '.join(seen[:3])}"] * bool(seen)
    text = f"user {trial.user} may {' and '.join(done)}"
    if is_loopback(trial.broker.host):
        return ok(name, f"{text}: no access list, on a broker that only this machine reaches")
    return warning(name, text, "give the broker the access list (acl_file, config/mosquitto.acl)")


def _list_allowed(trial: Trial) -> list[str]:
    """Return what it may write of what it must not; where MQTT 3.1.1 hides refusals, only of what it can hear too."""
    with trial.probe() as probe:
        if not trial.speaks_5:
            return [where for where in trial.never if _has_come_back(probe, where)]
        return [where for where in trial.never if not probe.publish(where, b"")]


def _has_come_back(probe: Probe, where: str) -> bool:
    probe.subscribe(where)
    probe.publish(where, b"")
    return probe.receive(where, LISTEN_S) is not None
