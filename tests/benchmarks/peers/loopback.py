"""What the hardware needs at the least: the bytes of a round through bare sockets, and the cipher of TLS beside."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HOST = "127.0.0.1"
RECORD_BYTES = 16 * 1024  # of TLS
NONCE = bytes(12)  # what is sealed here is zeros


def round_s(connections: int, size: int) -> float:
    """Return how long `size` bytes take down each of some connections at once, and up again."""
    with socket.create_server((HOST, 0)) as listener, ThreadPoolExecutor(2 * connections) as threads:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(connections)]
        servers = [listener.accept()[0] for _ in clients]
        body, began_s = bytes(size), time.monotonic()
        ends = [threads.submit(_give_and_take, one, body) for one in servers]
        ends += [threads.submit(_take_and_give, one, body) for one in clients]
        for end in ends:
            end.result()
        taken_s = time.monotonic() - began_s
        for one in (*servers, *clients):
            one.close()
    return taken_s


def sealing_s(size: int) -> float:
    """Return how long all cores need to seal so many bytes and open them again, in records as TLS has them."""
    cipher, record = AESGCM(bytes(16)), bytes(RECORD_BYTES)
    began_s = time.monotonic()
    for _ in range(-(-size // RECORD_BYTES)):
        cipher.decrypt(NONCE, cipher.encrypt(NONCE, record, None), None)
    return (time.monotonic() - began_s) / (os.cpu_count() or 1)


def _give_and_take(connection: socket.socket, body: bytes) -> None:
    connection.sendall(body)
    _take(connection, len(body))


def _take_and_give(connection: socket.socket, body: bytes) -> None:
    _take(connection, len(body))
    connection.sendall(body)


def _take(connection: socket.socket, size: int) -> None:
    """Read so many bytes. Raises `ConnectionError` where there are fewer."""
    room = memoryview(bytearray(size))
    while room:
        count = connection.recv_into(room)
        if count == 0:
            raise ConnectionError(f"{len(room)} of {size} bytes are missing")
        room = room[count:]
