"""The agent's store as others read it, also while the agent runs."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from fedgate.config.runtime import store_lock

if TYPE_CHECKING:
    from fedgate.config.settings.settings import GatewaySettings
    from fedgate.gateway_agent.storage.store import Store


def open_store(settings: GatewaySettings) -> closing[Store]:
    """Return the store, to be read in a `with`; raises `FileNotFoundError` where there is none, and `StoreError`."""
    from fedgate.gateway_agent.storage.store import Store

    path = settings.gateway.store
    store_lock.check_is_file(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no store yet; the agent has not run here")
    return closing(Store(path, read_only=True))
