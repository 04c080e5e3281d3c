"""Who is logged in, and how often somebody may try to: kept in memory, so a restart logs everybody out."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from dataclasses import dataclass, field

TOKEN_BYTES = 32
SESSIONS_MAX = 1_000  # beyond which the oldest goes
FAILURES_MAX = {"address": 10, "name": 50}  # within the time below; by name more, or one could shut out another
FAILURES_WITHIN_S = 600.0
KNOWN_MAX = 10_000  # addresses and names of which failures are remembered


@dataclass
class Session:
    """Somebody who is logged in; times in seconds of a monotonic clock. It ends with the password that began it."""

    user: str
    since_s: float
    password_hash: str
    csrf: str
    notices: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=5))  # kind and text, to be shown once


class Sessions:
    """The sessions by the hash of their token: what is in memory opens no session."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._held: dict[str, Session] = {}
        self._of_proxy: dict[str, Session] = {}  # by user

    def begin(self, user: str, password_hash: str, now_s: float) -> str:
        """Log somebody in; return the token for the cookie."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        _put(self._held, _digest(token), Session(user, now_s, password_hash, secrets.token_urlsafe(TOKEN_BYTES)))
        return token

    def find(self, token: str, now_s: float) -> Session | None:
        """Return the session of a token; None where there is none, or it has lasted long enough."""
        session = self._held.get(_digest(token))
        if session is not None and now_s - session.since_s >= self._lasts_s:
            self.end(token)
            return None
        return session

    def of_proxy(self, user: str, now_s: float) -> Session:
        """Return the session of somebody whom a proxy has logged in."""
        if user not in self._of_proxy:  # apart from the others, so that no cookie leads to one
            _put(self._of_proxy, user, Session(user, now_s, "", secrets.token_urlsafe(TOKEN_BYTES)))
        return self._of_proxy[user]

    def end(self, token: str) -> None:
        """Log out."""
        self._held.pop(_digest(token), None)


class FailedLogins:
    """Counts failed logins, by address and by name, within a time that begins with the first."""

    def __init__(self) -> None:
        self._since_s = -FAILURES_WITHIN_S
        self._counts: dict[tuple[str, str], int] = {}

    def wait_s(self, address: str, name: str, now_s: float) -> float:
        """Return how long nobody may try from this address or with this name; 0 where one may."""
        self._forget(now_s)
        keys = {"address": address, "name": name}
        is_over = any(self._counts.get((kind, key), 0) >= FAILURES_MAX[kind] for kind, key in keys.items())
        return self._since_s + FAILURES_WITHIN_S - now_s if is_over else 0.0

    def note(self, address: str, name: str, now_s: float) -> None:
        """Count one."""
        self._forget(now_s)
        if not self._counts:
            self._since_s = now_s
        for key in (("address", address), ("name", name)):
            self._counts[key] = self._counts.pop(key, 0) + 1
        while len(self._counts) > KNOWN_MAX:
            del self._counts[next(iter(self._counts))]  # which failed longest ago

    def take_back(self, address: str, name: str) -> None:
        """Count one less: it did not fail."""
        for key in (("address", address), ("name", name)):
            self._counts[key] = max(self._counts.get(key, 0) - 1, 0)

    def _forget(self, now_s: float) -> None:
        if now_s - self._since_s >= FAILURES_WITHIN_S:
            self._counts = {}


def is_same(given: str, known: str) -> bool:
    """Compare two secrets in a time that tells nothing of them."""
    return hmac.compare_digest(given.encode(), known.encode())


def _put(held: dict[str, Session], key: str, session: Session) -> None:
    while len(held) >= SESSIONS_MAX:
        del held[next(iter(held))]
    held[key] = session


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
