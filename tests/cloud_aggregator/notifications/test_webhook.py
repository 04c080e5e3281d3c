"""Settings of the webhook: what cannot be meant is named before anything starts; and its queue, as it is shown."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.events import Dequeue, Enqueue, Post
from fedgate.cloud_aggregator.notifications.post_queue import name_count
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.settings.notifications import WEBHOOK
from fedgate.config.settings.settings import AggregatorSettings, SettingsError, load

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
    database.execute("INSERT INTO counts VALUES (?, 7)", (name_count(WEBHOOK, "dropped"),))
    database.commit()
    database.close()
    capsys.readouterr()
    assert cloud_aggregator(["status", "-c", str(path)]) == 0
    assert "webhook: 2 changes wait, 7 were given up" in capsys.readouterr().out
