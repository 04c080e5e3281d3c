"""Memory that was freed, given back to the machine or used again.

Updates are megabytes, and glibc's allocator keeps what they leave behind: with 1,000 gateways 20 MiB. Set to give it
back at once, it costs page faults at every update, a quarter of the processor that a round takes.
"""

from __future__ import annotations

import ctypes

M_ARENA_MAX = -8  # of mallopt(3)


def give_back() -> None:
    """Have the allocator give back all pages in which nothing is; other C libraries keep none, and lack the call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def share_one_arena() -> None:
    """Have all threads of this process take memory from one place, so that what one has freed serves the others: two
    MiB less with the page of a large site. Call it before a second thread is started.
    """
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is not None:
        choose(M_ARENA_MAX, 1)
