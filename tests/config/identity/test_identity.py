"""Goal: keys, requests, tokens and the authority are what they claim, and garbage is refused with one kind of error.

Method: the functions for real, and OpenSSL's own check of what they make; no broker (see `test_site_broker`).
"""

from __future__ import annotations

import re
import stat
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from fedgate import config
from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.pki.authority import SERVER, Authority
from fedgate.cloud_aggregator.pki.enrolment_request import read_request
from fedgate.cloud_aggregator.pki.enrolment_server import PER_MINUTE_MAX, RateLimiter
from fedgate.config.identity import pki
from fedgate.config.identity.pki import IdentityError, Token
from fedgate.firmware_sim import children
from tests.support.site_folders import Folder, founded
from tests.support.waiting import PATIENCE_S

TOKEN = Token("gateway-1", "aggregator.example:8884", "ab" * 32, "s" * 43)
KEY = ec.generate_private_key(ec.SECP256R1())
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return founded(tmp_path_factory.mktemp("identity") / "site")


def test_a_token_comes_back_as_it_was_and_not_at_all_where_a_letter_is_lost_or_wrong() -> None:
    text = TOKEN.format()
    assert pki.read_token(f" {text}\n") == TOKEN and len(text.split()) == 1
    for broken in (text[:-1], text[1:], text.replace(".", "", 1), text[:40] + "A" + text[41:], "", "fedgate1.."):
        with pytest.raises(IdentityError, match="not whole"):
            pki.read_token(broken)


@pytest.mark.parametrize(
    "change",
    [{"gateway": "all"}, {"address": "nowhere"}, {"root": "x"}, {"secret": 5}],
)
def test_a_token_with_wrong_parts_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(IdentityError):
        pki.read_token(replace(TOKEN, **change).format())  # type: ignore[arg-type]  # wrong on purpose


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_garbage_is_refused_as_such(body: bytes) -> None:
    for read in (pki.read_request, pki.read_certificate, read_request):
        with pytest.raises(IdentityError):
            read(body)
    with pytest.raises(IdentityError):
        pki.read_token(body.decode(errors="replace"))
    with pytest.raises(IdentityError):
        pki.split_address(body.decode(errors="replace") + " ")


@pytest.mark.parametrize(
    "name",
    [
        *("all", "cloud", "cloud.bridge", "operator", "building", "home-assistant", "a/b", "+", "", "x" * 65),
        *("north.sensors", "north.doctor", "north.doctor-queue"),  # client ids that go with those of gateway north
    ],
)
def test_no_gateway_gets_a_name_with_rights_of_its_own(name: str) -> None:
    with pytest.raises(IdentityError):
        pki.check_gateway(name)
    if name and len(name) < 65:
        with pytest.raises(IdentityError):
            pki.read_request(pki.make_request(KEY, name))


def test_every_user_of_the_access_list_is_a_reserved_name() -> None:
    text = (Path(config.__file__).parent / "mosquitto.acl").read_text()
    for name in re.findall(r"^user (\S+)", text, re.MULTILINE):
        with pytest.raises(IdentityError):
            pki.check_gateway(name)


def test_a_request_proves_that_its_maker_holds_the_key() -> None:
    made = pki.make_request(KEY, "gateway-1")
    name, key = pki.read_request(made)
    assert (name, key) == ("gateway-1", KEY.public_key())
    request = x509.load_pem_x509_csr(made)
    forged = bytearray(request.public_bytes(serialization.Encoding.DER))
    forged[-1] ^= 1  # of the signature
    body = x509.load_der_x509_csr(bytes(forged)).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(IdentityError, match="request"):
        pki.read_request(body)
    big = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gateway-1")])
    other = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(big, hashes.SHA256())
    with pytest.raises(IdentityError, match="P-256"):
        pki.read_request(other.public_bytes(serialization.Encoding.PEM))


def test_files_are_replaced_whole_and_keys_are_their_owners(tmp_path: Path) -> None:
    path = tmp_path / "gateway.key"
    key = pki.make_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and pki.load_key(path).public_key() == key.public_key()
    with pytest.raises(IdentityError, match="exists already"):
        pki.make_key(path)
    (tmp_path / ".gateway.key.part").write_bytes(b"left by a power cut")
    pki.write(path, b"new", 0o600)
    assert path.read_bytes() == b"new" and [one.name for one in tmp_path.iterdir()] == ["gateway.key"]
    with pytest.raises(IdentityError, match="no private key"):
        pki.load_key(path)


def test_init_makes_a_site_whose_keys_are_nobody_elses(site: Folder) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in site.path.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {
        *("ca.key", "server.key", "cloud.key", "release.key", "mosquitto.acl")
    }
    assert {"ca.pem", "server.pem", "cloud.pem", "revoked.crl", "mosquitto.conf", "aggregator.toml"} <= modes.keys()
    # The gateway's part holds nothing that is secret.
    assert "PRIVATE" not in "".join(
        (site.path / name).read_text() for name in ("gateway.toml", "ca.pem", "release.pub", "root.pub", "keys.json")
    )


@pytest.mark.soak
def test_openssl_agrees_with_what_the_authority_made(site: Folder) -> None:
    ca = str(site.path / "ca.pem")
    for purpose, name in (("sslserver", "server.pem"), ("sslclient", "cloud.pem")):
        words = ["openssl", "verify", "-x509_strict", "-CAfile", ca, "-purpose", purpose, str(site.path / name)]
        done = children.run(words, PATIENCE_S, text=True)
        assert done.returncode == 0, done.stderr
    for at, works in (("0", True), ("4000000000", False)):  # 1970, where a clock without a battery begins, and 2096
        words = ["openssl", "verify", "-attime", at, "-CAfile", ca, str(site.path / SERVER)]
        assert (children.run(words, PATIENCE_S).returncode == 0) == works
    assert {"localhost", "127.0.0.1"} <= set(site.authority.list_hosts())


def test_a_revoked_certificate_is_one_for_openssl_and_the_list_outlives_the_aggregator(site: Folder) -> None:
    certificate, _ = site.certified("gateway-9")
    serial = pki.load_certificate(certificate).serial_number
    assert site.authority.write_revoked([(serial, NOW)]) and not site.authority.write_revoked([(serial, NOW)])
    words = ["openssl", "verify", "-CAfile", str(site.path / "ca.pem"), "-crl_check", "-CRLfile"]
    words += [str(site.path / "revoked.crl")]
    refused = children.run([*words, str(certificate)], PATIENCE_S, text=True)
    assert refused.returncode != 0 and "revoked" in refused.stderr
    other, _ = site.certified("gateway-8")
    late = str(int((NOW + timedelta(hours=20)).timestamp()))
    assert children.run([*words, "-attime", late, str(other)], PATIENCE_S).returncode == 0
    crl = x509.load_pem_x509_crl((site.path / "revoked.crl").read_bytes())
    assert crl.next_update_utc == site.authority.certificate.not_valid_after_utc


def test_who_is_barred_stands_below_what_the_operator_wrote(site: Folder) -> None:
    path, authority = site.path / "mosquitto.acl", site.authority
    path.write_text(path.read_text() + "\nuser visitor\ntopic read fedgate/v1/bridge/+/score/+\n")
    assert authority.write_barred({"gateway-2", "gateway-1"}) and not authority.write_barred({"gateway-1", "gateway-2"})
    text = path.read_text()
    assert text.index("user visitor") < text.index("user gateway-1\ntopic deny #\nuser gateway-2\ntopic deny #\n")
    assert authority.write_barred(set()) and "deny" not in path.read_text() and "user visitor" in path.read_text()


def test_the_brokers_certificate_is_made_anew_with_the_same_key(
    site: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = pki.load_certificate(site.path / SERVER)
    assert cloud_aggregator(["init", str(site.path), "--renew-server"]) == 0
    after = pki.load_certificate(site.path / SERVER)
    assert after.serial_number != before.serial_number and after.public_key() == before.public_key()
    assert site.authority.list_hosts() == [*dict.fromkeys(site.authority.list_hosts())]
    assert cloud_aggregator(["init", str(site.path), "--renew-server", "--host", "new.example"]) == 0
    assert "new.example" in site.authority.list_hosts() and "good until" in capsys.readouterr().out


def test_init_again_overwrites_nothing_and_finishes_what_a_power_cut_left(tmp_path: Path) -> None:
    made = founded(tmp_path / "site")
    before = {path.name: path.read_bytes() for path in made.path.iterdir()}
    words = ["init", str(made.path), "--port", str(made.port)]
    assert cloud_aggregator(words) == 2
    assert {path.name: path.read_bytes() for path in made.path.iterdir()} == before
    (made.path / "revoked.crl").write_bytes(b"who was revoked")
    for lost in ("release.pub", "aggregator.toml", "gateway.toml", "server.pem"):
        (made.path / lost).unlink()
    assert cloud_aggregator(words) == 0
    after = {path.name: path.read_bytes() for path in made.path.iterdir()}
    assert after.keys() == before.keys() and after["revoked.crl"] == b"who was revoked"
    same = ("ca.key", "server.key", "release.key", "release.pub")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


@pytest.mark.parametrize("words", [["--site", "a/b"], ["--host", "a b"], ["--port", "99999"]])
def test_init_names_what_is_wrong(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cloud_aggregator(["init", str(tmp_path / "site"), *words]) == 2
    assert words[0] in capsys.readouterr().err and not (tmp_path / "site").exists()


def test_an_authority_whose_files_do_not_belong_together_is_refused(tmp_path: Path, site: Folder) -> None:
    other = founded(tmp_path / "other")
    (other.path / "ca.pem").write_bytes((site.path / "ca.pem").read_bytes())
    with pytest.raises(IdentityError, match="is not its key"):
        Authority(other.path)


def test_who_asks_too_often_waits_and_others_do_not() -> None:
    pace = RateLimiter()
    assert [pace.admit("a", 0.0) for _ in range(PER_MINUTE_MAX + 2)] == [True] * PER_MINUTE_MAX + [False] * 2
    assert pace.admit("b", 1.0) and not pace.admit("a", 59.0) and pace.admit("a", 61.0)


def test_a_token_tells_no_secret_of_the_site(site: Folder) -> None:
    assert set(asdict(TOKEN)) == {"gateway", "address", "root", "secret"}
    assert TOKEN.secret not in TOKEN.digest and len(site.authority.fingerprint) == 64
