"""Gaussian noise that nobody can draw again: numbers from a stream cipher, keyed by a secret.

Noise that protects must not follow from a seed that others know, nor from a generator whose state can be found out from
what it gave. So it comes from ChaCha20 (RFC 8439) as keystream, under a key that HKDF-SHA-256 (RFC 5869) derives from
the secret, from what the noise is for and from the values themselves: other values never get the same noise, whatever
was restored from a backup meanwhile. Box and Muller (1958) turn pairs of uniform numbers of 53 bits into normal ones.

The last bits of a floating-point sum of value and noise can give the value away (Mironov 2012). Therefore both are
rounded to a grid, a millionth of the deviation wide, far coarser than those bits.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from fedgate.models.arrays import Array, Floats

SECRET_BYTES = 32
GRID_BITS = 20  # from the deviation down to the grid


def normal(secret: Array, purpose: str, count: int) -> Floats:
    """Return standard normal numbers (count,) that follow from a secret of 32 bytes and from what they are for."""
    pairs = -(-count // 2)
    raw = np.frombuffer(_keystream(secret, purpose, 16 * pairs), dtype="<u8").reshape(2, pairs)
    radius_from = ((raw[0] >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53  # above 0, as a logarithm wants it
    angle = (raw[1] >> np.uint64(11)).astype(np.float64) * (2.0**-53 * 2.0 * math.pi)
    radius = np.sqrt(-2.0 * np.log(radius_from))
    return np.asarray(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count])


def noised(values: Floats, deviation: float, secret: Array, purpose: str) -> Floats:
    """Return values (n,) with normal noise of this deviation, on the grid."""
    grid = 2.0 ** (math.floor(math.log2(deviation)) - GRID_BITS)
    steps = np.rint(values / grid) + 0.0  # without a negative zero, which has other bytes
    of_values = hashlib.sha256(steps.astype("<f8").tobytes()).hexdigest()
    noise = normal(secret, f"{purpose}/{of_values}", len(values))
    return np.asarray((steps + np.rint(noise * (deviation / grid))) * grid)


def _keystream(secret: Array, purpose: str, count: int) -> bytes:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    if secret.shape != (SECRET_BYTES,) or secret.dtype != np.uint8:
        raise ValueError(f"secret: expected {SECRET_BYTES} bytes, got {secret.dtype} of shape {secret.shape}")
    key = HKDF(SHA256(), 32, salt=None, info=f"fedgate noise {purpose}".encode()).derive(secret.tobytes())
    nonce = bytes(16)  # counter and nonce from zero: no key is used twice
    return Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(count))
