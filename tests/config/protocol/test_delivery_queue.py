"""The delivery queue of both ends: what waits keeps its order, and what goes leaves nothing of itself behind."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fedgate.config.protocol.delivery_queue import DeliveryQueue

ACTS = st.lists(st.tuples(st.sampled_from(["put", "send", "try", "remove"]), st.sampled_from("abcdef")), max_size=60)


@given(ACTS)
def test_what_is_known_of_an_item_is_known_as_long_as_it_waits(acts: list[tuple[str, str]]) -> None:
    """A list in the order of arrival is the model; an item that comes again keeps its place."""
    queue, model = DeliveryQueue[int](), list[str]()
    for number, (act, name) in enumerate(acts):
        match act:
            case "put":
                queue = queue.having(name, number)
                model += [] if name in model else [name]
            case "remove":
                queue = queue.without([name, "never"])
                model = [other for other in model if other != name]
            case "send" if name in model:
                queue = queue.mark_sent(name, number)
            case "try" if name in model:
                queue = replace(queue, tries={**queue.tries, name: number})
        assert list(queue.items) == model
        assert queue.sent_ns.keys() | queue.tries.keys() <= queue.items.keys()


def test_an_older_record_stays_as_it_was() -> None:
    before = DeliveryQueue[int]().having("a", 1).mark_sent("a", 5)
    assert not before.without(["a"]).items and before.mark_sent("a", 6).sent_ns == {"a": 6}
    assert (before.items, before.sent_ns) == ({"a": 1}, {"a": 5})
