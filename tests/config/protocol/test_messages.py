"""The JSON messages: their bytes stay what gateways in the field speak, and whatever else arrives is refused by name.

Golden bytes are in `golden/messages_1`; a change of them is a change of the protocol and needs `v2` in the topics.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.feature_summary import FeatureSummary
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import (
    CHUNKS_MAX,
    CONTROL,
    LARGEST,
    SHORT_MAX,
    ActionAnswer,
    Alarm,
    AlarmAction,
    AlarmState,
    Device,
    FleetAlarm,
    Keys,
    MaintenanceWindow,
    MaintenanceWindows,
    Manifest,
    Message,
    MessageError,
    Newest,
    ServiceRequest,
    Signed,
    Status,
    Transfer,
    Want,
)
from fedgate.config.protocol.samples import SampleRefusal, SampleRequest
from fedgate.config.protocol.scores import Scores
from fedgate.config.protocol.topics import Topic, parse, topic_of
from tests.support.message_samples import DIGEST, MESSAGES
from tests.support.syntax import ROOT

GOLDEN = ROOT / "tests" / "golden" / "messages_1"
OLDER = {version: GOLDEN.parent / f"messages_{version}" for version in ("0_3", "0_4")}
# Which 0.4 to 0.7 brought.
LATER = (
    ActionAnswer,
    AlarmAction,
    AlarmState,
    SampleRequest,
    SampleRefusal,
    AlarmEvidence,
    Device,
    FeatureSummary,
    FleetAlarm,
    Keys,
    ServiceRequest,
    Newest,
    Scores,
    Tombstone,
    MaintenanceWindows,
    MaintenanceWindow,
)
KINDS = [type(message) for message in MESSAGES]
each_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


HOSTILE = "\x1b[2J\nall is well\u202e" + "x" * 10_000
TOLD_BY_GATEWAYS = (Alarm, AlarmEvidence, Device, FeatureSummary, Scores, Status, Tombstone, Transfer, Want)


def texts(document: Any) -> Iterator[str]:
    """Yield every text in a JSON document, keys included."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        yield from itertools.chain.from_iterable(map(texts, [*document, *document.values()]))
    elif isinstance(document, list):
        yield from itertools.chain.from_iterable(map(texts, document))


@pytest.mark.parametrize("kind", TOLD_BY_GATEWAYS)
def test_no_text_of_a_gateway_is_without_end_or_moves_a_cursor(kind: type[Message]) -> None:
    (told,) = [json.loads(message.to_bytes()) for message in MESSAGES if type(message) is kind]
    for key, value in told.items():
        first = next(iter(value.values()), "") if isinstance(value, dict) else ""
        for other in (HOSTILE, [HOSTILE], {HOSTILE: first}, {"key": HOSTILE}):
            try:
                message = kind.from_bytes(json.dumps({**told, key: other}).encode())
            except MessageError as error:
                found = [str(error)]
            else:
                found = list(texts(json.loads(message.to_bytes())))
            assert all(len(text) <= SHORT_MAX and not CONTROL.search(text) for text in found)


@each_message
def test_the_bytes_are_those_of_every_release(message: Message) -> None:
    golden = (GOLDEN / f"{type(message).__name__}.json").read_bytes()
    assert message.to_bytes() == golden
    assert type(message).from_bytes(golden) == message


@pytest.mark.parametrize("version", OLDER)
@each_kind
def test_what_an_older_release_said_is_read_and_what_it_did_not_know_is_as_if_it_were_off(
    kind: type[Message], version: str
) -> None:
    old = OLDER[version] / f"{kind.__name__}.json"
    if not old.exists():
        assert kind in LATER
        return
    said = json.loads(old.read_bytes())
    message = kind.from_bytes(old.read_bytes())
    assert {name: json.loads(message.to_bytes())[name] for name in said} == said
    unknown = {name: field.get_default() for name, field in kind.model_fields.items() if name not in said}
    assert {name: getattr(message, name) for name in unknown} == unknown


def test_every_message_has_golden_bytes() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {kind.__name__ for kind in KINDS}
    assert set(KINDS) == kinds_of(Message) - {Signed}


def kinds_of(kind: type[Message]) -> set[type[Message]]:
    """Return all kinds of messages below one; those that other tests make of them are not ours."""
    below = {one for one in kind.__subclasses__() if one.__module__.startswith("fedgate.config.")}
    return below.union(*map(kinds_of, below))


@each_message
def test_a_newer_senders_keys_are_ignored(message: Message) -> None:
    document = json.loads(message.to_bytes()) | {"from_the_future": {"any": [1, 2]}}
    assert type(message).from_bytes(json.dumps(document).encode()) == message


def required(message: Message) -> list[str]:
    return [name for name, field in type(message).model_fields.items() if field.is_required()]


@each_message
def test_each_missing_key_is_named(message: Message) -> None:
    document = json.loads(message.to_bytes())
    for name in required(message):
        rest = {key: value for key, value in document.items() if key != name}
        with pytest.raises(MessageError, match=rf"^{type(message).__name__}: {name}: Field required"):
            type(message).from_bytes(json.dumps(rest).encode())


@each_message
def test_each_value_of_another_type_is_named_and_never_quoted_at_length(message: Message) -> None:
    document = json.loads(message.to_bytes())
    for name in document:
        if name in ("settings", "device"):  # which are tables, and what they do not know they do not name
            continue
        wrong = json.dumps({**document, name: {"x" * 10_000: None}}).encode()
        with pytest.raises(MessageError, match=rf"^{type(message).__name__}: {name}[.:]") as caught:
            type(message).from_bytes(wrong)
        assert len(str(caught.value)) < 500


NUMBERS = [
    ("Alarm", "t_ns", LARGEST + 1),
    ("Alarm", "onset_ns", -LARGEST - 1),
    ("Alarm", "model_version", 10**300),
    ("Alarm", "model_version", -1),
    ("Alarm", "score", float("nan")),
    ("Alarm", "score", float("inf")),
    ("Score", "level", float("-inf")),
    ("Score", "t_ns", 1.5),
    ("Status", "windows", LARGEST + 1),
    ("RoundOpen", "seed", 10**30),
    ("RoundOpen", "round_index", -1),
    ("Manifest", "version", 0),
    ("Transfer", "chunks", 0),
    ("Transfer", "chunks", CHUNKS_MAX + 1),
    ("ChunkHeader", "chunks", CHUNKS_MAX + 1),
    ("ChunkHeader", "size_bytes", 2**70),
    ("Want", "missing", [-1]),
]


@pytest.mark.parametrize(("name", "key", "value"), NUMBERS)
def test_numbers_that_no_database_or_arithmetic_can_hold_are_refused(name: str, key: str, value: Any) -> None:
    message = next(one for one in MESSAGES if type(one).__name__ == name)
    payload = json.dumps(json.loads(message.to_bytes()) | {key: value}).encode()
    with pytest.raises(MessageError, match=f"{name}: {key}"):
        type(message).from_bytes(payload)


@each_kind
@given(payload=st.binary(max_size=200))
def test_random_bytes_are_refused(kind: type[Message], payload: bytes) -> None:
    with pytest.raises(MessageError, match=rf"^{kind.__name__}: "):
        kind.from_bytes(b"\xff" + payload)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@each_message
@given(data=st.data())
def test_any_json_is_refused_or_read(message: Message, data: st.DataObject) -> None:
    """Whatever a key holds, the outcome is a message that can be written again, or a `MessageError`."""
    document = json.loads(message.to_bytes())
    document[data.draw(st.sampled_from(sorted(document)))] = data.draw(json_values)
    try:
        read = type(message).from_bytes(json.dumps(document).encode())
    except MessageError:
        return
    assert type(message).from_bytes(read.to_bytes()) is not None


@pytest.mark.parametrize(
    "payload", [b"", b"null", b"[]", b"{", b"[" * 100_000, b'{"state": "online"} x', b'"\xed\xa0\x80"']
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(MessageError, match="Status: "):
        Status.from_bytes(payload)


def test_an_alarm_has_a_name() -> None:
    alarm = next(message for message in MESSAGES if type(message) is Alarm)
    with pytest.raises(MessageError, match="id"):
        Alarm.from_bytes(alarm.model_copy(update={"id": ""}).to_bytes())


@given(st.text(max_size=300), st.text(max_size=300))
def test_the_name_of_an_alarms_change_fits_a_topic_whatever_its_id(first: str, second: str) -> None:
    alarm = next(message for message in MESSAGES if type(message) is Alarm)
    changes = [{"id": alarm_id, "state": state} for alarm_id in (first, second) for state in ("raised", "cleared")]
    names = [alarm.model_copy(update=change).item for change in changes]
    assert len(set(names)) == (4 if first != second else 2)
    for name in names:
        assert parse(topic_of(Topic("s", "g", "receipt", name))).item == name


def test_a_signature_covers_all_but_itself() -> None:
    manifest = next(message for message in MESSAGES if isinstance(message, Manifest))
    signed = manifest.signed_bytes()
    assert manifest.model_copy(update={"signature": "other"}).signed_bytes() == signed
    changes: dict[str, Any] = {"version": 4, "model": Transfer(digest=DIGEST[::-1], size_bytes=1, chunks=1)}
    changes |= {"personal": (), "golden_score": (0.75,), "created_ns": 0, "gateways": 4, "opset": 18, "run": "x"}
    for key, value in changes.items():
        assert manifest.model_copy(update={key: value}).signed_bytes() != signed


def test_a_signature_covers_what_a_newer_sender_adds() -> None:
    manifest = next(message for message in MESSAGES if isinstance(message, Manifest))
    newer = json.loads(manifest.to_bytes()) | {"from_the_future": 1}
    received = Manifest.from_bytes(json.dumps(newer).encode())
    assert b"from_the_future" in received.signed_bytes()
    assert Manifest.from_bytes(manifest.to_bytes()).signed_bytes() == manifest.signed_bytes()


@pytest.mark.parametrize(
    ("change", "ready"),
    [
        ({}, True),
        ({"state": "offline"}, False),
        ({"can_train": False}, False),
        ({"baseline_windows": 59}, False),
        ({"baseline_windows": 61}, True),
        ({"baseline_windows": 0, "baseline_needed": 0}, False),  # an aggregator's own status, or a last will
    ],
)
def test_ready_is_who_can_answer_a_round(change: dict[str, Any], ready: bool) -> None:
    status = next(message for message in MESSAGES if isinstance(message, Status))
    assert status.model_copy(update=change).ready() is ready
