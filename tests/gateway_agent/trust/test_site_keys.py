"""Goal: nobody but the root key says by which keys a site goes, no older word of it counts, and a cut at any write of a
change leaves a site that works and the change to be called again.

Method: statements that are wrong in each way; folders that `init` made, with the power gone at each file.
"""

from __future__ import annotations

import json
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.commands import doctor
from fedgate.cloud_aggregator.context import sign_message
from fedgate.cloud_aggregator.enrolment import NotStated, Stated
from fedgate.cloud_aggregator.events import Connection, Event, Publish, Tick
from fedgate.cloud_aggregator.pki import site_keys
from fedgate.cloud_aggregator.pki.authority import Authority, make_authority_certificate
from fedgate.cloud_aggregator.pki.enrolment_service import EnrolmentService
from fedgate.config.identity import pki, signing, statement
from fedgate.config.identity.statement import OlderError, StatementError
from fedgate.config.protocol.messages import LARGEST, Keys, Newest, RoundOpen
from fedgate.config.settings.settings import Site
from fedgate.firmware_sim import children
from fedgate.gateway_agent.events import Received, Save
from fedgate.gateway_agent.runtime import trusted_keys
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.trust.trust import SIGNER, KeysOutcome
from tests.cloud_aggregator.pki.test_enrolment import files
from tests.end_to_end.test_commands import failed
from tests.gateway_agent.deployment.test_gateway_models import FIRST, FOR_ALL, SECOND, Made, in_force, offered, released
from tests.gateway_agent.test_gateway_machine import invitation
from tests.gateway_agent.trust.test_newest import stated_by
from tests.support.agents import after, changed, commissioned, heard, sent
from tests.support.cloud_service import cloud, mean_of
from tests.support.cloud_service import heard as cloud_heard
from tests.support.site_folders import Folder, founded
from tests.support.sites import KEY, T0_NS, Shelf, agent, gateway_settings
from tests.support.waiting import PATIENCE_S

NOW = datetime.now(UTC)
ROOT, RELEASE = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
CA = make_authority_certificate("fedgate bridge", pki.create_key(), NOW)
Capture = pytest.CaptureFixture[str]


def signed(number: int = 5, root: Ed25519PrivateKey = ROOT, site: str = "bridge", **changes: Any) -> bytes:
    release = signing.encode_public_key(RELEASE)
    changed = {"signature": "", "site": site, "number": number, **changes}
    keys = statement.sign(root, "bridge", 1, release, [CA], 0).model_copy(update=changed)
    return keys.model_copy(update={"signature": signing.sign(root, keys.signed_bytes())}).to_bytes()


def test_what_the_root_key_signed_is_taken_also_with_what_a_newer_version_adds() -> None:
    document = {**json.loads(signed()), "from_the_future": [1], "signature": ""}
    newer = Keys.from_bytes(json.dumps(document).encode())
    body = json.dumps({**document, "signature": signing.sign(ROOT, newer.signed_bytes())}).encode()
    for one in (signed(), body):
        assert statement.check(one, ROOT.public_key(), held=body).number == 5


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (signed(root=RELEASE), "signature"),
        (signed().replace(b'"number":5', b'"number":6'), "signature"),
        (signed()[:-9], "Invalid JSON"),
        (b"\xff\x00", "Invalid JSON"),
        (signed(number=0), "number"),
        (signed(release_key="no key"), "no Ed25519 public key"),
        (signed(release_key=CA.decode()), "no Ed25519 public key"),
        (signed(release_key="x" * 5_000), "at most 4096"),
        (signed(authorities=()), "at least 1"),
        (signed(authorities=(CA.decode(),) * 9), "at most 4"),
        (signed(authorities=("none",)), "no certificate"),
        (signed(authorities=(CA.decode() * 2,)), "one certificate for each authority"),
        (signed(site="quay"), "of site 'quay', and this is site 'bridge'"),
        (signed(number=4), "number 4, and number 5 is here"),
    ],
)
def test_what_is_not_to_be_believed_changes_no_file(body: bytes, why: str, tmp_path: Path) -> None:
    mine = files(tmp_path / "north")
    mine.root_key.write_bytes(signing.encode_public_key(ROOT))
    assert trusted_keys.take(mine, signed()) and not trusted_keys.take(mine, signed())
    before = {path.name: path.read_bytes() for path in mine.statement.parent.iterdir()}
    assert {*before} == {"root.pub", "ca.pem", "release.pub", "keys.json"}
    with pytest.raises(StatementError, match=why):
        trusted_keys.take(mine, body)
    assert {path.name: path.read_bytes() for path in mine.statement.parent.iterdir()} == before


def test_what_was_held_of_another_root_key_does_not_count(tmp_path: Path) -> None:
    with pytest.raises(OlderError):
        statement.check(signed(), ROOT.public_key(), signed(number=6))
    assert statement.check(signed(), ROOT.public_key(), signed(number=6, root=RELEASE)).number == 5
    mine = files(tmp_path / "north")
    with pytest.raises(StatementError, match="no root key here; enrol"):
        trusted_keys.take(mine, signed())


@pytest.mark.parametrize("cut", range(3))
def test_a_cut_at_any_file_of_a_gateway_is_made_good_by_the_same_statement(
    cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = files(tmp_path / "north")
    mine.root_key.write_bytes(signing.encode_public_key(ROOT))
    trusted_keys.take(mine, signed())
    other = signing.encode_public_key(ROOT).decode()
    with monkeypatch.context() as patch:
        fail_at(cut, patch)
        with pytest.raises(OSError, match="power"):
            trusted_keys.take(mine, signed(6, release_key=other))
    assert trusted_keys.take(mine, signed(6, release_key=other))
    assert mine.release_key.read_text() == other and mine.statement.read_bytes() == signed(6, release_key=other)


def fail_at(cut: int, patch: pytest.MonkeyPatch) -> None:
    real, calls = pki.write, iter(range(99))

    def write(path: Path, body: bytes, mode: int) -> None:
        if next(calls) == cut:
            raise OSError("the power is gone")
        real(path, body, mode)

    patch.setattr(pki, "write", write)


def test_a_model_that_the_key_before_could_not_vouch_for_is_taken_when_the_keys_come() -> None:
    bad, good = signed(1), signed(2)
    known, asked = [False], list[bytes]()

    def take(body: bytes) -> KeysOutcome:
        asked.append(body)
        known[0] = body == good
        return KeysOutcome(is_new=known[0], problem="" if known[0] else "its signature is not the root key's")

    state = changed(changed(commissioned(), "context", verified=lambda *_: known[0]), "trust", take_keys=take)
    manifest = released(1)[0]
    announced = heard("manifest", "current", manifest.to_bytes(), "all")
    state, _ = after(state, announced)
    assert "signature" in state.context.refusal and state.deployment.candidate is None
    for _ in range(2):
        state, _ = after(state, announced, heard("keys", "current", bad, "all"))
    assert asked == [bad]
    state, _ = after(state, announced)
    state, effects = after(state, heard("keys", "current", good, "all"))
    assert state.context.refusal == "" and sent(effects, "status")  # so the aggregator knows that it may say it again
    state, effects = after(state, announced)
    assert state.deployment.candidate == manifest


def test_numbers_that_the_key_before_signed_are_kept_anew_with_the_new_one() -> None:
    """The aggregator believes none but its own key, and may ask for them when its store is lost."""
    state = changed(commissioned(), "context", verified=lambda *_: True)
    state = changed(state, "trust", take_keys=lambda _: KeysOutcome(is_new=True))
    numbers = Newest(version=1, highest_version=1, training=1, audience="bridge/all", expires_ns=2 * T0_NS)
    old, new = (heard("newest", "current", one.to_bytes(), "all") for one in (numbers, numbers.changed(signature="n")))
    state, _ = after(state, old, new)
    assert state.trust.newest is not None and state.trust.newest.signature == ""
    state, _ = after(state, heard("keys", "current", signed(), "all"), new)
    assert state.trust.newest is not None and state.trust.newest.signature == "n"


def by(key: Ed25519PrivateKey, made: Made) -> Made:
    """Return a model as a key announces it."""
    return sign_message(made[0], key, FOR_ALL, T0_NS), made[1]


def asked_by(key: Ed25519PrivateKey, training: int) -> Received:
    message = RoundOpen.from_bytes(invitation()).changed(training=training)
    return heard("round", "open", sign_message(message, key, FOR_ALL, T0_NS).to_bytes(), "all")


def going_by(key: Ed25519PrivateKey, state: State, *, is_new: bool) -> State:
    """Return a gateway that was told of a release key, which its files name already where that is not new."""

    def verified(body: bytes, signature: str) -> bool:
        return signing.verify(key.public_key(), body, signature)

    state = changed(state, "context", verified=verified)
    state = changed(state, "trust", take_keys=lambda _: KeysOutcome(is_new=is_new))
    return after(state, heard("keys", "current", signed(release_key=signing.encode_public_key(key).decode()), "all"))[0]


@pytest.mark.parametrize("how", ["told", "found in the files", "found there after a restart"])
def test_no_number_of_the_key_before_binds_a_gateway(how: str) -> None:
    """Goal: whoever had the release key may have signed the highest numbers there are; with another key the site goes
    on all the same, however a gateway came to know of it, and nothing of the one before counts.
    """
    shelf = Shelf()
    state = going_by(KEY, in_force(shelf), is_new=False)
    stolen = stated_by(KEY, FOR_ALL, LARGEST, LARGEST, LARGEST), by(KEY, released(LARGEST)), asked_by(KEY, LARGEST)
    state, effects = after(state, heard("newest", "current", stolen[0], "all"), stolen[2])
    shelf.commit([Save(SIGNER, state.trust.signer.encode()), *effects])
    state, effects = offered(state, stolen[1])
    shelf.commit(effects)
    assert (
        state.deployment.manifest is not None
        and state.deployment.manifest.version == LARGEST
        and state.training.newest_training == LARGEST
    )
    state = agent(gateway_settings(), shelf) if "restart" in how else state
    state = going_by(RELEASE, state, is_new=how == "told")
    ours = stated_by(RELEASE, FOR_ALL, 3, 5, 7)
    state, _ = after(state, heard("newest", "current", ours, "all"), asked_by(RELEASE, 7))
    assert state.trust.newest == Newest.from_bytes(ours) and state.training.round is not None
    state, _ = after(state, heard("newest", "current", stolen[0], "all"), stolen[2])
    assert state.trust.newest == Newest.from_bytes(ours) and state.training.newest_training == 7
    third = by(RELEASE, released(3))
    for made in (third, stolen[1], by(RELEASE, released(2))):
        state, _ = offered(state, made)
        assert state.deployment.manifest == third[0]


def test_the_model_in_force_that_another_key_vouches_for_is_neither_fetched_again_nor_gone_back_from() -> None:
    state = offered(in_force(), SECOND)[0]
    state = going_by(RELEASE, going_by(KEY, state, is_new=False), is_new=True)
    announced = heard("manifest", "current", by(RELEASE, SECOND)[0].to_bytes(), "all")
    for _ in range(2):
        state, _ = after(state, announced)
        assert (
            state.deployment.candidate is None and not state.downloads.receiver.incoming and state.context.refusal == ""
        )
    assert offered(state, by(RELEASE, FIRST))[0].deployment.manifest == SECOND[0]


# The aggregator.


def test_numbers_that_were_learned_of_the_key_before_are_forgotten_with_it(tmp_path: Path) -> None:
    body = signed()
    with cloud(tmp_path, mean_of(3)) as here:
        here.hear(said_of("north", stated_by(KEY, FOR_ALL, 9, LARGEST)))
        assert here.service.state.releases.highest_version == LARGEST
        here.hear(Stated(Keys.from_bytes(body), body, KEY))
        assert here.service.state.releases.highest_version == LARGEST
        told = here.hear(Stated(Keys.from_bytes(signed(6)), signed(6), RELEASE), Tick(), after_s=1.0)
        numbers = [one.payload for one in told if isinstance(one, Publish) and "/newest/" in one.topic]
        assert {Newest.from_bytes(payload).highest_version for payload in numbers} == {0}
        here.hear(said_of("north", stated_by(KEY, FOR_ALL, 9, LARGEST)))
        assert here.service.state.releases.highest_version == 0


def test_the_number_of_a_training_that_the_key_before_had_raised_goes_with_it(tmp_path: Path) -> None:
    """Goal: what a thief signed does not end the order of trainings for good; a number of the site's own stays."""
    with cloud(tmp_path, mean_of(3)) as here:
        own = here.service.state.rounds.training
        here.hear(said_of("north", stated_by(KEY, FOR_ALL, 1, 1, LARGEST)), Tick(), after_s=1.0)
        assert here.service.state.rounds.training == LARGEST
        said = here.hear(Stated(Keys.from_bytes(signed(6)), signed(6), RELEASE), Tick(), after_s=1.0)
        (invited,) = [one.payload for one in said if isinstance(one, Publish) and "/round/" in one.topic]
        training = here.service.state.rounds.training
        assert own <= training == RoundOpen.from_bytes(invited).training <= here.now_ns // 10**9
        here.restart()
        assert here.service.state.rounds.training == training
        here.hear(Stated(Keys.from_bytes(signed(7)), signed(7), KEY), after_s=9.0)
        assert here.service.state.rounds.training == training


def said_of(gateway: str, payload: bytes) -> Event:
    return cloud_heard(gateway, "newest", payload, "current")


def test_what_is_retained_is_signed_anew_after_gateways_were_told_of_the_key(tmp_path: Path) -> None:
    body = signed()
    with cloud(tmp_path, mean_of(3)) as here:
        said = here.hear(Stated(Keys.from_bytes(body), body, RELEASE), Tick(), after_s=1.0)
        told = [one for one in said if isinstance(one, Publish)]
        assert told[0].topic.endswith("/all/keys/current") and told[0].payload == body
        by_topic = {one.topic.split("/")[4]: one.payload for one in told[1:] if one.retain}
        for name, kind in (("newest", Newest), ("round", RoundOpen)):
            message = kind.from_bytes(by_topic[name])
            assert signing.verify(RELEASE.public_key(), message.signed_bytes(), message.signature)
        assert not [one for one in here.hear(Tick(), after_s=1.0) if isinstance(one, Publish)]
        here.restart()
        here.hear(Stated(Keys.from_bytes(body), body, RELEASE))
        again = here.hear(Connection(True))
        topics = [one.topic.split("/")[4] for one in again if isinstance(one, Publish)]
        assert topics[0] == "keys" and {"newest", "round"} <= {*topics}


@pytest.fixture
def site(tmp_path: Path, capsys: Capture) -> Folder:
    made = founded(tmp_path / "site")
    capsys.readouterr()
    return made


def root_of(site: Folder) -> Path:
    return site.path.with_name(f"{site.path.name}-root.key")


def change(site: Folder, what: str) -> Keys:
    root = signing.load_private(root_of(site))
    made = site_keys.KeyChange(site.path, site.path / "release.key", root, datetime.now(UTC))
    if what == "finish":
        return made.drop_before()
    return made.rotate(release="release" in what, authority="authority" in what)


def is_whole(site: Folder) -> Keys:
    """See that a site works as it lies there, before and after its service has settled it; return what is stated."""
    keys, settings = site_keys.read_statement(site.path), Site(site="bridge", release_key=site.path / "release.key")
    assert keys is not None
    for _ in range(2):
        key = site_keys.release_key(settings, site.path)
        assert signing.encode_public_key(key).decode() == keys.release_key
        authority = Authority(site.path)
        for name in ("server.pem", "cloud.pem"):
            held = pki.load_certificate(site.path / name)
            assert held.issuer in [one.subject for one in authority.believed]
        site_keys.settle(site.path, site.path / "release.key", keys)
    assert tuple(pki.certificate_pem(one).decode() for one in Authority(site.path).believed) == keys.authorities
    assert (site.path / "release.pub").read_text() == keys.release_key
    keys_held = pki.split_pem((site.path / "ca.key").read_bytes())
    assert len(keys_held) == len(keys.authorities)
    return keys


@pytest.mark.soak
@pytest.mark.parametrize("what", ["release", "authority", "release and authority", "finish"])
@pytest.mark.parametrize("cut", range(9))
def test_a_cut_at_any_file_leaves_a_site_that_works(
    what: str, cut: int, site: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "finish":
        change(site, "authority")
    before = is_whole(site)
    with monkeypatch.context() as patch:
        fail_at(cut, patch)
        try:
            change(site, what)
        except OSError:
            is_cut = True
        else:
            is_cut = False
    after_cut = is_whole(site)
    assert after_cut.number in ((before.number, before.number + 1) if is_cut else (before.number + 1,))
    if after_cut.number == before.number:
        assert after_cut == before
        after_cut = change(site, what)
    assert is_whole(site) == after_cut and after_cut.number == before.number + 1
    assert (after_cut.release_key != before.release_key) == ("release" in what)
    wanted = before.authorities[:1] if what == "finish" else before.authorities
    is_other = "authority" in what
    assert after_cut.authorities[is_other:] == wanted and len(after_cut.authorities) == len(wanted) + is_other
    assert stat.S_IMODE((site.path / "release.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((site.path / "ca.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("what", ["release", "authority"])
def test_a_service_that_starts_while_keys_are_changed_removes_none_of_them(
    what: str, site: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two files of a change the new key is in no statement yet."""
    settings, services = site.settings, list[threading.Thread]()
    assert settings.identity is not None
    door, real = EnrolmentService(settings, settings.identity, lambda _: None), pki.write

    def write(path: Path, body: bytes, mode: int) -> None:
        if path.name == site_keys.STATEMENT and not services:
            services.append(threading.Thread(target=door.read_statement))
            services[0].start()
            services[0].join(0.5)  # the service has its time, and is not done before the command is
        real(path, body, mode)

    with monkeypatch.context() as patch:
        patch.setattr(pki, "write", write)
        made = change(site, what)
    services[0].join(PATIENCE_S)
    assert is_whole(site) == made


def test_a_service_finds_new_keys_whose_command_was_cut_off_before_it_could_say_so(site: Folder) -> None:
    settings, told = site.settings, list[Event]()
    assert settings.identity is not None
    door = EnrolmentService(settings, settings.identity, told.append)
    assert door.read_statement() is not None
    door.tick()
    assert not told
    keys = change(site, "release")
    door._keys_s = 0.0  # a minute later
    door.tick()
    (found,) = told
    assert isinstance(found, Stated) and found.keys == keys and found.order == 0
    assert signing.encode_public_key(found.release_key).decode() == keys.release_key
    (site.path / "keys.json").write_bytes(signed())
    door._keys_s = 0.0
    door.tick()
    assert isinstance(told[-1], NotStated) and "restore it" in told[-1].problem


@pytest.mark.soak
def test_who_was_revoked_is_so_under_both_authorities(site: Folder) -> None:
    revoked = {name: site.certified(name)[0] for name in ("old", "old-good")}
    change(site, "authority")
    revoked |= {name: site.certified(name)[0] for name in ("new", "new-good")}
    out = [pki.load_certificate(revoked[name]).serial_number for name in ("old", "new")]
    assert site.authority.write_revoked([(serial, NOW) for serial in out])
    assert not site.authority.write_revoked([(serial, NOW) for serial in out])
    assert {*site.authority.read_revoked()} == {*out}
    late = str(int((NOW + timedelta(hours=20)).timestamp()))
    words = ["openssl", "verify", "-attime", late, "-CAfile", str(site.path / "ca.pem"), "-crl_check", "-CRLfile"]
    words.append(str(site.path / "revoked.crl"))
    said = {name: children.run([*words, str(path)], PATIENCE_S, text=True) for name, path in revoked.items()}
    assert {name for name, done in said.items() if done.returncode == 0} == {"old-good", "new-good"}
    assert all("revoked" in said[name].stderr for name in ("old", "new"))


def keys_command(site: Folder, *words: str) -> tuple[str, ...]:
    return ("keys", *words, "-c", str(site.path / "aggregator.toml"))


@pytest.mark.soak
def test_each_mistake_with_keys_is_named(site: Folder, tmp_path: Path, capsys: Capture) -> None:
    other = founded(tmp_path / "other")
    capsys.readouterr()
    said = failed(cloud_aggregator, capsys, *keys_command(site, "rotate"))
    assert "give --release, --authority or both" in said
    said = failed(cloud_aggregator, capsys, *keys_command(site, "rotate", "--release", "--root-key", "nowhere"))
    assert "--root-key: expected the private root key" in said and "none at nowhere" in said
    words = ("rotate", "--release", "--root-key", str(root_of(other)))
    assert "not the one of root.pub" in failed(cloud_aggregator, capsys, *keys_command(site, *words))
    assert "none is to be dropped" in failed(cloud_aggregator, capsys, *keys_command(site, "finish"))
    (site.path / "keys.json").write_bytes(signed())
    assert "restore it and root.pub" in failed(cloud_aggregator, capsys, *keys_command(site, "show"))
    (site.path / "keys.json").unlink()
    assert "restore it from the backup" in failed(cloud_aggregator, capsys, *keys_command(site, "show"))
    said = failed(cloud_aggregator, capsys, "gateways", "token", "north", *keys_command(site)[1:])
    assert "keys.json: this site has lost" in said


def test_keys_of_a_site_that_never_ran_are_changed_and_nobody_has_to_be_told(site: Folder, capsys: Capture) -> None:
    capsys.readouterr()
    for number, part in enumerate((("rotate", "--release", "--authority"), ("finish",)), 2):
        assert cloud_aggregator([*keys_command(site, *part)]) == 0
        said = capsys.readouterr()
        assert f"statement {number} is in the site's folder" in said.out and not said.err
        assert "take " in said.out and is_whole(site).number == number
    assert cloud_aggregator([*keys_command(site, "rotate", "--release", "--json")]) == 0
    assert json.loads(capsys.readouterr().out)["order"] is None
    assert not (site.path / "aggregator.db").exists()


def test_init_writes_the_root_key_to_a_named_path_outside_of_the_folder(tmp_path: Path, capsys: Capture) -> None:
    inside = str(tmp_path / "site" / "root.key")
    said = failed(cloud_aggregator, capsys, "init", str(tmp_path / "site"), "--root-key", inside)
    assert "--root-key: expected a path outside of" in said
    said = failed(cloud_aggregator, capsys, "init", str(tmp_path / "site"), "--loopback", "--root-key", "x")
    assert "--root-key: with --loopback" in said and not (tmp_path / "site").exists()
    made = founded(tmp_path / "site", "--root-key", str(tmp_path / "stick"))
    assert stat.S_IMODE((tmp_path / "stick").stat().st_mode) == 0o600
    out = capsys.readouterr().out
    assert f"{tmp_path}/stick: the root key. Take it off this machine" in out
    root = signing.encode_public_key(signing.load_private(tmp_path / "stick"))
    assert (made.path / "root.pub").read_bytes() == root and is_whole(made).number == 1
    assert not [path for path in made.path.iterdir() if path.read_bytes() == (tmp_path / "stick").read_bytes()]


def test_a_site_without_a_root_key_is_given_one_and_one_that_lost_its_statement_is_not(
    site: Folder, capsys: Capture
) -> None:
    again = ["init", str(site.path), "--port", str(site.port)]
    (site.path / "aggregator.db").touch()
    before = (site.path / "keys.json").read_bytes()
    (site.path / "keys.json").unlink()
    assert "restore keys.json from the backup" in failed(cloud_aggregator, capsys, *again)
    for lost in ("root.pub", root_of(site)):
        (site.path / lost).unlink()
    assert cloud_aggregator(again) == 0 and is_whole(site).number == 1
    assert (site.path / "keys.json").read_bytes() != before


def test_the_doctor_warns_while_the_root_key_is_on_the_host(site: Folder) -> None:
    spec = site.settings.identity
    assert spec is not None and spec.root_key == root_of(site)
    found = doctor.root_key(spec)
    assert found.level == "warning" and str(root_of(site)) in found.text
    root_of(site).rename(site.path.parent / "taken-away")
    assert doctor.root_key(spec).level == "ok"
