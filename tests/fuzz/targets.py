"""Every target by name, built when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tests.fuzz import file_targets, machine_targets, wire_targets
from tests.fuzz.target import Target


@cache
def _built() -> dict[str, Target]:
    return wire_targets.targets() | file_targets.targets()


NAMES: tuple[str, ...] = (*_built(), *machine_targets.targets())


@cache
def target(name: str) -> Target:
    """Return the target of a name."""
    late: Callable[[], Target] | None = machine_targets.targets().get(name)
    return late() if late is not None else _built()[name]
