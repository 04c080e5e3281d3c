"""Goal: nobody sees or orders anything without being let in, and no more than their role may.

Method: the real server on a free port, asked over HTTP as browsers, programs and strangers do.
"""

from __future__ import annotations

import getpass
import http.client
import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from fedgate.cloud_aggregator.commands import users as users_command
from fedgate.cloud_aggregator.web import app
from fedgate.cloud_aggregator.web.access import COOKIE
from fedgate.cloud_aggregator.web.pages.buttons import BUTTONS
from fedgate.cloud_aggregator.web.sessions import FAILURES_MAX, FAILURES_WITHIN_S, KNOWN_MAX, FailedLogins, Sessions
from fedgate.cloud_aggregator.web.users import UsersError, put_user, read_users, remove_user
from fedgate.config.settings.web import USERS
from fedgate.config.web import changes, server
from tests.support.waiting import until
from tests.support.web_page import PASSWORD, Site, make_site, open_page

OPEN = ("/login", "/static/fedgate.css", "/static/htmx.min.js")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A page that all tests of this file look at."""
    with open_page(tmp_path_factory.mktemp("site"), *make_site()) as site:
        yield site


def list_addresses() -> list[str]:
    """Return an address of each page and of its JSON."""
    named = {"{gateway}": "north", "{alarm}": "north.anomaly.2"}
    paths = [re.sub(r"\{\w+\}", lambda found: named[found[0]], page.path) for page in app.PAGES]
    return [*paths, *(f"/api{path.rstrip('/') or '/overview'}" for path in paths)]


@pytest.mark.parametrize("path", [*list_addresses(), "/events", "/plan", "/logout"])
def test_strangers_see_nothing(site: Site, path: str) -> None:
    method = "POST" if path == "/logout" else "GET"
    answer = site.client().ask(method, path)
    assert answer.status in (303, 401)
    assert "north" not in answer.text
    if answer.status == 303:
        assert answer.headers["location"].startswith("/login")


@pytest.mark.parametrize("path", list_addresses())
def test_viewers_see_every_page(site: Site, path: str) -> None:
    answer = site.client("viewer").get(path)
    assert answer.status == 200
    assert "north" in answer.text


@pytest.mark.parametrize("path", [*OPEN, "/", "/api/overview", "/no-such-page", "/alarms/north/no-such"])
def test_every_answer_says_what_a_browser_may_do_with_it(site: Site, path: str) -> None:
    headers = site.client("viewer").get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == ("no-cache" if path.startswith("/static/") else "no-store")


def test_a_wrong_password_is_a_wrong_name(site: Site) -> None:
    wrong = site.client().log_in("viewer", "no such password")
    unknown = site.client().log_in("nobody", "no such password")
    assert wrong.status == unknown.status == 401
    own = r"[0-9]{4}-[0-9T:Z -]+|viewer|nobody"  # times, and the name that was typed
    assert re.sub(own, "", wrong.text) == re.sub(own, "", unknown.text)
    assert 'name="name" value="viewer"' in wrong.text
    assert COOKIE not in wrong.headers.get("set-cookie", "")


def test_the_cookie_is_kept_from_scripts_and_other_sites(site: Site) -> None:
    given = site.client().log_in("viewer").headers["set-cookie"].lower()
    assert "httponly" in given and "samesite=strict" in given


@pytest.mark.parametrize(
    "following", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_a_login_leads_nowhere_else(site: Site, following: str) -> None:
    client = site.client()
    answer = client.ask("POST", f"/login?next={following}", {"name": "viewer", "password": PASSWORD})
    assert (answer.status, answer.headers["location"]) == (303, "/")


def test_who_logs_out_is_out_with_every_copy_of_the_cookie(site: Site) -> None:
    client = site.client("viewer")
    copy = site.client()
    copy.cookies = dict(client.cookies)
    token = client.get("/").text.partition('name="csrf" value="')[2].partition('"')[0]
    assert client.ask("POST", "/logout", {"csrf": token}).status == 303
    assert copy.get("/").status == 303


@pytest.mark.parametrize("button", sorted(BUTTONS))
def test_a_button_takes_its_role_and_the_form_of_its_own_session(site: Site, button: str) -> None:
    lesser = {"operator": "viewer", "admin": "operator"}[BUTTONS[button].role]
    assert site.client(lesser).press(button).status == 403
    assert site.client(BUTTONS[button].role).ask("POST", f"/orders/{button}", {"csrf": "guessed"}).status == 403
    assert site.client().ask("POST", f"/orders/{button}", {"csrf": "guessed"}).status == 401


@pytest.mark.soak
def test_a_user_who_is_removed_or_changed_is_so_at_once(site: Site) -> None:
    put_user(site.folder / USERS, "eve", "operator", PASSWORD)
    before = site.client("eve")
    put_user(site.folder / USERS, "eve", "operator", PASSWORD)
    assert before.get("/").status == 303  # whoever knew the password of before is out
    client = site.client("eve")
    put_user(site.folder / USERS, "eve", "viewer", PASSWORD)
    client.log_in("eve")
    assert client.press("acknowledge").status == 403
    remove_user(site.folder / USERS, "eve")
    assert client.get("/").status == 303


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Content_Type": "application/json"}, {}, 415),
        ({}, {"name": "x" * 70_000}, 413),
        ({"Sec_Fetch_Site": "cross-site"}, {"name": "viewer", "password": PASSWORD}, 403),
    ],
)
def test_what_no_form_of_ours_sends_is_refused(
    site: Site, headers: dict[str, str], body: dict[str, str], status: int
) -> None:
    assert site.client().ask("POST", "/login", body, **headers).status == status


@pytest.mark.soak
def test_nobody_guesses_passwords_for_long(tmp_path: Path) -> None:
    with open_page(tmp_path) as site:
        tries = [site.client().log_in("admin", f"guess number {number}").status for number in range(12)]
        assert tries == [401] * FAILURES_MAX["address"] + [429] * 2
        assert site.client().log_in("admin").status == 429  # nor from there with the right one


def test_failures_are_forgotten_and_bounded() -> None:
    failures = FailedLogins()
    for number in range(20_000):
        failures.note(f"10.0.0.{number}", f"name {number}", 1.0)
    assert failures.wait_s("10.9.9.9", "somebody", 2.0) == 0.0  # however many others there were
    for _ in range(FAILURES_MAX["address"]):
        failures.note("10.9.9.9", "somebody", 2.0)
    assert failures.wait_s("10.9.9.9", "somebody else", 2.0) == FAILURES_WITHIN_S - 1.0
    assert len(failures._counts) <= KNOWN_MAX
    assert failures.wait_s("10.0.0.1", "somebody", FAILURES_WITHIN_S + 1.0) == 0.0


@pytest.mark.soak
def test_who_asks_for_nothing_takes_nobodys_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ASKED_WITHIN_S", 0.1)
    monkeypatch.setattr(app, "FORM_WITHIN_S", 0.1)
    with open_page(tmp_path) as site:
        for sent in (b"", b"GET / HT"):
            with socket.create_connection(("127.0.0.1", site.port), timeout=60) as wire:
                wire.sendall(sent)
                with suppress(ConnectionResetError):
                    assert wire.recv(100) == b""
        with socket.create_connection(("127.0.0.1", site.port), timeout=60) as wire:
            kind = "Content-Type: application/x-www-form-urlencoded"
            wire.sendall(f"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n{kind}\r\n\r\n".encode())
            assert wire.makefile().readline().split()[1] == "408"
        assert site.client().get("/login").status == 200


def is_answered(wire: socket.socket) -> bool:
    """Tell whether a connection is served, and not ended."""
    try:
        wire.sendall(b"GET /login HTTP/1.1\r\nHost: x\r\n\r\n")
        return wire.recv(100).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


@pytest.mark.soak
@pytest.mark.parametrize("is_proxy", [False, True])
def test_one_address_cannot_take_the_place_of_all_others(
    is_proxy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a proxy may, whose connections are those of many."""
    monkeypatch.setattr(server, "OF_ONE_MAX", 3)
    with open_page(tmp_path, proxy={"addresses": ["127.0.0.1"]} if is_proxy else None) as site, ExitStack() as wires:

        def connect() -> bool:
            made = socket.create_connection(("127.0.0.1", site.port), timeout=60)
            return is_answered(wires.enter_context(made))

        assert [connect() for _ in range(3)] == [True] * 3
        assert connect() is is_proxy
        wires.close()
        until(connect)  # once the others have gone


@pytest.mark.soak
def test_one_address_cannot_listen_in_the_place_of_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address as the proxy says it, which all of them have in common."""
    monkeypatch.setattr(changes, "OF_ONE_MAX", 1)
    with open_page(tmp_path, proxy={"addresses": ["127.0.0.1"]}) as site, ExitStack() as wires:
        client = site.client("viewer")

        def listen(address: str) -> int:
            connection = wires.enter_context(closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)))
            cookie = f"{COOKIE}={client.cookies[COOKIE]}"
            connection.request("GET", "/events", headers={"Cookie": cookie, "X-Forwarded-For": address})
            answer = connection.getresponse()
            if answer.status == 200:
                assert answer.readline() == b": listening\n"
            return answer.status

        assert [listen(one) for one in ("10.0.0.1", "10.0.0.1", "10.0.0.2")] == [200, 503, 200]
        wires.close()
        until(lambda: listen("10.0.0.1") == 200)  # once it has gone


def test_a_session_ends_after_its_time() -> None:
    sessions = Sessions(60.0)
    token = sessions.begin("ada", "hash", 0.0)
    found = sessions.find(token, 59.0)
    assert found is not None and found.user == "ada"
    assert sessions.find(token, 60.0) is None
    assert sessions.find(token, 59.0) is None  # nor when a clock would go back


@pytest.mark.soak
def test_a_proxy_is_believed_and_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "proxy.secret").write_text(f"{PASSWORD}\n")
    proof = {"X_Proxy_Secret": PASSWORD}
    given = {"Remote_User": "ada", "Remote_Role": "operator", **proof}
    with open_page(tmp_path, *make_site()) as site:
        put_user(site.folder / USERS, "ada", "admin", PASSWORD)
        assert site.client().get("/", **given).status == 303
    with open_page(tmp_path, proxy={"addresses": ["127.0.0.1"]}) as site:  # says from where, and not who
        assert site.client().get("/", **given).status == 303
    proxy = {"addresses": ["127.0.0.1"], "user_header": "Remote-User", "secret_file": tmp_path / "proxy.secret"}
    with open_page(tmp_path, proxy=proxy) as site:
        assert "ada (operator)" in site.client().get("/", **given).text
        assert "ada (viewer)" in site.client().get("/", Remote_User="ada", **proof).text
        for wrong in ({"Remote_Role": "root"}, {"Remote_User": "<script>"}, {"X_Proxy_Secret": "another"}):
            assert site.client().get("/", **given | wrong).status == 303
        thief = site.client()
        for cookie in ("proxy ada", "ada"):  # that somebody came by the proxy opens nothing to others
            thief.cookies = {COOKIE: cookie}
            assert thief.get("/").status == 303


@pytest.mark.soak
def test_a_header_that_comes_twice_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "proxy.secret").write_text(PASSWORD)
    proxy = {"addresses": ["127.0.0.1"], "user_header": "Remote-User", "secret_file": tmp_path / "proxy.secret"}
    with open_page(tmp_path, proxy=proxy) as site, socket.create_connection(("127.0.0.1", site.port)) as wire:
        lines = ["GET / HTTP/1.1", "Host: x", "Connection: close", f"X-Proxy-Secret: {PASSWORD}", "Remote-User: ada"]
        wire.sendall("\r\n".join([*lines, "Remote-Role: admin", "Remote-Role: viewer", "", ""]).encode())
        assert wire.makefile().readline().split()[1] == "303"


def test_who_can_type_no_password_is_shown_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getpass", Mock(side_effect=EOFError))
    with pytest.raises(ValueError, match="--password-stdin"):
        users_command._read_password(is_piped=False)


def test_users_are_kept_whole_and_no_password_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / USERS
    assert put_user(path, "ada", "admin", PASSWORD)
    assert not put_user(path, "ada", "viewer", PASSWORD)
    assert PASSWORD not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    tmp_path.chmod(0o2750)  # a folder that hands its group on lets the page's user read
    put_user(path, "ben", "viewer", PASSWORD)
    assert path.stat().st_mode & 0o777 == 0o640
    for name, password, told in (("a b", PASSWORD, "name: expected"), ("eve", "short", "password: expected 10")):
        with pytest.raises(UsersError, match=told):
            put_user(path, name, "viewer", password)
    with pytest.raises(UsersError, match="there are: ada, ben"):
        remove_user(path, "eve")
    for broken in ("", "[]", '{"ada": 1}', json.dumps({"ada": {"role": "god", "hash": ""}})):
        path.write_text(broken)
        with pytest.raises(UsersError, match="users"):
            read_users(path)
