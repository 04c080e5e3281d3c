"""Every target by name, built when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tests.fuzz.file_targets import targets as of_files
from tests.fuzz.graph_targets import targets as of_graphs
from tests.fuzz.identity_targets import targets as of_identity
from tests.fuzz.machine_targets import targets as of_machines
from tests.fuzz.target import Target
from tests.fuzz.wire_targets import targets as of_wire


@cache
def _built() -> dict[str, Target]:
    return of_wire() | of_files() | of_graphs() | of_identity()


NAMES: tuple[str, ...] = (*_built(), *of_machines())


@cache
def target(name: str) -> Target:
    """Return the target of a name."""
    late: Callable[[], Target] | None = of_machines().get(name)
    return late() if late is not None else _built()[name]
