"""Who may see the page and what each may do: a file that `cloud-aggregator users` writes and the page reads."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import NamedTuple

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from fedgate.config.protocol.messages import PERSON_MAX
from fedgate.config.runtime.files import PRIVATE_MODE, lock_folder, write
from fedgate.config.settings.web import ROLES, Role

NAME = re.compile(rf"[A-Za-z0-9_.@-]{{1,{PERSON_MAX}}}")
PASSWORD_LEAST, PASSWORD_MOST = 10, 256  # characters
USERS_MAX = 1_000
# RFC 9106's second choice takes 64 MiB, which the page's process has not to spare: OWASP's for less memory.
HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
# Of no password, so that an unknown name takes as long as a known one: 16 bytes of salt and 32 of hash in base64.
NOBODY = f"$argon2id$v=19$m={HASHER.memory_cost},t={HASHER.time_cost},p={HASHER.parallelism}${22 * 'A'}${43 * 'A'}"


class User(NamedTuple):
    """Somebody who may log in; `hash` is argon2's of the password."""

    role: Role
    hash: str


class UsersError(ValueError):
    """A file of users that cannot be read, or a user that cannot be added."""


def may(role: Role, needed: Role) -> bool:
    """Tell whether a role may do what another may."""
    return ROLES.index(role) >= ROLES.index(needed)


def read_users(path: Path) -> dict[str, User]:
    """Return the users by name, none where there is no file yet; raises `UsersError`."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        users = {name: User(one["role"], one["hash"]) for name, one in held.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsersError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsersError(f"{path}: not a file of users; remove it, and add them: cloud-aggregator users add") from None
    if any(user.role not in ROLES for user in users.values()):
        raise UsersError(f"{path}: expected roles among {', '.join(ROLES)}")
    return users


def put_user(path: Path, name: str, role: Role, password: str) -> bool:
    """Add a user, or change one that there is; return True for a new one. Raises `UsersError`."""
    if not NAME.fullmatch(name):
        raise UsersError(f"name: expected 1 to {PERSON_MAX} of A-Z a-z 0-9 _ . @ -, got {name!r}")
    if not PASSWORD_LEAST <= len(password) <= PASSWORD_MOST:
        raise UsersError(f"password: expected {PASSWORD_LEAST} to {PASSWORD_MOST} characters, got {len(password)}")
    with lock_folder(path.parent):
        users = read_users(path)
        if name not in users and len(users) >= USERS_MAX:
            raise UsersError(f"there are {len(users)} users, and {USERS_MAX} are the most")
        _write(path, users | {name: User(role, HASHER.hash(password))})
    return name not in users


def remove_user(path: Path, name: str) -> None:
    """Remove a user, who is logged out with the next request; raises `UsersError` where there is none."""
    with lock_folder(path.parent):
        users = read_users(path)
        if name not in users:
            raise UsersError(f"{name!r}: there is no such user; there are: {', '.join(sorted(users)) or 'none'}")
        _write(path, {known: one for known, one in users.items() if known != name})


def is_password(user: User | None, password: str) -> bool:
    """Tell whether a password is that of a user; takes as long for None, who is nobody."""
    try:
        HASHER.verify(NOBODY if user is None else user.hash, password[:PASSWORD_MOST])
    except (VerificationError, InvalidHashError):
        return False
    return user is not None


def _write(path: Path, users: dict[str, User]) -> None:
    """Write the file, for the group of its folder to read where that hands its group on, as the store is."""
    is_shared = path.parent.stat().st_mode & stat.S_ISGID
    body = json.dumps({name: one._asdict() for name, one in sorted(users.items())}, indent=1)
    write(path, body.encode(), PRIVATE_MODE | (stat.S_IRGRP if is_shared else 0))
