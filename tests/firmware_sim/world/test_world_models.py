"""What the witness of a simulated world says of the probations of models; each check can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedgate.config.protocol.messages import Status
from fedgate.firmware_sim.world import world
from fedgate.firmware_sim.world.actors.processor import Stopwatch
from fedgate.firmware_sim.world.environment.faults import Faults, Processor, Work
from fedgate.firmware_sim.world.environment.time import Scheduler
from fedgate.firmware_sim.world.promises.checks import Witness
from fedgate.gateway_agent.deployment.deployment import (
    MODEL,
    MODELS,
    OTHER,
    Bundle,
    Models,
    Rejected,
    SlotEntry,
    save,
    save_model,
)
from fedgate.gateway_agent.events import Durable, Save
from fedgate.gateway_agent.state import State, Stored
from fedgate.models.time_units import NS
from tests.support.agents import changed
from tests.support.sites import topic
from tests.support.watchers import CALM, SENSITIVE, Gateway

OLD, NEW = SlotEntry.of(CALM[0]), SlotEntry.of(SENSITIVE[0])
OVER = 86_400  # windows of a probation, of a second each


def witness() -> Witness:
    return Witness(lambda who, text: None, lambda: 0.0)


def saved(seen: Witness, *models: Models) -> None:
    """Let north commit these, one after the other; both models are in its store."""
    seen.probations.known("north", Gateway(CALM).state.context.settings)
    stored: list[Durable] = [save_model(Bundle(*CALM, {}), MODEL), save_model(Bundle(*SENSITIVE, {}), OTHER)]
    for one in models:
        seen.probations.committed("north", [*stored, save(one)])


NEWEST = Models(slot=OTHER, newest=2, current=NEW, previous=OLD)
BACK = NEWEST.back().rejecting(Rejected(2, NEW.name, "model 2 rolled back: it is slow"))


def on_probation(seen: Witness) -> State:
    """Return a gateway on probation, which the witness knows."""
    state = Gateway(CALM, SENSITIVE).state
    assert state.deployment.trial is not None
    seen.probations.known("north", state.context.settings)
    seen.probations.stepped("north", state)
    return state


def of_no_slot(seen: Witness) -> None:
    saved(seen, replace(NEWEST, slot=MODEL))


def a_proven_one_given_up(seen: Witness) -> None:
    saved(seen, replace(NEWEST, windows=OVER), BACK)


def on_probation_once_more(seen: Witness) -> None:
    saved(seen, replace(NEWEST, windows=OVER), replace(NEWEST, windows=OVER - 1))


def taken_again(seen: Witness, *kept: Save) -> None:
    """Let the store of a proven model be damaged, of which so much is kept, and let the model come again."""
    seen.probations.known("north", Gateway(CALM).state.context.settings)
    proven = save(replace(NEWEST, windows=OVER))
    stored = Stored(blobs={one.key: one.body for one in (*kept, proven)})
    seen.probations.opened("north", stored, is_handled=True)
    seen.probations.committed("north", [proven])
    seen.probations.committed("north", [save_model(Bundle(*SENSITIVE, {}), OTHER), save(NEWEST)])


def on_probation_once_more_though_it_was_not_lost(seen: Witness) -> None:
    taken_again(seen, save_model(Bundle(*CALM, {}), MODEL), save_model(Bundle(*SENSITIVE, {}), OTHER))


def back_to_what_was_given_up(seen: Witness) -> None:
    saved(seen, NEWEST, BACK.rejecting(Rejected(1, OLD.name, "model 1 rolled back: it is slow")))


def never_over(seen: Witness) -> None:
    state = on_probation(seen)
    seen.probations.stepped(
        "north",
        replace(state, deployment=replace(state.deployment, models=replace(state.deployment.models, windows=OVER))),
    )


def never_counted(seen: Witness) -> None:
    state = on_probation(seen)
    seen.probations.stepped("north", changed(state, "monitor", windows=10 * OVER))


def forgotten_at_a_restart(seen: Witness) -> None:
    state = on_probation(seen)
    watched = replace(
        state, deployment=replace(state.deployment, models=replace(state.deployment.models, windows=1_000))
    )
    stored: list[Durable] = [
        save_model(Bundle(*CALM, {}), MODEL),
        save_model(Bundle(*SENSITIVE, {}), OTHER),
        save(state.deployment.models),
    ]
    seen.probations.committed("north", stored)
    seen.probations.stepped("north", watched)
    seen.probations.opened("north", Stored(blobs={MODELS: save(state.deployment.models).body}), is_handled=False)


def other_than_committed(seen: Witness) -> None:
    saved(seen, NEWEST)
    seen.probations.opened("north", Stored(blobs={MODELS: save(BACK).body}), is_handled=False)


def counted_twice_by_one_process(seen: Witness) -> None:
    models = NEWEST
    for _ in range(2):
        models = models.with_load(NEW.digest, "north-0")
        seen.devices.committed("north", [save(models)])


def done_without_for_no_reason(seen: Witness) -> None:
    for models in (NEWEST, NEWEST.resting(NEW.digest)):
        seen.devices.committed("north", [save(models)])


def slow_for_no_reason(seen: Witness) -> None:
    why = "model 2 rolled back: 10 times in a row it took longer than from window to window"
    seen.released[2] = NEW.digest
    for name in ("west", "north"):
        for device in (name, f"{name}~"):
            seen.probations.known(device, Gateway(CALM).state.context.settings)
        seen.devices.committed(name, [save(NEWEST.with_load(NEW.digest, "one"))])
        seen.devices.loads[name].slowed({"west": 0.0, "north": -1.0}[name])  # north was slow before it had this model
        seen.doubled(f"{name}~", name)
    for device in ("west", "west~", "north~"):
        status = Status(state="online", rejected={"2": why})
        seen.gateway_published(device, topic(device.removesuffix("~"), "status", "agent"), status.to_bytes())


WRONG = [of_no_slot, a_proven_one_given_up, on_probation_once_more, back_to_what_was_given_up, never_over]
WRONG += [never_counted, forgotten_at_a_restart, other_than_committed, slow_for_no_reason]
WRONG += [on_probation_once_more_though_it_was_not_lost, counted_twice_by_one_process, done_without_for_no_reason]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_witness_sees(wrong: Callable[[Witness], None]) -> None:
    seen = witness()
    wrong(seen)
    assert len(seen.violations) == 1


def test_a_model_that_was_lost_with_a_damaged_store_is_watched_anew() -> None:
    seen = witness()
    taken_again(seen, save_model(Bundle(*CALM, {}), MODEL))
    assert seen.violations == []


def test_a_probation_that_ends_and_a_way_back_break_no_promise() -> None:
    seen = witness()
    saved(seen, NEWEST, replace(NEWEST, windows=OVER))
    saved(seen, NEWEST, BACK)
    assert seen.violations == [] and seen.probations.counts == {"proven": 1, "rolled_back": 1}


def test_a_processor_is_slow_for_a_while_and_never_when_nothing_fails_any_more() -> None:
    scheduler = Scheduler()
    stopwatch = Stopwatch(scheduler, np.random.default_rng(0), Processor(slow=3_600.0, takes_s=50.0), print)
    stopwatch.schedule_faults()
    assert stopwatch() == stopwatch()
    scheduler.run(60.0)
    assert 0 < -(stopwatch() - stopwatch()) < 50 * NS and stopwatch.slow_until_s is not None
    scheduler.calm_s = 60.0
    assert stopwatch() == stopwatch()


@pytest.mark.soak
def test_probations_end_and_models_that_are_too_slow_are_gone_back_from() -> None:
    """In a world in which windows are short and rounds are rare."""
    outcome = world.run(PATIENT, 0.6, Faults(work=Work(damage=0.0), processor=Processor(slow=4.0, slow_s=600.0)))
    assert outcome.violations == ()
    assert outcome.counts["proven"] > 0 and outcome.counts["rolled_back"] > 0


PATIENT = 13
