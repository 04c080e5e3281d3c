"""The socket by which the page gives orders: it runs as another user, who may not write into the store.

    {"kind": "alarm", "body": {...}}, one line of JSON  ->  {"order": 17}, or {"problem": "..."}

Who may connect is who may open the socket: the owner, and the group of its folder where that hands its group on; by
which name somebody orders is the page's word, and the order keeps beside it as `uid` the user of the process that gave
it, which is the kernel's word. Only orders that the page has buttons for are taken: one shuts a gateway
out, and none lets a device in, forgets one, changes keys, or masks causes and gateways. The service signs what it
orders: the process of the page has no key.
"""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgate.cloud_aggregator.alarms import actions
from fedgate.cloud_aggregator.limits import HourlyCount, count_one_more
from fedgate.cloud_aggregator.storage.database import StoreError
from fedgate.config.runtime.local_socket import LocalSocket

LOG = logging.getLogger("fedgate.orders")
KINDS = frozenset({"alarm", "samples", "go-on", "pause", "stop", "release", "revoke"})
ORDER_BYTES_MAX = 256 * 1024  # of the names of as many alarms as one action may have
WITHIN_S = 5.0
REVOKED_PER_HOUR = 5  # gateways, by the page: whoever takes it over shuts out no site, which cannot be taken back
PEER = struct.Struct("3i")  # struct ucred of Linux: process, user, group
Place = Callable[[str, dict[str, Any]], int]


class OrderSocket(LocalSocket):
    """The socket, served by a thread of its own, one order at a time."""

    def __init__(self, path: Path, place: Place) -> None:
        """Listen at `path`; `place` stores an order and returns its number. Raises `OSError`."""
        self._place, outer, self._revoked = place, self, HourlyCount()

        class Handler(socketserver.StreamRequestHandler):
            """Answers one order."""

            timeout = WITHIN_S

            def handle(self) -> None:
                with suppress(OSError):  # who asked is gone
                    answer = outer.take(self.rfile.readline(ORDER_BYTES_MAX + 1), _find_user(self.request))
                    self.wfile.write(json.dumps(answer).encode() + b"\n")

        super().__init__(path, Handler, for_group=True)

    def take(self, line: bytes, uid: int) -> dict[str, Any]:
        """Store an order of a process of this user and return its number, or what is wrong with it."""
        try:
            order = json.loads(line if len(line) <= ORDER_BYTES_MAX else b"")
            kind, body = order["kind"], order["body"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return {"problem": f"expected one line of JSON with kind and body, at most {ORDER_BYTES_MAX} bytes"}
        if not isinstance(kind, str) or kind not in KINDS or not isinstance(body, dict):
            return {"problem": f"kind: expected one of {', '.join(sorted(KINDS))}, got {str(kind)[:40]!r}"}
        if kind == "alarm" and str(body.get("action")) not in actions.OF_ALARMS:
            return {"problem": f"action: expected one of {', '.join(actions.OF_ALARMS)}"}
        if kind == "revoke":
            self._revoked = count_one_more(self._revoked, time.monotonic_ns())
            if self._revoked.count > REVOKED_PER_HOUR:
                LOG.warning("the page has asked for more than %d revocations in an hour", REVOKED_PER_HOUR)
                return {"problem": f"the page may revoke {REVOKED_PER_HOUR} gateways an hour; revoke others by command"}
        try:
            return {"order": self._place(kind, body | {"uid": uid})}
        except StoreError as error:
            LOG.warning("an order of the page could not be stored: %s", error)
            return {"problem": str(error)}


def _find_user(connection: socket.socket) -> int:
    """Return the user of the process at the other end, as it was when it connected."""
    _, uid, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return int(uid)
