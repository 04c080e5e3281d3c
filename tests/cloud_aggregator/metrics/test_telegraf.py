"""Goal: what the page says of the fields of scores and alarms, and to Telegraf, is what is sent.

Method: the page's tables and its snippet beside the messages and topics themselves.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from fedgate.config.protocol import topics
from fedgate.config.protocol.messages import Alarm, Message, Score
from tests.project.test_docs import blocks
from tests.support.message_samples import MESSAGES
from tests.support.syntax import ROOT

PAGE = ROOT / "docs" / "reference" / "monitoring.md"
CHANNELS: dict[str, type[Message]] = {"score": Score, "alarm": Alarm}
OF_TOPIC = {"site", "gateway"}


@pytest.mark.parametrize(("title", "message"), [("a score", Score), ("an alarm", Alarm)])
def test_the_page_lists_the_fields_of_a_message(title: str, message: type[Message]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index(f"| field of {title} |") :].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(message.model_fields)


def read_inputs() -> list[dict[str, Any]]:
    (snippet,) = [block for block in blocks(PAGE, "toml") if "mqtt_consumer" in block]
    found: list[dict[str, Any]] = tomllib.loads(snippet)["inputs"]["mqtt_consumer"]
    return found


def test_telegraf_subscribes_to_what_is_sent_and_takes_fields_that_there_are() -> None:
    inputs = read_inputs()
    assert len(inputs) == len(CHANNELS)
    for given in inputs:
        (pattern,), (parsing,) = given["topics"], given["topic_parsing"]
        assert parsing["topic"] == pattern
        topic = topics.parse(pattern.replace("+", "some"))
        message = CHANNELS[topic.channel]
        parts = pattern.split("/")
        assert [part for part in parsing["tags"].split("/") if part != "_"] == ["site", "gateway"]
        placed = dict(zip(parsing["tags"].split("/"), parts, strict=True))
        assert placed["site"] == "bridge" and placed["gateway"] == "+"
        assert parts[parsing["measurement"].split("/").index("measurement")] == topic.channel
        named = {given["json_time_key"], *given["json_string_fields"], *given["tag_keys"]}
        assert named <= message.model_fields.keys() and not OF_TOPIC & message.model_fields.keys()
        assert given["json_time_key"] == "t_ns" and given["json_time_format"] == "unix_ns"


def test_scores_and_alarms_are_flat() -> None:
    for message in MESSAGES:
        if isinstance(message, Score | Alarm):
            lists = {name for name, value in message.model_dump(mode="json").items() if isinstance(value, list | dict)}
            assert lists <= {"gateways"}
