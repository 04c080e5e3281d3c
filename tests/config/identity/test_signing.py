"""The release key: what was signed verifies, nothing else does, and a private key is neither shown nor lost."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from fedgate.config.identity.signing import KeyFileError, load_private, load_public, make_key, sign, verify

KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key()
MESSAGE = b'{"version":1,"model":"..."}'
SIGNATURE = sign(KEY, MESSAGE)


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    made = tmp_path / "release.key", tmp_path / "release.pub"
    make_key(*made)
    return made


@given(st.binary())
def test_what_was_signed_verifies(message: bytes) -> None:
    assert verify(PUBLIC, message, sign(KEY, message))


def test_signing_is_deterministic_and_fits_a_json_string() -> None:
    assert sign(KEY, MESSAGE) == SIGNATURE
    assert len(base64.b64decode(SIGNATURE)) == 64
    assert SIGNATURE.isascii()


def test_a_known_signature_verifies() -> None:
    """RFC 8032, section 7.1, test 2: one byte."""
    public = Ed25519PublicKey.from_public_bytes(
        bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    )
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert verify(public, b"\x72", base64.b64encode(signature).decode())


def test_every_changed_byte_of_the_message_is_seen() -> None:
    for index in range(len(MESSAGE)):
        changed = MESSAGE[:index] + bytes([MESSAGE[index] ^ 1]) + MESSAGE[index + 1 :]
        assert not verify(PUBLIC, changed, SIGNATURE)
    assert not verify(PUBLIC, MESSAGE + b" ", SIGNATURE)
    assert not verify(PUBLIC, MESSAGE[:-1], SIGNATURE)


def test_every_changed_byte_of_the_signature_is_seen() -> None:
    raw = base64.b64decode(SIGNATURE)
    for index in range(len(raw)):
        changed = raw[:index] + bytes([raw[index] ^ 0x10]) + raw[index + 1 :]
        assert not verify(PUBLIC, MESSAGE, base64.b64encode(changed).decode())


@given(st.text(max_size=100) | st.binary(max_size=80).map(lambda raw: base64.b64encode(raw).decode()))
def test_no_other_text_is_a_signature(text: str) -> None:
    assert not verify(PUBLIC, MESSAGE, text)


@pytest.mark.parametrize(
    "change",
    [f"{SIGNATURE}\n", f" {SIGNATURE}", f"{SIGNATURE[:9]}!{SIGNATURE[9:]}", SIGNATURE[:-2]],
    ids=["line end", "blank", "stranger", "cut short"],
)
def test_a_signature_has_one_spelling(change: str) -> None:
    assert not verify(PUBLIC, MESSAGE, change)


def test_the_signature_of_another_key_is_none() -> None:
    assert not verify(PUBLIC, MESSAGE, sign(Ed25519PrivateKey.generate(), MESSAGE))


def test_a_pair_on_disk_signs_and_verifies(paths: tuple[Path, Path]) -> None:
    private, public = load_private(paths[0]), load_public(paths[1])
    assert verify(public, MESSAGE, sign(private, MESSAGE))


def test_only_the_owner_reads_the_private_key(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_key(tmp_path / "release.key", tmp_path / "release.pub")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "release.key").stat().st_mode) == 0o600


def test_the_public_file_holds_nothing_private(paths: tuple[Path, Path]) -> None:
    assert b"PRIVATE" not in paths[1].read_bytes()
    with pytest.raises(KeyFileError, match=r"release\.pub: no Ed25519 private key"):
        load_private(paths[1])


def test_an_existing_private_key_is_never_overwritten(paths: tuple[Path, Path]) -> None:
    before = [path.read_bytes() for path in paths]
    with pytest.raises(KeyFileError, match=r"release\.key: a key exists already; move it away"):
        make_key(*paths)
    assert [path.read_bytes() for path in paths] == before


def test_a_link_to_nowhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "release.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match="a key exists already"):
        make_key(tmp_path / "release.key", tmp_path / "release.pub")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("missing", ["private", "public"])
def test_a_folder_that_is_missing_is_named_and_leaves_no_half_pair(tmp_path: Path, missing: str) -> None:
    paths = {"private": tmp_path / "release.key", "public": tmp_path / "release.pub"}
    paths[missing] = tmp_path / "nowhere" / "release"
    with pytest.raises(KeyFileError, match=r"nowhere.release: cannot be written"):
        make_key(paths["private"], paths["public"])
    assert list(tmp_path.iterdir()) == []


def pem(
    key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, password: bytes | None = None
) -> bytes:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


WRONG_PRIVATE = {
    "empty": (b"", "no Ed25519 private key"),
    "text": (b"secret", "no Ed25519 private key"),
    "cut": (pem(KEY)[:60], "no Ed25519 private key"),
    "password": (pem(KEY, b"password"), "no Ed25519 private key .*[Pp]assword"),
    "elliptic": (pem(ec.generate_private_key(ec.SECP256R1())), "expected an Ed25519 private key, got .*EC"),
    "rsa": (pem(rsa.generate_private_key(65537, 2048)), "expected an Ed25519 private key, got .*RSA"),
}
WRONG_PUBLIC = {
    "empty": (b"", "no Ed25519 public key"),
    "bytes": (b"\xff\x00", "no Ed25519 public key"),
    "private": (pem(KEY), "no Ed25519 public key"),
    "elliptic": (public_pem(ec.generate_private_key(ec.SECP256R1()).public_key()), "expected an Ed25519 public key"),
}


@pytest.mark.parametrize("case", WRONG_PRIVATE)
def test_a_wrong_private_key_file_is_named_with_the_reason(tmp_path: Path, case: str) -> None:
    content, reason = WRONG_PRIVATE[case]
    (tmp_path / "release.key").write_bytes(content)
    with pytest.raises(KeyFileError, match=rf"release\.key: {reason}"):
        load_private(tmp_path / "release.key")


@pytest.mark.parametrize("case", WRONG_PUBLIC)
def test_a_wrong_public_key_file_is_named_with_the_reason(tmp_path: Path, case: str) -> None:
    content, reason = WRONG_PUBLIC[case]
    (tmp_path / "release.pub").write_bytes(content)
    with pytest.raises(KeyFileError, match=rf"release\.pub: {reason}"):
        load_public(tmp_path / "release.pub")


def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"release\.key: .*cloud-aggregator init"):
        load_private(tmp_path / "release.key")
    with pytest.raises(KeyFileError, match=r"release\.pub: .*copy release\.pub"):
        load_public(tmp_path / "release.pub")
    with pytest.raises(KeyFileError, match="no Ed25519 public key"):
        load_public(tmp_path)
