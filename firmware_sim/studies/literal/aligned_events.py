"""The literal form of PC-FedAvg (Anaissi and Suleiman, Algorithm 2 and Eq. 8), for events that all gateways saw.

What travels is w = αK, one number for each of a gateway's own rows (n,), and the cloud averages entry by entry. Entry i
of one gateway and entry i of another mean the same only if row i is the same event seen by both, such as a vehicle that
passed six sensors, so every gateway must have the same `events` in the same order. Eq. 8 is then

    α ← clip(α + η (1 - w), 0, 1 / (ν n)),   w ← αK

for all k at once, w being first what came from the cloud and then the gateway's own. The printed step has no bound; all
at once it converges for η < 2 / λ_max(K), and λ_max <= n, so η is 1 / n. The mean goes to the elected only: the others
go on with their own w. Averaged w belong to no rows of their own, so there is no shared model: each gateway scores with
its own α, projected onto the shared random map as `weights`. The projection replaces k(a, b) by φ(a)·φ(b), off by about
1 / sqrt(M) for M components: at 256 a twentieth of the kernel's height. A fleet in the field has no such events.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field as Setting

from fedgate.models.arrays import FEATURES, Array, Arrays, Floats
from fedgate.models.detectors.base import linear
from fedgate.models.detectors.base.dual_ascent import ascend, objective
from fedgate.models.detectors.base.random_features import WIDTH
from fedgate.models.detectors.svm.kernel import squared_distances
from fedgate.models.federated.averaging.averaging import STEP, epochs_of, within
from fedgate.models.federated.averaging.local_dual import AFTER, BEFORE, MADE_AT, ROWS, fingerprint
from fedgate.models.federated.averaging.local_linear import Dual, begin, on_a_map
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Count,
    Positive,
    Server,
    Share,
    Trained,
    normalise,
    personal_tensors,
)
from fedgate.models.federated.support_vectors.conditional_fedavg import (
    EDGE_DIMENSIONS,
    EDGE_TOLERANCE,
    NEIGHBOURS,
    Edges,
    conditional,
)
from fedgate.models.federated.support_vectors.median_election import ELECTED, PENDING, pending

COEFFICIENTS = "coefficients"  # (n,) w = αK
FROM = "coefficients.before"  # (n,) the w that the last training began with


class AlignedEvents(NamedTuple):
    """The settings of the literal form."""

    events: int
    one_class: Dual
    normalisation: str
    names: tuple[str, ...] = (COEFFICIENTS,)

    def gram(self, global_state: Arrays, z: Floats) -> Floats:
        """Return the kernel matrix (n, n) of rows z (n, F)."""
        return np.asarray(np.exp(-float(global_state[WIDTH]) * squared_distances(z, z)))

    def train(self, global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        """Train, keep w pending, send the loss, and keep a model of the gateway's own.

        Raises ValueError for another number of rows than `events`.
        """
        count = len(data[FEATURES])
        if count != self.events:
            raise ValueError(
                f"{count} rows given, expected {self.events}, the events that all gateways saw: the paper's form pairs "
                "row i of one gateway with row i of another; without such events take conditional-fedavg"
            )
        local_state, z = normalise(local_state, data, self.normalisation)
        again = int(local_state.get(MADE_AT, -1)) == int(global_state[STEP])
        before, w_before = self._begin(global_state, local_state, again)
        K = self.gram(global_state, z)
        alpha, w = self._ascended(K, before, w_before, epochs_of(data, self.one_class.epochs))
        phi = linear.mapped(global_state, z)
        kept = {
            BEFORE: before,
            AFTER: alpha,
            FROM: w_before,
            MADE_AT: np.array(int(global_state[STEP]), dtype=np.int64),
            ROWS: fingerprint(phi),
        }
        model = self.model(phi, alpha @ phi)
        return pending({**local_state, **kept, **model}, again, {COEFFICIENTS: w}, self._loss(alpha, w))

    def judge(self, _change: Arrays, given: Arrays) -> None:
        """Refuse coefficients that no α makes: w = αK with Σ α <= 1 / ν and K <= 1."""
        within(COEFFICIENTS, float(np.abs(given[COEFFICIENTS]).max()), 1.0 / self.one_class.nu)

    def _begin(self, global_state: Arrays, local_state: Arrays, again: bool) -> tuple[Floats, Floats]:
        """Return α (n,) and w (n,) to go on from: of the cloud where it elected this gateway, else its own."""
        if AFTER not in local_state:
            return np.zeros(self.events), np.zeros(self.events)
        if again:
            return local_state[BEFORE], local_state[FROM]
        is_elected = int(local_state[ELECTED]) and int(local_state[MADE_AT]) == int(global_state[STEP]) - 1
        return local_state[AFTER], global_state[COEFFICIENTS] if is_elected else local_state[f"{PENDING}{COEFFICIENTS}"]

    def _ascended(self, K: Floats, alpha: Floats, w: Floats, epochs: int) -> tuple[Floats, Floats]:
        """Return α and w after so many epochs of Eq. 8."""
        cap = 1.0 / (self.one_class.nu * self.events)
        for _ in range(epochs):
            alpha = np.clip(alpha + (1.0 - w) / self.events, 0.0, cap)
            w = alpha @ K
        return alpha, w

    def _loss(self, alpha: Floats, w: Floats) -> float:
        """Return the one-class objective per sample: |Σ α φ|² = α·w, and w holds the products with the rows."""
        return objective(float(alpha @ w), w, self.one_class.nu)

    def model(self, phi: Floats, w: Floats) -> Arrays:
        """Return the tensors of a gateway's own that score as minus w·φ, w (M,)."""
        return {"weights": -w, "intercept": np.array(linear.border(phi @ w, self.one_class.nu))}

    def refit(self, global_state: Arrays, local_state: Arrays, phi: Floats, z: Floats, kept: Array) -> Floats:
        """Return Σ α_i φ_i (M,) over the vectors kept, their α by Algorithm 1; over all where none is kept."""
        if len(kept) == 0:
            return np.asarray(local_state[AFTER] @ phi)
        share = self.one_class.nu * self.events / len(kept)  # so that the cap stays 1 / (ν n)
        return np.asarray(ascend(self.gram(global_state, z[kept]), share).multipliers @ phi[kept])


def aligned_events(
    feature_count: Count,
    *,
    events: Annotated[int, Setting(ge=2)],
    components: Count = 256,
    gamma: Positive | None = None,
    nu: Share = 0.1,
    epochs: Count = 5,
    rounds: Count = 20,
    personalise: bool = True,
    normalisation: Literal["own", "none"] = "own",
) -> Algorithm:
    """Return the literal form for so many `events`; the other settings mean what they do in `conditional_fedavg`."""
    form = AlignedEvents(events, Dual(nu, epochs, most_rows=events), normalisation)
    edges = Edges(NEIGHBOURS, EDGE_TOLERANCE, EDGE_DIMENSIONS)
    untrained = begin(feature_count, components, gamma, "one-class")

    def start(rng: np.random.Generator) -> Server:
        server = untrained(rng)
        return server._replace(global_state={**server.global_state, COEFFICIENTS: np.zeros(events)})

    phases = conditional(form, edges if personalise else None, MAX_SAMPLES)
    own_model = (*personal_tensors(normalisation), *linear.TRAINED)
    return on_a_map(Algorithm("linear", start, phases, rounds, own_model), gamma, components, normalisation)
