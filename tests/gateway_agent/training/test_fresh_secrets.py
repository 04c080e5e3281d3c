"""Keys, masks and noise serve once: whatever is restored, restarted or stolen, no exchange has those of another."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from fedgate.config.protocol import wire
from fedgate.gateway_agent import events
from fedgate.gateway_agent.runtime import training_worker
from fedgate.gateway_agent.state import SECRET
from fedgate.gateway_agent.status import status
from fedgate.gateway_agent.training.training import OWN
from fedgate.models.arrays import Arrays, exchange_secret, is_fleeting, parted, ratchet
from fedgate.models.federated.secure_aggregation.client import STEPS
from fedgate.models.federated.secure_aggregation.keys import Keys, public_key
from fedgate.models.federated.secure_aggregation.options import AGREEMENT, PREFIX
from tests.support.masked_rounds import INPUT, SHARES
from tests.support.sites import Site, aggregator_settings, gateway_settings

NAMES = ("east", "north", "south", "west")
MASKED: dict[str, Any] = {"masking": {"fewest": 3}}
NOISED: dict[str, Any] = {"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "epsilon": 1e6}}
Heard = dict[tuple[str, str, int], list[Arrays]]  # by gateway, run and round


class Listening(Site):
    """A site that keeps what each gateway ever answered, by the round that it answered."""

    def __init__(self, wrapping: dict[str, Any], seed: int = 1) -> None:
        self.wrapping, self.heard = wrapping, Heard()
        super().__init__(self.chosen(seed), [gateway_settings(name) for name in NAMES])
        self.connect_all()
        self.commission()

    def chosen(self, seed: int) -> Any:
        settings = {"loss": "logistic", "components": 0, "rounds": 2, **self.wrapping}
        rounds = {"quorum": 3, "deadline_s": 60.0, "rest_s": 1.0}
        return aggregator_settings(algorithm={"name": "fedavg", "seed": seed, "settings": settings}, rounds=rounds)

    def train(self) -> None:
        who, job = self.jobs.pop(0)
        order, answer = wire.decode(job)[1], training_worker.answer(job)
        update = parted(wire.decode(answer)[0]).get("update", {})
        self.heard.setdefault((who, order["run"], order["round_index"]), []).append(update)
        self.step_agent(who, events.Trained(answer))

    def go_to(self, round_index: int) -> None:
        """Let things happen one by one until this round is open."""
        for _ in range(20_000):
            if self.cloud.rounds.server.round_index >= round_index:
                return
            if self.on_the_way:
                self.deliver()
            elif self.jobs:
                self.train()
            else:
                self.tick()
        raise AssertionError(f"round {round_index} never came; the last words were {self.log[-8:]}")


@pytest.mark.soak
@pytest.mark.parametrize("wrapping", [MASKED, NOISED], ids=["masked", "noised"])
@pytest.mark.parametrize("another_run_between", [True, False])
def test_a_training_that_is_resumed_from_a_backup_meets_no_key_and_no_noise_again(
    wrapping: dict[str, Any], another_run_between: bool
) -> None:
    """Backups of all are put back, the gateways' as well: the worst of what a restore may do."""
    made = Listening(wrapping)
    stride = made.cloud.rounds.algorithm.stride
    made.go_to(stride)
    backup, cards = copy.deepcopy(made.cloud_shelf), copy.deepcopy(made.shelves)
    made.go_to(2 * stride)
    if another_run_between:
        made.cloud_settings = made.chosen(2)
        made.restart("cloud")
        made.go_to(stride)
        made.cloud_settings = made.chosen(1)
    made.cloud_shelf, made.shelves = backup, cards
    for who in ("cloud", *NAMES):
        made.restart(who)
    made.go_to(2 * stride)
    twice = {key: answers for key, answers in made.heard.items() if len(list(filter(None, answers))) > 1}
    assert twice
    for answers in twice.values():
        first, second = (wire.encode(update) for update in answers[:2])
        assert first != second
        for name in {AGREEMENT, "weights"} & answers[0].keys() & answers[1].keys():
            assert (answers[0][name] == answers[1][name]).mean() < 0.5


@pytest.mark.soak
@pytest.mark.parametrize("step", [SHARES, INPUT])
def test_who_starts_anew_drops_out_of_the_masked_round(step: int) -> None:
    """An image that is put back would go a step a second time, with other rows under the same masks."""
    made = Listening(MASKED)
    made.go_to(step)
    made.restart("south")
    run, begun = made.cloud.rounds.run, 0
    made.go_to(begun + STEPS)
    said = [made.heard.get(("south", run, begun + at), [{}])[-1] for at in range(step, STEPS)]
    assert not any(said) and made.heard["south", run, begun][0]
    made.run(made.in_force, patience_s=400)
    assert any(update for (who, _, at), (update, *_) in made.heard.items() if who == "south" and at > begun + STEPS)


@pytest.mark.soak
def test_no_round_is_answered_twice_whatever_training_was_between() -> None:
    """The store of the aggregator is put back by hand, and with it a training that gateways know to be over."""
    made = Listening(NOISED)
    made.go_to(1)
    backup = copy.deepcopy(made.cloud_shelf)
    made.go_to(2)
    first = made.cloud.rounds.run
    made.cloud_settings = made.chosen(2)
    made.restart("cloud")
    made.go_to(2)
    assert made.cloud.rounds.run != first
    backup.gateways = {name: status(state) for name, state in made.agents.items()}  # so that its training is the newest
    made.cloud_shelf, made.cloud_settings = backup, made.chosen(1)
    made.restart("cloud")
    for _ in range(600):
        made.flow()
        made.tick()
    assert made.cloud.rounds.run == first
    assert all(len(list(filter(None, answers))) == 1 for answers in made.heard.values())
    refusals = [status(state).refusal for state in made.agents.values()]
    assert all("went back to a round that this gateway has answered" in refusal for refusal in refusals), refusals


@pytest.mark.soak
def test_a_stolen_gateway_tells_nothing_of_an_exchange_that_is_over() -> None:
    made = Listening(MASKED)
    made.go_to(INPUT)
    blobs, key = made.shelves["east"].blobs, ("east", made.cloud.rounds.run, 0)
    own = wire.decode(blobs[OWN])[0]
    assert PREFIX + AGREEMENT in own and not any(map(is_fleeting, own))
    public = made.heard[key][0][AGREEMENT].tobytes()
    held = made.agents["east"].training.own[f"{PREFIX}secret"].tobytes()
    assert public_key(Keys.of(held).agreement) == public  # while the round lasts the process has it, and no file
    assert not any(held in body for body in blobs.values())
    guesses = [blobs[SECRET], exchange_secret(blobs[SECRET], *key[1:], "east").tobytes()]
    chain = made.agents["east"].training.chain
    for _ in range(4):
        drawn, chain = ratchet(chain)
        guesses += [drawn, chain]
    assert not any(public_key(Keys.of(guess).agreement) == public for guess in guesses)
    made.go_to(STEPS)
    assert not any(map(is_fleeting, made.agents["east"].training.own))


def test_without_a_chain_nothing_is_drawn_that_anybody_could_guess() -> None:
    made = Listening(MASKED)
    made.agents["east"] = replace(made.agents["east"], training=replace(made.agents["east"].training, chain=b""))
    made.jobs.clear()
    made.agents["east"] = replace(made.agents["east"], training=replace(made.agents["east"].training, running=None))
    made.connect("east")
    while not [who for who, _ in made.jobs if who == "east"]:
        made.deliver() if made.on_the_way else made.tick()
    (job,) = (job for who, job in made.jobs if who == "east")
    with pytest.raises(ValueError, match="drawn: nothing given, expected 32 new bytes for each exchange with masking"):
        training_worker.answer(job)
