"""The link to a broker: what is urgent goes first, a slow line is not filled, and what goes wrong is said.

Method: the real Mosquitto and the real link; a slow line is a proxy that lets so many bytes a second pass.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.protocol.topics import CHANNELS, Topic, topic_of, urgency
from fedgate.config.protocol.transfer import (
    FRAMING_BYTES,
    PACKET_BYTES_MAX,
    PAYLOAD_BYTES_MIN,
    PAYLOAD_BYTES_START,
    TOPIC_BYTES_MAX,
)
from fedgate.config.settings.settings import Broker as BrokerSettings
from fedgate.config.transport import send_queue as backlog_module
from fedgate.config.transport import session_conflict
from fedgate.config.transport.mqtt import Link
from fedgate.config.transport.send_queue import PASSES, Limits, Outgoing, SendQueue
from fedgate.config.transport.session_conflict import ENOUGH, SHORT_S, SessionConflict
from fedgate.firmware_sim.broker import Broker, broker, mosquitto_program
from tests.support.slow_line import slow_line
from tests.support.waiting import until, until_subscribed

UPDATE, ALARM = "fedgate/v1/bridge/north/update/digest", "fedgate/v1/bridge/north/alarm/anomaly"

needs_mosquitto = pytest.mark.skipif(mosquitto_program() is None, reason="Mosquitto is not installed")


def wait(done: Callable[[], bool]) -> None:
    until(done, poll_s=0.005)


class Ends:
    """A link, and when it heard what and whether it is connected."""

    def __init__(self, port: int, name: str, *subscriptions: str) -> None:
        self.heard: list[tuple[float, str, bytes]] = []
        heard = self.heard
        self.connections: list[bool] = []
        self.link = Link(
            BrokerSettings(port=port),
            name,
            subscriptions,
            lambda topic, payload: heard.append((time.monotonic(), topic, payload)),
            self.connections.append,
        )

    def __enter__(self) -> Ends:
        self.link.start()
        wait(lambda: bool(self.connections))
        return self

    def __exit__(self, *_: object) -> None:
        self.link.stop()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("broker"), "mosquitto") as started:
        yield started


def alarm_delays_s(port: int, chunk_bytes: int, chunks: int, bytes_per_s: float, every_s: float) -> list[float]:
    """Return how long alarms took that were raised while an update was on its way up a slow line."""
    with (
        slow_line(port, bytes_per_s) as slow,
        Ends(port, "cloud", "fedgate/v1/bridge/+/+/+") as cloud,
        Ends(slow, "north") as north,
    ):
        until_subscribed(cloud.link)
        for index in range(chunks):
            assert north.link.publish(UPDATE, index.to_bytes(4, "big") + bytes(chunk_bytes - 4))
        sent_s = []
        while north.link.waiting_bytes > chunk_bytes:
            sent_s.append(time.monotonic())
            assert north.link.publish(ALARM, str(len(sent_s) - 1).encode())
            time.sleep(every_s)
        assert north.link.drain(60.0)
        wait(lambda: len(cloud.heard) == chunks + len(sent_s))
        arrived = {int(payload): at_s for at_s, topic, payload in cloud.heard if topic == ALARM}
        assert [payload[:4] for _, topic, payload in cloud.heard if topic == UPDATE] == [
            index.to_bytes(4, "big") for index in range(chunks)
        ]
    return [arrived[index] - at_s for index, at_s in enumerate(sent_s)]


@pytest.mark.soak
@needs_mosquitto
def test_an_alarm_goes_past_the_chunks_of_an_update_on_a_slow_line(running: Broker) -> None:
    """The same as 20 kB/s with 32 KiB chunks, ten times as fast; the benchmark takes the real figures."""
    delays_s = alarm_delays_s(running.port, 32 * 1024, 20, 200_000.0, 0.1)
    assert len(delays_s) > 10 and max(delays_s) < 2.0  # behind all of the update they would wait 3 s


@pytest.mark.soak
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 250_000), st.booleans()), max_size=60), st.data())
@settings(max_examples=100, deadline=None)
def test_a_backlog_keeps_order_within_and_between_urgencies_and_its_window(
    given_messages: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    made, now_s = SendQueue(), 0.0
    out: list[Outgoing] = []
    on_line: list[int] = []
    made.open()
    for number, (level, size, _) in enumerate(given_messages):
        assert made.add(Outgoing(f"{level}/{number}", bytes(size), False, 1), level)
    while not made.is_empty:
        while (message := made.take()) is not None:
            made.note_handed_over(len(out), message, now_s)
            on_line.append(len(out))
            out.append(message)
            held = sum(out[number].size for number in on_line)
            assert len(on_line) == 1 or held <= made.window_bytes
        now_s += data.draw(st.sampled_from([0.1, 1.0, 3.0]))
        made.acknowledge(on_line.pop(0), now_s)
    assert made.waiting_bytes == 0
    numbers = [tuple(map(int, message.topic.split("/"))) for message in out]
    assert len(numbers) == len(given_messages)
    for level in range(4):
        of_level = [number for number in numbers if number[0] == level]
        assert of_level == sorted(of_level)
    for place, message in enumerate(out):  # what is less urgent goes first only where more than its size went past it
        if any(number < numbers[place] for number in numbers[place + 1 :]):
            past = 0
            for (level, _), other in zip(reversed(numbers[:place]), reversed(out[:place]), strict=True):
                if level >= numbers[place][0]:
                    break
                past += other.size
            assert past >= PASSES * message.size


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50_000)), min_size=1, max_size=30), st.integers(0, 2))
def test_no_flood_of_what_is_urgent_holds_up_all_else_for_ever(waiting: list[tuple[int, int]], level: int) -> None:
    """Goal: what one gateway makes urgent starves nobody: all that waits goes, whatever urgent comes without end."""
    made, urgent = SendQueue(), Outgoing(f"{level}/urgent", bytes(1_000), False, 1)
    made.open()
    for number, (less, size) in enumerate(waiting):
        assert made.add(Outgoing(f"waits/{number}", bytes(size), False, 1), less)
    left, went = len(waiting), 0
    for number in itertools.count():
        made.add(urgent, level)
        made.note_handed_over(number, message := made.take() or pytest.fail("the line is idle"), 0.0)
        made.acknowledge(number, 0.1)
        left -= message.topic != urgent.topic
        went += message.size
        if not left:
            break
        # Each less urgent level in turn has a quarter of what the levels before it leave.
        assert went <= 4**4 * (sum(size + 20 for _, size in waiting) + 60_000)


def test_a_backlog_is_bounded_for_each_urgency_and_knows_what_a_lost_connection_took() -> None:
    made = SendQueue()
    bulk = Outgoing("t", bytes(200_000), False, 1)
    assert [made.add(bulk, 2) for _ in range(22)] == [True] * 21 + [False]
    assert made.add(Outgoing("a", b"alarm", False, 1), 0) and made.add(Outgoing("s", b"score", False, 0), 0)
    assert made.take() is None  # no connection yet
    made.open()
    for number in range(2):
        made.note_handed_over(number, message := made.take() or bulk, 0.0)
        assert message.topic == "as"[number] and not made.is_empty
    made.cut()
    assert made.take() is None and made.waiting_bytes == 21 * 200_001 + 6  # the score is gone, the alarm is not
    made.acknowledge(0, 1e6)
    assert made.window_bytes == backlog_module.WINDOW_BYTES_START  # an outage says nothing of the line


def test_who_asks_for_the_most_delays_itself() -> None:
    """One gateway is sent chunks as fast as they are taken, another asks for ten in between."""
    made, chunk = SendQueue(), bytes(60_000)
    made.open()
    topics = {name: f"fedgate/v1/bridge/{name}/chunk/digest" for name in ("west", "north")}
    while made.add(Outgoing(topics["west"], chunk, False, 1), 2):
        pass
    assert all(made.add(Outgoing(topics["north"], chunk, False, 1), 2) for _ in range(10))
    out = []
    for number in range(24):
        made.add(Outgoing(topics["west"], chunk, False, 1), 2)
        made.note_handed_over(number, message := made.take() or pytest.fail("the line is idle"), 0.0)
        made.acknowledge(number, 0.1)
        out.append(message.topic)
    assert out[:20].count(topics["north"]) >= 9 and set(out[:3]) == set(topics.values())
    for number in range(500):  # however many there are, all of them together have their bound
        made.add(Outgoing(f"fedgate/v1/bridge/{number}/chunk/digest", chunk, False, 1), 2)
    assert made.waiting_bytes < backlog_module.WAITING_BYTES_MAX + 2 * len(chunk)


def carried(made: SendQueue, messages: int, size: int, word_s: float) -> None:
    """Send so many messages; the broker's word comes so long after each."""
    number, now_s = 0, 0.0
    for _ in range(messages):
        assert made.add(Outgoing(UPDATE, bytes(size), False, 1), 2)
    while not made.is_empty:
        on_line = []
        while (message := made.take()) is not None:
            made.note_handed_over(number, message, now_s)
            on_line.append(number)
            number += 1
        for handed in on_line:
            now_s += word_s
            made.acknowledge(handed, now_s)


def test_only_what_fills_the_line_shows_what_it_carries_and_a_new_connection_begins_anew() -> None:
    """A day of small messages on a slow line would let all of an update on it, and an alarm wait behind that."""
    made = SendQueue()
    made.open()
    for _ in range(1_440):
        carried(made, 1, 1_500, 0.1)
    assert made.window_bytes == backlog_module.WINDOW_BYTES_START
    carried(made, 60, 60_000, 0.001)
    assert made.window_bytes == backlog_module.WINDOW_BYTES_MAX
    made.cut()
    made.open()
    assert made.window_bytes == backlog_module.WINDOW_BYTES_START
    carried(made, 10, 60_000, 3.0)
    assert made.window_bytes == backlog_module.WINDOW_BYTES_MIN
    made.cut()
    assert made.window_bytes == backlog_module.WINDOW_BYTES_MIN


def test_a_piece_of_a_body_is_as_long_as_the_line_carries_in_a_moment_and_the_broker_takes() -> None:
    made = SendQueue()
    made.open()
    carried(made, 60, 60_000, 0.001)
    assert made.payload_bytes == PAYLOAD_BYTES_START  # to a broker that does not say what it takes
    made.open(Limits(packet_bytes=10_000_000))
    assert 256_000 < made.payload_bytes <= PACKET_BYTES_MAX - TOPIC_BYTES_MAX - FRAMING_BYTES
    made.open(Limits(packet_bytes=10_000))
    assert made.payload_bytes == 10_000 - TOPIC_BYTES_MAX - FRAMING_BYTES
    assert made.add(Outgoing("t" * TOPIC_BYTES_MAX, bytes(made.payload_bytes), False, 1), 2)
    made.open(Limits(packet_bytes=100))
    assert made.payload_bytes == PAYLOAD_BYTES_MIN


def test_what_the_broker_does_not_take_is_not_sent_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    made = SendQueue(10_000)
    fits = Outgoing(UPDATE, bytes(10_000 - len(UPDATE) - FRAMING_BYTES), False, 1)
    assert made.add(fits, 2) and made.waiting_bytes == fits.size
    assert not any(made.add(fits._replace(payload=bytes(10_000)), 2) for _ in range(8))
    assert made.too_large == 8 and made.waiting_bytes == fits.size
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4 and all(text.startswith(f"{UPDATE}: {10_000 + len(UPDATE)} bytes") for text in told)


def test_what_waits_and_is_too_large_for_the_next_broker_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    made, large = SendQueue(10_000), Outgoing(UPDATE, bytes(6_000), False, 1)
    small = large._replace(payload=b"small")
    made.open()
    made.cut()
    for message in (large, small, large):
        assert made.add(message, 2)
    made.open(Limits(packet_bytes=5_000, messages=1))
    assert made.take() == small
    made.note_handed_over(1, small, 0.0)
    assert made.take() is None  # one message at a time
    made.acknowledge(1, 0.1)
    assert made.take() is None and made.is_empty and made.too_large == 2 and made.waiting_bytes == 0
    made.open()
    assert made.add(large, 2) and "the broker takes 5000 (as it says itself; number 1)" in caplog.text


def test_a_refusal_is_told_until_the_broker_takes_one_of_its_kind_again(caplog: pytest.LogCaptureFixture) -> None:
    made = SendQueue()
    made.open()
    for number, refusal in enumerate(["Not authorized", "Not authorized", "", "Not authorized"]):
        assert made.add(Outgoing(f"{UPDATE}-{number}", b"", False, 1), 2)
        made.note_handed_over(number, made.take() or pytest.fail("the line is idle"), 0.0)
        made.acknowledge(number, 0.1, refusal)
        assert made.is_empty and made.refused == ({"update": refusal} if refusal else {})
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [f"{UPDATE}-0", f"{UPDATE}-3"]


@needs_mosquitto
def test_a_message_that_is_too_large_costs_no_connection(running: Broker) -> None:
    with Ends(running.port, "cloud", "fedgate/v1/bridge/+/+/+") as cloud, Ends(running.port, "north") as north:
        until_subscribed(cloud.link)
        assert not north.link.publish(ALARM, bytes(300_000)) and north.link.publish(ALARM, b"alarm")
        wait(lambda: bool(cloud.heard))
        assert [payload for _, _, payload in cloud.heard] == [b"alarm"] and north.connections == [True]


def test_every_channel_has_its_place() -> None:
    places = {channel: urgency(topic_of(Topic("s", "g", channel, "i"))) for channel in CHANNELS}
    assert places["alarm"] < places["receipt"] == places["status"] < places["update"] == places["chunk"]
    assert places["update"] < places["telemetry"] == places["score"]
    assert urgency("homeassistant/sensor/x/config") == urgency("") == places["status"]


def test_connections_that_end_at_once_are_told_and_leave_room_for_another() -> None:
    made, now_s, told = SessionConflict(), 0.0, []
    for _ in range(40):
        assert not made.end(now_s)  # without a connection
        made.begin(now_s)
        told.append(made.end(now_s + 1.0))
        now_s += 100.0
    assert [number + 1 for number, said in enumerate(told) if said] == [4, 8, 16, 32]
    assert "40 connections in a row" in made.text and made.pauses_s(60) == (900, 900)
    made.begin(now_s)
    assert not made.end(now_s + SHORT_S) and made.text == "" and made.pauses_s(60) == (1, 60)


@needs_mosquitto
def test_two_links_with_one_id_are_noticed(
    running: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session_conflict, "RECONNECT_S_MIN", 0)  # as paho's pauses are whole seconds
    with Ends(running.port, "twin") as one, Ends(running.port, "twin") as other:
        wait(lambda: bool(one.link.conflict or other.link.conflict))
        assert sum(one.connections) >= ENOUGH or sum(other.connections) >= ENOUGH
    assert any("used the same id" in record.getMessage() for record in caplog.records)


@pytest.mark.soak
@needs_mosquitto
def test_a_transfer_goes_on_after_the_broker_was_restarted(tmp_path: Path) -> None:
    with broker(tmp_path, "mosquitto") as started, Ends(started.port, "cloud", "fedgate/v1/bridge/+/+/+") as cloud:
        with slow_line(started.port, 200_000.0) as slow, Ends(slow, "north") as north:
            for index in range(20):
                assert north.link.publish(UPDATE, bytes([index]) + bytes(20_000))
            wait(lambda: len(cloud.heard) > 3)
            started.restart()
            assert not north.link.drain(0.01)
            wait(lambda: north.connections.count(True) == 2)
            until(lambda: north.link.drain(0.1))
            assert north.link.bytes_sent < 21 * 20_100  # what had arrived does not go up again
        wait(lambda: {payload[0] for _, _, payload in cloud.heard} == set(range(20)))
