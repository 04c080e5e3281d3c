"""Compressed updates that come late: whatever becomes of them, all that is missing in the end rests on their gateway.

Method: the real service and the real record of a gateway, whose updates come in time, late, too late or never, are
overtaken by the next one or not, whose receipts get lost and whose rounds come to nothing; the oracle adds up, without
rounding, the updates that the stored rounds name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedgate.cloud_aggregator.events import Tick
from fedgate.cloud_aggregator.rounds.round import LOST_S
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Receipt
from fedgate.config.protocol.transfer import digest_of
from fedgate.gateway_agent.training.training import Training, note_receipt, of_last_update
from fedgate.models.arrays import BEFORE_COUNTED, COUNTED, FEATURES, PENDING, Arrays, Floats, generator
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Server
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import Field
from fedgate.models.federated.wrappers.error_feedback import Compression, with_error_feedback
from tests.support.cloud_service import Cloud, cloud

DEADLINE_S, SIZE = 60.0, 5
ROUNDS = {"quorum": 2, "deadline_s": DEADLINE_S}
OTHERS = ("east", "north")
HALF_STEP = 0.5 / 127.0  # of the largest entry


def summing() -> Algorithm:
    """Return an algorithm whose model is the sum of all that arrived; a gateway sends what its data say."""

    def learn(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        return own, {"w": data["change"], "n": np.array(1.0)}

    def advance(server: Server, total: Arrays) -> Server:
        state = server.global_state
        return server._replace(global_state={"w": state["w"] + total["w"], "step": np.asarray(state["step"] + 1)})

    start = Server({"w": np.zeros(SIZE), "step": np.array(0)}, {})
    phase = Phase(learn, SUM, advance, {"w": Field((SIZE,), "delta"), "n": Field((), "weight")})
    return Algorithm("linear", lambda _: start, (phase,), rounds=10**6)


@dataclass
class West:
    """One gateway of a site whose others answer each round, with nothing but zeros, or with what is refused."""

    made: Cloud
    algorithm: Algorithm
    training: Training = field(default_factory=Training)
    own: Arrays = field(default_factory=dict)
    changes: dict[int, Floats] = field(default_factory=dict)  # by the round that each answers

    @property
    def round_index(self) -> int:
        return self.made.service.state.rounds.server.round_index

    def train(self, change: Floats) -> bytes:
        """Make an update that answers the present round."""
        rounds = self.made.service.state.rounds
        fate = of_last_update(self.training, self.round_index, rounds.abandoned)
        data = {FEATURES: np.zeros((1, 1)), "change": change, **fate}
        learn = self.algorithm.phases[0].train
        self.own, update = learn(rounds.server.global_state, self.own, data, generator(0, 0, "west"))
        self.own, _ = wire.decode(wire.encode(self.own))
        meta = {"run": rounds.run, "round_index": self.round_index, "phase": 0}
        body = wire.encode(update, meta)
        answered, self.changes[self.round_index] = (rounds.run, self.round_index), change
        self.training = replace(self.training, answered=answered, awaited=digest_of(body), is_counted=False)
        self.training = replace(self.training, awaited_round=self.round_index)
        return body

    def take(self, receipt: Receipt) -> None:
        if receipt.accepted:
            self.training, _ = note_receipt(self.training, receipt)

    def end(self, *, is_abandoned: bool = False) -> None:
        """End the present round: it makes a step, or comes to nothing for want of a quorum."""
        rounds = self.made.service.state.rounds
        if is_abandoned:
            for other in OTHERS:
                assert not self.made.send(other, self.made.wrong())[0].accepted
            self.made.hear(Tick(), after_s=LOST_S * 2**rounds.given_up)
            self.made.hear(Tick(), after_s=DEADLINE_S)  # after which the next one opens
            assert self.made.service.state.rounds.given_up == rounds.given_up + 1
            return
        nothing = self.algorithm.phases[0].train(
            rounds.server.global_state,
            {},
            {FEATURES: np.zeros((1, 1)), "change": np.zeros(SIZE)},
            generator(0, 0, "north"),
        )[1]
        body = wire.encode(nothing, {"run": rounds.run, "round_index": self.round_index, "phase": 0})
        for other in OTHERS:
            assert self.made.send(other, body)[0].accepted
        self.made.hear(Tick(), after_s=DEADLINE_S)

    def exact(self) -> Floats:
        """Return the sum of the updates that the rounds name, as they were before they were rounded."""
        total = np.zeros(SIZE)
        for index, row in enumerate(self.made.service.store.read_rows("rounds", "gateways", "late")):
            origins = [index] if "west" in row["gateways"].split() else []
            origins += [int(one.split(":")[1]) for one in (row["late"] or "").split()]
            total += sum((self.changes[one] for one in origins), np.zeros(SIZE))
        return total

    def apart(self) -> float:
        return float(np.abs(self.made.service.state.rounds.server.global_state["w"] - self.exact()).max())


STEP, NOTHING = False, True  # what a round comes to
ENDS = st.lists(st.sampled_from([STEP, STEP, NOTHING]), max_size=3)
FATES = st.lists(
    st.tuples(
        ENDS,  # of the rounds before the update comes
        st.sampled_from(["sent", "sent", "receipt lost", "never"]),
        ENDS,  # of those before the gateway trains again
    ),
    max_size=12,
)


@pytest.mark.soak
@pytest.mark.parametrize("share", [1.0, 0.4])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(fates=FATES, late_rounds=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
@example(fates=[([STEP], "sent", [NOTHING])], late_rounds=1, seed=0)  # kept for a round that comes to nothing
@example(fates=[([], "sent", [NOTHING, STEP])], late_rounds=1, seed=0)  # counted in one, and away for the next
@example(fates=[([STEP], "sent", []), ([NOTHING], "sent", [STEP])], late_rounds=1, seed=0)  # as is the one behind it
def test_what_is_missing_never_adds_up(
    tmp_path_factory: pytest.TempPathFactory,
    share: float,
    fates: list[tuple[list[bool], str, list[bool]]],
    late_rounds: int,
    seed: int,
) -> None:
    algorithm = with_error_feedback(summing(), Compression(number="int8", share=share))
    rounds, rng = ROUNDS | {"late_rounds": late_rounds}, np.random.default_rng(seed)
    with cloud(tmp_path_factory.mktemp("cloud"), algorithm, [*OTHERS, "west"], rounds=rounds) as made:
        west, largest = West(made, algorithm), 0.0
        for before, fate, behind in [*fates, ([], "sent", [STEP]), ([], "sent", [STEP])]:
            while west.training.answered is not None and west.training.answered[1] >= west.round_index:
                west.end()
            change = rng.normal(size=SIZE) * 10.0 ** rng.integers(-2, 2)
            largest, body = max(largest, float(np.abs(change).max())), west.train(change)
            for comes_to in before:
                west.end(is_abandoned=comes_to)
            if fate == "receipt lost":
                made.send("west", body)
                made.restart()
                for _ in range(int(rng.integers(2))):
                    west.end(is_abandoned=bool(rng.integers(2)))
            if fate != "never":
                west.take(made.send("west", body)[0])
            for comes_to in behind:
                west.end(is_abandoned=comes_to)
        if share == 1.0:
            assert west.apart() <= 1.01 * HALF_STEP * largest  # of a change to which as much may be added
        left = west.own["compression.sent.0.w"] if west.training.is_counted else west.own["compression.left.0.w"]
        assert west.apart() == pytest.approx(float(np.abs(left).max()), rel=1e-5, abs=1e-6)


@pytest.mark.soak
def test_of_an_update_that_is_overtaken_nothing_stays_behind(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where the sum would drift: half a step in each, of which the one in two that is a whole step is overtaken."""
    algorithm = with_error_feedback(summing(), Compression(number="int8"))
    change = np.array([127.0, 0.6, 0.6, 0.6, 0.6])  # so that a step is 1
    with cloud(tmp_path_factory.mktemp("cloud"), algorithm, [*OTHERS, "west"], rounds=ROUNDS) as made:
        west, overtaken = West(made, algorithm), 0
        for _ in range(20):
            slow = west.train(change)
            west.end()
            west.take(made.send("west", slow)[0])
            west.take(made.send("west", west.train(change))[0])
            west.end()
            overtaken += 1
            assert west.apart() < 1.0
        assert west.exact()[0] == pytest.approx(127.0 * overtaken)


def test_what_is_missing_stays_below_two_steps_where_each_late_update_is_overtaken() -> None:
    """The wrapper alone over 400 rounds: every second update comes late, and the next one stands for both."""
    algorithm, rng = with_error_feedback(summing(), Compression(number="int8")), np.random.default_rng(0)
    phase, missing = algorithm.phases[0], np.zeros(SIZE)
    server, is_before_counted = algorithm.start(generator(0, 0, "cloud")), True
    own: Arrays = {}
    for index in range(400):
        is_late, change = index % 2 == 0, rng.uniform(-3.0, 3.0, SIZE)
        change[0] = 127.0  # so that a step is 1
        fate = {COUNTED: np.array(True), BEFORE_COUNTED: np.array(is_before_counted), PENDING: np.array(not is_late)}
        own, update = phase.train(
            server.global_state,
            own,
            {FEATURES: np.zeros((1, 1)), "change": change, **fate},
            generator(0, index, "west"),
        )
        if not is_late:
            missing += change - phase.admit(server, update)["w"]
        is_before_counted = is_late
        server = server._replace(global_state={**server.global_state, "step": np.asarray(index + 1)})
        assert np.abs(missing).max() < 2.0
