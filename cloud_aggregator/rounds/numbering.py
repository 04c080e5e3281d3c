"""Numbers of trainings: an invitation to an earlier one than a gateway knows is refused there.

A broker hands out what it retained, also after it was restored from a backup; and an invitation that was signed once is
signed for ever. So each training has a higher number than those before it. The number is stored with the training;
seconds of the wall clock make it higher also where the store was lost, and what gateways tell where the clock is wrong.
"""

from __future__ import annotations

from fedgate.config.protocol.messages import LARGEST
from fedgate.models.time_units import NS


def number_training(now_ns: int, known: int = 0) -> int:
    """Return the number of a training that begins now, `known` being that of the one before it."""
    return max(now_ns // NS, increment(known))


def increment(number: int) -> int:
    """Return the number after this one. Beyond the highest there is none: then numbers order nothing any
    more, and invitations are taken as before there were any.
    """
    return min(number + 1, LARGEST)
