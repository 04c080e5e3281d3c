"""Goal: whoever shows a page comes to know of each change, also of one that is over before anybody looked again.

Method: what is watched changes between two looks and back, while somebody listens and a page is made.
"""

from __future__ import annotations

import asyncio

from fedgate.config.web.changes import Changes

WITHIN_S = 60.0


class Watched:
    """What a page shows, as it is now."""

    now = ""

    async def read(self) -> str:
        return self.now


def test_what_a_page_showed_between_two_looks_is_a_change_and_so_is_its_end() -> None:
    async def live() -> None:
        watched = Watched()
        changes = Changes(watched.read)
        watched.now = "runs"
        before = await changes.read()
        listens = asyncio.create_task(changes.wait(before, WITHIN_S))
        await asyncio.sleep(0)
        watched.now = "ended"
        shown = await changes.read()
        assert await listens == shown != before
        watched.now = "runs"
        assert await changes.read() not in ("", before, shown)

    asyncio.run(live())


def test_a_store_that_cannot_be_read_for_a_while_has_not_changed() -> None:
    async def live() -> list[str]:
        watched, seen = Watched(), list[str]()
        changes = Changes(watched.read)
        for watched.now in ("", "read", "", "read"):
            seen.append(await changes.read())
        return seen

    before, first, meanwhile, after = asyncio.run(live())
    assert before == meanwhile == "" != first == after
