"""`cloud-aggregator status` says how things are: of a service that is dead, hangs, or has lost its broker, too."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.commands import doctor
from fedgate.cloud_aggregator.commands.backup import copy_store
from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.events import Connection, Received, RecordGateway, RecordService, Tick
from fedgate.cloud_aggregator.pki.quarantine import Quarantine
from fedgate.cloud_aggregator.presence import BEAT_S
from fedgate.cloud_aggregator.storage.sqlite import SqliteDatabase
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import Status
from fedgate.config.runtime import store_lock
from fedgate.config.settings.settings import AggregatorSettings, load
from fedgate.firmware_sim.broker import broker
from fedgate.models.time_units import NS
from tests.end_to_end.test_processes import free_port, listening, running, speaking, state_of, until, write
from tests.support import waiting
from tests.support.cloud_service import READY, Cloud, cloud, mean_of
from tests.support.sites import topic

Capture = pytest.CaptureFixture[str]
DAY_S = 86_400


@contextmanager
def stored(folder: Path, *effects: Any, held_s: float | None = DAY_S) -> Iterator[Path]:
    """Make a site whose store holds these effects, and has been held for so long; yield its settings."""
    assert main(["init", str(folder / "site"), "--loopback"]) == 0
    store = Store(folder / "site" / "aggregator.db")
    store.commit(effects)
    store.close()
    with held(Path(store.name), held_s):
        yield folder / "site" / "aggregator.toml"


@contextmanager
def held(store: Path, held_s: float | None) -> Iterator[None]:
    """Have a store as a service that began so long ago has it; None: nobody has it."""
    if held_s is None:
        yield
        return
    lock = store_lock.hold(store, "aggregator")
    os.utime(lock, (time.time() - held_s,) * 2)
    try:
        yield
    finally:
        store_lock.release(lock)


def asked(settings: Path, capsys: Capture, *more: str, code: int = 0) -> Any:
    """Return what the command says in JSON."""
    capsys.readouterr()
    assert main(["status", "-c", str(settings), "--json", *more]) == code
    return json.loads(capsys.readouterr().out)


def line(settings: Path, capsys: Capture, code: int) -> str:
    """Return the one line of `--check`."""
    capsys.readouterr()
    assert main(["status", "-c", str(settings), "--check"]) == code
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return out.strip()


def beat(age_s: float, *, is_connected: bool = True) -> RecordService:
    now_ns = time.time_ns()
    beat_ns = now_ns - round(age_s * NS)
    return RecordService(beat_ns - DAY_S * NS, beat_ns, is_connected, beat_ns - 3_600 * NS)


def record(gateway: str, age_s: float, state: Any = "online") -> RecordGateway:
    return RecordGateway(gateway, Status(state=state), time.time_ns() - round(age_s * NS))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("beat_s", "is_connected", "held_s", "work", "words", "code", "state"),
    [
        (5, True, DAY_S, "running", "OK - 1 of 1 gateways online", 0, "online"),
        (400, True, DAY_S, "hangs", "CRITICAL - service: HANGS", 2, "unknown"),
        (5, True, None, "stopped", "CRITICAL - service: DOES NOT RUN", 2, "unknown"),
        (5, False, DAY_S, "running", "broker: not connected since", 2, "unknown"),
        (5, True, 1, "running", "broker: not connected since", 2, "unknown"),  # it begins, and the sign is of before
        (400, True, 1, "running", "broker: not connected since", 2, "unknown"),
        (5, True, -DAY_S, "running", "OK - 1 of 1 gateways online", 0, "online"),  # its clock was set back since
        (400, True, -DAY_S, "hangs", "CRITICAL - service: HANGS", 2, "unknown"),
    ],
)
def test_what_is_shown_follows_from_a_live_process_its_work_and_its_broker(
    beat_s: float,
    is_connected: bool,
    held_s: float | None,
    work: str,
    words: str,
    code: int,
    state: str,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    sign = beat(beat_s, is_connected=is_connected)  # now, and not when the tests were collected
    with stored(tmp_path, sign, record("north", 20), held_s=held_s) as settings:
        value = asked(settings, capsys)
        (north,) = value["gateways"]
        assert (value["service"]["state"], north["state"]) == (work, state)
        assert bool(north["unknown_since"]) == (state == "unknown")
        main(["status", "-c", str(settings)])
        first, *_, last = capsys.readouterr().out.splitlines()
        assert first.startswith("service: ") and " s old" in first and f"  {state} " in last
        said = line(settings, capsys, code)
        assert words in said
        reason = asked(settings, capsys, "--check", code=code)["reason"]
        assert re.sub(r"\d+ s old", "", reason) == re.sub(r"\d+ s old", "", said.partition(" - ")[2])


def test_the_table_of_gateways_fits_a_line(tmp_path: Path, capsys: Capture) -> None:
    said = {"refusal": "round 1: no memory " * 9, "training_remarks": "all rows lie outside", "dropped": {"sample": 7}}
    odd = Status(state="offline", baseline_windows=99_999, baseline_needed=99_999, model_version=9_999, **said)
    names = ("north", "g" * 64)
    with stored(tmp_path, beat(5), *(RecordGateway(name, odd, time.time_ns()) for name in names)) as settings:
        assert main(["status", "-c", str(settings)]) == 0
        lines = capsys.readouterr().out.splitlines()
        table = lines[next(at for at, line in enumerate(lines) if line.startswith("gateway ")) :]
        assert max(map(len, table)) <= 100 and sum("99999/99999" in line for line in table) == 2
        noted = " ".join(" ".join(table[3:]).split())
        assert all(f"{name}: round 1: no memory " in noted for name in names)
        assert noted.endswith("no memory ; all rows lie outside; 7 dropped")
        assert main(["status", "-c", str(settings), "--wide"]) == 0
        wide = capsys.readouterr().out
        assert all(words in wide for words in ("g" * 64, "no memory round 1: no memory", "all rows lie outside"))


def test_data_is_as_old_as_the_end_of_the_connection(tmp_path: Path, capsys: Capture) -> None:
    with stored(tmp_path, beat(5, is_connected=False)) as settings:
        assert asked(settings, capsys)["service"]["data_age_s"] == pytest.approx(3_605, abs=60)


@pytest.mark.parametrize(
    ("gateways", "code", "words"),
    [
        ([("north", 20), ("west", 20, "offline")], 1, "WARNING - 1 of 2 gateways online; offline: west"),
        ([("north", 901), ("west", 20)], 1, "WARNING - 1 of 2 gateways online; silent: north"),
        ([], 0, "OK - 0 of 0 gateways online"),
    ],
)
def test_gateways_that_are_away_or_silent_are_a_warning(
    gateways: list[tuple[Any, ...]], code: int, words: str, tmp_path: Path, capsys: Capture
) -> None:
    with stored(tmp_path, beat(5), *[record(*one) for one in gateways]) as settings:
        assert words in line(settings, capsys, code)


def test_a_check_that_can_read_nothing_ends_with_3(tmp_path: Path, capsys: Capture) -> None:
    assert main(["init", str(tmp_path / "site"), "--loopback"]) == 0
    assert "UNKNOWN - " in line(tmp_path / "site" / "aggregator.toml", capsys, 3)
    assert "UNKNOWN - " in line(tmp_path / "nowhere.toml", capsys, 3)


def test_a_revoked_gateway_is_never_online(tmp_path: Path, capsys: Capture) -> None:
    command = ["init", str(tmp_path / "site"), "--site", "bridge", "--host", "localhost"]
    assert main(command) == 0
    store, until_ns = Store(tmp_path / "site" / "aggregator.db"), 2**62
    ended = Certificate("a", "north", "k", 1, until_ns, "revoked", 2)
    good = Certificate("b", "west", "l", 1, until_ns)
    records: list[Any] = [record("north", 20), record("west", 20), RecordRegistry((ended, good))]
    store.commit([beat(5), *records])
    store.close()
    settings = tmp_path / "site" / "aggregator.toml"
    with held(Path(store.name), DAY_S):
        states = {one["gateway"]: one["state"] for one in asked(settings, capsys)["gateways"]}
        assert states == {"north": "revoked", "west": "online"}
        assert "1 of 1 gateways online" in line(settings, capsys, 0)


@pytest.mark.soak
def test_who_is_denied_at_the_broker_or_was_never_heard_is_said(tmp_path: Path, capsys: Capture) -> None:
    """Goal: no enrolled gateway is missing from what is shown, and none whom nobody can hear counts as well."""
    assert main(["init", str(tmp_path / "site"), "--site", "bridge", "--host", "localhost"]) == 0
    store, settings = Store(tmp_path / "site" / "aggregator.db"), tmp_path / "site" / "aggregator.toml"
    before = Certificate("a1", "north", "k", 1, 2**62, "replaced", 2)
    now = [Certificate(f"b{number}", name, name, 1, 2**62) for number, name in enumerate(("north", "west", "new"))]
    people = [record(name, 20) for name in ("north", "west")]
    store.commit([beat(5), *people, RecordRegistry((before, *now))])
    store.close()
    with held(Path(store.name), DAY_S):
        said = line(settings, capsys, 1)
        assert "1 of 3 gateways online; denied at the broker until that is restarted: north; enrolled and" in said
        assert said.endswith("never heard: new")
        rows = {one["gateway"]: one for one in asked(settings, capsys)["gateways"]}
        assert {name: one["state"] for name, one in rows.items()} == {
            "north": "unknown",
            "west": "online",
            "new": "unknown",
        }
        assert main(["status", "-c", str(settings)]) == 0
        assert "WARNING: denied at the broker until that is restarted: north" in capsys.readouterr().out
        assert main(["gateways", "list", "-c", str(settings)]) == 0
        assert "north    enrolled, denied until the broker is restarted" in capsys.readouterr().out
        spec = load(settings, AggregatorSettings).identity
        assert spec is not None
        found = [one.text for one in doctor.list_denied(spec, doctor.read_stored(Path(store.name)).registry)]
        assert found == ["denied until it is restarted, as another device may still be connected: north"]
        Quarantine(settings.parent / "outlived.json").list_held([("a1", 2)], [("a1", "north")], "first")
        Quarantine(settings.parent / "outlived.json").list_held(
            [("a1", 2)], [("a1", "north")], "second"
        )  # it was restarted
        assert line(settings, capsys, 1).endswith("2 of 3 gateways online; enrolled and never heard: new")


def status(made: Cloud, **said: Any) -> bytes:
    return READY.model_copy(update=said).to_bytes()


def seen_s(made: Cloud, gateway: str) -> float | None:
    """Return how long ago a gateway was last seen, by the store."""
    t_ns = made.service.store.read_seen()[gateway]
    return (made.now_ns - t_ns) / NS if t_ns else None


def test_seen_is_the_time_of_a_live_message(tmp_path: Path) -> None:
    where = topic("north", "status", "agent")
    with cloud(tmp_path, mean_of(2), ("north",)) as made:
        made.hear(after_s=100)
        made.hear(Received(where, status(made)))
        assert seen_s(made, "north") == 0
        made.hear(Connection(False), after_s=1_000)
        made.hear(Connection(True), after_s=1_000)
        waited = {"clock": "synchronised", "t_ns": made.now_ns - 1_500 * NS}
        for event, ago_s in (
            (Received(where, status(made), is_retained=True), 2_000),
            (Received(where, status(made, **waited), is_retained=True), 2_000),
            (Received(where, Status(state="offline").to_bytes()), 2_000),  # the last will, which waited at the broker
            (Received(where, status(made)), 2_000),  # it waited there, too, for all we know
            (Received(where, status(made, **waited)), 1_500),
        ):
            made.hear(event)
            assert seen_s(made, "north") == ago_s
        made.restart()
        assert seen_s(made, "north") == 1_500
        made.hear(Received(where, Status(state="offline").to_bytes()), after_s=500)
        assert seen_s(made, "north") == 2_000
        made.hear(Received(where, status(made)))
        assert seen_s(made, "north") == 0


def test_the_sign_costs_one_commit_a_minute(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2), ("north",)) as made:
        made.hear(Tick(), after_s=BEAT_S)
        commit, written = made.service.store.commit, []

        def counted(effects: Any) -> None:
            written.append(list(effects))
            commit(written[-1])

        made.service.store.commit = counted  # type: ignore[method-assign]  # to count what is written
        for _ in range(600):
            made.hear(Tick(), after_s=1)
        assert [len(one) for one in written if isinstance(one[0], RecordService)] == [1] * 10
        assert len(written) == 10


@pytest.mark.soak
def test_a_service_that_ended_without_a_word_shows_at_once(tmp_path: Path, capsys: Capture) -> None:
    port = free_port()
    write(tmp_path, port)
    settings = tmp_path / "aggregator.toml"
    with running("cloud_aggregator", tmp_path) as process:
        until(lambda: "not connected" in seen_by_check(settings, capsys), process, tmp_path / "aggregator.log")
        with broker(tmp_path / "broker", port=port), listening(port, "status") as heard:
            until(lambda: state_of(heard, topic("all", "status", "cloud")) == "online")
            until(lambda: seen_by_check(settings, capsys).startswith("OK"))
            (tmp_path / "copy").mkdir()
            copy = write_copy(tmp_path, tmp_path / "copy", port)
            assert "DOES NOT RUN" in line(copy, capsys, 2)  # though its last sign is seconds old and its process there
        until(lambda: "not connected" in seen_by_check(settings, capsys))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert "DOES NOT RUN" in line(settings, capsys, 2)


@pytest.mark.soak
@pytest.mark.slow
def test_what_the_broker_had_kept_is_no_live_message(tmp_path: Path, capsys: Capture) -> None:
    port, where = free_port(), topic("north", "status", "agent")
    write(tmp_path, port)
    said = READY.model_copy(update={"clock": "synchronised", "t_ns": time.time_ns()}).to_bytes()

    def seen() -> list[tuple[str, bool]]:
        rows = asked(tmp_path / "aggregator.toml", capsys)["gateways"]
        return [(one["state"], bool(one["seen"])) for one in rows]

    with broker(tmp_path / "broker", port=port), speaking(port) as north:
        assert north.publish(where, said, retain=True)
        waiting.until(lambda: north.drain(0.1))
        with running("cloud_aggregator", tmp_path):
            waiting.until(lambda: (tmp_path / "aggregator.db").exists() and seen() == [("online", False)])
            assert north.publish(where, said, retain=True)
            waiting.until(lambda: seen() == [("online", True)])


def write_copy(folder: Path, to: Path, port: int) -> Path:
    """Copy a store that is in use as a backup does; return settings for the copy."""
    write(to, port)
    copy_store(SqliteDatabase(folder / "aggregator.db"), to / "aggregator.db")
    return to / "aggregator.toml"


def seen_by_check(settings: Path, capsys: Capture) -> str:
    """Return the line of `--check`, whatever it says."""
    capsys.readouterr()
    main(["status", "-c", str(settings), "--check"])
    return capsys.readouterr().out.strip()
