"""What is fuzzed, as one record, so that hypothesis and atheris throw their bytes at the same functions.

`declared` is the promise in a function's docstring: the errors by which it refuses. Everything else that escapes is a
crash, whatever it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

EXAMPLES = 120


class Target(NamedTuple):
    """A reader of bytes: what it is given to begin with, and how it may refuse what became of that."""

    take: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    examples: int = EXAMPLES  # of hypothesis in CI; fewer where one takes long


def attempt(target: Target, data: bytes) -> bool:
    """Return whether the bytes were taken; any error but the declared ones escapes."""
    try:
        target.take(data)
    except target.declared as error:
        assert str(error), f"{type(error).__name__} does not say why"
        return False
    return True
