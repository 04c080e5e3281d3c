"""Bytes of any length sealed with a passphrase, a piece at a time, so that neither side holds more than one.

The format, which is that of `age` in its idea (STREAM: Hoang, Reyhanitabar, Rogaway and Vizar, 2015):

    "fedgate sealed 1\\n"       17 bytes
    salt                       16 bytes, random
    pieces                     each of 1 MiB, the last one shorter or as long, and 16 bytes of its tag behind it

The key is scrypt (N = 2^17, r = 8, p = 1) of the passphrase in UTF-8 and the salt. Piece n, from 0, is sealed by
ChaCha20-Poly1305 under the nonce of n in 11 bytes, the highest first, and one byte that is 1 for the last piece and 0
for the others; magic and salt are authenticated with each. So no piece can be left out, moved, repeated or taken from
another file, and a file that was cut short has no last piece.
"""

from __future__ import annotations

from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

MAGIC = b"fedgate sealed 1\n"
SALT_BYTES, KEY_BYTES, TAG_BYTES = 16, 32, 16
PIECE_BYTES = 1 << 20
SCRYPT_N, SCRYPT_R, SCRYPT_P = 1 << 17, 8, 1  # 128 MiB of memory for each guess


class SealError(ValueError):
    """What was sealed is not whole, or the passphrase is another."""


class Sealer:
    """A writer that passes on what it is given, sealed; `close` it, or the end is missing."""

    def __init__(self, out: BinaryIO, passphrase: str, salt: bytes) -> None:
        self._out, self._number, self._held = out, 0, bytearray()
        self._head = MAGIC + salt
        self._cipher = ChaCha20Poly1305(_key(passphrase, salt))
        out.write(self._head)

    def write(self, data: bytes) -> int:
        """Take bytes."""
        self._held += data
        while len(self._held) > PIECE_BYTES:  # what is left is never nothing, for it is the last piece
            self._seal(bytes(self._held[:PIECE_BYTES]), is_last=False)
            del self._held[:PIECE_BYTES]
        return len(data)

    def close(self) -> None:
        """Write the last piece; what it is written to stays open."""
        self._seal(bytes(self._held), is_last=True)
        self._held.clear()

    def _seal(self, piece: bytes, *, is_last: bool) -> None:
        self._out.write(self._cipher.encrypt(_make_nonce(self._number, is_last=is_last), piece, self._head))
        self._number += 1


class Unsealer:
    """A reader of what `Sealer` wrote; every byte that it returns is authentic. Raises `SealError`."""

    def __init__(self, source: BinaryIO, passphrase: str) -> None:
        self._source, self._number, self._held = source, 0, bytearray()
        self._head = source.read(len(MAGIC) + SALT_BYTES)
        if not self._head.startswith(MAGIC) or len(self._head) < len(MAGIC) + SALT_BYTES:
            raise SealError("it is not sealed, or cut short")
        self._cipher = ChaCha20Poly1305(_key(passphrase, self._head[len(MAGIC) :]))
        self._ahead, self._is_over = b"", False

    def read(self, size: int) -> bytes:
        """Return so many bytes, fewer at the end alone."""
        while len(self._held) < size and not self._is_over:
            self._held += self._unseal()
        found = bytes(self._held[:size])
        del self._held[:size]
        return found

    def _unseal(self) -> bytes:
        whole = PIECE_BYTES + TAG_BYTES
        piece = self._ahead + self._source.read(whole + 1 - len(self._ahead))
        piece, self._ahead = piece[:whole], piece[whole:]
        self._is_over = not self._ahead
        try:
            found = self._cipher.decrypt(_make_nonce(self._number, is_last=self._is_over), piece, self._head)
        except InvalidTag:
            if self._number == 0:
                raise SealError("the passphrase is another one, or the file is damaged") from None
            raise SealError(f"it is damaged or cut short behind {self._number} MiB") from None
        self._number += 1
        return found


def _key(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=KEY_BYTES, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P).derive(passphrase.encode())


def _make_nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])
