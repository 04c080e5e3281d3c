"""Topics: two functions that are each other's inverse, and nothing else that looks like a topic."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedgate.config.protocol import topics
from fedgate.config.protocol.topics import ALL, CHANNELS, CLOUD, Channel, Topic, TopicError, parse, topic_of, watch

ids = st.from_regex(re.compile(r"[A-Za-z0-9_.-]{1,64}"), fullmatch=True)
any_topic = st.builds(Topic, ids, ids, st.sampled_from(sorted(CHANNELS)), ids)


def matches(subscription: str, topic: str) -> bool:
    """Match as a broker does (MQTT 3.1.1, section 4.7): `+` is one level, whatever stands there."""
    pairs = list(zip(subscription.split("/"), topic.split("/"), strict=False))
    same_length = subscription.count("/") == topic.count("/")
    return same_length and all(wanted in ("+", level) for wanted, level in pairs)


@given(any_topic)
def test_parse_is_the_inverse_of_topic_of(topic: Topic) -> None:
    text = topic_of(topic)
    assert parse(text) == topic
    assert text.count("/") == 5
    assert text == f"fedgate/v1/{topic.site}/{topic.gateway}/{topic.channel}/{topic.item}"


@given(st.text(max_size=80) | st.lists(st.text(max_size=10), max_size=8).map("/".join))
@example("fedgate/v1/s/g/alarm/i")
@example("fedgate/v1/s/g/alarm/i/")
@example("/fedgate/v1/s/g/alarm")
def test_what_parses_is_what_topic_of_makes(text: str) -> None:
    try:
        topic = parse(text)
    except TopicError:
        return
    assert topic_of(topic) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected fedgate/v1/<site>/<gateway>/<channel>/<item>"),
        ("fedgate", "expected fedgate/v1/"),
        ("fedgate/v1/s/g/alarm", "expected fedgate/v1/"),
        ("fedgate/v1/s/g/alarm/i/more", "expected fedgate/v1/"),
        ("fedgate/v2/s/g/alarm/i", "expected fedgate/v1/"),
        ("Fedgate/v1/s/g/alarm/i", "expected fedgate/v1/"),
        ("/fedgate/v1/s/g/alarm/i", "expected fedgate/v1/"),
        ("$SYS/v1/s/g/alarm/i", "expected fedgate/v1/"),
        ("fedgate/v1/s/g/alarms/i", "channel 'alarms' is unknown; expected one of"),
        ("fedgate/v1/s/g/ALARM/i", "channel 'ALARM' is unknown"),
        ("fedgate/v1/s/g/+/i", r"channel '\+' is unknown"),
        ("fedgate/v1//g/alarm/i", "site '' is not an id; expected 1 to 64 of"),
        ("fedgate/v1/s/+/alarm/i", r"gateway '\+' is not an id"),
        ("fedgate/v1/s/g/alarm/#", "item '#' is not an id"),
        ("fedgate/v1/s/g h/alarm/i", "gateway 'g h' is not an id"),
        ("fedgate/v1/s/g\n/alarm/i", r"gateway 'g\\n' is not an id"),
        ("fedgate/v1/s/g\0/alarm/i", r"gateway 'g\\x00' is not an id"),
        ("fedgate/v1/brücke/g/alarm/i", "site 'brücke' is not an id"),
        ("fedgate/v1/s/" + "g" * 65 + "/alarm/i", "gateway 'g+' is not an id"),
    ],
)
def test_a_refusal_names_the_part_at_fault(text: str, reason: str) -> None:
    with pytest.raises(TopicError, match=reason):
        parse(text)


@pytest.mark.parametrize("field", ["site", "gateway", "channel", "item"])
@pytest.mark.parametrize("part", ["", "a/b", "+", "#", " ", "x" * 65])
def test_no_part_can_break_out_of_its_place(field: str, part: str) -> None:
    topic = Topic("site", "gateway", "alarm", "item")
    with pytest.raises(TopicError, match=field):
        topic_of(topic._replace(**{field: part}))


def test_a_digest_fits_as_an_item() -> None:
    assert parse(topic_of(Topic("s", "g", "chunk", "0" * 64))).item == "0" * 64


@given(any_topic, any_topic)
def test_a_subscription_matches_its_channel_and_no_other(topic: Topic, other: Topic) -> None:
    channel = next(each for each in get_args(Channel) if each == topic.channel)
    of_one, of_all = watch(topic.site, topic.gateway, channel), watch(topic.site, "+", channel)
    assert matches(of_one, topic_of(topic))
    assert matches(of_all, topic_of(topic))
    assert matches(of_one, topic_of(other)) == (other[:3] == topic[:3])
    assert matches(of_all, topic_of(other)) == ((other.site, other.channel) == (topic.site, topic.channel))


@pytest.mark.parametrize(
    ("site", "gateway"), [("+", "g"), ("#", "g"), ("a/b", "g"), ("s", "#"), ("s", "a/b"), ("s", "")]
)
def test_a_subscription_reaches_no_further_than_its_channel(site: str, gateway: str) -> None:
    with pytest.raises(TopicError, match="is not an id"):
        watch(site, gateway, "alarm")


def test_the_table_in_the_docstring_lists_every_channel() -> None:
    listed = re.findall(r"^\| `([\w-]+)`", topics.__doc__ or "", flags=re.MULTILINE)
    assert sorted(listed) == sorted(CHANNELS)


def test_the_names_for_all_and_for_the_cloud_are_ids() -> None:
    assert parse(topic_of(Topic("s", ALL, "round", "open"))).gateway == "all"
    assert parse(topic_of(Topic("s", CLOUD, "status", "agent"))).gateway == "cloud"
