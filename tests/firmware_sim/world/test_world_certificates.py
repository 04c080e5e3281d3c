"""What the witness of a simulated world says of certificates; each check can fail, in itself and in a whole world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fedgate.cloud_aggregator import events
from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.pki.authority import SKEW, Authority, open_authority
from fedgate.cloud_aggregator.pki.broker_access import to_datetime
from fedgate.config.identity import pki
from fedgate.config.protocol.messages import Alarm, Status
from fedgate.firmware_sim.world import world
from fedgate.firmware_sim.world.actors.door import Bars
from fedgate.firmware_sim.world.environment.faults import Faults, Messages
from fedgate.firmware_sim.world.environment.time import T0_NS
from fedgate.firmware_sim.world.promises.certificates import Certificates
from fedgate.gateway_agent.runtime import enrolment
from fedgate.gateway_agent.runtime.membership import Files
from fedgate.gateway_agent.runtime.renewal import Renewer
from fedgate.models.time_units import NS
from tests.support.sites import gateway_settings
from tests.support.soak import some

LIFE_S, T0_S = 900, T0_NS // NS


@dataclass
class Said:
    """The witness of certificates, what it complains of, and the folder of one gateway with its pair."""

    folder: Path
    violations: list[str] = field(default_factory=list)
    now_s: float = float(T0_S)

    def __post_init__(self) -> None:
        self.certificates = Certificates(self.violations.append, lambda: self.now_s)
        self.site, self.mine = self.folder / "site", self.folder / "north"
        self.site.mkdir()
        self.mine.mkdir()
        open_authority(self.site, "bridge", to_datetime(T0_NS))
        self.files = Files(*(self.mine / name for name in ("key", "certificate", "ca", "release", "root", "keys")))
        self.key = pki.make_key(self.files.key)
        digest = pki.key_digest(self.key.public_key())
        self.one = Certificate("5", "north", digest, T0_NS, T0_NS + LIFE_S * NS)
        self.certificates.founded(self.one, self.key)
        self.commit(self.one)
        self.write(self.key.public_key())

    def write(self, key: pki.PublicKey, life_s: float = LIFE_S) -> None:
        """Put a certificate into the folder."""
        span = (to_datetime(T0_NS), to_datetime(T0_NS + round(life_s) * NS))
        body = Authority(self.site, skew=0 * SKEW).issue("north", key, 5, *span)
        pki.write(self.files.certificate, body, pki.PUBLIC_MODE)

    def commit(self, one: Certificate, *more: Any) -> None:
        self.certificates.committed([RecordRegistry((one,)), *more])

    def revoke(self, *more: Any) -> None:
        self.commit(replace(self.one, reason="revoked", ended_ns=T0_NS), *more)

    def look(self, age_s: float, *, asks: bool, can_judge: bool) -> None:
        self.now_s = T0_S + age_s
        self.certificates.looked("north", self.files, 2 / 3, can_judge=can_judge, asks=asks)


SEED = 9000  # of a world with certificates, in which one gateway is revoked


def training(**counted: str) -> events.SaveTraining:
    return events.SaveTraining({}, {"counted": counted})


def alarm() -> events.RecordAlarm:
    what = {"id": "a", "cause": "anomaly", "state": "raised", "kind": "anomaly", "severity": "warning", "text": ""}
    return events.RecordAlarm("north", Alarm.model_validate({**what, "onset_ns": 1, "t_ns": 1}), 1, 1)


def status() -> events.RecordGateway:
    return events.RecordGateway("north", Status(state="online"), 1)


def alarm_of_a_revoked(seen: Said) -> None:
    seen.revoke(alarm())


def status_of_a_revoked(seen: Said) -> None:
    seen.revoke(status())


def update_of_a_revoked(seen: Said) -> None:
    seen.certificates.committed([training(north="before", west="w")])
    seen.revoke(training(north="before"), training(north="after", west="w"))


def late_update_of_a_revoked(seen: Said) -> None:
    seen.revoke(events.HoldUpdate("north", "run", 1, "late", b""))


def connection_of_a_revoked(seen: Said) -> None:
    seen.certificates.ordered(3, "north")
    seen.revoke(events.Answered(3, ""))
    seen.certificates.let_in("north")  # the broker has yet to be told
    seen.certificates.committed([events.Answered(3, "north is revoked")])
    seen.certificates.let_in("north")


def two_for_one_question(seen: Said) -> None:
    seen.certificates.asked("6", "north", seen.one.key)
    seen.commit(replace(seen.one, serial="6"))
    seen.commit(replace(seen.one, serial="7"))


def in_anothers_name(seen: Said) -> None:
    seen.certificates.asked("6", "north", seen.one.key)
    seen.commit(replace(seen.one, serial="6", gateway="west"))


def anothers_handed_out(seen: Said) -> None:
    seen.certificates.answered("north", seen.one.key, "5")
    seen.certificates.answered("west", seen.one.key, "5")


def handed_out_before_it_was_stored(seen: Said) -> None:
    seen.certificates.answered("north", seen.one.key, "6")


def revoked_and_handed_out(seen: Said) -> None:
    seen.revoke()
    seen.certificates.answered("north", seen.one.key, "5")


def forgotten(seen: Said) -> None:
    seen.certificates.opened(Registry({"5": seen.one}))
    seen.revoke()
    seen.certificates.opened(Registry({"5": seen.one}))


def turned_away(seen: Said) -> None:
    seen.certificates.turned_away("north", "the clock is not set", is_clock_right=False)
    seen.certificates.turned_away("north", "it needs a token", is_clock_right=True)


def not_answered(seen: Said) -> None:
    seen.certificates.silent("north")


def not_asked(seen: Said) -> None:
    for age_s, asks, can_judge in ((1, False, True), (700, True, True), (700, False, False), (700, False, True)):
        seen.look(age_s, asks=asks, can_judge=can_judge)


def rarely_looked(seen: Said) -> None:
    seen.certificates.waits("north", 15.0, 15.0)
    seen.certificates.waits("north", 60.0, 15.0)


def short_lived(seen: Said) -> None:
    for age_s, is_right in ((0.4, True), (0.9, False), (0.9, True)):
        seen.now_s = T0_S + age_s * LIFE_S
        seen.certificates.renewed("north", seen.files, 0.0, was=5, is_clock_right=is_right)


def of_another_key(seen: Said) -> None:
    seen.certificates.stored("north", seen.files)
    seen.write(ec.generate_private_key(ec.SECP256R1()).public_key())
    seen.certificates.stored("north", seen.files)


def half_a_certificate(seen: Said) -> None:
    seen.files.certificate.write_bytes(seen.files.certificate.read_bytes()[:200])
    seen.certificates.stored("north", seen.files)


def key_sent(seen: Said) -> None:
    seen.certificates.leaves("north", enrolment.question("north", seen.key))
    seen.certificates.leaves("north", b"x" + pki.encode_private_key(seen.key))


def key_elsewhere(seen: Said) -> None:
    own = {"north": {seen.files.key}}
    assert seen.certificates.audit(seen.folder, own) == {"renewed": 0, "revoked": 0}
    (seen.site / "copy").write_bytes(seen.files.key.read_bytes())
    seen.certificates.audit(seen.folder, own)


WRONG = [alarm_of_a_revoked, status_of_a_revoked, update_of_a_revoked, late_update_of_a_revoked]
WRONG += [connection_of_a_revoked, two_for_one_question, in_anothers_name, anothers_handed_out]
WRONG += [handed_out_before_it_was_stored, revoked_and_handed_out, forgotten, turned_away, not_answered, not_asked]
WRONG += [rarely_looked, short_lived, of_another_key, half_a_certificate, key_sent, key_elsewhere]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_witness_sees(wrong: Callable[[Said], None], tmp_path: Path) -> None:
    seen = Said(tmp_path)
    wrong(seen)
    assert len(seen.violations) == 1


@pytest.mark.soak
def test_certificates_are_renewed_and_one_is_revoked() -> None:
    outcome = world.run(SEED)
    assert outcome.violations == ()
    assert outcome.counts["renewed"] > 3 and outcome.counts["revoked"] == 1
    assert outcome == world.run(SEED)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("where", "name", "bug", "said"),
    some(
        [
            (Access, "check", lambda *_: None, "counted after it was revoked"),
            (Renewer, "is_due", lambda *_: False, "does not ask for a new certificate"),
            (Renewer, "pause_s", lambda *_, **__: 3_000.0, "looks at its certificate only in"),
            (Bars, "_begin_to_cut", lambda *_: None, "is revoked, and connected"),
            (Bars, "reload", lambda _: "", "was let in, and its order says that it is revoked"),
        ],
        3,
    ),
)
def test_a_world_shows_it(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, bug: Callable[..., Any], said: str
) -> None:
    """In a world in which nothing fails but what is put into it, and messages that take a while."""
    faults = Faults(messages=Messages(delay_s=2.0))
    monkeypatch.setattr(where, name, bug)
    monkeypatch.setattr(world, "SETTLE_S", 600.0)
    assert any(said in one for one in world.run(SEED, 0.3, faults).violations)


def test_who_is_shut_out_asks_whatever_its_clock_says(tmp_path: Path) -> None:
    """A clock that stood still while the gateway was off says that its certificate is good, and the broker that it is
    over.
    """
    seen, out, asked = Said(tmp_path), [False], list[str]()

    class Asking(Renewer):
        def _ask(self, act: str) -> bool:
            asked.append(act)
            self._validity = (float(T0_S), float(T0_S + LIFE_S))
            return False

    broker = {"ca_file": seen.files.authority, "certificate_file": seen.files.certificate, "key_file": seen.files.key}
    settings = gateway_settings("north", broker=broker, identity={"enrolment": "cloud:1"})
    assert settings.identity is not None
    at = Asking(settings, settings.identity, lambda: out[0])
    assert not at.look(T0_S + 1.0) and asked == ["look"]
    out[0] = True
    assert at.look(T0_S + 1.0) and asked == ["look"]  # it may be connecting yet
    assert at.look(T0_S + 2.0) and asked == ["look", "renew"]
