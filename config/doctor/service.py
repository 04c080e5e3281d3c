"""What the doctors of both services look at in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from fedgate.config.doctor import broker, host, network, report
from fedgate.config.doctor.broker import Trial
from fedgate.config.doctor.report import Finding


def machine(file: Path, store: Path | None, needed_bytes: int, secrets: Iterable[Path | None]) -> Iterator[Finding]:
    """Yield how the clock is, the disk below the store, and who can read what is secret; `file` has the settings. A
    store that is no file here is None: its disk is its server's.
    """
    code = Path(report.__file__)
    yield from host.clock_here([file, code] if store is None else [file, store, code])
    if store is not None:
        yield from host.disk(store, needed_bytes)
        if store.parent.is_dir():
            yield from host.wear(host.mount_of(store.parent.resolve()).device)
    yield from host.check_secrets([*secrets, store])


def check_way_to_broker(trial: Trial, name: str, renewal: str, until_s: float) -> Iterator[Finding]:
    """Yield how our certificate is, of which `name` is the holder and `renewal` the remedy, and how the broker is."""
    if trial.broker.ca_file is not None:
        yield from network.check_certificates(trial.broker, name, renewal)
    found, is_there = network.reach(trial.broker)
    yield from found
    if is_there:
        yield from broker.examine(trial, until_s)
