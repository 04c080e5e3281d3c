"""What systemd asks of a service (sd_notify(3)): that it began to work, that it still does, that it ends.

One datagram each, over the socket that systemd names in the environment; where it names none nothing is sent. The loop
that does the work says that it works, so a loop that hangs says nothing and the process is ended and started again.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping

LOG = logging.getLogger("fedgate.supervisor")
START_S = 600.0  # to open and check a large store on a slow card
SHARE = 0.25  # of the time that systemd waits, after which it is notified again


class Supervisor:
    """The service manager above this process, if any; use it from one thread."""

    def __init__(
        self, environment: Mapping[str, str] = os.environ, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._now_s = now_s
        self._address = environment.get("NOTIFY_SOCKET", "")
        is_asked = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        patience_us = environment.get("WATCHDOG_USEC", "") if is_asked else ""
        self.pause_s = SHARE * int(patience_us) / 1e6 if patience_us.isdecimal() else float("inf")
        self._due_s: float | None = None  # when it is to be notified next; None: it does not work yet
        self._failures = 0

    def report_start(self) -> None:
        """Say that the start goes on, and may take `START_S` more."""
        self._send(f"EXTEND_TIMEOUT_USEC={START_S * 1e6:.0f}")

    def report_work(self) -> None:
        """Say that the work goes on: at the first call that it has begun, after that as often as is asked for."""
        now_s = self._now_s()
        if self._due_s is None:
            self._send("READY=1\nWATCHDOG=1")
        elif now_s >= self._due_s:
            self._send("WATCHDOG=1")
        else:
            return
        self._due_s = now_s + self.pause_s

    def report_stop(self) -> None:
        """Say that the service ends."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is no file: its first byte is 0.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as wire:
                wire.setblocking(False)  # the work must not wait for who supervises it
                wire.sendto(text.encode(), address)
        except OSError as error:
            self._failures += 1
            if self._failures.bit_count() == 1:
                LOG.warning("the service manager cannot be notified (%s), time %d", error, self._failures)
