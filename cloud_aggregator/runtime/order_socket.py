"""The socket by which the page gives orders: it runs as another user, who may not write into the store.

    {"kind": "alarm", "body": {...}}, one line of JSON  ->  {"order": 17}, or {"problem": "..."}

Who may connect is who may open the socket: the owner, and the group of its folder where that hands its group on; by
which name somebody orders is the page's word. Only orders that the page has buttons for are taken: one shuts a gateway
out, and none lets a device in, forgets one, changes keys, or masks causes and gateways. The service signs what it
orders: the process of the page has no key.
"""

from __future__ import annotations

import json
import logging
import os
import socketserver
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgate.cloud_aggregator.alarms import actions
from fedgate.cloud_aggregator.storage.database import StoreError

LOG = logging.getLogger("fedgate.orders")
KINDS = frozenset({"alarm", "samples", "go-on", "pause", "stop", "release", "revoke"})
ORDER_BYTES_MAX = 256 * 1024  # of the names of as many alarms as one action may have
WITHIN_S = 5.0
Place = Callable[[str, dict[str, Any]], int]


class OrderSocket:
    """The socket, served by a thread of its own, one order at a time."""

    def __init__(self, path: Path, place: Place) -> None:
        """Listen at `path`; `place` stores an order and returns its number. Raises `OSError`."""
        self._path, self._place = path, place
        path.unlink(missing_ok=True)  # of a process that was killed: the store's lock says that there is no other
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            """Answers one order."""

            timeout = WITHIN_S

            def handle(self) -> None:
                with suppress(OSError):  # who asked is gone
                    answer = outer.take(self.rfile.readline(ORDER_BYTES_MAX + 1))
                    self.wfile.write(json.dumps(answer).encode() + b"\n")

        before = os.umask(0o117)
        try:
            self._server = socketserver.UnixStreamServer(str(path), Handler)
        finally:
            os.umask(before)
        if not path.parent.stat().st_mode & stat.S_ISGID:
            path.chmod(0o600)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        """Begin to take orders."""
        self._thread.start()

    def stop(self) -> None:
        """Take none any more; raises nothing where `start` never was."""
        if self._thread.is_alive():  # else nobody would say that the loop has ended
            self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)

    def take(self, line: bytes) -> dict[str, Any]:
        """Store an order and return its number, or what is wrong with it."""
        try:
            order = json.loads(line if len(line) <= ORDER_BYTES_MAX else b"")
            kind, body = order["kind"], order["body"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return {"problem": f"expected one line of JSON with kind and body, at most {ORDER_BYTES_MAX} bytes"}
        if not isinstance(kind, str) or kind not in KINDS or not isinstance(body, dict):
            return {"problem": f"kind: expected one of {', '.join(sorted(KINDS))}, got {str(kind)[:40]!r}"}
        if kind == "alarm" and str(body.get("action")) not in actions.OF_ALARMS:
            return {"problem": f"action: expected one of {', '.join(actions.OF_ALARMS)}"}
        try:
            return {"order": self._place(kind, body)}
        except StoreError as error:
            LOG.warning("an order of the page could not be stored: %s", error)
            return {"problem": str(error)}
