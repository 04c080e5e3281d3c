"""Orders as the page gives them: through the socket of the service, which stores and carries them out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

WITHIN_S = 10.0
ANSWER_BYTES_MAX = 64 * 1024
STOPPED = "the service does not run, so nothing was ordered; start it, and try again"
UNANSWERED = "the service has not answered, and may still do it; look at what was ordered before you try again"


class OrderRefusedError(Exception):
    """An order that was not taken; the text says why."""


async def place_order(socket: Path, kind: str, body: dict[str, Any]) -> int:
    """Give an order to the service and return its number; raises `OrderRefusedError`."""
    problem = STOPPED
    try:
        async with asyncio.timeout(WITHIN_S):
            reader, writer = await asyncio.open_unix_connection(socket, limit=ANSWER_BYTES_MAX)
            problem = UNANSWERED
            try:
                writer.write(json.dumps({"kind": kind, "body": body}).encode() + b"\n")
                await writer.drain()
                answer = json.loads(await reader.readline())
            finally:
                writer.close()
    except (OSError, ValueError, TimeoutError):
        raise OrderRefusedError(problem) from None
    if problem := answer.get("problem"):
        raise OrderRefusedError(problem)
    return int(answer["order"])
