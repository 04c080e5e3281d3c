"""A Unix socket beside a store, by which a page and its service speak to each other."""

from __future__ import annotations

import os
import socketserver
import stat
import threading
from pathlib import Path


class LocalSocket:
    """The socket, served by a thread of its own, one peer at a time: whoever it serves must not keep it for long."""

    def __init__(self, path: Path, handler: type[socketserver.BaseRequestHandler], *, for_group: bool = False) -> None:
        """Listen at `path`, for the owner and, `for_group`, for the group of its folder where that hands its group on.
        Raises `OSError`.
        """
        self._path = path
        path.unlink(missing_ok=True)  # of a process that was killed: the store's lock says that there is no other
        before = os.umask(0o117)
        try:
            self._server = socketserver.UnixStreamServer(str(path), handler)
        finally:
            os.umask(before)
        if not (for_group and path.parent.stat().st_mode & stat.S_ISGID):
            path.chmod(0o600)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Serve nobody any more; raises nothing where `start` never was."""
        if self._thread.is_alive():  # else nobody would say that the loop has ended
            self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)
