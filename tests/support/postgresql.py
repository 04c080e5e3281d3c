"""A PostgreSQL server of our own for as long as the tests of one process last, and an empty schema for each store.

It runs as another user where the tests run as root, which PostgreSQL refuses; on a socket in its own folder alone; and
without waiting for the disk, since no test cuts its power. Debian's package `postgresql` has it.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from fedgate.config.settings.database import SCHEME, DatabaseUrl
from fedgate.firmware_sim import children
from tests.support.waiting import PATIENCE_S, until

INSTALLED = Path("/usr/lib/postgresql")
USERS = ("postgres", "nobody")
DATABASE = "fedgate"
QUICK = ("fsync=off", "synchronous_commit=on", "full_page_writes=off", "shared_buffers=16MB", "max_connections=40")
_numbers = itertools.count(1)


class Server:
    """A server that runs, and the folder of its socket."""

    def __init__(self, folder: Path, user: str, pid: int) -> None:
        self._folder, self._user, self.pid = folder, user, pid

    def url(self, schema: str = "public", user: str | None = None) -> DatabaseUrl:
        """Return the URL of a schema."""
        query = f"host={self._folder}&options=-csearch_path%3D{schema}"
        return DatabaseUrl(f"{SCHEME}://{user or self._user}@/{DATABASE}?{query}")

    def new_schema(self) -> DatabaseUrl:
        """Make an empty schema and return its URL."""
        schema = f"test_{next(_numbers)}"
        self.execute(f"CREATE SCHEMA {schema}")
        return self.url(schema)

    def end_sessions(self, program: str) -> None:
        """End all sessions of a program, as an operator does or a server that is restarted."""
        self.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '{program}%'"  # noqa: S608 - names of our own
        )

    def execute(self, statement: str, database: str = DATABASE) -> list[tuple[object, ...]]:
        """Carry out a statement as the owner of the server and return its rows."""
        with psycopg.connect(
            host=str(self._folder), user=self._user, dbname=database, autocommit=True, application_name="test"
        ) as db:
            found = db.execute(statement.encode())
            return found.fetchall() if found.description else []


def programs() -> Path:
    """Return the folder of the newest PostgreSQL that is installed; a test fails where there is none."""
    found = sorted(INSTALLED.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        pytest.fail("this test needs PostgreSQL: sudo apt-get install postgresql")
    return found[-1].parent


@contextmanager
def running_server() -> Iterator[Server]:
    """Run a server until the end."""
    with tempfile.TemporaryDirectory(prefix="fedgate-", dir="/tmp") as name:  # a socket needs a short path
        folder, me = Path(name), pwd.getpwuid(os.geteuid())
        known = {one.pw_name: one for one in pwd.getpwall()}
        user = me if os.geteuid() else next(known[one] for one in USERS if one in known)
        os.chown(folder, user.pw_uid, user.pw_gid)
        options = {} if user == me else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        data, bin_folder = folder / "data", programs()
        made: list[str | Path] = [
            bin_folder / "initdb",
            "-D",
            data,
            "-U",
            user.pw_name,
            "-A",
            "trust",
            "-N",
            "--locale=C.UTF-8",
        ]
        done = children.run(made, PATIENCE_S, cwd="/", text=True, **options)
        assert done.returncode == 0, done.stderr
        flags = [flag for one in QUICK for flag in ("-c", one)]
        own_socket: list[str | Path] = ["-k", folder, "-c", "listen_addresses="]
        command = [bin_folder / "postgres", "-D", data, *own_socket, *flags]
        with (folder / "log").open("wb") as log:
            process = children.start(command, cwd="/", stdout=log, stderr=log, **options)
        server = Server(folder, user.pw_name, process.pid)
        try:
            until(lambda: _answers(server), (folder / "log").read_text)
            server.execute(f"CREATE DATABASE {DATABASE}", "postgres")
            yield server
        finally:
            process.send_signal(signal.SIGQUIT)  # end at once: nothing of it is wanted any more
            children.wait_for_end(process, PATIENCE_S)
            shutil.rmtree(data)


def _answers(server: Server) -> bool:
    try:
        return bool(server.execute("SELECT 1", "postgres"))
    except psycopg.OperationalError:
        return False
