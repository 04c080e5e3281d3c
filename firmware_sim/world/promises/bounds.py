"""What one gateway may cost a site in a simulated world, in memory, disk and time; and what the operator is told.

The operator's own commands are asked, on the store as it was left.
"""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import BaseModel

from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.state import State
from fedgate.cloud_aggregator.storage.sqlite import CHECKPOINT_PAGES, PAGE_BYTES
from fedgate.config.protocol.messages import CONTROL
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.firmware_sim.demo.stage import toml

COMMANDS = (
    ("status",),
    ("gateways", "list"),
    ("models",),
    ("alarms",),
    ("rounds",),
    ("losses",),
    ("orders",),
    ("samples",),
)

# In a world of this length honest gateways take up to 30 kB of memory and 3 MB of disk, with a hostile one ten times
# and twice that.
HELD_BYTES_MAX, DISK_BYTES_MAX = 4 * 2**20, 16 * 2**20
LOG_BYTES_MAX = 2 * CHECKPOINT_PAGES * PAGE_BYTES
STEP_S = 5.0  # of a processor, for what takes milliseconds


class _StandstillError(BaseException):  # no service catches it
    """A step took too long."""


def _stands_still(_number: int, _frame: FrameType | None) -> None:
    raise _StandstillError


@contextmanager
def bounded_step() -> Iterator[None]:
    """Let a step take `STEP_S` of a processor and no more; raises `RuntimeError` where it does."""
    before = signal.signal(signal.SIGVTALRM, _stands_still)
    signal.setitimer(signal.ITIMER_VIRTUAL, STEP_S)
    try:
        yield
    except _StandstillError:
        raise RuntimeError(f"a step of the aggregator took more than {STEP_S:g} s of a processor") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def audit(state: State | None, store: Path, violate: Callable[[str], None]) -> dict[str, int]:
    """See that nobody makes the aggregator hold or store more than a bound; return what it does."""
    found = {"held_bytes": 0 if state is None else held_bytes(state), "disk_bytes": disk_bytes(store)}
    for (name, size), most in zip(found.items(), (HELD_BYTES_MAX, DISK_BYTES_MAX), strict=True):
        if size > most:
            violate(f"{name} of the aggregator are {size}, {most} at most")
    return found


def held_bytes(state: State) -> int:
    """Return about how many bytes the aggregator holds of what gateways have said."""
    rounds, releases, seen = state.rounds, state.releases, set[int | str]()
    held = (
        *(state.access, state.alarms, state.failures, state.dropped, state.logged),
        *(rounds.uploads.incoming, rounds.held, releases.fetched, releases.rollout, state.fetches),
    )
    return sum(_size(one, seen) for one in held)


def _size(value: Any, seen: set[int | str]) -> int:
    key = value if isinstance(value, str) else id(value)  # which equal texts are one object hangs on pydantic's cache
    if key in seen:
        return 0
    seen.add(key)
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = [part for item in value.items() for part in item]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif isinstance(value, BaseModel):
        parts = value.__dict__.values()
    elif is_dataclass(value):
        parts = [getattr(value, one.name) for one in fields(value)]
    return sys.getsizeof(value) + sum(_size(part, seen) for part in parts)


def disk_bytes(store: Path) -> int:
    """Return how many bytes the files of a store have, of its log those beyond what it may have: it is as long as the
    commits since the last checkpoint, whatever they hold.
    """
    sizes = {file.name: file.stat().st_size for file in store.parent.glob(f"{store.name}*")}
    log = sizes.pop(f"{store.name}-wal", 0)
    return sum(sizes.values()) + max(log - LOG_BYTES_MAX, 0)


def ask(settings: AggregatorSettings, folder: Path, violate: Callable[[str], None]) -> None:
    """See that the operator's commands answer on the store of an aggregator, for people and for machines."""
    file = folder / "aggregator.toml"
    tables = json.loads(settings.model_dump_json(exclude_defaults=True))
    file.write_text(toml(tables), encoding="utf-8")
    for command in COMMANDS:
        for more in ((), ("--json",)):
            words, output, complained = [*command, "-c", str(file), *more], io.StringIO(), io.StringIO()
            with redirect_stdout(output), redirect_stderr(complained):
                code = main(words)
            name = " ".join((*command, *more))
            if code != 0:
                violate(f"cloud-aggregator {name} ends with {code}: {complained.getvalue()[:300]}")
            if more:
                json.loads(output.getvalue())
            elif found := CONTROL.search(output.getvalue().replace("\n", "")):
                violate(f"cloud-aggregator {name} prints {found[0]!r}")
