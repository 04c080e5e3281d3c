"""Masked rounds among members that the site's root key names: a cloud that lets in gateways of its own learns nothing.

Method: rounds in which the cloud invents somebody, lists one twice, or repeats keys of a round that is over; both
machines with real keys, registry and statement; the command that the operator gives.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.commands import keys as keys_command_module
from fedgate.cloud_aggregator.enrolment import Certificate
from fedgate.config.identity import pki, signing, statement
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Keys
from fedgate.config.settings.identity import Membership
from fedgate.gateway_agent.commands import doctor
from fedgate.gateway_agent.runtime import training_worker
from fedgate.models.arrays import IDENTITY, MEMBERS, WEIGHT, Array, Arrays, generator
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.secure_aggregation.client import SIGNATURE, VOUCHER
from fedgate.models.federated.secure_aggregation.options import RosterError
from fedgate.models.federated.secure_aggregation.server import member_of
from tests.end_to_end.test_commands import failed
from tests.end_to_end.test_exchange_masked import FOUR, MASKED, go_to, masked_site
from tests.gateway_agent.trust.test_site_keys import RELEASE, ROOT, keys_command, root_of, signed
from tests.support.masked_rounds import (
    INPUT,
    KEYS,
    QUANTUM,
    SHARES,
    SUMMED,
    expected_sum,
    masked_adding,
    names_of,
    rows_of,
    secret_of,
    took_part,
)
from tests.support.site_folders import Folder, founded
from tests.support.sites import Site, gateway_settings, with_record

SIZE = 12
NAMES = names_of(6)
STRANGER = "gateway-999"
ALGORITHM = masked_adding(SIZE)
PRIVATE = {name: ec.derive_private_key(1000 + number, ec.SECP256R1()) for number, name in enumerate([*NAMES, *FOUR])}
PRIVATE[STRANGER] = ec.derive_private_key(5000, ec.SECP256R1())
Capture = pytest.CaptureFixture[str]
made = partial(rows_of, size=SIZE)


def member(name: str) -> str:
    return pki.name_member(PRIVATE[name].public_key())


def listed(names: Sequence[str]) -> Array:
    return np.frombuffer(bytes.fromhex("".join(map(member, names))), np.uint8).reshape(len(names), -1)


def vouching(names: Sequence[str], members: Sequence[str] = NAMES) -> dict[str, Arrays]:
    """Return rows of gateways with a key each, who take part among members only."""
    own = {name: PRIVATE[name].private_numbers().private_value.to_bytes(32, "big") for name in names}
    known = {MEMBERS: listed(members)}
    return {name: {**rows, **known, IDENTITY: np.frombuffer(own[name], np.uint8)} for name, rows in made(names).items()}


def test_members_get_the_sum_that_they_get_without_a_list() -> None:
    data = vouching(NAMES)
    found, plain = took_part(ALGORITHM, data), took_part(ALGORITHM, made(NAMES))
    assert np.abs(found.server.global_state[SUMMED] - expected_sum(data, NAMES)).max() <= len(NAMES) * QUANTUM
    assert np.array_equal(found.server.global_state[SUMMED], plain.server.global_state[SUMMED])
    assert {member_of(update) for update in found.updates[KEYS].values()} == {member(name) for name in NAMES}
    assert {member_of(update) for update in plain.updates[KEYS].values()} == {""}


@pytest.mark.parametrize("is_vouched", [True, False])
def test_a_gateway_that_the_cloud_invented_is_answered_by_nobody(is_vouched: bool) -> None:
    stranger = vouching([STRANGER]) if is_vouched else made([STRANGER])
    first = member(STRANGER) if is_vouched else "nobody's"
    with pytest.raises(RosterError, match=rf"expected the 6 members .*, got 1 others, the first {first}; 'cloud-aggr"):
        took_part(ALGORITHM, vouching(NAMES) | stranger)


def test_one_member_cannot_be_many() -> None:
    """The cloud has the key of one gateway, and makes it two."""
    twin = {**vouching(NAMES[:1])[NAMES[0]], **made([STRANGER])[STRANGER]}
    with pytest.raises(RosterError, match="expected each member once, got 1 of them again"):
        took_part(ALGORITHM, vouching(NAMES) | {STRANGER: twin})


def test_a_voucher_of_other_keys_is_refused() -> None:
    def swapped(step: int, name: str, update: Arrays) -> Arrays:
        return {**update, VOUCHER: other} if (step, name) == (KEYS, NAMES[1]) else update

    other = took_part(ALGORITHM, vouching(NAMES)).updates[KEYS][NAMES[2]][VOUCHER]
    with pytest.raises(UpdateError, match="voucher: expected one for the keys beside it, or zeros, got that of other"):
        took_part(ALGORITHM, vouching(NAMES), arrives=swapped)


def test_who_leaves_vouches_with_its_own_key() -> None:
    """A weight of 0 takes the rows of its data, and once took the numbers of its key for some."""
    server, name = ALGORITHM.start(generator(3, 0, "cloud")), NAMES[0]
    data = {**vouching(NAMES)[name], "secret": secret_of(name, 0)}
    stays, leaves = (
        ALGORITHM.phases[KEYS].train(server.global_state, {}, {**data, WEIGHT: np.array(weight)}, generator(3, 0, name))
        for weight in (1.0, 0.0)
    )
    assert wire.encode(leaves[1]) == wire.encode(stays[1]) and leaves[1][VOUCHER].any()


def test_keys_of_a_round_that_is_over_make_nobody_present() -> None:
    """A member is away: the cloud lists its keys of an earlier round, with its voucher, and says that it goes along.
    But whoever sends shares signs this round, which keys of another cannot.
    """
    away, before = NAMES[0], took_part(ALGORITHM, vouching(NAMES))
    there, old = vouching(NAMES[1:]), before.updates[KEYS][away]
    server = ALGORITHM.start(generator(3, 0, "cloud"))._replace(round_index=10)
    total, phase = ALGORITHM.phases[KEYS].admit(server, old), ALGORITHM.phases[KEYS]
    own: dict[str, Arrays] = {}
    for name, data in there.items():
        own[name], update = phase.train(
            server.global_state, {}, {**data, "secret": secret_of(name, 10)}, generator(3, 10, name)
        )
        total = phase.reducer.merge(total, phase.admit(server, update))
    server = phase.advance(server, phase.reducer.closed(total))._replace(round_index=11)
    sent: dict[str, Arrays] = {}
    phase, total = ALGORITHM.phases[SHARES], {}
    for name, data in there.items():
        told = {**data, "secret": secret_of(name, 11)}
        own[name], sent[name] = phase.train(server.global_state, own[name], told, generator(3, 11, name))
        total = phase.reducer.merge(total, phase.admit(server, sent[name]))
    server = phase.advance(server, phase.reducer.closed(total))
    shared, count = dict(server.global_state), len(there)
    assert len(shared["masking.posted"]) == count == 5
    phase = ALGORITHM.phases[INPUT]

    def asked(name: str, told: Arrays) -> Arrays:
        with_secret = {**there[name], "secret": secret_of(name, 12)}
        return phase.train(told, own[name], with_secret, generator(3, 12, name))[1]

    assert asked(NAMES[1], shared)
    place = next(iter({*range(6)} - {*shared["masking.posted"].tolist()}))
    for signature in (np.zeros((1, 64), np.uint8), before.updates[SHARES][away][SIGNATURE]):
        rows = np.insert(shared["masking.signature"], place, signature, axis=0)
        parts = {"masking.part": np.zeros(6, np.uint8)}
        lie = {**shared, **parts, "masking.posted": np.arange(6), "masking.signature": rows}
        with pytest.raises(
            RosterError, match=f"expected one of this round of each who sent shares, got none of {place}"
        ):
            asked(NAMES[1], lie)
    with pytest.raises(RosterError, match=r"signature: expected 6 of 64 bytes"):
        asked(NAMES[1], {**shared, **parts, "masking.posted": np.arange(6)})


def files_of(folder: Path, name: str, body: bytes) -> list[Path]:
    """Write the files of a gateway that was enrolled."""
    place = folder / name
    place.mkdir(exist_ok=True)
    pki.write(place / "own.key", pki.encode_private_key(PRIVATE[name]), 0o600)
    (place / "root.pub").write_bytes(signing.encode_public_key(ROOT))
    (place / "keys.json").write_bytes(body)
    return [place / "own.key", place / "root.pub", place / "keys.json"]


def training_with(monkeypatch: pytest.MonkeyPatch, files: dict[str, list[Path]]) -> None:
    """Have each gateway train with files of its own."""
    plain = training_worker.answer

    monkeypatch.setattr(training_worker, "answer", lambda job: plain(job, files[wire.decode(job)[1]["gateway"]]))


def pinned(
    monkeypatch: pytest.MonkeyPatch, folder: Path, members: Sequence[str], keys_of: Sequence[str] = FOUR
) -> Site:
    """Return a site whose root key names members; the gateways have the keys `keys_of`, and their own certificates."""
    body = signed(members=tuple(map(member, members)))
    files = {name: files_of(folder, whose, body) for name, whose in zip(FOUR, keys_of, strict=True)}
    training_with(monkeypatch, files)
    site = masked_site("fedavg", MASKED)
    held = {name: Certificate(name, name, pki.key_digest(PRIVATE[name].public_key()), 0, 2**62) for name in FOUR}
    site.cloud = with_record(with_record(site.cloud, "access", registry=Registry(held)), "context", keys=body)
    return site


@pytest.mark.soak
def test_both_machines_make_a_model_among_members(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site = pinned(monkeypatch, tmp_path, FOUR)
    site.run(site.in_force)
    assert {tuple(sorted(record.gateways)) for record in site.cloud_shelf.rounds} == {tuple(sorted(FOUR))}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("members", "keys_of", "why"),
    [
        (FOUR[:3], FOUR, "its key is none of those that may take part in masked sums"),
        (FOUR, (*FOUR[:3], FOUR[0]), "what it sends is vouched for by a key that is not its own"),
    ],
)
def test_the_aggregator_leaves_out_who_would_have_all_others_refuse_the_round(
    members: Sequence[str], keys_of: Sequence[str], why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = pinned(monkeypatch, tmp_path, members, keys_of)
    go_to(site, lambda: len(site.cloud_shelf.rounds) >= 5)
    assert any(f"update of {FOUR[3]} refused: {why}" in line for line in site.log)
    assert sorted(site.cloud_shelf.rounds[0].gateways) == sorted(FOUR[:3])
    assert not any("fails" in line for line in site.log)


def test_a_gateway_that_cannot_tell_who_the_members_are_takes_no_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = signed(members=tuple(map(member, FOUR)))
    for spoiled in (body.replace(member("south").encode(), b"0" * 32), body[:-9], signed(root=RELEASE)):
        key, root, keys = files_of(tmp_path, "south", spoiled)
        with pytest.raises(ValueError, match="whom the site's root key names is not known"):
            training_worker._describe_membership(key, root, keys)
    for lost in (keys, root):
        lost.unlink()
        with pytest.raises(ValueError, match="whom the site's root key names is not known"):
            training_worker._describe_membership(key, root, keys)


@pytest.fixture
def site(tmp_path: Path) -> Folder:
    return founded(tmp_path / "site")


@pytest.mark.soak
def test_the_root_key_names_members_and_later_changes_of_keys_keep_them(
    site: Folder, tmp_path: Path, capsys: Capture
) -> None:
    listing = tmp_path / "members.txt"
    listing.write_text(f"# deck\n{member('north')} north\n\n{member('south')}\n")
    capsys.readouterr()
    assert cloud_aggregator([*keys_command(site, "members", "--set", str(listing))]) == 0
    assert "statement 2 is in the site's folder" in capsys.readouterr().out
    for number, part in enumerate((("rotate", "--release", "--authority"), ("finish",)), 3):
        assert cloud_aggregator([*keys_command(site, *part)]) == 0
        keys = Keys.from_bytes((site.path / "keys.json").read_bytes())
        assert (keys.number, keys.members) == (number, (member("north"), member("south")))
        statement.check(keys.to_bytes(), signing.load_private(root_of(site)).public_key())
    capsys.readouterr()
    assert cloud_aggregator([*keys_command(site, "members")]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0] == "# who takes part in masked sums: the 2 members of statement 4"
    assert f"{member('north')} nobody has this key now (a member)" in said
    listing.write_text(said)  # what is printed can be given back
    assert cloud_aggregator([*keys_command(site, "members", "--set", str(listing))]) == 0
    assert cloud_aggregator([*keys_command(site, "members", "--unset")]) == 0
    capsys.readouterr()
    assert cloud_aggregator([*keys_command(site, "members", "--json")]) == 0
    assert json.loads(capsys.readouterr().out) == {"pinned": False, "members": []}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("north\n", "line 1: expected a key of 32 hexadecimal digits first, got 'north'"),
        ("# nobody\n", "expected 1 to 1000 keys, got 0; --unset lets any gateway take part"),
        ("\n".join(f"{number:032x}" for number in range(1_001)), "expected 1 to 1000 keys, got 1001"),
    ],
)
def test_a_list_that_cannot_be_is_named(text: str, why: str, site: Folder, tmp_path: Path, capsys: Capture) -> None:
    listing = tmp_path / "members.txt"
    listing.write_text(text)
    before = (site.path / "keys.json").read_bytes()
    assert why in failed(cloud_aggregator, capsys, *keys_command(site, "members", "--set", str(listing)))
    assert (site.path / "keys.json").read_bytes() == before


def test_init_says_how_many_gateways_a_masked_sum_needs(tmp_path: Path, capsys: Capture) -> None:
    founded(tmp_path / "site")
    assert "masked sums (algorithm.settings.masking) need 5 gateways" in capsys.readouterr().out


def test_the_doctor_of_a_gateway_says_among_whom_it_takes_part(tmp_path: Path) -> None:
    def said(body: bytes) -> str:
        _, root, keys = files_of(tmp_path, "south", body)
        base = gateway_settings()
        trust = base.trust.model_copy(update={"root_key": root, "keys": keys})
        settings = base.model_copy(update={"trust": trust, "identity": Membership(enrolment="localhost:1")})
        (found,) = doctor._describe_members(settings)
        return f"{found.level}: {found.text}"

    assert (
        said(signed(members=(member("south"),)))
        == "ok: masked sums: among the 1 that statement 5 of the root key names"
    )
    assert said(signed()).startswith("ok: masked sums: with any gateway that the aggregator lets in")
    assert said(signed(root=RELEASE)).startswith("failure")


def test_whom_a_list_leaves_out_is_said_where_it_is_given() -> None:
    held = [Certificate(name, name, pki.key_digest(PRIVATE[name].public_key()), 0, 2**62) for name in FOUR]
    gone = Certificate("old", "gone", pki.key_digest(PRIVATE[STRANGER].public_key()), 0, 2**62, "revoked")
    enrolled = Registry({one.serial: one for one in (*held, gone)}).members
    assert enrolled == {member(name): name for name in FOUR}
    said = keys_command_module._list_left_out(enrolled, [member("north"), member(STRANGER)])
    assert "1 of the 4 enrolled gateways are members; no longer in masked sums: east, south, west" in said
    assert f"of 1 members nobody is enrolled with their key, {member(STRANGER)}" in said
    whole = keys_command_module._list_left_out(enrolled, list(enrolled))
    assert whole.strip() == "4 of the 4 enrolled gateways are members"
    assert keys_command_module._list_left_out(enrolled, []) == ""
