"""Goal: what holds secrets is its owner's alone from the first moment, whatever other threads make at that time.

Method: the mask of the process lets everything through, and many threads make stores and sockets at once. A process has
one mask: who sets it for a moment sets it for all threads, and two who do so at once may leave the wrong one behind.
"""

from __future__ import annotations

import os
import socketserver
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.storage.store import Store as AggregatorStore
from fedgate.config.runtime.local_socket import LocalSocket
from fedgate.gateway_agent.storage.files import open_database

AT_ONCE, ROUNDS = 4, 20


def make_gateways_store(path: Path) -> None:
    with closing(open_database(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        see_private(path.parent)


def make_aggregators_store(path: Path) -> None:
    with closing(AggregatorStore(path)):
        see_private(path.parent)


def make_socket(path: Path) -> None:
    server = LocalSocket(path, socketserver.StreamRequestHandler)
    see_private(path.parent)
    server.stop()


def see_private(folder: Path) -> None:
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name


@pytest.mark.parametrize("make", [make_gateways_store, make_aggregators_store, make_socket])
def test_threads_that_make_private_files_at_once_make_no_other(tmp_path: Path, make: Callable[[Path], None]) -> None:
    folders = [tmp_path / str(number) for number in range(AT_ONCE * ROUNDS)]
    for folder in folders:
        folder.mkdir()
    before = os.umask(0)
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda folder: make(folder / "made"), folders))
    finally:
        left = os.umask(before)
    assert left == 0
