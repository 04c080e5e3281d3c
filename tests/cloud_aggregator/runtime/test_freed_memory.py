"""What the aggregator has freed goes back to the machine, also from below what is still held."""

from __future__ import annotations

import platform
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from fedgate.cloud_aggregator.pki import site_keys
from fedgate.cloud_aggregator.runtime import freed_memory
from fedgate.cloud_aggregator.runtime.app import Aggregator
from tests.support.sites import KEY, SITE, aggregator_settings, with_record

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


def test_it_is_given_back_once_a_round_was_closed_and_not_at_every_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_keys, "release_key", lambda *_: KEY)
    calls: list[int] = []
    monkeypatch.setattr(freed_memory, "give_back", lambda: calls.append(1))
    aggregator = Aggregator(aggregator_settings(aggregator={"site": SITE, "store": tmp_path / "a.db"}))
    with closing(aggregator.service):
        aggregator.tick()
        assert calls == []
        server = aggregator.service.state.rounds.server
        aggregator.service.state = with_record(
            aggregator.service.state, "rounds", server=server._replace(round_index=server.round_index + 1)
        )
        aggregator.tick()
        aggregator.tick()
    assert calls == [1]
