"""A search for the width of a sphere's kernel over several rounds, in which the gateways decide together (ours).

Frasson and Malchiodi leave it open: "SVE might entail several training rounds, in which clients collectively
collaborate in finding the best hyper parameters". Without labels the best width is the narrowest one that is consistent
(Tax and Müller 2004): a narrower kernel describes the rows more closely, and one that is too narrow has to leave out
more of the healthy rows that it was not fitted to than ν allows.

In each round a model is made at a trial width from the first three quarters of each gateway's rows, and in an exchange
more each gateway says whether of its last quarter no more lie outside than ν n + 2 √(ν (1 - ν) n). The majority
decides, so a gateway has one voice whatever it claims. Borders run through the free vectors: one that is taken from the
other rows leaves ν outside at every width, and nothing to choose by. From one round to the next the trial is 4 times
narrower while widths are consistent, 4 times wider while none was, and then the geometric middle of the narrowest that
was consistent and the widest that was not, until these are near each other. The model of the narrowest consistent width
is the one that stays; where none was, the last, which is the widest.

What is sent is two numbers that may be summed, and tells of a gateway's rows one bit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from fedgate.models.arrays import FEATURES, Array, Arrays, number_of, under
from fedgate.models.detectors.base.checks import FitWarning
from fedgate.models.detectors.svm import svdd
from fedgate.models.federated.protocol.algorithm import Phase, Server, Trained, normalise
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import ONE, Field, UpdateError

Fit = Callable[..., Arrays]

NEXT_WIDTH = "next_width"  # in `global_state`: the common width of the next round, where the model does not tell it
FIRST, GOOD, BAD = "search.first", "search.consistent", "search.inconsistent"  # widths in `server_state`
BEST = "best."  # in `server_state`, before the names of the model that stays
CONSISTENT, GATEWAYS = "consistent", "gateways"  # of an update
FACTOR = 4.0
NEAR = 1.1  # the narrowest consistent width by the widest that is not: nearer they are not told apart
SPAN = 2.0**20  # from the first width, either way: as far as voices may carry it
HELD_OUT = 4  # of so many rows one
DEVIATIONS = 2.0


def trial_fit(nu: float, c: float | None) -> Fit:
    """Return the fit of a sphere on trial. It does not warn of a border that says nothing: that is the verdict's."""

    def fit(x: Array, **settings: Any) -> Arrays:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            return svdd.fit(x, **{"nu": nu, "c": c, "border": "vectors", **settings})

    return fit


def fitted_rows(z: Array) -> Array:
    """Return the rows of z (n, F) that models are fitted to."""
    return z[: len(z) - len(z) // HELD_OUT]


def held_out(z: Array) -> Array:
    """Return the rows of z (n, F) that judge them, the last ones."""
    return z[len(z) - len(z) // HELD_OUT :]


def is_consistent(outside: int, count: int, nu: float) -> bool:
    """Tell whether of `count` new rows so many may lie outside where ν do on average."""
    return outside <= nu * count + DEVIATIONS * math.sqrt(nu * (1.0 - nu) * count)


def on_trial(server: Server, model: Arrays) -> Server:
    """Return the server with a model that waits for its verdict; the one before waits in `server_state`."""
    return server._replace(global_state={**model, NEXT_WIDTH: model["gamma"]}, phase=1)


def with_best(server: Server) -> Server:
    """Return the server with the model that stays, where there is one."""
    return server._replace(global_state={**server.global_state, **under(BEST, server.server_state)})


def next_trial(first: float, good: float, bad: float) -> float:
    """Return the width to try after `good`, the narrowest that was consistent (0: none), and `bad`, the widest that was
    not (infinite: none); γ is larger for a narrower kernel.
    """
    if good == 0.0:
        following = bad / FACTOR
    elif bad == math.inf:
        following = good * FACTOR
    else:
        following = good if bad <= NEAR * good else math.sqrt(good * bad)
    return min(max(following, first / SPAN), first * SPAN)


def verdict(nu: float, normalisation: str) -> Phase:
    """Return the exchange in which gateways judge the model on trial by rows that it was not fitted to."""

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        if len(data[FEATURES]) < HELD_OUT:
            return local_state, {}
        local_state, z = normalise(local_state, data, normalisation)
        scores = svdd.SVDD.score(global_state, held_out(z))
        is_good = is_consistent(int(np.count_nonzero(scores > 0.0)), len(scores), nu)
        return local_state, {CONSISTENT: np.array(float(is_good)), GATEWAYS: np.ones(())}

    def advance(server: Server, total: Arrays) -> Server:
        return _judged(server, is_good=float(total[CONSISTENT]) > float(total[GATEWAYS]) / 2.0)

    def check(_server: Server, update: Arrays) -> None:
        if (found := float(update[CONSISTENT])) not in (0.0, 1.0):
            raise UpdateError(f"{CONSISTENT}: expected 0 or 1, got {found:g}")

    schema = {CONSISTENT: Field((), "sum", least=0.0, largest=1.0), GATEWAYS: ONE}
    return Phase(learn, SUM, advance, schema, check)


def _judged(server: Server, *, is_good: bool) -> Server:
    """Return the server after a verdict: with the model that stays, and the width to try next."""
    server_state, width = server.server_state, float(server.global_state[NEXT_WIDTH])
    first, good, bad = (number_of(server_state, *known) for known in ((FIRST, width), (GOOD, 0.0), (BAD, math.inf)))
    model = {name: array for name, array in server.global_state.items() if name != NEXT_WIDTH}
    if is_good:
        good, bad = width, bad if bad > width else math.inf
        server_state = {**server_state, **{f"{BEST}{name}": array for name, array in model.items()}}
    else:
        good, bad = good if good < width else 0.0, width
    server_state = {**server_state, FIRST: np.array(first), GOOD: np.array(good), BAD: np.array(bad)}
    server = with_best(server._replace(server_state=server_state, phase=0))
    return server._replace(global_state={**server.global_state, NEXT_WIDTH: np.array(next_trial(first, good, bad))})
