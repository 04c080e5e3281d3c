"""Settings that do not go together, or are none, as a table: what must not be, and the reason that an operator reads
(ours).
"""

from __future__ import annotations


def refuse(*wrongs: tuple[bool, str], error: type[ValueError] = ValueError) -> None:
    """Raise the error with the first reason whose condition holds: what was given, what was expected and what to do."""
    for is_so, reason in wrongs:
        if is_so:
            raise error(reason)
