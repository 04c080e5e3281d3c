"""The gateway's page as a web application: addresses, and what a browser may do with the answer.

GET  /, /device           the pages, and /api/overview, /api/device for the same facts as JSON
GET  /events              server-sent events: something has changed
GET  /static/...          files of ours, of htmx and of uPlot

Nobody logs in: it is served on loopback, to who is on the gateway. So that no page of elsewhere can have a browser ask
here under a name of its own, a request must name this machine as the one that it asks.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fedgate.config.settings.base import is_loopback
from fedgate.config.settings.settings import GatewaySettings
from fedgate.config.web.changes import Changes, stream_changes
from fedgate.config.web.charts import Facts
from fedgate.config.web.headers import Headers
from fedgate.config.web.rendering import mount_static, read_templates
from fedgate.gateway_agent.web.pages import PAGES, Page
from fedgate.gateway_agent.web.reading import Reader

TEMPLATES = Path(__file__).parent / "templates"


class Web:
    """The application and what it works with."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._brand = f"{settings.gateway.id}, {settings.gateway.site}"
        self._reader = Reader(settings)
        self._changes = Changes(self._reader.read_change)
        self._templates = read_templates(TEMPLATES)
        routes: list[Route | Mount] = [Route("/events", self._send_changes), mount_static()]
        for page in PAGES:
            routes += [
                Route(page.path, self._show(page)),
                Route(f"/api{page.path.rstrip('/') or '/overview'}", self._answer_facts(page)),
            ]
        self.app = Starlette(routes=routes, lifespan=self._live, exception_handlers={HTTPException: self._refuse})
        self.app.add_middleware(OwnName)
        self.app.add_middleware(Headers)

    @asynccontextmanager
    async def _live(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        self._reader.close()

    async def end_streams(self) -> None:
        """Let nobody wait for a change any more."""
        await self._changes.end()

    async def _read(self, page: Page) -> Facts:
        return page.read(self._settings, await self._reader.read(), time.time_ns())

    def _show(self, page: Page) -> Callable[[Request], Any]:
        async def show(_request: Request) -> Response:
            change = await self._changes.read()  # before the page is made: what changes meanwhile renews it
            facts = await self._read(page)
            await self._changes.read()  # who listens must know of what is shown, also if it is over at the next look
            return self._render(page.template, title=page.title, change=change, **facts)

        return show

    def _answer_facts(self, page: Page) -> Callable[[Request], Any]:
        async def answer(_request: Request) -> Response:
            return JSONResponse(await self._read(page))

        return answer

    def _render(self, template: str, status: int = HTTPStatus.OK, /, **facts: Any) -> HTMLResponse:
        common = {"brand": self._brand, "notices": (), "change": "", "now_ns": time.time_ns()}
        return HTMLResponse(self._templates.get_template(template).render(common | facts), status)

    async def _send_changes(self, request: Request) -> Response:
        return stream_changes(self._changes, request.query_params.get("since", ""), "", lambda: True)

    async def _refuse(self, request: Request, error: Any) -> Response:
        if request.url.path.startswith("/api/"):
            return JSONResponse({"problem": error.detail}, error.status_code)
        return self._render("problem.html", error.status_code, title="Not shown", problem=error.detail)


class OwnName:
    """Answers who asks for this machine by a name of its loopback, and nobody else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may be answered."""
        if scope["type"] == "http" and not is_own_name([value for name, value in scope["headers"] if name == b"host"]):
            text = "Open this page as http://127.0.0.1 with the port that is forwarded: it answers no other name.\n"
            await PlainTextResponse(text, HTTPStatus.MISDIRECTED_REQUEST)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def is_own_name(hosts: list[bytes]) -> bool:
    """Tell whether the headers `Host` of a request are one, and name the loopback of this machine, at any port."""
    if len(hosts) != 1:
        return False
    name = hosts[0].decode("latin-1")
    bare = name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0]
    return is_loopback(bare)
