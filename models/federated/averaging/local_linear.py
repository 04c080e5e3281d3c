"""What a gateway does in a federated average of the linear detector: the setting `local`.

    dual       ascends its part of the dual of the one-class SVM, each multiplier to its own optimum (`local_dual`)
    dual-sgd   the same with one step η for all multipliers (Anaissi and Suleiman, Algorithm 1)
    sgd        descends along the loss in the weights themselves (McMahan et al. 2017, Algorithm 1, ClientUpdate)

All three minimise one objective, 1/2 |w|² + mean(max(0, 1 - w·φ)) / ν, or with labels the logistic loss, which has
`sgd` alone. What differs is what a round makes of it. A dual gateway knows its own part in w and adds to it, so that
rounds end at the pooled optimum. With `sgd` it walks towards the optimum of its own rows and knows of no others: where
gateways differ, many epochs carry the mean away from the pooled optimum, which FedProx's term µ/2 |w - w_t|² holds
against (Li et al. 2020).

The step of `sgd` along the one-class loss is at most 1, with the term η / (1 + η µ), which is the implicit step along
it. So w moves on a line between itself, w_t and rows over ν, and is never longer than the longer of w_t and these: no µ
makes it run away, and the cloud has a bound to hold updates against. Where none is given η is ν over the mean square of
a row, 1 on a map and F without: a row met alone for the first time comes to its margin and no farther.

The border of the one-class loss is the mean of the gateways' ν-quantiles, each of the model it received, since no other
is the same for all; in the first step, where there is none, of its own. So it is one step behind the weights, and only
where these have settled is zero the border that leaves about ν outside.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats
from fedgate.models.detectors.base import linear
from fedgate.models.detectors.base.checks import map_width, spread, warn_of_share
from fedgate.models.detectors.base.dual_ascent import common_step
from fedgate.models.detectors.base.random_features import WIDTH
from fedgate.models.federated.averaging.averaging import STEP, Improve, epochs_of, within
from fedgate.models.federated.averaging.local_dual import Local, contribute, withdrawn
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Server, Trained
from fedgate.models.federated.protocol.kernel_width import with_width

LocalSolver = Literal["dual", "dual-sgd", "sgd"]
LENGTH = float(np.sqrt(2.0))  # no row of the random map is longer
LOGISTIC_STEP = 1.0


def solver_for(loss: linear.Loss, local: LocalSolver | None, learning_rate: float | None) -> LocalSolver:
    """Return how gateways train under a loss, `dual` without labels and `sgd` with them where nothing is given.

    Raises `ValueError` for a solver that the loss has not, and a step that is too long for it.
    """
    solver = local or ("sgd" if loss == "logistic" else "dual")
    if loss == "logistic" and solver != "sgd":
        raise ValueError(f"local {solver!r} given for loss 'logistic', expected 'sgd', or loss 'one-class'")
    if loss == "one-class" and solver == "sgd" and learning_rate is not None and learning_rate > 1.0:
        raise ValueError(f"learning_rate {learning_rate:g} given, expected up to 1, or weights run past those of rows")
    return solver


class Dual(NamedTuple):
    """A gateway's part of the dual of the one-class SVM; `solver` says by which steps it ascends."""

    nu: float
    epochs: int
    most_rows: int
    proximity: float = 0.0
    solver: LocalSolver = "dual"
    learning_rate: float | None = None

    def part(self, global_state: Arrays, local_state: Arrays, data: Arrays) -> tuple[Local, float]:
        """Return the gateway's part, and the border of the model it received, in the first step of the one it made."""
        phi = linear.mapped(global_state, spread(data[FEATURES], self.most_rows))  # (n, M)
        local = contribute(
            int(global_state[STEP]),
            -global_state["weights"],  # a weight is minus w, as the score rises away from the data
            local_state,
            phi,
            nu=self.nu,
            epochs=epochs_of(data, self.epochs),
            proximity=self.proximity,
            learning_rate=None if self.solver == "dual" else common_step((phi * phi).sum(axis=1), self.learning_rate),
        )
        return local, border_of(phi @ local.judged, self.nu)

    def improve(self, global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        """Return the gateway's state, and its contribution and border as the trained arrays."""
        local, border = self.part(global_state, local_state, data)
        return local.local_state, {"weights": -local.contribution, "intercept": np.array(border)}

    def judge(self, _change: Arrays, given: Arrays) -> None:
        """Refuse a contribution that no rows make: w_k = Σ α_i φ_i with Σ α_i <= 1 / ν and |φ_i|² <= 2, which bounds
        the border w·φ as well.
        """
        within("weights", float(np.linalg.norm(given["weights"])), LENGTH / self.nu)
        within("intercept", abs(float(given["intercept"])), LENGTH**2 / self.nu)


class Descent(NamedTuple):
    """A gateway's descent along a loss in the weights themselves; `square` is the mean square length of a row."""

    loss: linear.Loss
    nu: float
    decay: float
    epochs: int
    batch: int
    learning_rate: float | None
    most_rows: int
    proximity: float
    square: float

    @property
    def gradient(self) -> linear.Gradient:
        """Return the gradient of the loss."""
        if self.loss == "logistic":
            return partial(linear.logistic_gradient, decay=self.decay)
        return partial(linear.one_class_gradient, nu=self.nu)

    @property
    def step(self) -> float:
        """Return the step along the gradient."""
        if self.loss == "logistic":
            return LOGISTIC_STEP if self.learning_rate is None else self.learning_rate
        step = self.nu / self.square if self.learning_rate is None else self.learning_rate
        return step / (1.0 + step * self.proximity)

    def improve(self, global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        """Return the gateway's state as it was, and the arrays after its epochs."""
        received, is_one_class = linear.received(global_state, local_state), self.loss == "one-class"
        phi = linear.mapped(received, spread(data[FEATURES], self.most_rows) if is_one_class else data[FEATURES])
        moved = linear.descend(
            received,
            phi,
            data.get(LABELS),
            rng,
            self.gradient,
            epochs=epochs_of(data, self.epochs),
            batch=self.batch,
            learning_rate=self.step,
            proximity=self.proximity,
        )
        if is_one_class:
            judged = received if int(global_state[STEP]) else moved
            moved["intercept"] = np.array(border_of(-(phi @ judged["weights"]), self.nu))
        return local_state, moved

    def judge(self, change: Arrays, given: Arrays) -> None:
        """Refuse one-class weights that no descent over rows of a map reaches, and a border that they cannot have with
        as many at home.
        """
        before = float(np.linalg.norm(given["weights"] - change["weights"]))
        longest = max(LENGTH / self.nu, before)
        within("weights", float(np.linalg.norm(given["weights"])), longest)
        within("intercept", abs(float(given["intercept"])), 2.0 * longest)


def border_of(products: Floats, nu: float) -> float:
    """Return the border of rows with products w·φ (n,), and warn where it divides none."""
    border = linear.border(products, nu)
    warn_of_share(products < border, nu)
    return border


def at_home(improve: Improve, shared_count: int) -> Improve:
    """Return a training whose weights behind the first `shared_count` stay with the gateway (Arivazhagan et al. 2019).

    Both parts are trained together. A dual gateway's own weights follow from its multipliers, others are kept.
    """

    def split(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        local_state, moved = improve(global_state, local_state, data, rng)
        weights, home = np.split(moved["weights"], [shared_count])
        return {**local_state, linear.HOME: home}, {**moved, "weights": weights}

    return split


def each_alone(phase: Phase) -> Phase:
    """Return the exchange of an average of the dual of which any mean may be taken.

    Where gateways give parts of one dual, which fit together in their mean and in nothing else, every gateway sends the
    solution of its own rows alone instead, and solutions may be averaged in any way (Yin et al. 2018, Section 5, one
    round).
    """

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        after, update = phase.learn(global_state, local_state, data, rng)
        return withdrawn(after), update

    schema = {name: field._replace(role="delta") if field.moves else field for name, field in phase.schema.items()}
    return phase._replace(learn=learn, schema=schema)


def begin(
    feature_count: int, components: int, gamma: float | None, loss: linear.Loss, shared_count: int | None = None
) -> Callable[[np.random.Generator], Server]:
    """Return `start` of an algorithm that trains the linear detector, of whose weights so many are shared, or all."""

    def start(rng: np.random.Generator) -> Server:
        global_state = linear.initial(rng, feature_count, components, gamma, loss)
        if shared_count is not None:
            weights, home = np.split(global_state["weights"], [shared_count])
            global_state |= {"weights": weights, linear.HOME: home}
        return Server(global_state={**global_state, STEP: np.array(0, dtype=np.int64)}, server_state={})

    return start


def on_a_map(algorithm: Algorithm, gamma: float | None, components: int, normalisation: str) -> Algorithm:
    """Return the algorithm with the width of its random map from the data, where there is a map and no width given."""
    return with_width(algorithm, gamma, WIDTH, map_width, normalisation) if components else algorithm
