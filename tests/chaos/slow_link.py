"""A bad line between two programs: a TCP proxy that is slow, loses packets and can be cut.

TCP hides loss from those who use it, and makes them wait instead: what is lost is sent again after a pause that doubles
each time. The proxy does the same to each packet, so both ends see what they would see on such a line, on any machine
and without the right to change its network.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HOST = "127.0.0.1"
PACKET_BYTES = 1_400
RESEND_S = 0.2  # the least pause of Linux before it sends a packet again
RESEND_S_MAX = 1.6


class SlowLink:
    """A listening port that passes on to another, at `rate_bytes_s` each way, losing a `loss` of the packets."""

    def __init__(self, port: int, *, rate_bytes_s: float, loss: float = 0.0, seed: int = 0) -> None:
        self._to, self._rate_bytes_s, self._loss = (HOST, port), rate_bytes_s, loss
        self._random = random.Random(seed)
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self.bytes_passed = 0
        self.packets_lost = 0
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """End every connection that passes through, as a line that breaks."""
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections and take no more."""
        self._listener.close()
        self.cut()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._to, timeout=5.0)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        for each in (near, far):
            # Buffers of megabytes on this machine would hide that the line is slow.
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * PACKET_BYTES)
            self._open.add(each)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while packet := source.recv(PACKET_BYTES):
                time.sleep(len(packet) / self._rate_bytes_s + self._pause_s())
                sink.sendall(packet)
                self.bytes_passed += len(packet)
        for each in (source, sink):
            self._open.discard(each)
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _pause_s(self) -> float:
        paused_s, pause_s = 0.0, RESEND_S
        while self._random.random() < self._loss:
            self.packets_lost += 1
            paused_s, pause_s = paused_s + pause_s, min(2 * pause_s, RESEND_S_MAX)
        return paused_s


@contextmanager
def slow_link(port: int, *, rate_bytes_s: float, loss: float = 0.0, seed: int = 0) -> Iterator[SlowLink]:
    """Run such a line to a port of this machine while the `with` block lasts."""
    link = SlowLink(port, rate_bytes_s=rate_bytes_s, loss=loss, seed=seed)
    try:
        yield link
    finally:
        link.close()
