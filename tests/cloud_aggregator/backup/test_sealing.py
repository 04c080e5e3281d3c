"""Goal: what was sealed comes back as it was, or not at all, and a guess at the passphrase is dear.

Method: small pieces, so that every way to cut, exchange and repeat them is tried, with a quick key.
"""

from __future__ import annotations

import io
import os

import pytest

from fedgate.cloud_aggregator.backup import sealing

PIECE = 64


def sealed(content: bytes) -> bytes:
    out = io.BytesIO()
    sealer = sealing.Sealer(out, "a long passphrase", bytes(sealing.SALT_BYTES))
    for at in range(0, len(content), 7):
        sealer.write(content[at : at + 7])
    sealer.close()
    return out.getvalue()


def unsealed(body: bytes) -> bytes:
    reader = sealing.Unsealer(io.BytesIO(body), "a long passphrase")
    return b"".join(iter(lambda: reader.read(11), b""))


@pytest.mark.parametrize("length", [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE, 5 * PIECE + 3])
def test_what_is_sealed_comes_back_and_in_no_other_order(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(sealing, "SCRYPT_N", 2)
    content = os.urandom(length)
    body = sealed(content)
    assert unsealed(body) == content
    head, whole = len(sealing.MAGIC) + sealing.SALT_BYTES, PIECE + sealing.TAG_BYTES
    pieces = [body[at : at + whole] for at in range(head, len(body), whole)]
    assert len(pieces) == max(-(-length // PIECE), 1)
    wrong = [body[:head], body + b"x", body + pieces[-1], body[:-1]]
    if len(pieces) > 1:
        wrong += [b"".join([body[:head], *pieces[:-1]]), b"".join([body[:head], *pieces[1:]])]
    if len(pieces) > 2:
        wrong.append(b"".join([body[:head], pieces[1], pieces[0], *pieces[2:]]))
    wrong += [body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] for at in (0, head - 1, head, len(body) - 1)]
    for other in wrong:
        with pytest.raises(sealing.SealError):
            unsealed(other)


@pytest.mark.soak
def test_a_guess_is_dear() -> None:
    assert (sealing.SCRYPT_N, sealing.SCRYPT_R, sealing.SCRYPT_P) == (2**17, 8, 1)  # 128 MiB each
    assert unsealed(sealed(b"content")) == b"content"
