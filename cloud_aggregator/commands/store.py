"""The store of the service as commands use it: read, or given an order that the service carries out."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedgate.config.runtime import cli
from fedgate.config.settings.database import DatabaseUrl
from fedgate.config.settings.settings import SiteSettings, load

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.storage.store import Store

WAIT_S = 10.0
LOOK_S = 0.1


class OrderAnswer(NamedTuple):
    """What the service answered to an order, as it is shown; an order that still waits is no failure."""

    order: int | None  # None: none was given
    is_done: bool
    text: str


def open_store(place: Path | DatabaseUrl) -> closing[Store]:
    """Return a store that there is, to be read in a `with`; raises `StoreError`."""
    from fedgate.cloud_aggregator.storage.store import Store

    return closing(Store(place, create=False))


def open_stated(arguments: argparse.Namespace) -> closing[Store]:
    """Return the store that the settings of a command name; raises `StoreError`."""
    return open_store(load(arguments.config, SiteSettings).aggregator.store)


def place_order(
    arguments: argparse.Namespace, kind: str, body: dict[str, Any], check: Callable[[Store], None] | None = None
) -> OrderAnswer:
    """Give an order to the service with these settings and wait for its answer.

    A service that does not run carries it out when it is started. Raises `NotDoneError` where it refuses, and nothing
    is ordered where `check` raises by what the store holds; it is not asked while others wait, which may change that.
    """
    with open_stated(arguments) as store:
        if check is not None and not store.read_orders():
            check(store)
        number = store.order(kind, body)
        until_s = time.monotonic() + WAIT_S
        while (answer := store.answer(number)) is None and time.monotonic() < until_s:
            time.sleep(LOOK_S)
    later = f"order {number} waits: the service takes it as soon as it runs, and 'cloud-aggregator orders' tells"
    text, problem = answer or (later, "")
    if problem:
        raise cli.NotDoneError(problem, OrderAnswer(number, False, problem)._asdict())
    return OrderAnswer(number, answer is not None, text)


def order(arguments: argparse.Namespace, kind: str, body: dict[str, Any], check: Callable[[Store], None]) -> None:
    """Give an order to the service and print its answer; raises as `place_order` does."""
    answer = place_order(arguments, kind, body, check)
    cli.show(arguments, answer._asdict(), answer.text)
