"""An alarm is raised once and cleared once, under one id, whatever is asked for in between and over a restart."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fedgate.config.protocol.alarm_book import AlarmBook, restore
from fedgate.config.protocol.messages import Alarm

STEPS = st.lists(st.tuples(st.sampled_from(["raise", "clear", "restart"]), st.sampled_from(["a", "b"])), max_size=40)


def alarm(cause: str, number: int, **changes: Any) -> Alarm:
    return Alarm(
        id=f"north.{cause}.{number}",
        cause=cause,
        kind="sensor",
        state="raised",
        severity="warning",
        text="stuck",
        onset_ns=number,
        t_ns=number,
        sequence=number,
        **changes,
    )


@given(STEPS)
def test_each_alarm_is_told_once_and_its_end_once_under_its_id(steps: list[tuple[str, str]]) -> None:
    book, told = AlarmBook(), dict[str, list[Alarm]]()
    for number, (step, cause) in enumerate(steps, start=1):
        change = None
        if step == "raise":
            book, change = book.raise_once(alarm(cause, number))
        elif step == "clear":
            book, change = book.clear_once(cause, "well", t_ns=number)
        else:
            book = restore(json.loads(json.dumps(book.dump())))
        told.setdefault(cause, []).extend([] if change is None else [change])
    for cause, changes in told.items():
        pairs = [(one.state, one.id) for one in changes]
        assert [state for state, _ in pairs] == [("raised", "cleared")[place % 2] for place in range(len(pairs))]
        assert all(end == begin for (_, begin), (_, end) in zip(pairs[::2], pairs[1::2], strict=False))
        assert (cause in book.active) is (len(pairs) % 2 == 1)
    assert book.raised == max((one.sequence for changes in told.values() for one in changes), default=0)


def test_an_end_is_what_was_raised_with_what_has_changed() -> None:
    raised = alarm("a", 7, feature="load.rms", rule="stuck")
    book, _ = AlarmBook().raise_once(raised)
    _, end = book.clear_once("a", "well", t_ns=9, boot_id="another")
    assert end == raised.model_copy(update={"state": "cleared", "text": "well", "t_ns": 9, "boot_id": "another"})
