"""Starts Mosquitto under systemd and says for it that it works: it says itself that it began (where it was built so),
and never that it goes on.

    python -m fedgate.cloud_aggregator.runtime.broker_watch mosquitto.conf

This process becomes Mosquitto, so signals, exit code and number are the broker's own. A child of it stays behind and
asks the broker, over one connection, for an answer (PINGREQ); each answer is passed on. Mosquitto is one loop, so one
that answers works for all. The child loads nothing beside the standard library.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import sys
import time
from contextlib import suppress
from pathlib import Path

from fedgate.config.runtime.supervisor import Supervisor

PROGRAM = "/usr/sbin/mosquitto"
NAME = b"broker.watchdog"  # client id
ANSWER_S = 20.0  # within which the broker has to answer, or in half of the time that systemd waits
BEGIN_S = 0.5  # between two attempts while it starts
PAUSE_S = 30.0  # between two questions where systemd does not say how often it wants to hear
PINGREQ = b"\xc0\x00"
SETTINGS = ("listener", "certfile", "keyfile")


class Question:
    """The connection over which the broker is asked."""

    def __init__(self, conf: Path, answer_s: float = ANSWER_S) -> None:
        held, self._answer_s = read_settings(conf), answer_s
        port, *host = held["listener"]
        self._address = (host[0] if host and host[0] not in ("0.0.0.0", "::") else "localhost", int(port))  # noqa: S104 - compared, not bound
        self._own = (held["certfile"][0], held["keyfile"][0]) if "certfile" in held else None
        self._line: socket.socket | None = None

    def is_answered(self) -> bool:
        """Ask, and tell whether the broker answers; any answer will do, a refusal too: who refuses is at work."""
        try:
            return self._ask()
        except ssl.SSLError:
            is_answer = True
        except OSError:  # nobody listens, nothing came in time, or the connection broke
            is_answer = False
        self._close()
        return is_answer

    def _ask(self) -> bool:
        if self._line is None:
            self._line = self._connect()
        else:
            self._line.sendall(PINGREQ)
        if not self._line.recv(64):  # it ended the connection, as it does with too many
            self._close()
        return True

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def _connect(self) -> socket.socket:
        """Return a connection on which the CONNECT has been said."""
        line: socket.socket = socket.create_connection(self._address, self._answer_s)
        if self._own is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            # Nothing is told it, and a certificate that expired must not look like a broker that hangs.
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with suppress(OSError, ssl.SSLError):  # then without: it answers all the same
                context.load_cert_chain(*self._own)
            line = context.wrap_socket(line)
        packet = b"\x00\x04MQTT\x04\x02\x00\x00" + len(NAME).to_bytes(2) + NAME
        line.sendall(b"\x10" + bytes([len(packet)]) + packet)
        return line


def read_settings(conf: Path) -> dict[str, list[str]]:
    """Return the words behind the first `listener` and the files of its certificate; raises `ValueError`."""
    lines = (line.split() for line in conf.read_text(encoding="utf-8").splitlines())
    held: dict[str, list[str]] = {}
    for key, *words in (line for line in lines if line and line[0] in SETTINGS):
        held.setdefault(key, words)
    if not held.get("listener") or not held["listener"][0].isdecimal():
        raise ValueError(f"{conf}: expected a line 'listener PORT'")
    return held


def watch(question: Question, supervisor: Supervisor, broker: int) -> None:
    """Ask the broker, whose process has this number, for as long as it is there, and pass on that it answers."""
    was_found = False
    while os.getppid() == broker:
        if question.is_answered():
            supervisor.report_work()
            was_found = True
        time.sleep(min(supervisor.pause_s, PAUSE_S) if was_found else BEGIN_S)


def main(argv: list[str] | None = None) -> int:
    """Become the broker, with a child that watches it."""
    parser = argparse.ArgumentParser(
        prog="python -m fedgate.cloud_aggregator.runtime.broker_watch",
        description="Start Mosquitto, and tell systemd that it works for as long as it answers.",
    )
    parser.add_argument("conf", type=Path, metavar="FILE", help="mosquitto.conf")
    parser.add_argument("--program", default=PROGRAM, help=f"default: {PROGRAM}")
    arguments = parser.parse_args(argv)
    supervisor = Supervisor()
    try:
        question = Question(arguments.conf, min(ANSWER_S, 2 * supervisor.pause_s))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"broker_watch: {error}\n")
        return 2
    broker = os.getpid()
    if os.fork() == 0:
        watch(question, supervisor, broker)
        os._exit(0)
    # Or a Mosquitto that was built with it says that it began, before anybody has had an answer.
    environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    try:
        os.execve(arguments.program, [arguments.program, "-c", str(arguments.conf)], environment)  # noqa: S606 - no shell is meant
    except OSError as error:
        sys.stderr.write(f"broker_watch: {arguments.program}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
