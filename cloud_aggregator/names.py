"""Lists of gateways in the texts that people read."""

from __future__ import annotations

from collections.abc import Collection

NAMED = 5  # of a list; a site may have thousands


def list_first(names: Collection[str]) -> str:
    """Return the first few names, and whether there are others."""
    return ", ".join(list(names)[:NAMED]) + (" and others" if len(names) > NAMED else "")
