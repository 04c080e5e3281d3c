"""A slow line for tests: a proxy on loopback that lets so many bytes a second pass, upwards."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIECES_PER_S = 20
BUFFER_BYTES = 4_096  # what more there is waits in the kernel of the sender, as before a modem


@contextmanager
def slow_line(port: int, bytes_per_s: float) -> Iterator[int]:
    """Pass connections on to a port of this machine, upwards at most so fast; yield the port to connect to."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)  # is handed on to what it accepts
    ending = threading.Event()
    serving = threading.Thread(target=_serve, args=(listening, port, bytes_per_s, ending), daemon=True)
    serving.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        ending.set()
        serving.join()
        listening.close()


def _serve(listening: socket.socket, port: int, bytes_per_s: float, ending: threading.Event) -> None:
    passing: list[threading.Thread] = []
    while not ending.is_set():
        if not select.select([listening], [], [], 0.05)[0]:
            continue
        client, _ = listening.accept()
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError:  # nobody is there, and whoever asks must notice
            client.close()
            continue
        passing.append(threading.Thread(target=_pass, args=(client, server, bytes_per_s, ending), daemon=True))
        passing[-1].start()
    for thread in passing:
        thread.join()


def _pass(client: socket.socket, server: socket.socket, bytes_per_s: float, ending: threading.Event) -> None:
    """Carry bytes both ways until either side is gone, then end both."""
    free_s = 0.0
    with client, server, suppress(OSError):
        while not ending.is_set():
            is_free = time.monotonic() >= free_s
            readers = [server, client] if is_free else [server]
            for ready in select.select(readers, [], [], 1.0 / PIECES_PER_S)[0]:
                data = ready.recv(65_536 if ready is server else max(round(bytes_per_s / PIECES_PER_S), 1))
                if not data:
                    return
                (client if ready is server else server).sendall(data)
                if ready is client:
                    free_s = time.monotonic() + len(data) / bytes_per_s
