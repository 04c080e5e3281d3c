"""Federated averaging (McMahan et al. 2017, Algorithm 1) of the linear detector, and what other averages build on.

A gateway starts from the shared weights, trains on its own rows and sends n·Δw and n; the cloud adds
rate · ΣnΔw / Σn, or takes another step along that (`server_optimiser`). What is sent is a sum over gateways, so it may
travel masked. With labels a gateway descends along the logistic loss; without, it solves its part of the one-class SVM
(`local_dual`).

The border of the one-class loss is the mean of the gateways' ν-quantiles, each of the model it received, since no other
is the same for all; in the first step, where there is none, of its own. So it is one step behind the weights, and only
where these have settled is zero the border that leaves about ν outside.

Nothing of the data stays in the cloud; centre, scale and multipliers stay on the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedgate.models.arrays import FEATURES, Arrays
from fedgate.models.detectors import linear
from fedgate.models.detectors.random_map import WIDTH
from fedgate.models.detectors.training import MOST_ROWS, map_width, spread, warn_of_share
from fedgate.models.federated.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Count,
    Phase,
    Positive,
    Server,
    Share,
    UpdateError,
    checked,
    normalise,
    personal_tensors,
)
from fedgate.models.federated.kernel_width import with_width
from fedgate.models.federated.local_dual import STEP, Local, contribute
from fedgate.models.federated.server_optimiser import ServerOptimiser, stepping
from fedgate.models.federated.tally import CHANGES, CONTRIBUTIONS, MEASURED_CHANGES, Tally

SAMPLES = "samples"
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

SLACK = 1e-6  # of a bound, for rounding
LENGTH = float(np.sqrt(2.0))  # no row of the random map is longer

Judge = Callable[[Arrays, Arrays], None]  # (change, contribution) of a gateway, of the trained arrays; may refuse
# (shared, own, data, rng) -> (own, what the trained arrays became); data is in normalised units.
Improve = Callable[[Arrays, Arrays, Arrays, "np.random.Generator"], tuple[Arrays, Arrays]]


def averaging(
    improve: Improve,
    judge: Judge,
    trained: tuple[str, ...],
    *,
    rate: float = 1.0,
    server_optimiser: ServerOptimiser | None = None,
    measured: Mapping[str, str] = MappingProxyType({}),
    max_samples: int,
    normalisation: str,
    tally: Tally = CHANGES,
) -> Phase:
    """Return the one phase of FedAvg around a local trainer and the judge of what it may give.

    `trained` names the arrays of `shared` that move; all others are constants of the training but `step`, which counts
    the models made, and what is `measured`: of it `improve` gives means over the gateway's rows, nothing below zero,
    the update holds their sums, and the array of `shared` named beside it becomes the mean over all rows. One gateway
    counts for at most `max_samples` rows, whatever it claims. `tally` is another where gateways give no steps.
    """
    optimiser = stepping(rate, server_optimiser)

    def train(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        count = len(data[FEATURES])
        if count == 0:
            return own, {}
        own, z = normalise(own, data, normalisation)
        own, moved = improve(shared, own, {**data, FEATURES: z}, rng)
        weight = float(min(count, max_samples))
        update = {name: np.asarray(weight * (moved[name] - shared[name])) for name in trained}
        update |= {name: np.asarray(weight * moved[name]) for name in measured}
        return own, {**update, SAMPLES: np.array(weight)}

    def advance(server: Server, total: Arrays) -> Server:
        if not total:
            return server
        shared = server.shared
        moved, kept = optimiser.stepped(shared, server.kept, total, total[SAMPLES], trained)
        means = {known_as: np.asarray(total[name] / total[SAMPLES]) for name, known_as in measured.items()}
        return server._replace(shared={**shared, **moved, **means, STEP: np.asarray(shared[STEP] + 1)}, kept=kept)

    def admit(server: Server, update: Arrays) -> Arrays:
        shapes = {name: server.shared[name].shape for name in trained} | {SAMPLES: ()}
        shapes |= {name: server.shared[known_as].shape for name, known_as in measured.items()}
        wide = counted(checked(update, shapes), max_samples)
        for name in measured:
            if (least := float(wide[name].min())) < 0.0:
                raise UpdateError(f"{name}: expected sums of what is never below zero, got {least:g}")
        change = {name: np.asarray(wide[name] / wide[SAMPLES]) for name in trained}
        judge(change, {name: np.asarray(change[name] + server.shared[name]) for name in trained})
        return wide

    return Phase(train, MEASURED_CHANGES if measured and tally == CHANGES else tally, advance, admit)


def counted(update: Arrays, max_samples: int) -> Arrays:
    """Return the update if it claims as many samples as one gateway may, else raise `UpdateError`."""
    count = float(update[SAMPLES])
    if not 1 <= count <= max_samples:
        raise UpdateError(f"samples: expected 1 to {max_samples}, got {count:g}")
    return update


def within(what: str, found: float, most: float) -> None:
    """Raise `UpdateError` for a size above what an honest gateway can reach."""
    if found > most * (1.0 + SLACK):
        raise UpdateError(f"{what}: expected a size up to {most:g}, got {found:g}")


class OneClass(NamedTuple):
    """The settings of a gateway's part of the one-class SVM."""

    nu: float
    epochs: int
    most_rows: int
    proximity: float = 0.0

    def part(self, shared: Arrays, own: Arrays, data: Arrays) -> tuple[Local, float]:
        """Return the gateway's part, and the border of the model it received, in the first step of the one it made."""
        phi = linear.mapped(shared, spread(data[FEATURES], self.most_rows))  # (n, M)
        local = contribute(
            int(shared[STEP]),
            -shared["weights"],  # a weight is minus w, as the score rises away from the data
            own,
            phi,
            nu=self.nu,
            epochs=self.epochs,
            proximity=self.proximity,
        )
        products = phi @ local.judged
        border = linear.border(products, self.nu)
        warn_of_share(products < border, self.nu)
        return local, border

    def improve(self, shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        """Return the gateway's state, and its contribution and border as the trained arrays."""
        del rng
        local, border = self.part(shared, own, data)
        return local.own, {"weights": -local.contribution, "intercept": np.array(border)}

    def judge(self, change: Arrays, given: Arrays) -> None:
        """Refuse a contribution that no rows make: w_k = Σ α_i φ_i with Σ α_i <= 1 / ν and |φ_i|² <= 2, which bounds
        the border w·φ as well.
        """
        del change
        within("weights", float(np.linalg.norm(given["weights"])), LENGTH / self.nu)
        within("intercept", abs(float(given["intercept"])), LENGTH**2 / self.nu)


class Logistic(NamedTuple):
    """The settings of a gateway's descent along the logistic loss."""

    decay: float
    epochs: int
    batch: int
    learning_rate: float
    largest_change: float
    proximity: float = 0.0

    def improve(self, shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        """Return the gateway's state as it was, and the arrays after its epochs."""
        moved = linear.descend(
            shared,
            data,
            rng,
            decay=self.decay,
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            proximity=self.proximity,
        )
        return own, moved

    def judge(self, change: Arrays, given: Arrays) -> None:
        """Refuse a change beyond the setting; the loss itself has no bound to offer."""
        del given
        for name, array in change.items():
            within(f"{name} (setting 'largest_change')", float(np.linalg.norm(array)), self.largest_change)


def trainer(loss: linear.Loss, components: int, one_class: OneClass, logistic: Logistic) -> tuple[Improve, Judge]:
    """Return how a gateway trains under a loss, and the judge of what it gives."""
    if loss == "logistic":
        return logistic.improve, logistic.judge
    # Without a map rows have no longest length, so the change is bounded as under the other loss.
    return one_class.improve, one_class.judge if components else logistic.judge


def tally_of(loss: linear.Loss) -> Tally:
    """Return how updates under a loss add up: of a dual every gateway sends all that is still missing of its part."""
    return CHANGES if loss == "logistic" else CONTRIBUTIONS


def begin(feature_count: int, components: int, gamma: float | None, loss: linear.Loss) -> Callable[..., Server]:
    """Return `start` of an algorithm that trains the linear detector."""

    def start(rng: np.random.Generator) -> Server:
        untrained = linear.initial(rng, feature_count, components, gamma, loss)
        return Server(shared={**untrained, STEP: np.array(0, dtype=np.int64)}, kept={})

    return start


def on_a_map(algorithm: Algorithm, gamma: float | None, components: int, normalisation: str) -> Algorithm:
    """Return the algorithm with the width of its random map from the data, where there is a map and no width given."""
    return with_width(algorithm, gamma, WIDTH, map_width, normalisation) if components else algorithm


def fedavg(
    feature_count: Count,
    *,
    loss: linear.Loss = "one-class",
    components: Annotated[int, Field(ge=0)] = 256,
    gamma: Positive | None = None,
    nu: Share = 0.1,
    decay: NotNegative = 1e-3,
    epochs: Count = 5,
    batch: Count = 32,
    learning_rate: Positive = 1.0,
    rate: Positive = 1.0,
    server_optimiser: ServerOptimiser | None = None,
    largest_change: Positive = 1e3,
    rounds: Count = 20,
    max_samples: Count = MAX_SAMPLES,
    most_rows: Count = MOST_ROWS,
    normalisation: Literal["own", "none"] = "own",
) -> Algorithm:
    """Federated averaging of the linear detector.

    :param loss: `one-class` without labels, `logistic` with them. To the first belong `nu` and `most_rows`, rows that
        a gateway trains on at most, to the second `decay`, `batch` and `learning_rate`.
    :param components: size M of the random Fourier map, 0 for none.
    :param gamma: its width; not given, from the distances of rows over all gateways, in one exchange more.
    :param largest_change: longest change of the weights, and of the border, that one update may ask for; under the
        one-class loss with a map the bounds follow from `nu`.
    :param max_samples: most rows that one gateway counts for.
    :param nu: cap on a multiplier and share of rows outside the border.
    :param rate: step of the server along the averaged change; 1 is plain averaging, and with more of it the one-class
        loss need not settle, and near 2 it leaves the range in which updates are admitted.
    :param server_optimiser: in place of `rate`, of the logistic loss alone: momentum, or an adaptive step of the cloud.
    """
    if loss == "one-class" and server_optimiser is not None:
        raise ValueError(
            "server_optimiser given for loss 'one-class', expected loss 'logistic': gateways send whole parts of a "
            "dual, of which any other combination than their mean is no solution"
        )
    one_class = OneClass(nu, epochs, most_rows)
    logistic = Logistic(decay, epochs, batch, learning_rate, largest_change)
    improve, judge = trainer(loss, components, one_class, logistic)
    phase = averaging(
        improve,
        judge,
        linear.TRAINED,
        rate=rate,
        server_optimiser=server_optimiser,
        max_samples=max_samples,
        normalisation=normalisation,
        tally=tally_of(loss),
    )
    start, personal = begin(feature_count, components, gamma, loss), personal_tensors(normalisation)
    algorithm = Algorithm("linear", start, (phase,), rounds, personal, labels=loss == "logistic")
    return on_a_map(algorithm, gamma, components, normalisation)
