"""The seeded world: whatever breaks, no promise does; and the world is no kinder than it says.

Goal: loss-free in the field. Method: worlds, each with another mix of faults, and after each the checks of
`fedgate.firmware_sim.world.promises.checks`: a few here, 60 that follow from the commit in `.ci/run`, and 10,000 in
`make soak`. A world that fails prints the one command that replays it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Alarm, Receipt, Status
from fedgate.config.settings.settings import SettingsError
from fedgate.firmware_sim import children
from fedgate.firmware_sim.__main__ import main
from fedgate.firmware_sim.world import world
from fedgate.firmware_sim.world.command import replay
from fedgate.firmware_sim.world.environment.faults import Faults, Work, drawn, load_faults
from fedgate.firmware_sim.world.environment.setup import HOURS, stream_of
from fedgate.firmware_sim.world.promises.checks import Witness
from fedgate.firmware_sim.world.promises.devices import Devices
from fedgate.firmware_sim.world.promises.privacy import Privacy
from fedgate.gateway_agent.events import Enqueue, Item, Save
from fedgate.gateway_agent.state import SECRET, Stored
from tests.support.masked_rounds import masked_adding, names_of, rows_of, took_part
from tests.support.sites import topic
from tests.support.soak import some
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S

SEEDS, BLOCK = 2, 1


@pytest.mark.slow
@pytest.mark.parametrize("first", some(range(SEEDS - BLOCK, -1, -BLOCK)))
def test_no_promise_breaks_in_any_world(first: int) -> None:
    """A block of seeds, so that all processes of the tests share the worlds."""
    broken: list[str] = []
    for seed in range(first, first + BLOCK):
        print(replay(seed))  # the last of these is the world in which a machine ended with an error of its own
        broken += [f"{replay(seed)}: {text}" for text in world.run(seed, HOURS).violations]
    assert not broken, "\n".join(broken)


@pytest.mark.soak
def test_a_world_without_faults_keeps_its_promises_and_is_alive() -> None:
    outcome = world.run(4, 0.5, Faults(work=Work(damage=30.0)))
    assert outcome.violations == ()
    assert outcome.counts["alarms"] > 0 and outcome.counts["rounds"] > 2 and outcome.counts["models"] > 2
    assert outcome.counts["cuts"] == 0


@pytest.mark.soak
def test_equal_seeds_give_equal_histories_in_any_process() -> None:
    hours = 0.4
    code = f"from fedgate.firmware_sim.world import world; print('\\n'.join(world.run(11, {hours}).history))"
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": other}  # than the one of this process
    run = children.run([sys.executable, "-c", code], PATIENCE_S, text=True, env=environment, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    here = world.run(11, hours).history
    assert run.stdout.splitlines() == "\n".join(here).splitlines() and len(here) > 50


def test_faults_come_from_a_file_that_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "F.toml"
    file.write_text("[messages]\nloss = 0.1\n[power]\ncuts = 3.0\n")
    faults = load_faults(file)
    assert (faults.messages.loss, faults.power.cuts, faults.line.partitions) == (0.1, 3.0, 0.0)
    file.write_text("[messages]\nloss = 2\n")
    with pytest.raises(SettingsError, match=r"F.toml:2: messages.loss"):
        load_faults(file)


def test_every_seed_draws_another_mix() -> None:
    mixes = [drawn(stream_of(seed, "faults")) for seed in range(50)]
    assert len({mix.model_dump_json() for mix in mixes}) == 50
    for part in ("loss", "repeat", "damage"):
        values = [getattr(mix.messages, part) for mix in mixes]
        assert 0.0 in values and max(values) > 0.02


# The witness: each check can fail.


def witness() -> Witness:
    return Witness(lambda who, text: None, lambda: 0.0)


def alarm_item() -> tuple[str, Item]:
    alarm = Alarm(
        id="north.anomaly.5",
        cause="anomaly",
        kind="anomaly",
        state="raised",
        severity="major",
        text="",
        onset_ns=5,
        t_ns=6,
    )
    return alarm.item, Item(topic("north", "alarm", "anomaly"), (alarm.to_bytes(),), retain=True, priority=0)


def early_alarm(seen: Witness) -> None:
    _, item = alarm_item()
    seen.gateway_published("north", item.topic, item.payloads[0])


def early_receipt(seen: Witness) -> None:
    name, item = alarm_item()
    seen.gateway_committed("north", [Enqueue(name, item)])
    seen.cloud_published(topic("north", "receipt", name), Receipt(accepted=True).to_bytes())


def refused_alarm(seen: Witness) -> None:
    name, item = alarm_item()
    seen.gateway_committed("north", [Enqueue(name, item)])
    seen.cloud_published(topic("north", "receipt", name), Receipt(accepted=False, reason="no").to_bytes())


def told_secret(seen: Witness) -> None:
    seen.gateway_committed("north", [Save(SECRET, b"x" * 32)])
    seen.gateway_published("north", topic("north", "want", "x"), b"..." + b"x" * 32)


def refused_update(seen: Witness) -> None:
    seen.updates["north", "d"] = b""
    reason = "message: its digest differs from the header's sha256; it was damaged"
    seen.cloud_published(topic("north", "receipt", "d"), Receipt(accepted=False, reason=reason).to_bytes())


def refused_model(seen: Witness) -> None:
    status = Status(state="online", rejected={"1": "model 1 refused: its golden scores differ"})
    seen.gateway_published("north", topic("north", "status", "agent"), status.to_bytes())


def false_accusation(seen: Witness) -> None:
    seen.devices.touched("west", "restored")
    alarm = Alarm.from_bytes(alarm_item()[1].payloads[0]).model_copy(update={"cause": "identity-restored"})
    seen.devices.accused("west", alarm)
    seen.devices.accused("north", alarm)


def lost_at_a_restart(seen: Witness) -> None:
    seen.devices.committed("north", [Enqueue(*alarm_item())])
    seen.devices.opened("north", Stored(), "", [])


def damaged_by_nobody(seen: Witness) -> None:
    seen.devices.opened("north", Stored(), "a page", [])


def two_by_turns(seen: Witness) -> None:
    number = 0
    seen.devices = Devices(seen.violate, lambda: float(number))
    for _ in range(3):
        for device in ("north", "north~"):
            told = {"state": "online", "boot_id": device, "store_id": "s", "starts": 1, "challenge": number}
            number += 1
            seen.devices.note_sent(device, status := Status.model_validate(told | {"monotonic_ns": number}))
            seen.devices.note_received("north", status)
            seen.devices.challenged("north", number)
    seen.devices.accused("north", Alarm.from_bytes(alarm_item()[1].payloads[0]))
    seen.devices.handled["north"] = {"twin"}
    assert seen.devices.audit() == {"restored": 0, "twins": 1}


WRONG = [early_alarm, early_receipt, refused_alarm, told_secret, refused_update, refused_model, false_accusation]
WRONG += [lost_at_a_restart, damaged_by_nobody, two_by_turns]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_witness_sees(wrong: Callable[[Witness], None]) -> None:
    seen = witness()
    wrong(seen)
    assert len(seen.violations) == 1


def test_a_window_in_an_update_is_seen_in_any_form() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for sent, is_seen in ((rows[3], True), (rows[3].astype(np.float64), True), (rows.sum(axis=0), False)):
        said: list[str] = []
        privacy = Privacy(said.append)
        for row in rows:
            privacy.row("north", row)
        privacy.leaves("north", wire.encode({"a": sent}))
        privacy.audit()
        assert bool(said) is is_seen


def test_a_secret_that_serves_twice_or_is_stored_is_seen() -> None:
    said: list[str] = []
    privacy = Privacy(said.append)
    for _ in range(2):
        privacy.trains("north", wire.encode({}, {"drawn": "01" * 32}))
    privacy.keep("north", "own", wire.encode({"masking.secret": np.ones(32, dtype=np.uint8)}))
    assert len(said) == 2 and "served before" in said[0] and "stored a secret" in said[1]


def test_a_second_answer_under_the_same_keys_is_seen() -> None:
    """Whatever is sent again is the same; another input, or other shares, of the same keys betray what they hide."""
    algorithm, data = masked_adding(2), rows_of(names_of(3), 2)
    made = took_part(algorithm, data)
    for step, updates in enumerate(made.updates):
        said: list[str] = []
        privacy, update = Privacy(said.append), updates["gateway-001"]
        for again in (update, update, {**update, "more": np.ones(1)}):
            privacy.leaves("gateway-001", wire.encode(again))
            privacy.audit()
        assert said == [f"gateway-001 answered exchange {step} of a masked round twice under the same keys"]


@pytest.mark.soak
def test_what_a_killed_world_left_behind_is_removed_by_the_next(tmp_path: Path) -> None:
    with children.start([sys.executable, "-c", ""]) as child:
        child.wait()
    left, mine, other = (tmp_path / f"fedgate-world-{name}" for name in (f"{child.pid}-x", f"{os.getpid()}-x", "named"))
    for folder in (left, mine, other):
        (folder / "store").mkdir(parents=True)
    world.run(0, hours=0.0, faults=Faults(), folder=tmp_path)
    assert set(tmp_path.iterdir()) == {mine, other}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--seed 1 --hours abc", "expected hours above 0"),
        ("--seeds 1..3 --jobs 0", "expected 1 to"),
        ("--seed 1 --folder nowhere", "expected a folder that is there"),
        (f"--seed {10**30}", "of 18 digits at most"),
        (f"--seeds 1..{10**30}", "expected A..B"),
    ],
)
def test_what_is_given_wrongly_is_named(given: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["world", *given.split()])
    assert expected in capsys.readouterr().err
