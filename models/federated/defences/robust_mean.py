"""A robust mean in place of the sum: any average of changes, aggregated by a rule that a minority of liars cannot move
at will (`robust_rules`, which has the sources and what each rule stands; the frame around them is ours).

Such a rule must see every update, so they are kept apart until the exchange closes: the cloud's memory grows with the
number of gateways, and they cannot travel masked. A gateway sends what it would send anyway, as one row; the cloud
checks it as before, and takes from it the change per sample. Everybody counts alike, however many samples he claims:
a liar claims the most he may, and with weights an honest majority of gateways would be no majority of the weight.

With fewer than three updates an exchange comes to nothing and is repeated: of two nobody knows which one lies. So it
does where the share of liars is nobody: a trimmed mean of four without a fifth of them is the plain one. What is
measured beside the change (squared residuals, class counts) follows the same rule; under `clipped` it is the median of
each number, and Krum's distances are those of the changes alone. Exchanges before the last of a round (whitening) stay
plain sums, bounded one by one (docs/decisions/13) and not robust.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedgate.models.arrays import Arrays, Floats
from fedgate.models.federated.defences.robust_rules import (
    TooFewRowsError,
    clipped_mean,
    coordinate_median,
    krum_chosen,
    trimmed_mean,
)
from fedgate.models.federated.defences.single_update import counted_once
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, RoundFailedError, Server, Trained
from fedgate.models.federated.protocol.composition import check_composition, having
from fedgate.models.federated.protocol.reducer import STACK
from fedgate.models.federated.protocol.schema import UpdateError, named
from fedgate.models.options import Options
from fedgate.models.whole import round_down, round_up

Rule = Literal["median", "trimmed-mean", "krum", "multi-krum", "clipped"]
Liars = Annotated[float, Field(gt=0, lt=0.5)]
LIARS = 0.2
FEWEST = 3
# Rules that must know how many liars there may be, f, and how many updates they want beyond 2 f.
COUNTING = {"trimmed-mean": 1, "krum": 3, "multi-krum": 3}


class Robust(Options):
    """Which mean.

    :param rule: see `fedgate.models.federated.defences.robust_rules`.
    :param liars: of `trimmed-mean`, `krum` and `multi-krum`: the share of a round's updates that may be lies, 0.2 where
        not given; of n updates the whole number up to share · n, one at least. The others need not know.
    """

    rule: Rule
    liars: Liars | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.liars is not None and self.rule not in COUNTING:
            raise ValueError(
                f"liars {self.liars:g} given for rule {self.rule!r}, expected none: it stands any minority"
            )
        return self

    def against(self, liars: float | None) -> Robust:
        """Return this mean with a share of liars that is given beside it, or as it is where none is."""
        return self if liars is None else Robust(rule=self.rule, liars=liars)

    @property
    def share(self) -> float:
        """Return the share of a round's updates that may be lies."""
        return LIARS if self.liars is None else self.liars

    def liars_of(self, count: int) -> int:
        """Return how many of so many updates may be lies."""
        return round_down(self.share * count)

    def check(self, count: int) -> None:
        """Raise `TooFewRowsError` where the rule stands nobody's lie among so many updates."""
        if count < FEWEST:
            raise TooFewRowsError(f"a robust mean: expected {FEWEST} updates or more, got {count}; ask more gateways")
        liars, spare = self.liars_of(count), COUNTING.get(self.rule)
        if spare is not None and not 0 < liars <= (count - spare) / 2:
            enough = max(round_up(1.0 / self.share), round_up(spare / (1.0 - 2.0 * self.share)))  # of these and of more
            raise TooFewRowsError(
                f"{self.rule}: a share of {self.share:g} is {liars or 'nobody'} of {count} updates, which it cannot "
                f"leave out; expected {enough} updates or more; ask more gateways (quorum), or change 'liars'"
            )

    def mean(self, rows: Arrays, moved: list[str]) -> Arrays:
        """Return the mean of rows, each array (n, ...), of which the `moved` ones are changes of the model.

        Raises `TooFewRowsError`.
        """
        self.check(len(next(iter(rows.values()))))
        flat = {name: array.reshape(len(array), -1) for name, array in rows.items()}
        means = self._means(flat, sorted(moved))
        return {name: np.asarray(means[name].reshape(array.shape[1:])) for name, array in rows.items()}

    def _means(self, flat: Arrays, moved: list[str]) -> dict[str, Floats]:
        changes = np.concatenate([flat[name] for name in moved], axis=1)  # (n, D)
        liars = self.liars_of(len(changes))
        if self.rule in ("krum", "multi-krum"):
            chosen = krum_chosen(changes, liars, many=self.rule == "multi-krum")
            return {name: np.asarray(array[chosen].mean(axis=0)) for name, array in flat.items()}
        if self.rule == "trimmed-mean":
            return {name: trimmed_mean(array, liars) for name, array in flat.items()}
        medians = {name: coordinate_median(array) for name, array in flat.items()}
        if self.rule == "median":
            return medians
        places = np.cumsum([flat[name].shape[1] for name in moved])[:-1]
        return {**medians, **dict(zip(moved, np.split(clipped_mean(changes), places), strict=True))}


def with_robust_mean(algorithm: Algorithm, robust: Robust) -> Algorithm:
    """Return the algorithm with a robust mean in place of the sum that makes its model.

    Raises `ValueError` where that is no sum of changes: of a system of equations, or of what gateways remember to have
    given, any other mean is no solution.
    """
    check_composition(algorithm, "robust")
    *others, model = algorithm.phases
    return having(algorithm, "robust", phases=(*others, _stack_updates(model, robust)))


def _stack_updates(phase: Phase, robust: Robust) -> Phase:
    changes, weights = named(phase.schema, "delta"), named(phase.schema, "weight")

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        local_state, update = phase.learn(global_state, local_state, data, rng)
        return local_state, {name: array[None] for name, array in update.items()}

    def advance(server: Server, total: Arrays) -> Server:
        ones = {name: np.asarray(total[name][0]) for name in weights}
        try:
            mean = robust.mean({name: rows for name, rows in total.items() if name not in ones}, changes)
        except TooFewRowsError as error:
            raise RoundFailedError(str(error)) from None
        return phase.advance(server, {**mean, **ones})

    def unpacked(server: Server, update: Arrays) -> Arrays:
        for name, array in update.items():
            if array.ndim == 0 or len(array) != 1:
                raise UpdateError(f"{name}: expected one row, got an array of shape {array.shape}")
        return phase.unpacked(server, {name: array.reshape(array.shape[1:]) for name, array in update.items()})

    def counted(server: Server, update: Arrays) -> Arrays:
        admitted = counted_once(phase.schema, phase.counted(server, update))
        return {name: array[None] for name, array in admitted.items()}

    reducer = STACK._replace(check=robust.check)
    return phase._replace(learn=learn, reducer=reducer, advance=advance, unpacked=unpacked, counted=counted)
