"""The webhook's queue against a model of it, and its settings: what cannot be meant is named before anything starts."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.alarms import webhook
from fedgate.cloud_aggregator.alarms.webhook import DROPPED, REFUSED, TRIES_MAX, Queue
from fedgate.cloud_aggregator.events import Dequeue, Effect, Enqueue, Log, Post, Posted, RecordCount, Send
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.backoff import JITTER
from fedgate.config.settings.notifications import Webhook
from fedgate.config.settings.settings import AggregatorSettings, SettingsError, load
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
            held, effects = webhook.enqueue(held, SPEC, Post(str(number), b""))
            came.append(str(number))
        elif step == "restart":
            held, under_way = waiting(*stored, dropped=held.dropped), None
        elif step == "stale":
            held, effects = webhook.receive_result(held, SPEC, Posted("never"), now_ns)
        elif step in ("ok", "fail") and under_way is not None:
            taken += [under_way.id] if step == "ok" else []
            event, under_way = Posted(under_way.id, "" if step == "ok" else "it failed"), None
            held, effects = webhook.receive_result(held, SPEC, event, now_ns)
        elif isinstance(step, int):
            now_ns += step * NS
        held, more = webhook.send_due(held, now_ns)
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
        held, sends = webhook.send_due(held, now_ns)
        assert len(sends) == 1
        held, _ = webhook.receive_result(held, SPEC, Posted("a", "away"), now_ns)
        pauses_s.append((held.retry_ns - now_ns) / NS)
        assert webhook.send_due(held, held.retry_ns - 1)[1] == []
        now_ns = held.retry_ns
    for pause_s, longest_s in zip(pauses_s, [4, 8, 16, 32, *[60] * 8], strict=True):
        assert longest_s <= pause_s <= (1.0 + JITTER) * longest_s
    assert len(set(pauses_s[4:])) == 8
    other = webhook.receive_result(waiting(Post("b", b"")).mark_sent("b", T0_NS), SPEC, Posted("b", "away"), T0_NS)[0]
    assert (other.retry_ns - T0_NS) / NS != pauses_s[0]


def tried(held: Queue, now_ns: int, *, is_refused: bool) -> tuple[Queue, list[Effect], int]:
    """Let one attempt fail when it is due; return the queue, what came of it, and when that was."""
    now_ns = max(now_ns, held.retry_ns)
    held, _ = webhook.send_due(held, now_ns)
    return *webhook.receive_result(held, SPEC, Posted(first(held).id, "no", is_refused), now_ns), now_ns


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
    assert [one for one in effects if one != log] == [Dequeue("a"), RecordCount(REFUSED, 1)]
    assert (held.refused, held.dropped, held.tries) == (1, 0, {})
    failures = held.failures
    held, sends = webhook.send_due(held, now_ns)
    assert sends == [Send(Post("b", b""))]
    held, _ = webhook.receive_result(held, SPEC, Posted("b", "no", True), now_ns)
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
    held, _ = webhook.enqueue(held, SPEC, Post("d", b""))  # too many wait, so the first goes
    held, _, now_ns = tried(held, now_ns, is_refused=True)
    assert list(held.items) == ["b", "c", "d"]


ADDRESSES = [
    ("ftp://example.org/", "webhook.url: expected http://host/path or https://host/path"),
    ("file:///etc/passwd", "webhook.url: expected http://host/path or https://host/path"),
    ("example.org/x", "webhook.url: expected http://host/path or https://host/path"),
    ("http://example.org:port/", "webhook.url: expected http://host/path or https://host/path"),
    ("http://exa mple.org/", "webhook.url: expected http://host/path or https://host/path in ASCII"),
    ("https://me:word@example.org/", "webhook.url: a name and password do not belong into the address"),
]


def configured(folder: Path, table: str) -> Path:
    assert cloud_aggregator(["init", str(folder), "--loopback"]) == 0
    path = folder / "aggregator.toml"
    path.write_text(f"{path.read_text()}\n[webhook]\n{table}\n")
    return path


@pytest.mark.parametrize(("address", "words"), ADDRESSES)
def test_an_address_that_cannot_be_one_is_named_on_its_line(tmp_path: Path, address: str, words: str) -> None:
    path = configured(tmp_path, f'url = "{address}"')
    with pytest.raises(SettingsError) as caught:
        load(path, AggregatorSettings)
    assert words in str(caught.value) and "word@" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "is_good"),
    [
        ("http://127.0.0.1", True),
        ("http://[::1]:80", True),
        ("http://localhost", True),
        ("https://example.org", True),
        ("http://example.org", False),
        ("http://10.0.0.1", False),
    ],
)
def test_a_secret_is_not_sent_in_the_open(tmp_path: Path, host: str, is_good: bool) -> None:
    path = configured(tmp_path, f'url = "{host}/"\nsecret_file = "word"')
    if is_good:
        assert load(path, AggregatorSettings).webhook is not None
        return
    with pytest.raises(SettingsError, match="webhook: secret_file: over http everyone on the way to"):
        load(path, AggregatorSettings)


@pytest.mark.parametrize("body", [None, b"", b"two\nlines", b"\xff", b"tab\tis no header"])
def test_a_secret_that_is_no_header_is_refused_before_anything_starts(
    tmp_path: Path, body: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configured(tmp_path, 'url = "https://example.org/"\nsecret_file = "word"')
    if body is not None:
        (tmp_path / "word").write_bytes(body)
    assert cloud_aggregator(["check", "-c", str(path)]) == 2
    assert f"webhook.secret_file: {tmp_path / 'word'}" in capsys.readouterr().err
    (tmp_path / "word").write_text("Bearer x\n")
    assert cloud_aggregator(["check", "-c", str(path)]) == 0


def test_the_queue_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = configured(tmp_path, 'url = "http://127.0.0.1:9/"')
    store = Store(tmp_path / "aggregator.db")
    store.commit([*(Enqueue(name, Post(name, b"x")) for name in "abc"), Dequeue("a")])
    assert [(row["id"], row["body"]) for row in store.read_rows("posts")] == [("b", b"x"), ("c", b"x")]
    store.close()
    database = sqlite3.connect(tmp_path / "aggregator.db")
    database.execute("INSERT INTO counts VALUES (?, 7)", (DROPPED,))
    database.commit()
    database.close()
    capsys.readouterr()
    assert cloud_aggregator(["status", "-c", str(path)]) == 0
    assert "webhook: 2 changes wait, 7 were given up" in capsys.readouterr().out
