"""Who asks: a session by its cookie, or somebody whom a listed proxy has logged in; and what each may do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request

from fedgate.cloud_aggregator.web.sessions import FailedLogins, Session, Sessions, is_same
from fedgate.cloud_aggregator.web.users import NAME, User, is_password, may, read_users
from fedgate.config.settings.web import ROLES, Proxy, Role, name_network

COOKIE = "fedgate-session"
PROOF = "X-Proxy-Secret"
FORWARDED = "X-Forwarded-For"
PROTOCOL = "X-Forwarded-Proto"


class Visitor(NamedTuple):
    """Somebody who is logged in; `is_local` where it was here, with a password, and not at a proxy."""

    name: str
    role: Role
    session: Session
    is_local: bool

    def may(self, role: Role) -> bool:
        """Tell whether this one may do what a role may."""
        return may(self.role, role)


class Access:
    """The users, and who of them is logged in."""

    def __init__(self, users: Path, lasts_s: float, proxy: Proxy | None) -> None:
        self._users, self._proxy = users, proxy
        secret = None if proxy is None else proxy.secret_file
        self._secret = "" if secret is None else secret.read_text(encoding="utf-8").strip()
        if secret is not None and not self._secret:
            raise ValueError(f"{secret}: expected a secret, such as 'openssl rand -hex 32' makes, got an empty file")
        self.sessions, self.failures = Sessions(lasts_s), FailedLogins()

    def find_visitor(self, request: Request) -> Visitor | None:
        """Return who asks; None for nobody who is known. Raises `UsersError`."""
        now_s = time.monotonic()
        if self._proxy is not None and self._proxy.user_header is not None and self.is_of_proxy(request):
            user, role = self._proxy.user_header, self._proxy.role_header
            if (name := _read_once(request, user)) and is_same(_read_once(request, PROOF), self._secret):
                given = _read_once(request, role) or "viewer"
                known = next((one for one in ROLES if one == given), None)
                if known is None or not NAME.fullmatch(name) or len(request.headers.getlist(role)) > 1:
                    return None
                return Visitor(name, known, self.sessions.of_proxy(name, now_s), is_local=False)
        session = self.sessions.find(request.cookies.get(COOKIE, ""), now_s)
        account = None if session is None else read_users(self._users).get(session.user)
        if session is None or account is None or account.hash != session.password_hash:
            return None
        return Visitor(session.user, account.role, session, is_local=True)

    def is_of_proxy(self, request: Request) -> bool:
        """Tell whether a listed proxy asks, whose headers count."""
        return self._proxy is not None and request.client is not None and request.client.host in self._proxy.addresses

    def find_address(self, request: Request) -> str:
        """Return from which address somebody asks, by the word of a listed proxy where it is one."""
        direct = "" if request.client is None else request.client.host
        given = request.headers.get(FORWARDED, "") if self.is_of_proxy(request) else ""
        return name_network(given.rpartition(",")[2].strip()[:64] or direct)  # the last is what the proxy saw itself

    def is_secure(self, request: Request) -> bool:
        """Tell whether what is sent back travels encrypted, so that the cookie may insist on it."""
        given = request.headers.get(PROTOCOL, "") if self.is_of_proxy(request) else ""
        return (given or request.url.scheme) == "https"

    def has_users(self) -> bool:
        """Tell whether there is anybody who could log in."""
        return bool(read_users(self._users))

    def check_login(self, name: str, password: str) -> User | None:
        """Return the user with this password; None where there is none. Takes a while: call it from a thread."""
        user = read_users(self._users).get(name)
        return user if is_password(user, password) else None


def _read_once(request: Request, header: str) -> str:
    """Return a header; empty where there is none, or several, of which one may be a browser's."""
    found = request.headers.getlist(header)
    return found[0] if len(found) == 1 else ""


def is_own_form(visitor: Visitor, token: str) -> bool:
    """Tell whether a form comes from a page of this session, and not from another site."""
    return is_same(token, visitor.session.csrf)
