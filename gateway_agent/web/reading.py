"""The agent as its page sees it: what it says at its socket, and what it has stored. Nothing is written."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedgate.config.protocol import alarm_book
from fedgate.config.protocol.messages import Alarm
from fedgate.config.runtime import store_lock
from fedgate.config.runtime.sqlite import StoreError
from fedgate.config.settings.settings import GatewaySettings
from fedgate.config.settings.web import GATEWAY_SOCKET
from fedgate.gateway_agent.monitor.monitor import ALARMS
from fedgate.gateway_agent.snapshot import Snapshot
from fedgate.gateway_agent.storage import summary
from fedgate.gateway_agent.storage.reading import open_store

WITHIN_S = 5.0
NO_ALARMS = b'{"active": [], "raised": 0}'
SNAPSHOT_BYTES_MAX = 4 * 1024 * 1024
FRESH_S = 0.5  # within which who asks again gets the same
STORED_FRESH_S = 10.0  # of what is stored, while the agent answers
# What changes all the time and tells nobody anything: a page is not renewed for it.
RESTLESS = {"t_ns", "monotonic_ns", "bytes_sent", "bytes_received", "flash_bytes_written", "sources", "trail"}


@dataclass(frozen=True)
class Stored:
    """What the store says; `problem` why it says nothing."""

    summary: dict[str, Any] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    alarms: tuple[Alarm, ...] = ()  # that stood at the latest commit
    problem: str = ""


@dataclass(frozen=True)
class View:
    """What a page shows: of the agent now, where it runs and answers, and what is stored."""

    snapshot: Snapshot | None
    stored: Stored
    is_running: bool | None  # None: that cannot be seen from here


class Reader:
    """Asks the agent and reads its store, each only when somebody looks and it may have changed."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings, self._socket = settings, settings.gateway.store.parent / GATEWAY_SOCKET
        self._asking = asyncio.Lock()
        self._snapshot: Snapshot | None = None
        self._asked_s = float("-inf")
        self._stored, self._mark, self._read_s = Stored(), "", float("-inf")
        self._thread = ThreadPoolExecutor(1, "store")

    async def read(self) -> View:
        """Return what is known now."""
        snapshot = await self.ask()
        loop = asyncio.get_running_loop()
        stored = await loop.run_in_executor(self._thread, self._read_store, snapshot is not None)
        return View(snapshot, stored, snapshot is not None or is_held(self._settings.gateway.store))

    async def ask(self) -> Snapshot | None:
        """Return what the agent says, None where it does not run or does not answer."""
        async with self._asking:  # of many who look at once one asks
            if time.monotonic() - self._asked_s > FRESH_S:
                self._snapshot = await self._ask()
                self._asked_s = time.monotonic()
            return self._snapshot

    async def _ask(self) -> Snapshot | None:
        try:
            async with asyncio.timeout(WITHIN_S):
                reader, writer = await asyncio.open_unix_connection(self._socket)
                try:
                    parts, left = list[bytes](), SNAPSHOT_BYTES_MAX
                    while left > 0 and (part := await reader.read(left)):
                        parts.append(part)
                        left -= len(part)
                finally:
                    writer.close()
            return Snapshot.model_validate_json(b"".join(parts))
        except (OSError, TimeoutError, ValidationError):  # of an agent of another version, too
            return None

    async def read_change(self) -> str:
        """Return what is another text once a page would show something else."""
        snapshot = await self.ask()
        if snapshot is None:
            return f"stored-{self._read_mark()}"
        quiet = snapshot.model_dump(
            mode="json", exclude={"status": RESTLESS, "sources": {"__all__": {"age_s"}}, "evidence": True}
        )
        return hashlib.sha256(json.dumps(quiet).encode()).hexdigest()[:16]

    def close(self) -> None:
        """Read nothing any more."""
        self._thread.shutdown()

    def _read_store(self, is_live: bool) -> Stored:
        """Return what is stored, read anew where the file or its log has changed; while the agent itself says how it
        is, not at each of its commits.
        """
        is_new_enough = is_live and time.monotonic() - self._read_s < STORED_FRESH_S
        if not is_new_enough and (mark := self._read_mark()) != self._mark:
            self._stored, self._mark, self._read_s = read_store(self._settings), mark, time.monotonic()
        return self._stored

    def _read_mark(self) -> str:
        path, found = self._settings.gateway.store, list[int]()
        for one in (path, path.with_name(f"{path.name}-wal")):
            found += _read_change_of(one)
        return f"{'-'.join(map(str, found))}-{is_held(path)}"


def is_held(store: Path) -> bool | None:
    """Tell whether an agent runs on a store; None where its lock may not be looked at."""
    try:
        return store_lock.find_holder(store) is not None
    except (OSError, StoreError):
        return None


def _read_change_of(path: Path) -> list[int]:
    try:
        known = path.stat()
    except OSError:
        return [0]
    return [known.st_ino, known.st_mtime_ns, known.st_size]


def read_store(settings: GatewaySettings) -> Stored:
    """Return what is stored; where it cannot be read, why."""
    try:
        with open_store(settings) as store:
            found = store.look()  # once: of a full store it takes as much memory
            blobs = found.stored.blobs
            return Stored(
                summary.summarise(settings, store, found),
                summary.describe_models(blobs, settings),
                tuple(alarm_book.restore(json.loads(blobs.get(ALARMS, NO_ALARMS))).active.values()),
            )
    except (StoreError, OSError) as error:
        return Stored(problem=str(error))
