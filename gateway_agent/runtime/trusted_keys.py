"""The statement of its site's keys on a gateway: checked against the root key, and kept as the files that follow from
it.

Loads `cryptography`, so the agent runs it in the child that `enrolment` is.
"""

from __future__ import annotations

from fedgate.config.identity import pki, signing, statement
from fedgate.config.identity.pki import PUBLIC_MODE
from fedgate.config.identity.statement import StatementError
from fedgate.config.protocol.messages import Keys
from fedgate.gateway_agent.runtime.membership import Files


def take(files: Files, body: bytes) -> bool:
    """Keep what a statement says; False where it is the one that is here.

    Raises `StatementError` where it is not to be believed, and `KeyFileError` where the root key cannot be used.
    """
    if not files.root_key.exists():
        raise StatementError(f"{files.root_key}: there is no root key here; enrol this gateway again, with a new token")
    root = signing.load_public(files.root_key)
    with pki.lock_folder(files.statement.parent):  # the broker may bring a statement while a renewal fetches one
        held = files.statement.read_bytes() if files.statement.exists() else None
        keys = statement.check(body, root, held)
        if body == held:
            return False
        keep(files, keys, body)
    return True


def keep(files: Files, keys: Keys, body: bytes) -> None:
    """Write what a statement says, itself last: after a cut at any of the files it is not here, and comes again."""
    pki.write(files.authority, statement.bundle(keys), PUBLIC_MODE)
    pki.write(files.release_key, keys.release_key.encode(), PUBLIC_MODE)
    pki.write(files.statement, body, PUBLIC_MODE)
