"""A Unix socket beside a store, by which a page and its service speak to each other."""

from __future__ import annotations

import os
import socketserver
import stat
import threading
from pathlib import Path

from fedgate.config.runtime.files import PRIVATE_MODE

GROUP_MODE = 0o660


class LocalSocket:
    """The socket, served by a thread of its own, one peer at a time: whoever it serves must not keep it for long."""

    def __init__(self, path: Path, handler: type[socketserver.BaseRequestHandler], *, for_group: bool = False) -> None:
        """Listen at `path`, for the owner and, `for_group`, for the group of its folder where that hands its group on.
        Raises `OSError`.
        """
        self._path = path
        path.unlink(missing_ok=True)  # of a process that was killed: the store's lock says that there is no other
        self._server = socketserver.UnixStreamServer(str(path), handler, bind_and_activate=False)
        try:
            # Its name gets this mode as it is made. The process's mask would do too, but all threads share that.
            os.fchmod(self._server.fileno(), PRIVATE_MODE)
            self._server.server_bind()
            if for_group and path.parent.stat().st_mode & stat.S_ISGID:
                path.chmod(GROUP_MODE)
            self._server.server_activate()
        except OSError:
            self._server.server_close()
            raise
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
