"""Federated algorithms by name: a factory takes the number of features and the settings and returns an `Algorithm`.

The agent needs the records and not the algorithms, which its training child loads; so they are loaded when asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgate.models.federated.registry import ALGORITHMS, COMMON_SETTINGS, build

__all__ = ["ALGORITHMS", "COMMON_SETTINGS", "build"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("fedgate.models.federated.registry"), name)
