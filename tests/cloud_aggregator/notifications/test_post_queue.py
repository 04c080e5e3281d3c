"""The queue of a receiver of alarms against a model of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.cloud_aggregator.events import Dequeue, Effect, Enqueue, Log, Post, Posted, RecordCount, Send
from fedgate.cloud_aggregator.notifications import post_queue
from fedgate.cloud_aggregator.notifications.post_queue import TRIES_MAX, Queue, name_count, restore_queues
from fedgate.config.protocol.backoff import JITTER
from fedgate.config.settings.notifications import WEBHOOK, Webhook
from fedgate.models.time_units import NS
from tests.support.sites import T0_NS

SPEC = Webhook(url="http://127.0.0.1:1/", retry_s=4.0, retry_max_s=60.0).model_copy(update={"queue": 3})
STEPS = st.lists(
    st.one_of(
        st.just("change"), st.just("ok"), st.just("fail"), st.just("stale"), st.integers(0, 200), st.just("restart")
    ),
    max_size=60,
)


def waiting(*posts: Post, dropped: int = 0) -> Queue:
    return Queue({post.id: post for post in posts}, dropped=dropped)


def first(held: Queue) -> Post:
    return next(iter(held.items.values()))


@pytest.mark.soak
@settings(max_examples=200)
@given(STEPS)
def test_the_queue_sends_one_at_a_time_in_order_and_loses_only_what_it_says(steps: list[Any]) -> None:
    """A list is the store, another the receiver: what was taken is what came, in order, but for what was given up."""
    held, now_ns, number = Queue(), T0_NS, 0
    stored: list[Post] = []
    came, taken, lost = list[str](), list[str](), list[str]()
    under_way: Post | None = None
    for step in [*steps, *[300, "ok"] * 12]:
        effects: list[Effect] = []
        if step == "change":
            number += 1
            held, effects = post_queue.enqueue(held, SPEC, Post(str(number), b""))
            came.append(str(number))
        elif step == "restart":
            held, under_way = waiting(*stored, dropped=held.dropped), None
        elif step == "stale":
            held, effects = post_queue.receive_result(held, SPEC, Posted("never"), now_ns)
        elif step in ("ok", "fail") and under_way is not None:
            taken += [under_way.id] if step == "ok" else []
            event, under_way = Posted(under_way.id, "" if step == "ok" else "it failed"), None
            held, effects = post_queue.receive_result(held, SPEC, event, now_ns)
        elif isinstance(step, int):
            now_ns += step * NS
        held, more = post_queue.send_due(held, now_ns)
        for effect in [*effects, *more]:
            match effect:
                case Enqueue(item=post):
                    stored.append(post)
                case Dequeue(name=name):
                    lost += [name] if name not in taken else []
                    stored.remove(next(post for post in stored if post.id == name))
                case Send(post=post):
                    assert under_way is None and post in stored
                    under_way = post
        assert stored == list(held.items.values()) and len(stored) <= SPEC.queue
    assert taken == [one for one in came if one not in lost] and not stored
    assert held.dropped == len(lost)


def test_pauses_double_up_to_the_longest_and_are_spread() -> None:
    held, now_ns = waiting(Post("a", b"")), T0_NS
    pauses_s = []
    for _ in range(12):
        held, sends = post_queue.send_due(held, now_ns)
        assert len(sends) == 1
        held, _ = post_queue.receive_result(held, SPEC, Posted("a", "away"), now_ns)
        pauses_s.append((held.retry_ns - now_ns) / NS)
        assert post_queue.send_due(held, held.retry_ns - 1)[1] == []
        now_ns = held.retry_ns
    for pause_s, longest_s in zip(pauses_s, [4, 8, 16, 32, *[60] * 8], strict=True):
        assert longest_s <= pause_s <= (1.0 + JITTER) * longest_s
    assert len(set(pauses_s[4:])) == 8
    other = post_queue.receive_result(waiting(Post("b", b"")).mark_sent("b", T0_NS), SPEC, Posted("b", "away"), T0_NS)[
        0
    ]
    assert (other.retry_ns - T0_NS) / NS != pauses_s[0]


def tried(held: Queue, now_ns: int, *, is_refused: bool) -> tuple[Queue, list[Effect], int]:
    """Let one attempt fail when it is due; return the queue, what came of it, and when that was."""
    now_ns = max(now_ns, held.retry_ns)
    held, _ = post_queue.send_due(held, now_ns)
    return *post_queue.receive_result(held, SPEC, Posted(first(held).id, "no", is_refused), now_ns), now_ns


def test_a_change_that_is_refused_for_good_is_given_up_and_the_next_is_sent() -> None:
    held, now_ns = waiting(Post("a", b'{"id":"a"}'), Post("b", b"")), T0_NS
    for _ in range(TRIES_MAX - 1):
        held, effects, now_ns = tried(held, now_ns, is_refused=True)
        assert not [one for one in effects if isinstance(one, Dequeue)]
        held, effects, now_ns = tried(held, now_ns, is_refused=False)  # an outage between is no refusal
        assert first(held).id == "a"
    held, effects, now_ns = tried(held, now_ns, is_refused=True)
    (log,) = [one for one in effects if isinstance(one, Log)]
    assert log.level == "warning" and f"no to a {TRIES_MAX} times" in log.text and '{"id":"a"}' in log.text
    assert [one for one in effects if one != log] == [Dequeue("a"), RecordCount(name_count(WEBHOOK, "refused"), 1)]
    assert (held.refused, held.dropped, held.tries) == (1, 0, {})
    failures = held.failures
    held, sends = post_queue.send_due(held, now_ns)
    assert sends == [Send(Post("b", b""))]
    held, _ = post_queue.receive_result(held, SPEC, Posted("b", "no", True), now_ns)
    assert held.failures == failures + 1 and held.items  # pauses go on growing until something is taken


def test_an_outage_gives_up_nothing() -> None:
    held, now_ns = waiting(Post("a", b"")), T0_NS
    for _ in range(10 * TRIES_MAX):
        held, _, now_ns = tried(held, now_ns, is_refused=False)
    assert held.items and not held.refused


def test_refusals_are_of_the_change_that_was_refused() -> None:
    held, now_ns = waiting(Post("a", b""), Post("b", b""), Post("c", b"")), T0_NS
    for _ in range(TRIES_MAX - 1):
        held, _, now_ns = tried(held, now_ns, is_refused=True)
    held, _ = post_queue.enqueue(held, SPEC, Post("d", b""))  # too many wait, so the first goes
    held, _, now_ns = tried(held, now_ns, is_refused=True)
    assert list(held.items) == ["b", "c", "d"]


def test_each_receiver_goes_on_with_its_own_queue_and_counts() -> None:
    counts = {name_count("a-b", "dropped"): 3, name_count("c", "refused"): 2, "alarms_refused": 9}
    queues = restore_queues([Post("1", b""), Post("2", b"", "west", "a-b"), Post("3", b"", "west", WEBHOOK)], counts)
    assert {name: (list(one.items), one.dropped, one.refused) for name, one in queues.items()} == {
        WEBHOOK: (["1", "3"], 0, 0),
        "a-b": (["2"], 3, 0),
        "c": ([], 0, 2),
    }
