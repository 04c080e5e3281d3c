"""Conditional FedAvg with personalised support vectors, PC-FedAvg (Anaissi and Suleiman, "A Personalized Federated
Learning Algorithm: an Application in Anomaly Detection", Algorithms 1 to 3).

    0  handshake        every gateway trains and sends its loss; the cloud takes the median
    1  election         gateways with a loss up to the median send coefficients, the others nothing; the mean goes down
    2  personalisation  every gateway keeps its edge support vectors, refits and sends how many it had and kept

Loss, which the text leaves open: the one-class objective per sample on the gateway's own rows in its own units, of the
shared model after its own training. The mean is over the elected, weighted by samples (Eq. 9: divide by those
selected), and goes to all; to those selected only, the others would starve. Half the fleet is left out of each round
and a gateway of an unusual, healthy regime may be for ever: the gateway counts its `handshakes` and `elections`, the
shared parameters tell `asked` and `elected` of the last round. Even among gateways that are alike the same half is
elected round after round. The median keeps out data that is more scattered than the others'; a stuck sensor has the
smallest loss of all and is elected every time, so it is for the sensor's own health check to find. Nor does it keep out
a gateway that lies about its loss (`median_election`).

Coefficients are those of a map that all gateways share (`local_dual`); the paper's own, one for each event that all
gateways saw, stand beside the study that measures them (`fedgate.firmware_sim.studies.bridges.aligned_events`).
A personal model is w + Σ a_i φ_i: the shared w and, over the gateway's edge vectors alone, multipliers fitted anew to
what w lacks there. Where w does well for a gateway they are zero; one that is never elected scores by them.
Its border is the ν-quantile of the gateway's own rows.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Protocol

import numpy as np
from pydantic import Field as Setting

from fedgate.models.arrays import FEATURES, Array, Arrays, Floats
from fedgate.models.detectors.base import linear
from fedgate.models.detectors.base.checks import MOST_ROWS, spread
from fedgate.models.detectors.base.dual_ascent import ascend_in_map
from fedgate.models.detectors.svm.edge_vectors import edges
from fedgate.models.federated.averaging.averaging import STEP
from fedgate.models.federated.averaging.local_dual import AFTER, MADE_AT, holds, withdrawn
from fedgate.models.federated.averaging.local_linear import Dual, begin, on_a_map
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Count,
    Normalisation,
    Phase,
    Positive,
    Server,
    Share,
    Trained,
    normalise,
    personal_tensors,
)
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import Field, UpdateError
from fedgate.models.federated.support_vectors.median_election import ELECTED, election, handshake, pending

VECTORS_BEFORE, VECTORS_AFTER = "vectors.before", "vectors.after"
REFIT_SWEEPS = 50
NEIGHBOURS, EDGE_TOLERANCE = 20, 0.05
EDGE_DIMENSIONS = 5  # measured on normal rows: from 10 on 9 in 10 support vectors pass, with 5 every second


class Edges(NamedTuple):
    """How a gateway tells its edge support vectors."""

    neighbours: int
    tolerance: float
    dimensions: int

    def of(self, z: Array, multipliers: Array) -> tuple[Array, int]:
        """Return the rows (E,) of z (n, F) that are edge support vectors, and how many support vectors there are."""
        vectors = np.flatnonzero(multipliers > 0.0)  # (S,)
        chosen = edges(z, vectors, neighbours=self.neighbours, tolerance=self.tolerance, dimensions=self.dimensions)
        return vectors[chosen], len(vectors)


class Form(Protocol):
    """How coefficients are made, judged and refitted."""

    @property
    def one_class(self) -> Dual:
        """Return how a gateway solves its part, and of how many rows."""

    @property
    def normalisation(self) -> str:
        """Return in whose units features are."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of what travels."""

    def train(self, global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        """Train, keep the contribution pending and send the loss."""

    def judge(self, change: Arrays, given: Arrays) -> None:
        """Refuse a contribution that no rows make."""

    def refit(self, global_state: Arrays, local_state: Arrays, phi: Floats, z: Floats, chosen: Array) -> Floats:
        """Return w (M,) of the personal model, refitted on the rows of φ (n, M) and z (n, F) that are `kept`, by place
        (k,).
        """


def conditional(form: Form, choice: Edges | None, max_samples: int) -> tuple[Phase, ...]:
    """Return the exchanges of a round, of which the last is left out where no gateway has edge vectors of its own."""
    elected = handshake(form.train), election(form.names, form.judge, max_samples, following=2 if choice else 0)
    return elected if choice is None else (*elected, personalisation(form, choice))


def personalisation(form: Form, choice: Edges) -> Phase:
    """Return phase 2: the gateway's own `weights` and `intercept` from its edge vectors; it sends two counts."""
    one_class = form.one_class

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        if int(local_state.get(MADE_AT, -1)) != int(global_state[STEP]) - 1:
            return local_state, {}
        local_state, z = normalise(local_state, data, form.normalisation)
        z = spread(z, one_class.most_rows)
        phi = linear.mapped(global_state, z)
        if not holds(local_state, phi):  # other rows than those of the handshake
            return local_state, {}
        chosen, before = choice.of(z, local_state[AFTER])
        w = form.refit(global_state, local_state, phi, z, chosen)
        model = {"weights": -w, "intercept": np.array(linear.border(phi @ w, one_class.nu))}
        return {**local_state, **model}, {
            VECTORS_BEFORE: np.array(float(before)),
            VECTORS_AFTER: np.array(float(len(chosen))),
        }

    def advance(server: Server, total: Arrays) -> Server:
        return server._replace(global_state={**server.global_state, **total}, phase=0)

    def check(_server: Server, update: Arrays) -> None:
        before, after = float(update[VECTORS_BEFORE]), float(update[VECTORS_AFTER])
        if not 0 <= after <= before <= one_class.most_rows:
            raise UpdateError(
                f"vectors: expected 0 <= after <= before <= {one_class.most_rows}, got {after:g}, {before:g}"
            )

    return Phase(learn, SUM, advance, {name: Field((), "sum") for name in (VECTORS_BEFORE, VECTORS_AFTER)}, check)


class Comparable(NamedTuple):
    """The form in which coefficients are those of a map that all gateways share."""

    one_class: Dual
    normalisation: str
    names: tuple[str, ...] = linear.TRAINED

    def train(self, global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        """Train, keep the contribution pending and send the loss."""
        again = int(local_state.get(MADE_AT, -1)) == int(global_state[STEP])
        if not again and not int(local_state.get(ELECTED, 0)):
            local_state = withdrawn(local_state)  # the shared model does not hold what this gateway made
        local_state, z = normalise(local_state, data, self.normalisation)
        local, border = self.one_class.part(global_state, local_state, {**data, FEATURES: z})
        return pending(
            local.local_state, again, {"weights": -local.contribution, "intercept": np.array(border)}, local.loss
        )

    def judge(self, change: Arrays, given: Arrays) -> None:
        """Refuse a contribution that no rows make."""
        self.one_class.judge(change, given)

    def refit(self, global_state: Arrays, _local_state: Arrays, phi: Floats, _z: Floats, chosen: Array) -> Floats:
        """Return w + Σ a_i φ_i (M,) over the rows of φ (n, M) that are `kept`, by place (k,), their multipliers fitted
        anew around the shared w.
        """
        shared_w = -global_state["weights"]
        cap = 1.0 / (self.one_class.nu * len(phi))
        _, added = ascend_in_map(phi[chosen], shared_w, np.zeros(len(chosen)), cap=cap, sweeps=REFIT_SWEEPS)
        return np.asarray(shared_w + added)


def conditional_fedavg(
    feature_count: Count,
    *,
    components: Count = 256,
    gamma: Positive | None = None,
    nu: Share = 0.1,
    epochs: Count = 5,
    local: Literal["dual", "dual-sgd"] = "dual",
    learning_rate: Positive | None = None,
    rounds: Count = 20,
    personalise: bool = True,
    neighbours: Count = NEIGHBOURS,
    edge_tolerance: Annotated[float, Setting(ge=0, lt=1)] = EDGE_TOLERANCE,
    edge_dimensions: Count = EDGE_DIMENSIONS,
    max_samples: Count = MAX_SAMPLES,
    most_rows: Count = MOST_ROWS,
    normalisation: Normalisation = "own",
) -> Algorithm:
    """Conditional FedAvg of the one-class SVM; what `fedavg` has too means the same here.

    :param local: `dual-sgd` is Algorithm 1 with its one step η, `learning_rate`.
    :param personalise: add phase 2, without which all gateways score with the shared model.
    :param neighbours: k of Algorithm 3.
    :param edge_tolerance: its γ, the share of neighbours that may lie on the other side of an edge vector.
    :param edge_dimensions: principal directions in which edges are looked for.
    """
    one_class = Dual(nu, epochs, most_rows, solver=local, learning_rate=learning_rate)
    choice = Edges(neighbours, edge_tolerance, edge_dimensions)
    phases = conditional(Comparable(one_class, normalisation), choice if personalise else None, max_samples)
    start = begin(feature_count, components, gamma, "one-class")
    own_model = linear.TRAINED if personalise else ()
    algorithm = Algorithm("linear", start, phases, rounds, (*personal_tensors(normalisation), *own_model))
    return on_a_map(algorithm, gamma, components, normalisation)
