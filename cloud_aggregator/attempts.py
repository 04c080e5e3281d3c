"""The one place where any error is caught: what a message or an order makes fail stops that one alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def attempt(act: Callable[[], T]) -> T | Exception:
    """Return what `act` returns, or its error; errors of the store and of memory are nobody's and are raised."""
    try:
        return act()
    except (OSError, MemoryError):
        raise
    except Exception as error:
        return error
