"""Whose models this gateway runs, checked in a child process.

A signature is checked once a model, perhaps once a day. The library that does it costs the agent's process a tenth of
its memory for ever, so it is loaded where it can go again. The child is this module, run with the key file and the
signature as arguments and the message on standard input; it ends with 0 where the signature is the key's.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

NOT_THE_KEYS = 3
BAD_KEY = 2
CHILD_S = 60.0


class ReleaseKeyError(ValueError):
    """The release key cannot be used; the message names the file and what was expected."""


def check(path: Path) -> None:
    """Raise `ReleaseKeyError` where the file holds no release key."""
    done = _run_child(path, "", b"")
    if done.returncode != NOT_THE_KEYS:  # nothing signed nothing: any key says so
        raise ReleaseKeyError(done.stderr.decode(errors="replace").strip())


def make_verifier(path: Path) -> Callable[[bytes, str], bool]:
    """Return the check against the key in a file; whatever goes wrong in a child counts as no."""

    def verify_message(message: bytes, signature: str) -> bool:
        try:
            return _run_child(path, signature, message).returncode == 0
        except (OSError, subprocess.SubprocessError):  # no room for a child, or no answer: it is announced again
            return False

    return verify_message


def _run_child(path: Path, signature: str, message: bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", "-m", "fedgate.gateway_agent.runtime.signature_worker", str(path), signature]
    return subprocess.run(command, input=message, capture_output=True, timeout=CHILD_S, check=False)  # noqa: S603 - our own module


def main() -> int:
    """Check one signature: key file and signature as arguments, the message on standard input."""
    from fedgate.config.identity import signing

    try:
        key = signing.load_public(Path(sys.argv[1]))
    except signing.KeyFileError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_KEY
    return 0 if signing.verify(key, sys.stdin.buffer.read(), sys.argv[2]) else NOT_THE_KEYS


if __name__ == "__main__":
    sys.exit(main())
