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
from fedgate.models.federated.averaging.averaging import SAMPLES, STEP, Judge, counted
from fedgate.models.federated.protocol.algorithm import Phase, Server, Train, Trained, UpdateError, checked
from fedgate.models.federated.protocol.reducer import CONTRIBUTIONS, STACK
from fedgate.models.federated.support_vectors.local_dual import MADE_AT

LOSS, MEDIAN, ASKED = "loss", "median", "asked"
MEMBERS = "members"  # one of every gateway elected
HANDSHAKES, ELECTIONS = "handshakes", "elections"  # () how often this gateway shook hands, and was elected
ELECTED = "elected_at_last"  # () whether it was in the last step it shook hands on
SAME_LOSS = 1e-9  # of the median: gateways whose rows are the same are elected together, whatever processor they have
PENDING, SENT = "pending.", "sum."  # before names while they wait on a gateway, and while they travel


def handshake(train: Train) -> Phase:
    """Return phase 0 around a training that leaves its result pending and sends `loss` (1,)."""

    def advance(server: Server, total: Arrays) -> Server:
        if not total:
            return server
        told = {MEDIAN: np.asarray(np.median(total[LOSS])), ASKED: np.array(len(total[LOSS]), dtype=np.int64)}
        return server._replace(global_state={**server.global_state, **told}, phase=1)

    def admit(server: Server, update: Arrays) -> Arrays:
        del server
        wide = checked(update, {LOSS: (1,)})
        if wide[LOSS][0] < 0.0:
            raise UpdateError(f"loss: expected at least 0, got {wide[LOSS][0]:g}")
        return wide

    return Phase(train, STACK, advance, admit)


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

    def train(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        del rng
        count = len(data[FEATURES])
        if count == 0 or int(local_state.get(MADE_AT, -1)) != int(global_state[STEP]):
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
        weight = float(min(count, max_samples))
        update = {f"{SENT}{name}": np.asarray(weight * local_state[f"{PENDING}{name}"]) for name in names}
        return local_state, {**update, SAMPLES: np.array(weight), MEMBERS: np.array(1.0)}

    def advance(server: Server, total: Arrays) -> Server:
        if not total:
            return server
        mean = {name: np.asarray(total[f"{SENT}{name}"] / total[SAMPLES]) for name in names}
        told = {"elected": np.asarray(total[MEMBERS]), STEP: np.asarray(server.global_state[STEP] + 1)}
        return server._replace(global_state={**server.global_state, **mean, **told}, phase=following)

    def admit(server: Server, update: Arrays) -> Arrays:
        shapes = {f"{SENT}{name}": server.global_state[name].shape for name in names} | {SAMPLES: (), MEMBERS: ()}
        wide = counted(checked(update, shapes), max_samples)
        if wide[MEMBERS] != 1.0:
            raise UpdateError(f"members: expected 1, got {float(wide[MEMBERS]):g}")
        judge({}, {name: np.asarray(wide[f"{SENT}{name}"] / wide[SAMPLES]) for name in names})
        return wide

    return Phase(train, CONTRIBUTIONS, advance, admit)
