"""Names that are good again while a connection of the device that had them before may still stand.

The broker asks for a certificate only at the beginning of a connection, tells nobody which client ids a device has
connected under, and goes by the name alone. So who connected under an id of his own choice before his certificate
ended would speak as the device that has the name after him. Such a name stays denied until the broker's process is
another than the one that ran when the certificate ended: no connection outlives that, and the next one asks.

What was seen is a file, since the aggregator may be started anew in between. Where it is lost, names stay denied until
the next restart of the broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.pki.authority import OUTLIVED
from fedgate.config.identity import pki
from fedgate.config.identity.pki import PRIVATE_MODE, IdentityError
from fedgate.config.settings.identity import Identity

OVER = "over"  # since then another process of the broker was seen
UNSEEN = "unseen"  # nobody told which process ran


class Quarantine:
    """Which process of the broker ran when each certificate ended."""

    def __init__(self, path: Path) -> None:
        """Take up what is in the file; raises `IdentityError` where it is damaged."""
        self._path = path
        try:
            self._seen: dict[str, str] = json.loads(path.read_bytes()) if path.exists() else {}
        except ValueError as error:
            raise IdentityError(f"{path}: damaged ({error}); remove it, and restart the broker") from None

    def list_held(
        self, ended: Iterable[tuple[str, int]], outlived: Iterable[tuple[str, str]], process: str | None
    ) -> frozenset[str]:
        """Return the names, of those with ended certificates that are good again, which must stay denied.

        `ended` are certificates that the broker takes no more, `outlived` those with a name that is good, by serial;
        `process` is what runs, see `broker_process.find_running`.
        """
        self._keep({serial: _look_again(self._seen.get(serial), process) for serial, _ in ended})
        return self.list_denied(outlived)

    def list_denied(self, outlived: Iterable[tuple[str, str]]) -> frozenset[str]:
        """Return the names that stay denied, by the last look at the broker."""
        return frozenset(name for serial, name in outlived if self._seen.get(serial) != OVER)

    def release(self) -> None:
        """The broker was started anew, as whoever did it says."""
        self._keep(dict.fromkeys(self._seen, OVER))

    def _keep(self, seen: dict[str, str]) -> None:
        if seen != self._seen:
            pki.write(self._path, json.dumps(seen).encode(), PRIVATE_MODE)
            self._seen = seen


def list_denied_names(spec: Identity | None, registry: Registry) -> frozenset[str]:
    """Return the names of a site that its broker denies though they are good; raises `IdentityError`, `OSError`."""
    return frozenset() if spec is None else Quarantine(spec.folder / OUTLIVED).list_denied(registry.list_outlived())


def _look_again(known: str | None, process: str | None) -> str:
    """Return what is known of a certificate, with one more look at the broker."""
    if known in (None, UNSEEN):
        return UNSEEN if process is None else process
    return OVER if process and process != known else known or ""
