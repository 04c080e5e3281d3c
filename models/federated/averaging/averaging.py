"""Averages of changes (McMahan et al. 2017, Algorithm 1, the cloud's part): what every federated average builds on.

A gateway starts from what is shared, improves it on its own rows and sends n·Δ and n, a sum over gateways that may
travel masked; the cloud adds rate · ΣnΔ / Σn, or takes another step along that (`server_optimiser`). How a gateway
improves, and which change no honest one can ask for, is the algorithm's to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from fedgate.models.arrays import EPOCHS, FEATURES, Arrays, number_of
from fedgate.models.federated.averaging.server_optimiser import ServerOptimiser, stepping
from fedgate.models.federated.protocol.algorithm import Phase, Server, Trained, normalise
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import Field, Role, UpdateError, counting

SAMPLES = "samples"
STEP = "step"  # () in `global_state`: how many models the training has made
SLACK = 1e-6  # of a bound, for rounding

Judge = Callable[[Arrays, Arrays], None]  # (change, contribution) of a gateway, of the trained arrays; may refuse
CheckMeasured = Callable[[Arrays], None]  # (means over a gateway's rows); may refuse
# (shared, own, data, rng) -> (own, what the trained arrays became); data is in normalised units.
Improve = Callable[[Arrays, Arrays, Arrays, "np.random.Generator"], tuple[Arrays, Arrays]]


def averaging(
    improve: Improve,
    judge: Judge | None,
    trained: tuple[str, ...],
    *,
    largest_change: float = math.inf,
    rate: float = 1.0,
    server_optimiser: ServerOptimiser | None = None,
    measured: Mapping[str, str] = MappingProxyType({}),
    check_measured: CheckMeasured | None = None,
    max_samples: int,
    normalisation: str,
    role: Role = "delta",
) -> Phase:
    """Return the one phase of FedAvg around a local trainer and the judge of what it may give, where its loss has one.

    `trained` names the arrays of `global_state` that move; all others are constants of the training but `step`, which
    counts the models made, and what is `measured`: of it `improve` gives means over the gateway's rows, nothing below
    zero, the update holds their sums, and the array of `global_state` named beside it becomes the mean over all rows;
    `check_measured` refuses means that no honest gateway gives.
    Without a judge no array may change by more than `largest_change`, a setting of the algorithm. One gateway counts
    for at most `max_samples` rows, whatever it claims. `role` is another where they give no steps.

    Raises `ValueError` where neither a judge nor a `largest_change` bounds what one gateway may ask for, or nothing
    bounds what it may measure.
    """
    if judge is None and math.isinf(largest_change):
        raise ValueError("averaging: expected a judge or a largest_change, got neither, so one gateway decides alone")
    if measured and check_measured is None:
        raise ValueError(f"averaging: expected check_measured beside measured {sorted(measured)}, got none")
    optimiser = stepping(rate, server_optimiser)
    schema = {name: Field(name, role, moves=True) for name in trained}
    schema |= {name: Field(known_as, "metric", least=0.0) for name, known_as in measured.items()}

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        local_state, z = normalise(local_state, data, normalisation)
        local_state, moved = improve(global_state, local_state, {**data, FEATURES: z}, rng)
        weight = float(min(len(z), max_samples))
        update = {name: np.asarray(weight * (moved[name] - global_state[name])) for name in trained}
        update |= {name: np.asarray(weight * moved[name]) for name in measured}
        return local_state, {**update, SAMPLES: np.array(weight)}

    def advance(server: Server, total: Arrays) -> Server:
        global_state = server.global_state
        moved, server_state = optimiser.stepped(global_state, server.server_state, total, total[SAMPLES], trained)
        means = {known_as: np.asarray(total[name] / total[SAMPLES]) for name, known_as in measured.items()}
        global_state = {**global_state, **moved, **means, STEP: np.asarray(global_state[STEP] + 1)}
        return server._replace(global_state=global_state, server_state=server_state)

    def check(server: Server, update: Arrays) -> None:
        if check_measured is not None:
            check_measured({name: np.asarray(update[name] / update[SAMPLES]) for name in measured})
        if judge is not None:
            change = {name: np.asarray(update[name] / update[SAMPLES]) for name in trained}
            judge(change, {name: np.asarray(change[name] + server.global_state[name]) for name in trained})
            return
        for name in trained:
            length = float(np.linalg.norm(update[name])) / float(update[SAMPLES])
            within(f"{name} (setting 'largest_change')", length, largest_change)

    return Phase(learn, SUM, advance, {**schema, SAMPLES: counting(max_samples)}, check)


def epochs_of(data: Arrays, epochs: int) -> int:
    """Return how many epochs a gateway makes: those of the setting, or fewer where it has time for no more.

    Raises `ValueError` where it has time for none.
    """
    most = int(number_of(data, EPOCHS, epochs))
    if most < 1:
        raise ValueError(f"{EPOCHS} {most} given in the data, expected 1 or more: who does nothing sends nothing")
    return min(most, epochs)


def within(what: str, found: float, most: float) -> None:
    """Raise `UpdateError` for a size above what an honest gateway can reach."""
    if found > most * (1.0 + SLACK):
        raise UpdateError(f"{what}: expected a size up to {most:g}, got {found:g}")
