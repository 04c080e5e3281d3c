"""The sensor node and the faults it may play: frames that hold every sample once, at the recording's time."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.config.protocol.frames import Frame
from fedgate.config.protocol.topics import watch
from fedgate.config.settings.settings import Broker as BrokerSettings
from fedgate.config.transport.mqtt import Link
from fedgate.firmware_sim.broker import broker
from fedgate.firmware_sim.demo.faults import stiffness_loss
from fedgate.firmware_sim.recordings import Channel, Recording
from fedgate.firmware_sim.replay.node import ReplayError, frames, replay
from fedgate.models.time_units import NS
from tests.support.waiting import taken, until_subscribed

RATE_HZ = 50.0


def recording(samples: int, channels: int = 2) -> Recording:
    """Return a recording whose values tell where they belong."""
    values = np.arange(samples * channels, dtype=np.float64).reshape(samples, channels)
    return Recording("counted", tuple(Channel(f"c{k}", "g") for k in range(channels)), RATE_HZ, values)


@given(st.integers(1, 500), st.floats(0.005, 5.0))
def test_frames_hold_every_sample_once_at_its_time(samples: int, frame_s: float) -> None:
    whole = recording(samples)
    sent = [frame for _, frame in frames(whole, frame_s, 7 * NS, "b")]
    assert np.array_equal(np.concatenate([frame.values for frame in sent]), whole.values)
    assert [frame.meta.sequence for frame in sent] == list(range(len(sent)))
    first = np.cumsum([0, *(len(frame.values) for frame in sent[:-1])])
    assert [frame.meta.t_ns for frame in sent] == [7 * NS + round(k / RATE_HZ * NS) for k in first]


def test_a_frame_is_due_when_its_last_sample_is_taken() -> None:
    due_s = [at_s for at_s, _ in frames(recording(125), 1.0, 0, "b")]
    assert due_s == [1.0, 2.0, 2.5]


@pytest.mark.slow
def test_replay_over_a_real_broker_keeps_the_pace_and_loses_nothing(tmp_path: Path) -> None:
    whole, heard = recording(500), queue.Queue[bytes]()
    with broker(tmp_path) as server:
        settings = BrokerSettings(host=server.host, port=server.port)
        ready = queue.Queue[bool]()
        topics = [watch("site", "gateway", "sample")]
        link = Link(settings, "listener", topics, lambda _topic, payload: heard.put(payload), ready.put)
        link.start()
        assert taken(ready)
        until_subscribed(link)
        started_s = time.monotonic()
        count = replay(
            whole,
            settings,
            site="site",
            gateway="gateway",
            stream="deck",
            speed=10.0,
            frame_s=1.0,
            t0_ns=0,
            progress=False,
        )
        took_s = time.monotonic() - started_s
        sent = [Frame.from_bytes(taken(heard)) for _ in range(count)]
        link.stop()
    assert count == 10
    assert took_s >= 1.0  # ten seconds of recording at ten times real time
    assert np.array_equal(np.concatenate([frame.values for frame in sent]), whole.values)


def test_replay_without_a_broker_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgate.firmware_sim.replay.node.CONNECT_S", 0.2)
    nobody = BrokerSettings(host="127.0.0.1", port=1)
    with pytest.raises(ReplayError, match=r"127\.0\.0\.1:1"):
        replay(recording(5), nobody, site="s", gateway="g", stream="d", speed=1.0, frame_s=1.0, t0_ns=0, progress=False)


def test_stiffness_loss_moves_a_line_by_the_root_of_what_is_left() -> None:
    rate_hz, line_hz, loss = 200.0, 20.0, 0.36  # sqrt(1 - 0.36) = 0.8
    t_s = np.arange(int(60 * rate_hz)) / rate_hz
    changed = stiffness_loss(np.sin(2 * np.pi * line_hz * t_s)[:, None], rate_hz, 20.0, 20.0, loss)
    for start_s, expected_hz in ((0.0, line_hz), (20.0, 0.8 * line_hz), (40.0, line_hz)):
        part = changed[int(start_s * rate_hz) : int((start_s + 16.0) * rate_hz), 0]
        spectrum = np.abs(np.fft.rfft(part))
        assert np.fft.rfftfreq(len(part), 1 / rate_hz)[spectrum.argmax()] == pytest.approx(expected_hz, abs=0.1)


def test_stiffness_loss_uses_nothing_twice_and_touches_nothing_before() -> None:
    values = np.arange(1_000, dtype=np.float64)[:, None]
    changed = stiffness_loss(values, 100.0, 4.0, 2.0, 0.19)  # sqrt(1 - 0.19) = 0.9
    assert np.array_equal(changed[:400], values[:400])
    assert (np.diff(changed[:, 0]) > 0).all()
    assert changed[-1, 0] == values[-1, 0]
    assert len(changed) == pytest.approx(1_000 + 200 * 0.1, abs=2)


@pytest.mark.parametrize(("start_s", "loss"), [(4.0, 0.0), (4.0, 1.0), (9.9, 0.2), (-1.0, 0.2)])
def test_stiffness_loss_refuses_what_cannot_be(start_s: float, loss: float) -> None:
    with pytest.raises(ValueError, match=r"loss|outside"):
        stiffness_loss(np.zeros((1_000, 1)), 100.0, start_s, 2.0, loss)
