"""What a page is, and what all of them ask of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web.pages.alarm_list import AlarmList
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.config.web.charts import Facts


class NotThereError(Exception):
    """What an address names is not there; the text says what."""


@dataclass
class Context:
    """What a page may ask of; used by the thread that reads the store alone."""

    settings: AggregatorSettings
    store: Store
    now_ns: int
    alarms: AlarmList = field(default_factory=AlarmList)
    # By gateway: the hash of its status, and what is shown of that.
    statuses: dict[str, tuple[int, Facts]] = field(default_factory=dict)


class Page(NamedTuple):
    """A page: its address, its template, and what it shows by the parts of its address and its query."""

    path: str
    template: str
    title: str
    read: Callable[[Context, Mapping[str, str]], Facts]


def check_state(state: str, known: Collection[str]) -> None:
    """Raise `NotThereError` for a state that there is not."""
    if state not in known:
        raise NotThereError(f"there is no state {state[:64]}; expected {', '.join(known)}")


def read_first(address: Mapping[str, str]) -> int:
    """Return from which of a list on a page begins: `first` of its query, 0 where that is no number."""
    text = address.get("first", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


def list_places(count: int, first: int, most: int) -> Facts:
    """Return where in a list a page of so many begins, and where the next one and the one before would."""
    after = first + most
    before = max(first - most, 0) if first else None
    return {"count": count, "first": first, "next": after if after < count else None, "before": before}
