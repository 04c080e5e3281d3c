"""A broker for tests that says what a test has it say: refusals and limits that no real one can be brought to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

CONNECT, PUBLISH, SUBSCRIBE, DISCONNECT = 1, 3, 8, 14
VERSION_AT = 6  # in the body of a CONNECT
Answer = Callable[[int, bytes], bytes | None]


@contextmanager
def scripted_broker(answer: Answer) -> Iterator[int]:
    """Yield the port; `answer` gets kind and body of each packet and returns what goes back, None to hang up."""
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                threads.append(threading.Thread(target=_answer_all, args=(client, answer), daemon=True))
                threads[-1].start()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        serving.join()
        for thread in threads:
            thread.join()


def _answer_all(client: socket.socket, answer: Answer) -> None:
    with client, client.makefile("rb") as reading, suppress(OSError):
        while head := reading.read(1):
            kind, body = head[0] >> 4, reading.read(_length(reading.read))
            said = answer(kind, body)
            if said is None or kind == DISCONNECT:
                return
            client.sendall(said)


def _length(read: Callable[[int], bytes]) -> int:
    length = shift = 0
    while byte := read(1):
        length |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            break
        shift += 7
    return length
