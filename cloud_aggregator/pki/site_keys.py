"""The keys that a site goes by: the statement that its root key signed, and the files that follow from it.

`keys.json` alone decides. New private keys are written before it, beside those in force, and old ones are removed after
it; all else is made from it. So the power may fail at any write: the site goes by the statement before or by this one.
Whoever does this holds the folder: to anybody else a new key is one of which the statement says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from fedgate.cloud_aggregator.pki.authority import CA, CA_KEY, Authority, make_authority_certificate
from fedgate.config.identity import pki, signing, statement
from fedgate.config.identity.pki import PRIVATE_MODE, PUBLIC_MODE
from fedgate.config.identity.signing import KeyFileError
from fedgate.config.protocol.messages import Keys
from fedgate.config.settings.settings import Site
from fedgate.models.time_units import NS

ROOT_PUB, STATEMENT, RELEASE = "root.pub", "keys.json", "release.key"
AT_ONCE = 2  # authorities: the newest, and the one whose place it takes


def read_statement(folder: Path) -> Keys:
    """Return the statement that a site goes by; raises `KeyFileError`."""
    path = folder / STATEMENT
    try:
        return statement.check(path.read_bytes(), signing.load_public(folder / ROOT_PUB))
    except FileNotFoundError:
        raise KeyFileError(
            f"{path}: this site has lost what its root key stated; restore it from the backup, or from any gateway"
        ) from None
    except statement.StatementError as error:
        raise KeyFileError(f"{path}: {error}; restore it and {ROOT_PUB} from the backup") from None


def find_lacking(body: bytes, root: bytes, release: bytes, authority: bytes) -> tuple[int, list[str]]:
    """Return the number of a statement, and which of the files of private keys, as they would be, lack one that it
    names. Raises `ValueError` for a statement that is not the root key's.
    """
    keys = statement.check(body, signing.read_public(root, ROOT_PUB))
    held = {_read_public(one) for one in (*pki.split_pem(release), *pki.split_pem(authority))}
    wanted = {CA_KEY: {_encode(pki.read_certificate(one.encode()).public_key()) for one in keys.authorities}}
    wanted[RELEASE] = {_encode(signing.read_public(keys.release_key.encode(), RELEASE))}
    return keys.number, [name for name, some in wanted.items() if not held >= some]


def _read_public(private: bytes) -> bytes:
    """Return the public half of a key in PEM, empty where it cannot be read."""
    try:
        return _encode(serialization.load_pem_private_key(private, password=None).public_key())
    except signing.UNREADABLE:
        return b""


def _encode(public: PublicKeyTypes) -> bytes:
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def release_key(site: Site, folder: Path | None) -> Ed25519PrivateKey:
    """Return the key that signs models and invitations: of a site with a folder the one that is stated there. Raises
    `KeyFileError`.
    """
    if folder is None:
        return signing.load_private(site.release_key)
    keys = read_statement(folder)
    for body in pki.split_pem(_read(site.release_key)):
        key = serialization.load_pem_private_key(body, password=None)
        if isinstance(key, Ed25519PrivateKey) and signing.encode_public_key(key).decode() == keys.release_key:
            return key
    raise KeyFileError(f"{site.release_key}: it is not the key that {folder}/{STATEMENT} names; restore both")


def root_digest(folder: Path) -> str:
    """Return the digest of a site's root key, by which a token names it. Raises `KeyFileError`."""
    read_statement(folder)
    return signing.digest_public_key((folder / ROOT_PUB).read_bytes())


def make_root_key(folder: Path, site: str, release_file: Path, root_file: Path, now: datetime) -> None:
    """Make a root key in `root_file` where there is none, and have it sign the keys of a site that has no statement."""
    if not root_file.exists():
        signing.make_key(root_file, folder / ROOT_PUB)
    root = signing.load_private(root_file)
    pki.write(folder / ROOT_PUB, signing.encode_public_key(root), PUBLIC_MODE)
    release = signing.encode_public_key(signing.load_private(release_file))
    authorities = pki.split_pem((folder / CA).read_bytes())
    keys = statement.sign(root, site, 1, release, authorities, _round_to_seconds_ns(now))
    pki.write(folder / STATEMENT, keys.to_bytes(), PUBLIC_MODE)


@dataclass(frozen=True)
class KeyChange:
    """Other keys for a site, signed by its root key; each is whole or changes nothing and raises `KeyFileError`."""

    folder: Path
    release_file: Path
    root: Ed25519PrivateKey
    now: datetime

    def rotate(self, *, release: bool, authority: bool) -> Keys:
        """Put new keys in place of those of a site. The authority before stays beside the new one until it is
        dropped.
        """
        with self._hold_settled() as before:
            public, authorities = before.release_key, before.authorities
            if authority and len(authorities) >= AT_ONCE:
                raise KeyFileError(
                    f"{self.folder}: the authority before is still believed; have 'cloud-aggregator keys finish' drop "
                    "it first"
                )
            if release:
                new = Ed25519PrivateKey.generate()
                _put_before(self.release_file, signing.encode_private_key(new))
                public = signing.encode_public_key(new).decode()
            if authority:
                key = pki.create_key()
                _put_before(self.folder / CA_KEY, pki.encode_private_key(key))
                name = f"fedgate {before.site} {before.number + 1}"
                authorities = (make_authority_certificate(name, key, self.now).decode(), *authorities)
            return self._follow(before, release_key=public, authorities=authorities)

    def drop_before(self) -> Keys:
        """Drop the authority before the newest; broker and aggregator show certificates of the newest from now on."""
        with self._hold_settled() as before:
            if len(before.authorities) < AT_ONCE:
                raise KeyFileError(f"{self.folder}: one authority is in force, and none is to be dropped")
            newest = Authority(self.folder)
            newest.write_own(before.site, newest.list_hosts(), self.now)  # good while both are believed
            return self._follow(before, authorities=before.authorities[:1])

    def pin(self, members: Sequence[str]) -> Keys:
        """Have the root key name who may take part in masked sums, see `pki.name_member`; nobody named: any gateway."""
        with self._hold_settled() as before:
            return self._follow(before, members=tuple(members))

    @contextmanager
    def _hold_settled(self) -> Iterator[Keys]:
        """Hold the folder, all files being as the statement in force says, which `root` has signed."""
        with pki.lock_folder(self.folder):
            keys = read_statement(self.folder)
            if signing.encode_public_key(self.root) != (self.folder / ROOT_PUB).read_bytes():
                raise KeyFileError(
                    f"{self.folder}: the root key that is given is not the one of {ROOT_PUB}, which gateways believe"
                )
            settle(self.folder, self.release_file, keys)
            yield keys

    def _follow(self, before: Keys, **changed: Any) -> Keys:
        """State what follows on a statement, and make all files as it says."""
        following = before.model_copy(update=changed)
        keys = statement.sign(
            self.root,
            before.site,
            before.number + 1,
            following.release_key.encode(),
            [one.encode() for one in following.authorities],
            _round_to_seconds_ns(self.now),
            following.members,
        )
        pki.write(self.folder / STATEMENT, keys.to_bytes(), PUBLIC_MODE)
        settle(self.folder, self.release_file, keys)
        return keys


def settle(folder: Path, release_file: Path, keys: Keys) -> None:
    """Make the files that follow from a statement, and remove the private keys of which it says nothing."""
    bundle = statement.bundle(keys)
    _replace(folder / CA, bundle, PUBLIC_MODE)
    _replace(release_file.with_suffix(".pub"), keys.release_key.encode(), PUBLIC_MODE)
    named = {pki.find_holder(pki.read_certificate(one.encode())) for one in keys.authorities}
    held = pki.load_keys(folder / CA_KEY)
    kept = [pki.encode_private_key(key) for key in held if pki.key_digest(key.public_key()) in named]
    if len(kept) < len(named):
        raise KeyFileError(f"{folder / CA_KEY}: a key that {STATEMENT} names is missing; restore both")
    _replace(folder / CA_KEY, b"".join(kept), PRIVATE_MODE)
    key = release_key(Site(site=keys.site, release_key=release_file), folder)
    _replace(release_file, signing.encode_private_key(key), PRIVATE_MODE)


def _round_to_seconds_ns(moment: datetime) -> int:
    return round(moment.timestamp()) * NS


def _put_before(path: Path, key: bytes) -> None:
    """Put a new private key in front of those that a file holds."""
    pki.write(path, key + _read(path), PRIVATE_MODE)


def _replace(path: Path, body: bytes, mode: int) -> None:
    if not path.exists() or path.read_bytes() != body:
        pki.write(path, body, mode)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read ({error}); restore it from the backup") from None
