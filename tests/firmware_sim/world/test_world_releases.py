"""What the witness of a simulated world says of staged releases and of orders; each check can fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.events import Answered, Durable, RecordModel, SaveRollout
from fedgate.cloud_aggregator.releases.releases import Rollout
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.firmware_sim.world import world
from fedgate.firmware_sim.world.environment.faults import Faults, Orders
from fedgate.firmware_sim.world.promises.releases import Releases
from tests.gateway_agent.deployment.test_gateway_models import signed
from tests.support.watchers import CALM


class Said:
    """The witness of releases, what it complains of, and the aggregator's store."""

    def __init__(self, folder: Path) -> None:
        self.violations: list[str] = []
        self.releases = Releases(self.violations.append)
        self.path = folder / "cloud.db"

    def commit(self, *effects: Durable) -> None:
        """Let the aggregator commit these, as the witness sees it and in its store."""
        with closing(Store(self.path)) as store:
            store.commit(effects)
        self.releases.committed(effects)

    def order(self, kind: str) -> int:
        with closing(Store(self.path)) as store:
            number = store.order(kind, {})
        self.releases.ordered(number, kind)
        return number

    def reopen(self) -> None:
        with closing(Store(self.path)) as store:
            self.releases.opened(store)

    def audit(self) -> None:
        with closing(Store(self.path)) as store:
            self.releases.audit(store)


SEED = 10  # of a world with [release] mode "staged"
STAGED = Rollout("watching", 2, canaries=("north",))


def stage(rollout: Rollout = STAGED) -> SaveRollout:
    return SaveRollout(
        json.dumps({"rollout": asdict(rollout), "everywhere": 1, "before": 0, "candidate": 2}).encode(), 1
    )


def run_by_another(seen: Said) -> None:
    seen.commit(stage())
    for gateway, version in (("north", 2), ("west", 1), ("west", 2)):
        seen.releases.in_force(gateway, version)


def given_a_lower_one(seen: Said) -> None:
    recalled = replace(STAGED, stage="stopped", recall=3, recalled=("north",), canaries=())
    held = {"rollout": asdict(recalled), "everywhere": 1, "before": 0, "recall": 3}
    seen.commit(SaveRollout(json.dumps(held).encode(), 1))
    seen.commit(stage(replace(STAGED, canaries=("west",))))


def made_and_of_no_release(seen: Said) -> None:
    seen.commit(stage(), RecordModel(*CALM), RecordModel(signed(CALM[0], version=7), CALM[1]))


def answered_twice(seen: Said) -> None:
    answer = Answered(seen.order("go-on"), "release of model 2 goes on")
    seen.commit(stage(), answer)
    seen.commit(stage(), answer)


def answered_before_it_was_done(seen: Said) -> None:
    seen.commit(Answered(seen.order("pause"), "release of model 2 is paused"))
    seen.commit(Answered(seen.order("stop"), "refused", "no release is under way"))


def ordered_by_nobody(seen: Said) -> None:
    seen.releases.committed([stage(), Answered(1, "release of model 2 goes on")])


def forgotten_release(seen: Said) -> None:
    seen.releases.committed([stage()])
    seen.reopen()


def forgotten_answer(seen: Said) -> None:
    number = seen.order("stop")
    seen.releases.committed([Answered(number, "refused", "no release is under way")])
    seen.reopen()


def never_answered(seen: Said) -> None:
    seen.order("stop")
    seen.audit()


def never_done_at_the_broker(seen: Said) -> None:
    seen.commit(Answered(seen.order("revoke"), ""))
    seen.audit()


WRONG = [run_by_another, answered_twice, answered_before_it_was_done, ordered_by_nobody, forgotten_release]
WRONG += [forgotten_answer, never_answered, never_done_at_the_broker, given_a_lower_one, made_and_of_no_release]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_witness_sees(wrong: Callable[[Said], None], tmp_path: Path) -> None:
    seen = Said(tmp_path)
    wrong(seen)
    assert len(seen.violations) == 1


@pytest.mark.soak
def test_orders_are_answered_and_releases_are_staged_and_stopped() -> None:
    """In a world in which nothing fails; what is ordered is drawn from its seed."""
    outcome = world.run(SEED, 0.5, Faults(operator=Orders(orders=60.0)))
    assert outcome.violations == ()
    assert outcome.counts["orders"] > 10 and outcome.counts["staged"] > 1 and outcome.counts["stopped"] > 0
    assert any("refused" in line for line in outcome.history)
