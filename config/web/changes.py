"""What a page shows has changed: how a browser that listens comes to know, as server-sent events."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

LOOK_S = 1.0  # between two looks at whether something changed
KEEP_ALIVE_S = 15.0
LISTENERS_MAX, OF_ONE_MAX = 200, 50  # browsers that are told of changes at once; those of one address


class Changes:
    """Tells everybody who waits that something has changed; looks only while somebody waits."""

    def __init__(self, read_change: Callable[[], Awaitable[str]]) -> None:
        """`read_change` returns what is another text once something has changed; empty while that cannot be said."""
        self._read_change = read_change
        self._found, self._known, self._count = "", "", 0
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.waiting = 0
        self.listening = Counter[str]()  # browsers that are told of changes, by address
        self.is_over = False

    async def read(self) -> str:
        """Return what is another text after each change, empty while that cannot be said; who waits comes to know it.

        Changes are counted: a page may show what was so between two looks only, and must be told that it is over.
        """
        found = await self._read_change()
        async with self._changed:
            if found and found != self._found:
                self._count += 1
                self._found, self._known = found, f"{self._count}-{found}"
                self._changed.notify_all()
        return self._known if found else ""

    async def end(self) -> None:
        """Let nobody wait any more."""
        async with self._changed:
            self.is_over = True
            self._changed.notify_all()

    async def wait(self, known: str, within_s: float) -> str:
        """Return what `read` says, as soon as that is something else than `known`, or after a time."""
        self.waiting += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: self.is_over or self._known not in ("", known))
        except TimeoutError:
            return known
        finally:
            self.waiting -= 1
        return self._known or known

    async def _look(self) -> None:
        while self.waiting:
            await self.read()
            await asyncio.sleep(LOOK_S)


def stream_changes(changes: Changes, known: str, address: str, may_listen: Callable[[], bool]) -> StreamingResponse:
    """Return an answer that tells a browser at an address of changes, as long as it may listen; `known` is what its
    page knows.

    Raises `HTTPException` where as many as may be, or of that address as many, listen already.
    """
    if changes.waiting >= LISTENERS_MAX:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"{LISTENERS_MAX} browsers listen already")
    if changes.listening[address] >= OF_ONE_MAX:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"{OF_ONE_MAX} browsers listen there already")

    async def send(known: str) -> AsyncIterator[str]:
        changes.listening[address] += 1
        try:
            yield ": listening\n\n"
            while not changes.is_over and may_listen():
                found = await changes.wait(known, KEEP_ALIVE_S)
                yield ": still here\n\n" if found == known else f"event: changed\ndata: {found}\n\n"
                known = found
        finally:
            changes.listening[address] -= 1
            changes.listening += Counter()  # which forgets those of whom nobody is left

    headers = {"X-Accel-Buffering": "no"}  # of nginx, which holds back what it buffers
    return StreamingResponse(send(known), media_type="text/event-stream", headers=headers)
