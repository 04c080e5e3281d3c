"""What the aggregator has freed goes back to the machine, also from below what is still held."""

from __future__ import annotations

import platform

import psutil
import pytest

from fedgate.cloud_aggregator.runtime import freed_memory

BLOCK_BYTES, BLOCKS = 64 * 1024, 1024  # too small to be pages of their own


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="its allocator alone keeps what is freed")
def test_what_lies_below_a_block_that_is_held_is_given_back() -> None:
    blocks = [bytearray(BLOCK_BYTES) for _ in range(BLOCKS)]
    held = blocks[::16]
    full = psutil.Process().memory_info().rss
    blocks.clear()
    freed_memory.give_back()
    assert full - psutil.Process().memory_info().rss > BLOCKS * BLOCK_BYTES // 2
    assert len(held) == BLOCKS // 16
