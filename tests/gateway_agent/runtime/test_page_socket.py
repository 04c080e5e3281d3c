"""Goal: who asks at the socket gets all that the agent knows, and nobody who asks can hold it up."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedgate.config.protocol.evidence import EVIDENCE_BYTES
from fedgate.gateway_agent.runtime import page_socket
from fedgate.gateway_agent.runtime.page_socket import PageSocket
from fedgate.gateway_agent.snapshot import Snapshot, describe_now, take_snapshot
from fedgate.gateway_agent.status import status
from tests.gateway_agent.monitor.test_gateway_sensors import feed, watched
from tests.support.agents import changed, commissioned
from tests.support.gateway_page import make_alarmed
from tests.support.sites import gateway_settings, samples

LONG = b"x" * 8_000_000  # more than any socket holds for a peer that does not read


def connect(path: Path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(60)
    peer.connect(str(path))
    return peer


def read_all(path: Path) -> bytes:
    found = b""
    with connect(path) as peer:
        while part := peer.recv(1 << 20):
            found += part
    return found


def test_a_snapshot_is_all_that_the_page_shows() -> None:
    state = make_alarmed()
    found = Snapshot.model_validate_json(describe_now(state))
    assert found == take_snapshot(state) and found.status == status(state)
    assert [one.cause for one in found.alarms] == ["anomaly"] and found.evidence is not None
    assert found.evidence.alarm == found.alarms[0].id and len(found.evidence.to_bytes()) < EVIDENCE_BYTES
    assert found.trail is not None and len(found.trail.scores) == len(state.monitor.trail)
    assert found.sources["deck"].values and not found.status.sources["deck"].values  # what is not published is here


def test_the_evidence_of_an_anomaly_that_is_over_stays() -> None:
    state = make_alarmed()
    kept = state.monitor.evidence
    state, _ = feed(state, samples(90, 40), 60.0 + 45)
    assert not state.monitor.alarms.active and kept is not None and state.monitor.evidence == kept


def test_an_agent_that_has_seen_nothing_has_a_snapshot_too() -> None:
    found = Snapshot.model_validate_json(describe_now(commissioned()))
    assert found.evidence is None and found.trail is None and found.alarms == ()


@pytest.mark.parametrize("wanted", ["reduced", "off"])
def test_what_the_settings_want_of_evidence_is_what_is_kept(wanted: str) -> None:
    state, _ = feed(watched(), samples(0, 1), 60.0)
    state = changed(state, "context", settings=gateway_settings(alarm={"evidence": wanted}))
    state, _ = feed(state, samples(40, 5, 50.0), 61.0)
    assert (state.monitor.evidence is None) == (wanted == "off")


def test_who_connects_gets_one_document_and_only_the_owner_may(tmp_path: Path) -> None:
    path = tmp_path / "gateway.socket"
    path.write_text("what a process that was killed has left")
    asked: list[int] = []

    def describe() -> bytes:
        asked.append(len(asked))
        return b"%d" % len(asked)

    served = PageSocket(path, describe)
    served.start()
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        assert [read_all(path), read_all(path)] == [b"1", b"2"]
        with connect(path) as peer:
            with suppress(BrokenPipeError):  # it may have answered and gone already
                peer.sendall(b'{"kind": "stop"}\n' * 100)  # which nobody reads
            assert peer.recv(10) == b"3"
    finally:
        served.stop()
    assert not path.exists()


def test_who_does_not_read_is_left_and_makes_no_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_socket, "WITHIN_S", 0.1)
    path, answers = tmp_path / "gateway.socket", [LONG] * 3
    served = PageSocket(path, lambda: answers.pop() if answers else b"well")
    served.start()
    try:
        before = threading.active_count()
        began_s, idle = time.monotonic(), [connect(path) for _ in range(3)]
        assert read_all(path) == b"well"  # once the three are left
        assert time.monotonic() - began_s > 0.25 and threading.active_count() == before
        for peer in idle:
            peer.close()
    finally:
        served.stop()
