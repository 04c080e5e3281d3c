"""What a browser may do with whatever a page answers: nothing but what comes from the page itself."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Headers:
    """Says to browsers what they may do with whatever is answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers, but where a file says itself how long it is good."""

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = {name: value for name, value in HEADERS.items() if name.lower().encode() not in given}
                if scope["path"].startswith("/static/"):
                    more["Cache-Control"] = "no-cache"  # it is asked for each time, and sent where it has changed
                message["headers"] += [(name.lower().encode(), value.encode()) for name, value in more.items()]
            await send(message)

        await self._app(scope, receive, send_more if scope["type"] == "http" else send)
