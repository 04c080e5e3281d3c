"""The socket by which the gateway's page asks how the agent is: who connects gets one JSON document, and that is all.

It takes nothing in, so nobody can order anything by it. Who does not read what was written for them is left after
`WITHIN_S`; meanwhile others wait in the queue of the kernel, and the agent does not.
"""

from __future__ import annotations

import socketserver
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedgate.config.runtime.local_socket import LocalSocket

WITHIN_S = 1.0


class PageSocket(LocalSocket):
    """The socket; `describe` is called in its thread, once for each who connects."""

    def __init__(self, path: Path, describe: Callable[[], bytes]) -> None:
        """Listen at `path`; raises `OSError`."""

        class Handler(socketserver.BaseRequestHandler):
            """Answers one."""

            def handle(self) -> None:
                self.request.settimeout(WITHIN_S)
                with suppress(OSError):  # who asked is gone, or does not read
                    self.request.sendall(describe())

        super().__init__(path, Handler)
