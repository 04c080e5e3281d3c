"""The file of clips: whole clips or none, whenever the power fails; never larger than its bound; the oldest goes first.

Method: random clips, the last of them cut at any byte, in the order in which it was written or another.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.gateway_agent.samples.ring_layout import SLOT_BYTES, count_written_bytes
from fedgate.gateway_agent.storage.sample_ring import RingError, SampleRing
from tests.support.calls import count_calls

SLOTS = 9
SIZE = SLOTS * SLOT_BYTES
LENGTHS = st.lists(st.integers(0, 3 * SLOT_BYTES), min_size=1, max_size=12)


def body(number: int, length: int) -> bytes:
    return bytes([number % 251 + 1]) * length


def opened(folder: str) -> SampleRing:
    return SampleRing(Path(folder) / "clips", SIZE)


def filled(folder: str, lengths: list[int]) -> dict[str, bytes]:
    ring, kept = opened(folder), dict[str, bytes]()
    for number, length in enumerate(lengths):
        kept[f"a{number}"] = body(number, length)
        ring.keep(f"a{number}", kept[f"a{number}"])
    ring.close()
    return kept


@given(LENGTHS)
@settings(deadline=None)
def test_what_is_there_is_whole_and_the_newest_and_the_file_keeps_its_bound(lengths: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept, ring = filled(folder, lengths), opened(folder)
        names = ring.list_alarms()
        assert names == list(kept)[len(kept) - len(names) :] and names  # the oldest have gone
        assert all(ring.read(name) == kept[name] for name in names)
        assert all(ring.read(name) is None for name in kept.keys() - set(names))
        assert ring.path.stat().st_size <= SIZE and ring.path.stat().st_mode & 0o77 == 0
        used = sum(-(-(len(kept[name]) + 60) // SLOT_BYTES) for name in names)
        gone = list(kept)[: len(kept) - len(names)]
        assert not gone or used + -(-(len(kept[gone[-1]]) + 60) // SLOT_BYTES) > SLOTS - 1  # none has gone too early
        ring.close()


@pytest.mark.soak
@given(LENGTHS, st.integers(0, 3 * SLOT_BYTES), st.integers(0, SIZE), st.booleans())
@settings(deadline=None)
def test_a_power_cut_harms_no_clip_but_the_one_under_way_and_those_it_replaces(
    lengths: list[int], last: int, share: int, is_first: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = filled(folder, lengths)
        path, ring = Path(folder) / "clips", opened(folder)
        before = path.read_bytes().ljust(SIZE, b"\0")
        known = ring.list_alarms()
        ring.keep("last", body(200, last))
        after, survivors = path.read_bytes().ljust(SIZE, b"\0"), [name for name in ring.list_alarms() if name != "last"]
        ring.close()
        changed = [place for place in range(SIZE) if before[place] != after[place]]
        cut = len(changed) * share // SIZE  # by a share: which bytes change depends on the random key
        reached = changed[:cut] if is_first else changed[cut:]  # a disk writes in an order of its own
        torn = bytearray(before)
        for place in reached:
            torn[place] = after[place]
        path.write_bytes(torn)
        ring = opened(folder)
        names = ring.list_alarms()
        assert [name for name in names if name != "last"][-len(survivors) or len(names) :] == survivors
        assert set(names) <= {*known, "last"}
        assert all(ring.read(name) == (kept | {"last": body(200, last)})[name] for name in names)
        ring.keep("next", b"goes on")
        ring.close()
        assert opened(folder).read("next") == b"goes on"


@given(st.binary(max_size=64), st.integers(0, 3 * SLOT_BYTES))
def test_a_file_that_is_not_ours_or_damaged_is_made_anew_or_read_as_far_as_it_is_whole(
    noise: bytes, place: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = filled(folder, [100, 5_000])
        path = Path(folder) / "clips"
        damaged = bytearray(path.read_bytes())
        damaged[place : place + len(noise)] = noise
        path.write_bytes(damaged)
        ring = opened(folder)
        assert all(ring.read(name) in (one, None) for name, one in kept.items())
        ring.keep("next", b"x")
        assert ring.read("next") == b"x"
        ring.close()


def test_a_body_that_looks_like_a_header_is_none(tmp_path: Path) -> None:
    """Sensors choose their samples."""
    filled(str(tmp_path), [5_000])
    raw = (tmp_path / "clips").read_bytes()
    forged = raw[SLOT_BYTES : 2 * SLOT_BYTES]
    ring = SampleRing(tmp_path / "other", SIZE)
    ring.keep("mine", bytes(SLOT_BYTES - 64) + forged * 2)
    ring.close()
    again = SampleRing(tmp_path / "other", SIZE)
    assert again.list_alarms() == ["mine"] and again.read("a0") is None


def test_a_clip_larger_than_the_file_is_refused_and_the_others_stay(tmp_path: Path) -> None:
    ring = opened(str(tmp_path))
    ring.keep("small", b"x")
    with pytest.raises(RingError, match="does not fit into 8 slots"):
        ring.keep("large", bytes(SIZE))
    assert ring.list_alarms() == ["small"]
    assert ring.written_bytes == 2 * SLOT_BYTES  # of the file and of the clip, which are in whole slots


@pytest.mark.soak
@given(st.text(min_size=1, max_size=64), st.integers(0, 3 * SLOT_BYTES))
def test_what_is_written_for_a_clip_is_known_before(alarm: str, length: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ring = opened(folder)
        ring.keep(alarm, b"")
        before = ring.written_bytes
        ring.keep(alarm, bytes(length))
        assert ring.written_bytes - before == count_written_bytes(alarm, length)
        assert ring._places[-1].slots * SLOT_BYTES == count_written_bytes(alarm, length)
        ring.close()


@pytest.mark.soak
def test_to_open_a_file_of_many_clips_takes_as_many_steps_as_there_are(tmp_path: Path) -> None:
    steps = []
    for count in (200, 800):
        ring = SampleRing(tmp_path / str(count), (count + 1) * SLOT_BYTES)
        for number in range(count):
            ring.keep(str(number), b"x")
        ring.close()
        again = SampleRing(ring.path, (count + 1) * SLOT_BYTES)
        steps.append(count_calls(again._open))
        assert len(again.list_alarms()) == count
        again.close()
    assert steps[1] < 5 * steps[0]


def test_another_size_in_the_settings_begins_the_file_anew(tmp_path: Path) -> None:
    filled(str(tmp_path), [100])
    other = SampleRing(tmp_path / "clips", 2 * SIZE)
    assert other.list_alarms() == []
    other.keep("b", b"y")
    assert other.read("b") == b"y"
