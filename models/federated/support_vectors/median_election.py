"""The election of conditional FedAvg (Anaissi and Suleiman, Algorithm 2): who has a loss up to the median may send.

Two exchanges. In the handshake every gateway trains, keeps the result pending and sends its loss; in the election the
gateways with a loss up to the median send what is pending, the others nothing. A gateway that missed the handshake, or
that hears of the median only when the step is over, stays silent.

The election is held by the gateways themselves: the cloud sees losses without names and cannot tell who may send. So it
keeps out gateways whose data is bad, not gateways that lie. One of those may claim a loss of 0, be elected every time
and pull the median down, or send though it was not elected; it counts as any other that is elected does, by its rows up
to `max_samples`, and its contribution is bounded as theirs are.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import FEATURES, Arrays
from fedgate.models.federated.averaging.averaging import SAMPLES, STEP, Judge
from fedgate.models.federated.averaging.local_dual import MADE_AT
from fedgate.models.federated.protocol.algorithm import Phase, Server, Train, Trained
from fedgate.models.federated.protocol.reducer import STACK, SUM
from fedgate.models.federated.protocol.schema import ONE, Field, counting

LOSS, MEDIAN, ASKED = "loss", "median", "asked"
MEMBERS = "members"  # one of every gateway elected
HANDSHAKES, ELECTIONS = "handshakes", "elections"  # () how often this gateway shook hands, and was elected
ELECTED = "elected_at_last"  # () whether it was in the last step it shook hands on
SAME_LOSS = 1e-9  # of the median: gateways whose rows are the same are elected together, whatever processor they have
PENDING, SENT = "pending.", "sum."  # before names while they wait on a gateway, and while they travel


def handshake(learn: Train) -> Phase:
    """Return phase 0 around a training that leaves its result pending and sends `loss` (1,)."""

    def advance(server: Server, total: Arrays) -> Server:
        announced = {MEDIAN: np.asarray(np.median(total[LOSS])), ASKED: np.array(len(total[LOSS]), dtype=np.int64)}
        return server._replace(global_state={**server.global_state, **announced}, phase=1)

    return Phase(learn, STACK, advance, {LOSS: Field((1,), "metric", least=0.0)})


def pending(local_state: Arrays, again: bool, result: Arrays, loss: float) -> tuple[Arrays, Arrays]:
    """Return the state in which a result waits for the election, and the update of the handshake.

    `again` says that the gateway shook hands on this step before.
    """
    waiting = {f"{PENDING}{name}": array for name, array in {**result, LOSS: np.array(loss)}.items()}
    handshakes = int(local_state.get(HANDSHAKES, 0)) + (0 if again else 1)
    counts = {
        HANDSHAKES: np.array(handshakes, dtype=np.int64),
        ELECTIONS: np.array(int(local_state.get(ELECTIONS, 0)), dtype=np.int64),
        ELECTED: np.array(int(local_state.get(ELECTED, 0)) if again else 0, dtype=np.int64),
    }
    return {**local_state, **waiting, **counts}, {LOSS: np.array([loss])}


def election(names: tuple[str, ...], judge: Judge, max_samples: int, following: int) -> Phase:
    """Return phase 1: who has a loss up to the median sends what is pending under `names`, the others nothing."""

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        if int(local_state.get(MADE_AT, -1)) != int(global_state[STEP]):
            return local_state, {}
        elected = bool(local_state[f"{PENDING}{LOSS}"] <= global_state[MEDIAN] + SAME_LOSS * abs(global_state[MEDIAN]))
        elections = int(local_state[ELECTIONS]) - int(local_state[ELECTED]) + int(elected)  # a second call counts once
        local_state = {
            **local_state,
            ELECTED: np.array(elected, np.int64),
            ELECTIONS: np.array(elections, dtype=np.int64),
        }
        if not elected:
            return local_state, {}
        weight = float(min(len(data[FEATURES]), max_samples))
        update = {f"{SENT}{name}": np.asarray(weight * local_state[f"{PENDING}{name}"]) for name in names}
        return local_state, {**update, SAMPLES: np.array(weight), MEMBERS: np.array(1.0)}

    def advance(server: Server, total: Arrays) -> Server:
        mean = {name: np.asarray(total[f"{SENT}{name}"] / total[SAMPLES]) for name in names}
        announced = {"elected": np.asarray(total[MEMBERS]), STEP: np.asarray(server.global_state[STEP] + 1)}
        return server._replace(global_state={**server.global_state, **mean, **announced}, phase=following)

    def check(_server: Server, update: Arrays) -> None:
        judge({}, {name: np.asarray(update[f"{SENT}{name}"] / update[SAMPLES]) for name in names})

    schema = {f"{SENT}{name}": Field(name, "full") for name in names}
    return Phase(learn, SUM, advance, {**schema, SAMPLES: counting(max_samples), MEMBERS: ONE}, check)
