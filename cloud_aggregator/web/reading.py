"""The store as the page reads it: one connection that can write nothing, used by one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from fedgate.cloud_aggregator.storage.store import Store, StoreError
from fedgate.config.settings.database import DatabaseUrl

Result = TypeVar("Result")


class Reader:
    """The store, opened when it is first read, and anew after an error or when another file has taken its place."""

    def __init__(self, place: Path | DatabaseUrl) -> None:
        self._place = place
        self._store: Store | None = None
        self.openings = 0  # how often the store was opened
        self._thread = ThreadPoolExecutor(1, "store")

    async def read(self, ask: Callable[[Store], Result]) -> Result:
        """Return what `ask` finds; raises `StoreError`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, ask)

    async def read_change(self) -> str:
        """Return what is another text once something in the store has changed; empty while it cannot be read."""
        try:
            change = await self.read(lambda store: store.read_change())
        except StoreError:
            return ""
        return f"{self.openings}-{change}"

    def close(self) -> None:
        """Close the store, once what is under way is done."""
        self._thread.submit(self._close)
        self._thread.shutdown()

    def _read(self, ask: Callable[[Store], Result]) -> Result:
        if self._store is not None and self._store.is_replaced():
            self._close()
        if self._store is None:
            self._store = Store(self._place, is_read_only=True)
            self.openings += 1
        try:
            return ask(self._store)
        except StoreError:
            self._close()
            raise

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
