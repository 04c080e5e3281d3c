"""What a model remembers from one window to the next, as the state of an echo state network; most remember nothing.

A memory belongs to an unbroken series of windows. A few missing windows it outlives, after more it begins anew; and
what a model says while its memory is fresh is not yet about the structure, so those scores are nobody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import ClockQuality
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.models.arrays import NEW_SERIES, Array, Arrays, Floats

Gaps = NDArray[np.int64]  # (n,) windows missing before each, NEW_SERIES where none is before it


class Model(Protocol):
    """A loaded model, as the pipeline sees it."""

    washout_rows: int  # windows after a beginning whose scores are not to be trusted
    max_gap_rows: int  # missing windows that the memory outlives

    def __call__(self, x: Array) -> Floats:
        """Return the scores (n,) of one series of windows (n, F) from its beginning."""

    def carried(self, x: Array, memory: Arrays) -> tuple[Floats, Arrays]:
        """Return the scores (n,) of windows (n, F) that follow on what the memory saw, and the memory after them."""


WATCHED = "watched"  # in what is stored beside a model's tensors, none of which has this name


class Memory(NamedTuple):
    """The memory of a series: the model's own tensors, how many windows made them, and the end of the last one."""

    tensors: Arrays
    rows: int
    last_ns: int | None


BLANK = Memory({}, 0, None)


def count_missing(memory_ns: int | None, end_ns: int | None, hop_s: float) -> int:
    """Return how many windows lie between two ends of windows; `NEW_SERIES` where time went backwards."""
    if memory_ns is None or end_ns is None:
        return 0
    between = round((end_ns - memory_ns) / (hop_s * 1e9)) - 1
    return between if between >= 0 else NEW_SERIES


def count_missing_rows(ends_ns: Sequence[int | None], hop_s: float) -> Gaps:
    """Return how many windows are missing before each of a series (n,), `NEW_SERIES` before the first."""
    between = [count_missing(before, end, hop_s) for before, end in pairwise(ends_ns)]
    return np.array([NEW_SERIES, *between][: len(ends_ns)], dtype=np.int64)


def take_in(model: Model, memory: Memory, seen: FeatureRow, hop_s: float) -> tuple[float, bool, Memory]:
    """Return the score of the next window, whether it can be trusted, and the memory after it."""
    before = _keep_over_gap(model, memory, seen.end_ns, hop_s)
    scores, tensors = model.carried(seen.row[None, :], before.tensors)
    rows = before.rows + 1
    return float(scores[0]), rows > model.washout_rows, Memory(tensors, rows, seen.end_ns)


def _keep_over_gap(model: Model, memory: Memory, end_ns: int | None, hop_s: float) -> Memory:
    """Return the memory with which a model meets the next window: a blank one after a gap that it does not outlive."""
    return memory if 0 <= count_missing(memory.last_ns, end_ns, hop_s) <= model.max_gap_rows else BLANK


def score_each(model: Model, memory: Memory, rows: Array, end_ns: int | None, hop_s: float) -> Floats:
    """Return the scores (n,) of windows (n, F), n >= 2, each as if it alone came next, at `end_ns`.

    A model without a memory takes them at once; to one with a memory several rows are a series, so it takes one by one.
    """
    before = _keep_over_gap(model, memory, end_ns, hop_s).tensors
    first, remembered = model.carried(rows[:1], before)
    others = [rows[place : place + 1] for place in range(1, len(rows))] if remembered else [rows[1:]]
    return np.concatenate([first, *(model.carried(each, before)[0] for each in others)])


def replay(model: Model, windows: Sequence[FeatureRow], hop_s: float) -> Memory:
    """Return the memory of a model that was shown these windows."""
    memory = BLANK
    for seen in windows:
        _, _, memory = take_in(model, memory, seen, hop_s)
    return memory


def score(model: Model, rows: Array, gaps: Gaps) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the scores (n,) of windows (n, F) with so many missing before each, and which can be trusted."""
    begins = np.flatnonzero((gaps < 0) | (gaps > model.max_gap_rows))
    series = np.split(np.arange(len(rows)), begins[begins > 0])
    scores = np.concatenate([model(rows[each]) for each in series])
    place = np.concatenate([np.arange(len(each)) for each in series])
    return scores, place >= model.washout_rows


class Owner(NamedTuple):
    """Whose memory it is: the model, by its digest, the clock by which its windows have their time, and the rules, by
    the digest of their settings.
    """

    model: str
    boot_id: str
    clock: ClockQuality
    rules: str = ""


def to_bytes(memory: Memory, watched: str, owner: Owner) -> bytes:
    """Return the memory of a model, and what the rules that judge it remember, as they are stored."""
    meta = {**owner._asdict(), "rows": memory.rows, "last_ns": memory.last_ns}
    return wire.encode(memory.tensors | {WATCHED: np.frombuffer(watched.encode(), np.uint8)}, meta)


def from_bytes(stored: bytes | None, owner: Owner) -> tuple[Memory, str]:
    """Return a stored memory and what the rules remembered; blank ones where there is none, where they are of another
    model, or where nobody knows how long ago it was: a clock that stood still while the power was gone makes days look
    like seconds.
    """
    if stored is None:
        return BLANK, ""
    tensors, meta = wire.decode(stored, size_max=len(stored))
    is_timed = meta["boot_id"] == owner.boot_id or meta["clock"] == owner.clock == "synchronised"
    if meta["model"] != owner.model or not is_timed:
        return BLANK, ""
    watched = tensors.pop(WATCHED).tobytes().decode()
    watched = watched if meta.get("rules") == owner.rules else ""  # what other rules remember means nothing to these
    return Memory(tensors, meta["rows"], meta["last_ns"]), watched
