"""The secrets of one gateway in one masked round, and what is made with them
(Bonawitz et al. 2017).

Everything follows by HKDF-SHA-256 from one secret of the exchange in which the round began. Keys are agreed on by
X25519, masks are the keystream of ChaCha20, shares travel under ChaCha20-Poly1305: all of them those of `cryptography`,
loaded in the functions that need them, since an agent that does not train needs none. Every key serves one purpose in
one round between two places of its roster, which is why a nonce of zeros repeats nothing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedgate.models.arrays import SECRET, Array, Arrays
from fedgate.models.federated.secure_aggregation.ring import Ring
from fedgate.models.federated.secure_aggregation.shamir import PRIME

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers import CipherContext

KEY_BYTES = 32
TAG_BYTES = 16  # of ChaCha20-Poly1305
SIGNATURE_BYTES = 64
POINT_BYTES = 65  # of P-256, uncompressed
VOUCHER_BYTES = POINT_BYTES + 2 * KEY_BYTES  # a public key, and its signature
MEMBER_BYTES = 16
COEFFICIENT_BYTES = 48  # 129 bits more than the field, so that the remainder is uniform beyond telling
CHUNK = 16_384  # numbers of a mask at a time: they stay in the cache


class KeyAgreementError(ValueError):
    """Bytes that are no public key: nothing can be agreed on with them."""


class Keys(NamedTuple):
    """The secrets (32 bytes each) of a gateway in one round.

    `agreement` is the private key of the masks it shares with others and `seed` that of its own mask: those two are
    shared out, with coefficients drawn from `dealer`. `channel` is the private key under which shares travel, `signer`
    the one with which it says whose inputs it takes to be in the sum, `token` the end of a chain of digests by which it
    proves to be the one that began the round.
    """

    agreement: bytes
    seed: bytes
    dealer: bytes
    channel: bytes
    signer: bytes
    token: bytes

    @classmethod
    def of(cls, secret: bytes) -> Keys:
        """Return the keys that follow from the secret of an exchange, 32 bytes."""
        values = {name: derived(secret, name) for name in cls._fields}
        # What is shared out is a number of the field.
        values |= {name: to_bytes(to_number(values[name]) % PRIME) for name in ("agreement", "seed")}
        return cls(**values)


def secret_of(data: Arrays) -> bytes:
    """Return the secret of this exchange; raises `ValueError` where the data holds none."""
    secret = data.get(SECRET)
    if secret is None or secret.shape != (KEY_BYTES,) or secret.dtype != np.uint8:
        found = "nothing" if secret is None else f"{secret.dtype} {secret.shape}"
        raise ValueError(
            f"{SECRET}: expected {KEY_BYTES} bytes that nobody else can know, see models.arrays.exchange_secret; got "
            f"{found}"
        )
    return secret.tobytes()


def derived(secret: bytes, purpose: str, context: bytes = b"") -> bytes:
    """Return the key (32 bytes) of one purpose in one context."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = f"fedgate masking 1 {purpose}".encode() + b"\0" + context
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def to_number(raw: bytes) -> int:
    """Return 32 bytes as a number."""
    return int.from_bytes(raw, "little")


def to_bytes(number: int) -> bytes:
    """Return a number of the field as 32 bytes."""
    return number.to_bytes(KEY_BYTES, "little")


def public_key(private: bytes) -> bytes:
    """Return the public key of an X25519 private key."""
    return loaded(private).public_key().public_bytes_raw()


def signing_key(private: bytes) -> bytes:
    """Return the public key of an Ed25519 private key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def signed(private: bytes, text: bytes) -> bytes:
    """Return the Ed25519 signature (64 bytes) of a text."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private).sign(text)


def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    """Tell whether the owner of a key signed a text."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def vouched(private: bytes, text: bytes) -> bytes:
    """Return the voucher (129 bytes) of a text: the public point of a P-256 key, and its signature."""
    from cryptography.hazmat.primitives.asymmetric import ec, utils
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ec.derive_private_key(int.from_bytes(private, "big"), ec.SECP256R1())
    pair = utils.decode_dss_signature(key.sign(text, ec.ECDSA(SHA256(), deterministic_signing=True)))
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return point + b"".join(number.to_bytes(KEY_BYTES, "big") for number in pair)


def voucher_of(voucher: bytes, text: bytes) -> bytes:
    """Return whose voucher of a text it is: the first 16 bytes of the SHA-256 of the public key (DER). Nothing where it
    is none.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, utils
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    point, pair = voucher[:POINT_BYTES], voucher[POINT_BYTES:]
    numbers = (int.from_bytes(pair[:KEY_BYTES], "big"), int.from_bytes(pair[KEY_BYTES:], "big"))
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        key.verify(utils.encode_dss_signature(*numbers), text, ec.ECDSA(SHA256()))
    except (InvalidSignature, ValueError):
        return b""
    body = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(body).digest()[:MEMBER_BYTES]


def loaded(private: bytes) -> X25519PrivateKey:
    """Return an X25519 private key ready to agree with many others: loading it costs as much as an agreement."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private)


def agreed(private: X25519PrivateKey, public: bytes, purpose: str, context: bytes) -> bytes:
    """Return the key that only the two owners of these keys can know.

    Raises `KeyAgreementError` for a public key of small order, with which everybody would agree on the same.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        agreement = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise KeyAgreementError(f"{public.hex()}: expected a public key of X25519, got one of small order") from None
    return derived(agreement, purpose, context)


def chained(token: bytes, times: int) -> bytes:
    """Return a token after so many steps along its chain of digests (Lamport 1981)."""
    for _ in range(times):
        token = derived(token, "step of a chain")
    return token


def coefficients(secret: bytes, context: bytes, count: int) -> list[int]:
    """Return so many numbers of Shamir's field, uniform and known to nobody else."""
    key = derived(secret, "coefficients", context)
    stream = _keystream(key).update(bytes(COEFFICIENT_BYTES * count))
    starts = range(0, len(stream), COEFFICIENT_BYTES)
    return [int.from_bytes(stream[at : at + COEFFICIENT_BYTES], "little") % PRIME for at in starts]


def sealed(key: bytes, text: bytes) -> bytes:
    """Return a text that only who has the key can read or change, 16 bytes longer."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)


def unsealed(key: bytes, box: bytes) -> bytes | None:
    """Return the text in a box of `sealed`, nothing for one that was not sealed with this key."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), box, None)
    except InvalidTag:
        return None


def add_mask(vector: Ring, key: bytes, *, taken_off: bool = False) -> None:
    """Add the mask of a key to a vector (P,) in place, or take it off."""
    stream, add = _keystream(key), np.subtract if taken_off else np.add
    mask: Array = np.empty(CHUNK, dtype="<u8")
    raw, zeros = memoryview(mask.data).cast("B"), bytes(mask.nbytes)
    for start in range(0, len(vector), CHUNK):
        part = vector[start : start + CHUNK]
        stream.update_into(zeros[: part.nbytes], raw[: part.nbytes])
        add(part, mask[: len(part)], out=part)


def _keystream(key: bytes) -> CipherContext:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
