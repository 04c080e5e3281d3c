"""The page as a web application: addresses, who may ask for what, and what a browser may do with the answer.

GET  /login, POST /login, POST /logout      the only addresses that nobody has to be logged in for
GET  the pages, and /api before their address for the same facts as JSON
GET  /events                                 server-sent events: something in the store has changed
POST /orders/...                             buttons; each becomes an order of the service
GET  /static/...                             files of ours, of htmx and of uPlot
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from fedgate.cloud_aggregator.runtime import freed_memory
from fedgate.cloud_aggregator.storage.store import Store, StoreError
from fedgate.cloud_aggregator.web.access import COOKIE, Access, Visitor, is_own_form
from fedgate.cloud_aggregator.web.order_client import OrderRefusedError, place_order
from fedgate.cloud_aggregator.web.pages import alarm, alarms, gateway, gateways, learning, overview, report
from fedgate.cloud_aggregator.web.pages.alarm_list import AlarmList
from fedgate.cloud_aggregator.web.pages.buttons import BUTTONS, Button, FormError
from fedgate.cloud_aggregator.web.pages.page import Context, NotThereError, Page
from fedgate.cloud_aggregator.web.reading import Reader
from fedgate.cloud_aggregator.web.users import User, UsersError
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.config.settings.web import USERS, Role, locate_folder, locate_socket
from fedgate.config.web.changes import Changes, stream_changes
from fedgate.config.web.charts import Facts
from fedgate.config.web.headers import Headers
from fedgate.config.web.rendering import mount_static, read_templates
from fedgate.config.web.server import Server

PAGES = (overview.PAGE, alarms.PAGE, alarm.PAGE, gateways.PAGE, gateway.PAGE, learning.PAGE, report.PAGE)
TEMPLATES = Path(__file__).parent / "templates"
FORM_BYTES_MAX, FORM_WITHIN_S = 64 * 1024, 10.0
CHECKED_AT_ONCE = 2  # passwords
ANSWER_WITHIN_S, ANSWER_LOOK_S = 4.0, 0.1
NOBODY_YET = "Nobody may log in yet: cloud-aggregator users add NAME --role admin"


class Web:
    """The application and what it works with."""

    def __init__(self, settings: AggregatorSettings) -> None:
        """Raises `ValueError` where the settings do not say where the users are."""
        self._settings = settings
        folder = locate_folder(settings.web, settings.aggregator.store)
        self._access = Access(folder / USERS, settings.web.session_hours * 3600.0, settings.web.proxy)
        self._socket = locate_socket(settings.web, settings.aggregator.store)
        self._reader = Reader(settings.aggregator.store)
        self._changes = Changes(self._reader.read_change)
        self._alarms = AlarmList()
        self._statuses: dict[str, tuple[int, Facts]] = {}
        self._opening = 0  # of the reader, that the list of alarms is of
        self._checking = asyncio.Semaphore(CHECKED_AT_ONCE)
        self._templates = read_templates(TEMPLATES)
        self.app = Starlette(
            routes=self._list_routes(),
            lifespan=self._live,
            exception_handlers={
                HTTPException: self._refuse,
                StoreError: self._say_unreadable,
                UsersError: self._say_unreadable,
            },
        )
        self.app.add_middleware(Headers)

    def _list_routes(self) -> list[Route | Mount]:
        pages = [
            route
            for page in PAGES
            for route in (
                Route(page.path, self._show(page)),
                Route(f"/api{page.path.rstrip('/') or '/overview'}", self._answer_facts(page)),
            )
        ]
        return [
            Route("/login", self._log_in, methods=["GET", "POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Route("/events", self._send_changes),
            Route("/plan", self._send_plan),
            Route("/orders/{button}", self._order, methods=["POST"]),
            mount_static(),
            *pages,
        ]

    @asynccontextmanager
    async def _live(self, _app: Starlette) -> AsyncIterator[None]:
        with suppress(StoreError):  # who asks is told
            await self._warm_up()
        yield
        self._reader.close()

    async def _warm_up(self) -> None:
        """Do what the first to ask would wait for: read all alarms, compile the templates."""
        for page in PAGES:
            self._templates.get_template(page.template)
        facts = await self._read(overview.PAGE, {})
        self._render(overview.PAGE.template, None, title=overview.PAGE.title, **facts)
        freed_memory.give_back()

    async def end_streams(self) -> None:
        """Let nobody wait for a change any more."""
        await self._changes.end()

    def _require(self, request: Request, role: Role = "viewer") -> Visitor:
        """Return who asks; raises `HTTPException` for who is not logged in or may not."""
        visitor = self._access.find_visitor(request)
        if visitor is None:
            raise HTTPException(HTTPStatus.UNAUTHORIZED, "log in first")
        if not visitor.may(role):
            raise HTTPException(HTTPStatus.FORBIDDEN, f"{visitor.name} is {visitor.role}, and this takes {role}")
        return visitor

    async def _read(self, page: Page, address: Mapping[str, str]) -> Facts:
        now_ns = time.time_ns()

        def ask(store: Store) -> Facts:
            if self._reader.openings != self._opening:
                self._alarms, self._opening = AlarmList(), self._reader.openings
            return page.read(Context(self._settings, store, now_ns, self._alarms, self._statuses), address)

        try:
            return await self._reader.read(ask)
        except NotThereError as error:
            raise HTTPException(HTTPStatus.NOT_FOUND, str(error)) from None

    def _show(self, page: Page) -> Callable[[Request], Any]:
        async def show(request: Request) -> Response:
            visitor = self._require(request)
            change = await self._changes.read()
            facts = await self._read(page, {**request.query_params, **request.path_params})
            notices = (
                [] if request.headers.get("HX-Request") else _take_notices(visitor)
            )  # which a renewal leaves there
            return self._render(page.template, visitor, title=page.title, change=change, notices=notices, **facts)

        return show

    def _answer_facts(self, page: Page) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            self._require(request)
            return JSONResponse(await self._read(page, {**request.query_params, **request.path_params}))

        return answer

    def _render(
        self, template: str, visitor: Visitor | None, status: int = HTTPStatus.OK, /, **facts: Any
    ) -> HTMLResponse:
        common = {"visitor": visitor, "notices": (), "now_ns": time.time_ns(), "change": ""}
        common |= {"brand": self._settings.aggregator.site}
        return HTMLResponse(self._templates.get_template(template).render(common | facts), status)

    async def _log_in(self, request: Request) -> Response:
        following = _keep_local(request.query_params.get("next", "/"))
        if request.method == "GET":
            hint = "" if self._access.has_users() else NOBODY_YET
            return self._ask_to_log_in(following, hint=hint)
        form, now_s = await _read_form(request), time.monotonic()
        name, address = form.get("name", "")[:64], self._access.find_address(request)
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise HTTPException(HTTPStatus.FORBIDDEN, "a form of another site cannot log anybody in")
        if (wait_s := self._access.failures.wait_s(address, name, now_s)) > 0.0:
            problem = f"Too many failed logins. Wait {timedelta(seconds=round(wait_s))}."
            return self._ask_to_log_in(following, name, problem, status=HTTPStatus.TOO_MANY_REQUESTS)
        # Counted before it is known: who asks many times at once has no more tries.
        self._access.failures.note(address, name, now_s)
        user = await self._check_password(name, form)
        if user is None:
            problem = "The name or the password is wrong."
            return self._ask_to_log_in(following, name, problem, status=HTTPStatus.UNAUTHORIZED)
        self._access.failures.take_back(address, name)
        token = self._access.sessions.begin(name, user.hash, now_s)
        response = RedirectResponse(following, HTTPStatus.SEE_OTHER)
        is_secure = self._access.is_secure(request)
        response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=is_secure, path="/")
        return response

    def _ask_to_log_in(
        self, following: str, name: str = "", problem: str = "", *, hint: str = "", status: int = HTTPStatus.OK
    ) -> HTMLResponse:
        shown = {"title": "Log in", "next": following, "name": name, "problem": problem, "hint": hint}
        return self._render("login.html", None, status, **shown)

    async def _check_password(self, name: str, form: Mapping[str, str]) -> User | None:
        """Return the user with the password of a form; a few at a time, for each takes 19 MiB."""
        async with self._checking:
            user = await run_in_threadpool(self._access.check_login, name, form.get("password", ""))
        freed_memory.give_back()
        return user

    async def _log_out(self, request: Request) -> Response:
        visitor = self._require(request)
        self._check_form(visitor, await _read_form(request))
        self._access.sessions.end(request.cookies.get(COOKIE, ""))
        response = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
        response.delete_cookie(COOKIE)
        return response

    def _check_form(self, visitor: Visitor, form: Mapping[str, str]) -> None:
        if not is_own_form(visitor, form.get("csrf", "")):
            raise HTTPException(HTTPStatus.FORBIDDEN, "this form is of another session; load the page again")

    async def _order(self, request: Request) -> Response:
        """Make an order of a button, wait a moment for its answer, and go back to the page with it."""
        button = BUTTONS.get(request.path_params["button"])
        if button is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such button")
        visitor, form = self._require(request, button.role), await _read_form(request)
        self._check_form(visitor, form)
        kind_text = await self._carry_out(button, visitor, form)
        visitor.session.notices.append(kind_text)
        return RedirectResponse(_keep_local(form.get("back", "/")), HTTPStatus.SEE_OTHER)

    async def _carry_out(self, button: Button, visitor: Visitor, form: Mapping[str, str]) -> tuple[str, str]:
        """Return whether it went well, and the answer."""
        try:
            body = button.read(form) | {"who": visitor.name}
            if button.asks_again:
                await self._ask_again(visitor, form)
            number = await place_order(self._socket, button.kind, body)
        except (FormError, OrderRefusedError) as error:
            return "bad", str(error)
        until_s = time.monotonic() + ANSWER_WITHIN_S
        while time.monotonic() < until_s:
            answer = await self._reader.read(lambda store: store.answer(number))
            if answer is not None:
                text, problem = answer
                return ("bad", problem) if problem else ("good", text)
            await asyncio.sleep(ANSWER_LOOK_S)
        return "good", f"Order {number} is given; the service has not answered yet."

    async def _ask_again(self, visitor: Visitor, form: Mapping[str, str]) -> None:
        """Raise `FormError` where somebody who logged in here does not give the password once more."""
        if not visitor.is_local:
            return
        failures, address, now_s = self._access.failures, f"button of {visitor.name}", time.monotonic()
        if failures.wait_s(address, visitor.name, now_s) > 0.0:
            raise FormError("too many wrong passwords; wait some minutes")
        failures.note(address, visitor.name, now_s)
        if await self._check_password(visitor.name, form) is None:
            raise FormError("the password is wrong, so nothing was ordered")
        failures.take_back(address, visitor.name)

    async def _send_changes(self, request: Request) -> Response:
        """Tell a browser when something in the store has changed; `since` is what its page knows."""
        self._require(request)
        known, address = request.query_params.get("since", ""), self._access.find_address(request)
        return stream_changes(self._changes, known, address, lambda: self._access.find_visitor(request) is not None)

    async def _send_plan(self, request: Request) -> Response:
        self._require(request)
        if self._settings.web.plan is None or not self._settings.web.plan.is_file():
            raise HTTPException(HTTPStatus.NOT_FOUND, "web.plan names no image that is there")
        return FileResponse(self._settings.web.plan, headers={"Content-Security-Policy": "default-src 'none'; sandbox"})

    async def _refuse(self, request: Request, error: Any) -> Response:
        """Answer what is refused: a page in words, JSON to a program; who is not logged in goes to the login."""
        is_program = request.url.path == "/events" or request.url.path.startswith("/api/")
        if error.status_code == HTTPStatus.UNAUTHORIZED and not is_program and request.method == "GET":
            if request.headers.get("HX-Request"):
                return Response(status_code=HTTPStatus.OK, headers={"HX-Redirect": "/login"})
            return RedirectResponse(f"/login?next={quote(request.url.path)}", HTTPStatus.SEE_OTHER)
        if is_program:
            return JSONResponse({"problem": error.detail}, error.status_code)
        return self._render("problem.html", None, error.status_code, title="Not shown", problem=error.detail)

    async def _say_unreadable(self, request: Request, error: Exception) -> Response:
        return await self._refuse(request, HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, str(error)))


async def _read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; raises `HTTPException` for one that is too long or none."""
    if not request.headers.get("Content-Type", "").startswith("application/x-www-form-urlencoded"):
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected a form")
    body = b""
    try:
        async with asyncio.timeout(FORM_WITHIN_S):
            async for part in request.stream():
                body += part
                if len(body) > FORM_BYTES_MAX:
                    raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {FORM_BYTES_MAX} bytes")
    except TimeoutError:
        raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, f"expected a form within {FORM_WITHIN_S:g} s") from None
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=2_000)
    except ValueError:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "expected a form in UTF-8") from None
    return {name: "\n".join(values) for name, values in fields.items()}


def _take_notices(visitor: Visitor) -> list[tuple[str, str]]:
    """Return what is to be shown once to somebody, who has seen it then."""
    taken = list(visitor.session.notices)
    visitor.session.notices.clear()
    return taken


def _keep_local(address: str) -> str:
    """Return an address of ours; `/` for one that would lead elsewhere."""
    is_ours = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if is_ours else "/"


def make_server(settings: AggregatorSettings) -> Server:
    """Return the page as a server; raises `OSError` where its address is taken, `ValueError` where the settings lack
    something.
    """
    web = settings.web
    proxies = () if web.proxy is None else web.proxy.addresses
    files = {"certificate_file": web.certificate_file, "key_file": web.key_file}
    return Server(Web(settings), web.listen, **files, proxies=proxies)
