"""Two slots and a mark: what the store knows of models, whenever the power fails or a model ends the process.

Goal: one model is in force after every cut, a deadly one is given up and a sound one never, and what was once in force
stays known. The mark of a load is looked for in the file itself, while the model is loaded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgate.config.runtime.sqlite import StoreFullError
from fedgate.gateway_agent.deployment import validation
from fedgate.gateway_agent.deployment.deployment import (
    LOADS_MAX,
    MODEL,
    MODELS,
    STARTS_MAX,
    LoadAttempts,
    mark_at_start,
    restore_models,
    save,
    save_at_stop,
)
from fedgate.gateway_agent.deployment.probation import STEADY_S
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.gateway_agent.events import Keep, Save
from fedgate.gateway_agent.runtime.service import Service
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.status import status
from fedgate.gateway_agent.storage.store import Store
from fedgate.models.arrays import Arrays
from fedgate.models.time_units import NS
from tests.gateway_agent.deployment.test_gateway_models import Made, signed
from tests.support.agents import TICK, after, chunks, heard, kinds
from tests.support.kept import Small, give, item, service, ticked
from tests.support.sites import Shelf, agent, gateway_settings
from tests.support.watchers import BLOCK, CALM, SENSITIVE, THIRD, Gateway

DIGEST = SENSITIVE[0].model.digest


def test_a_model_that_ends_the_process_is_given_up_after_three_starts() -> None:
    """Each start marks in the store what it is about to load; a start that comes through takes the mark away."""
    gateway = Gateway(CALM, SENSITIVE)
    gateway.tick(STEADY_S + 1)
    assert restore_models(gateway.shelf.blobs).trying == {}

    def start() -> State:
        begun = mark_at_start(gateway.shelf.blobs, "boot", gateway_settings())
        assert begun is not None
        gateway.shelf.commit([begun])
        return agent(gateway_settings(), gateway.shelf, gateway.state.context.now_ns)

    for _ in range(STARTS_MAX - 1):
        start()  # and the process ends
    state, effects = after(start(), TICK, now_ns=gateway.state.context.now_ns + round((STEADY_S + 1) * NS))
    gateway.shelf.commit(effects)
    assert state.deployment.manifest == SENSITIVE[0]  # it came through: it was the power
    for _ in range(STARTS_MAX):
        assert start().deployment.manifest == SENSITIVE[0]
    state = start()
    assert state.deployment.manifest == CALM[0] and "the agent ended 3 times in a row" in status(state).rejected["2"]
    gateway.shelf.commit(save_at_stop(state.deployment))
    found = [
        start().deployment.manifest for _ in range(STARTS_MAX + 4)
    ]  # the last one is never given up, and not always loaded
    assert found == [CALM[0]] * STARTS_MAX + [None, CALM[0], None, CALM[0]]
    assert status(state).rejected.keys() == {"2"} and restore_models(gateway.shelf.blobs).current.version == 1


def test_a_load_that_ended_with_its_boot_was_ended_by_the_power() -> None:
    """Goal: a sound model is not given up. Three loads in one boot are two ends of the process where the power took the
    third, and the next boot counts anew; a candidate as one in force.
    """
    gateway = Gateway(CALM, SENSITIVE)
    gateway.tick(STEADY_S + 1)
    manifest = THIRD[0]
    for number in range(STARTS_MAX):
        marked = restore_models(gateway.shelf.blobs).with_load(DIGEST, "boot").with_load(manifest.model.digest, "boot")
        gateway.shelf.commit([save(marked)])
        assert marked.find_attempts(DIGEST).in_boot == number + 1
    begun = mark_at_start(gateway.shelf.blobs, "boot", gateway_settings())
    assert begun is not None and restore_models({MODELS: begun.body}).current.version == 1  # it never ended
    begun = mark_at_start(gateway.shelf.blobs, "next boot", gateway_settings())
    assert begun is not None and restore_models({MODELS: begun.body}).find_attempts(DIGEST).in_boot == 1
    gateway.restart()
    gateway.state = replace(gateway.state, context=replace(gateway.state.context, boot_id="next boot"))
    gateway.offer(THIRD)
    assert gateway.version == 3 and not status(gateway.state).rejected


def test_one_end_of_the_process_counts_once_whatever_the_versions_of_its_model() -> None:
    """A model that is released again under other versions is loaded once by a process, which may end once."""
    gateway = Gateway(CALM)
    manifest, body = CALM
    for number in range(STARTS_MAX):
        gateway.offer((signed(manifest, version=2 + number), body))
        assert gateway.version == 2 + number
    tries = restore_models(gateway.shelf.blobs).find_attempts(manifest.model.digest)
    assert tries.in_boot == 1 and not status(gateway.state).rejected
    other, other_body = SENSITIVE
    gateway.offer((signed(other, version=6), other_body))  # another in between, and two versions before a load
    gateway.took(*after(gateway.state, heard("manifest", "current", signed(manifest, version=7).to_bytes(), "all")))
    gateway.offer((signed(manifest, version=8), body))
    assert gateway.version == 8
    assert restore_models(gateway.shelf.blobs).find_attempts(manifest.model.digest) == tries


def test_a_start_that_finds_no_bytes_and_the_load_of_those_that_come_again_count_once() -> None:
    gateway = Gateway(CALM)
    del gateway.shelf.blobs[MODEL]
    gateway.restart()
    tries = restore_models(gateway.shelf.blobs).find_attempts(CALM[0].model.digest)
    gateway.offer(CALM)
    assert gateway.version == 1
    assert restore_models(gateway.shelf.blobs).find_attempts(CALM[0].model.digest) == tries


def test_what_rests_like_the_model_in_force_is_marked_before_it_is_loaded_under_another_version() -> None:
    """Neither the model in force nor the one before is loaded by this start, so neither load is marked by it."""
    gateway = Gateway(CALM, SENSITIVE)
    manifest, body = CALM
    models = restore_models(gateway.shelf.blobs).resting(DIGEST).resting(manifest.model.digest)
    gateway.shelf.commit([save(models)])
    gateway.restart()
    assert gateway.version == 0
    gateway.offer((signed(manifest, version=3), body))
    tries = restore_models(gateway.shelf.blobs).find_attempts(manifest.model.digest)
    assert gateway.version == 3 and not tries.rests and tries.in_all == LOADS_MAX


def test_a_stop_takes_the_mark_of_a_candidate_away_where_no_model_is_in_force() -> None:
    """Goal: a first model is not given up for a stop in order that came between its mark and its load."""
    gateway = Gateway()
    manifest, body = CALM
    gateway.took(*after(gateway.state, heard("manifest", "current", manifest.to_bytes(), "all"), *chunks(body)))
    assert restore_models(gateway.shelf.blobs).trying and gateway.version == 0  # not yet loaded
    gateway.shelf.commit(save_at_stop(gateway.state.deployment))
    assert not restore_models(gateway.shelf.blobs).trying


@pytest.mark.parametrize("awaited", [SENSITIVE, (signed(CALM[0], version=2), CALM[1])], ids=["other", "same bytes"])
def test_the_mark_of_the_model_in_force_goes_while_another_is_awaited(awaited: Made) -> None:
    """Goal: ends of a process long after the load of its model say nothing of it, however long a line takes."""
    gateway = Gateway(CALM)
    for _ in range(STARTS_MAX):
        gateway.took(*after(gateway.state, heard("manifest", "current", awaited[0].to_bytes(), "all")))
        gateway.tick(STEADY_S + 1.0)
        assert not restore_models(gateway.shelf.blobs).trying
        gateway.restart()
        assert gateway.version == 1


def test_a_candidate_that_ends_the_process_is_given_up_too() -> None:
    gateway = Gateway(CALM)
    manifest, body = SENSITIVE
    for _ in range(STARTS_MAX):
        gateway.took(*after(gateway.state, heard("manifest", "current", manifest.to_bytes(), "all"), *chunks(body)))
        assert restore_models(gateway.shelf.blobs).trying[manifest.model.digest].in_boot > 0  # not yet loaded
        assert gateway.version == 1
        gateway.restart()  # the process ended while it loaded it
    gateway.offer(SENSITIVE)
    assert gateway.version == 1 and "ended 3 times in a row while it loaded it" in status(gateway.state).refusal
    gateway.offer(THIRD)
    assert gateway.version == 3


@pytest.mark.soak
@pytest.mark.parametrize("is_before", [True, False])
def test_a_power_cut_at_any_commit_of_a_swap_or_a_way_back_leaves_one_model_in_force(is_before: bool) -> None:
    """Before the commit the old one, after it the new one; each with its own level, and nothing between."""
    gateway = Gateway(CALM)
    commits: list[tuple[Shelf, int]] = []
    commit = gateway.shelf.commit

    def watched(effects: Any) -> None:
        if kinds(effects, Save):
            if is_before:
                commits.append((Shelf(list(gateway.shelf.baseline), dict(gateway.shelf.blobs)), gateway.window))
            commit(effects)
            if not is_before:
                commits.append((Shelf(list(gateway.shelf.baseline), dict(gateway.shelf.blobs)), gateway.window))

    gateway.shelf.commit = watched  # type: ignore[method-assign]  # to see every one of them
    gateway.offer(SENSITIVE)
    gateway.watch(20 * BLOCK, shift=4.0, until=lambda: gateway.version == 1)
    found = []
    for shelf, _ in commits:
        state = agent(gateway_settings(), shelf)
        assert state.deployment.manifest is not None and state.monitor.pipeline.judge is not None
        assert state.deployment.models.current.version == state.deployment.manifest.version
        found.append(state.deployment.manifest.version)
    assert found[0] == 1 and 2 in found and (is_before or found[-1] == 1)


def test_a_slot_that_is_damaged_leaves_the_other() -> None:
    gateway = Gateway(CALM, SENSITIVE)
    slot = gateway.state.deployment.models.slot
    gateway.shelf.blobs[slot] = gateway.shelf.blobs[slot][:-3]
    gateway.restart()
    assert gateway.version == 1 and "stored model 2 refused" in status(gateway.state).refusal
    assert restore_models(gateway.shelf.blobs).current.version == 2
    gateway.offer(SENSITIVE)  # whole again
    assert gateway.version == 2 and status(gateway.state).previous_version == 1


class Choked(Small):
    """A store on a disk that takes nothing while it is full."""

    is_full = True

    def _commit(self, effects: Any, *, with_reserve: bool = False) -> None:
        if self.is_full:
            raise StoreFullError("the disk is full")
        super()._commit(effects, with_reserve=with_reserve)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the store of a gateway that went from one model to another, whose load was not finished."""
    shelf = Gateway(CALM, SENSITIVE).shelf
    store = Small(tmp_path / "gateway.db")
    store.commit([*map(Keep, shelf.baseline), *(Save(key, body) for key, body in shelf.blobs.items())])
    store.close()
    return store.path


@pytest.fixture
def loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, LoadAttempts]]]:
    """Return what is loaded while the test runs, by its size, with the marks that are on the disk then."""
    found: list[tuple[int, dict[str, LoadAttempts]]] = []

    class Watched(Scorer):
        def __init__(self, model: bytes, personal: Arrays) -> None:
            reader = Store(path, read_only=True)
            found.append((len(model), dict(restore_models(reader.read().blobs).trying)))
            reader.close()
            super().__init__(model, personal)

    monkeypatch.setattr(validation, "Scorer", Watched)
    return found


def offered(agent_: Service, made: Made) -> None:
    for event in (heard("manifest", "current", made[0].to_bytes(), "all"), *chunks(made[1])):
        ticked(agent_, 0.0, event)
    ticked(agent_)


def test_the_mark_is_on_the_disk_before_anything_is_loaded(
    path: Path, loads: list[tuple[int, dict[str, LoadAttempts]]]
) -> None:
    agent_ = service(Small(path))
    assert loads and all(marks[DIGEST].in_boot > 0 for _, marks in loads)
    loads.clear()
    offered(agent_, THIRD)
    assert loads and all(marks[THIRD[0].model.digest].in_boot == 1 for _, marks in loads)
    agent_.close()


def test_on_a_full_disk_a_candidate_waits_until_its_mark_can_be_stored(
    path: Path, loads: list[tuple[int, dict[str, LoadAttempts]]]
) -> None:
    store = Choked(path)
    store.is_full = False
    agent_ = service(store)
    loads.clear()
    store.is_full = True
    offered(agent_, THIRD)
    ticked(agent_, 100)
    assert (
        not loads and agent_.state.deployment.candidate == THIRD[0] and agent_.state.deployment.manifest == SENSITIVE[0]
    )
    store.is_full = False
    ticked(agent_)
    ticked(agent_)
    assert agent_.state.deployment.manifest == THIRD[0] and all(
        marks[THIRD[0].model.digest].in_boot == 1 for _, marks in loads
    )
    agent_.close()


def test_on_a_full_disk_a_start_loads_what_did_not_end_a_process_of_this_boot(path: Path) -> None:
    here = service(Choked(path))  # the boot in which it was marked and no load was finished
    assert here.state.deployment.manifest == CALM[0] and "the disk has no room to count" in status(here.state).refusal
    here.store.close()
    after_a_cut = service(Choked(path), boot_id="another")
    assert after_a_cut.state.deployment.manifest == SENSITIVE[0]
    after_a_cut.store.close()


@pytest.mark.soak
def test_power_cuts_while_a_sound_model_is_loaded_do_not_give_it_up(path: Path) -> None:
    for number in range(LOADS_MAX - 1):  # with the one that put it in force
        agent_ = service(Small(path), boot_id=f"boot {number}")
        assert agent_.state.deployment.manifest == SENSITIVE[0]
        agent_.store.close()
    agent_ = service(Small(path), boot_id="the last")  # what takes the whole machine along is given up as well
    assert (
        agent_.state.deployment.manifest == CALM[0] and "ended 10 times in a row" in status(agent_.state).rejected["2"]
    )
    agent_.close()


def test_a_store_that_is_damaged_at_work_forgets_no_version_and_a_model_that_it_lost_is_taken_again(
    path: Path, tmp_path: Path
) -> None:
    agent_ = service(Small(path))
    for _ in range(2):
        ticked(agent_, STEADY_S + 1)  # what is to be said of models is stored before the damage
    agent_.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.write(whole[:1_024] + bytes(len(whole) - 1_024))  # everything but the first page
    agent_.store._db.execute("PRAGMA shrink_memory")
    give(agent_, "alarm", item("alarm", 0))
    assert agent_.store.damage and restore_models(agent_.store.read().blobs).newest == 2
    agent_.close()
    agent_ = service(Small(path))
    assert agent_.state.deployment.manifest is None and "lost with what the store lost" in status(agent_.state).refusal
    offered(agent_, CALM)
    assert agent_.state.deployment.manifest is None and "not newer than 2" in status(agent_.state).refusal
    offered(agent_, SENSITIVE)
    assert agent_.state.deployment.manifest == SENSITIVE[0]
    agent_.close()
    agent_ = service(Small(path))
    assert agent_.state.deployment.manifest == SENSITIVE[0]
    agent_.close()
