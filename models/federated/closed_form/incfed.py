"""IncFed: the readout of an echo state network from sums, exactly that of all rows together (Bacciu, Di Sarli, Faraji,
Gallicchio and Micheli, "Federated Reservoir Computing Neural Networks", 2021; A. Di Mauro, "Federated Echo State
Networks for Stress Prediction in the Automotive Use Case", Pisa 2022, Eq. 2.20 to 2.22 and B.1 to B.4).

A gateway sends A = Σ y sᵀ, the upper triangle of B = Σ s sᵀ, Σ y² and its number of rows, and beside them how many rows
it added and took back, by which the cloud bounds the rest; the cloud adds them to a running total and solves
W = A (B + β I)⁻¹ once. One round makes the model that the pooled rows would make, whoever holds which of them. The
rows, centre and scale stay with the gateway.

The sum stays exact for as long as the training runs. A gateway sends the difference between what its rows give now and
what was counted of it (`contributions`), so that it may grow, replace its rows, come late or leave: weight 0 takes back
all of it. A total that nobody is left in is empty, and the readout zero again. Asked again with nothing new it sends
zeros, so that the rounds go on.

What is sent adds up: without `reservoir`, by which the cloud knows that all speak of the same units, it is a plain sum
of floats, fit for masks. In fixed point no number of one gateway is larger than 2 · max_samples · clip², 2.6e6 with the
defaults. float16 would not do: the sum of matrices rounded so is no longer positive.

A Gram matrix is no secret keeper: of fewer rows than it has columns, M = units + direct inputs + 1, it betrays the span
of their states, and of one row the row itself. With `fewest_rows` of M a gateway with fewer rows sends nothing; the
default is 1, since a short baseline would never be heard, and under masks the cloud sees sums over gateways only. It
does not hide a change: the difference that a few new rows make betrays those, however many there are in all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.moments import triangle
from fedgate.models.detectors.esn import esn, ridge_readout
from fedgate.models.detectors.esn.network import Network
from fedgate.models.detectors.esn.reservoir import IDENTITY, identity
from fedgate.models.detectors.esn.ridge_readout import CROSS, GRAM, SAMPLES, SQUARES, RankError
from fedgate.models.federated.closed_form.readout_sums import TURNED, bounds_of, judge
from fedgate.models.federated.closed_form.series import OF_RESERVOIR, Lesson, lesson, traits_of
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Count,
    Normalisation,
    NotNegative,
    Phase,
    Server,
    Trained,
    personal_tensors,
)
from fedgate.models.federated.protocol.contributions import BEFORE, STEP, difference, settled, weight_of
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import Field, Shape


class RankWarning(UserWarning):
    """The sums determine no readout; the message names a ridge that would."""


ClassWeight = Literal["none", "balanced"]
Widen = Callable[[Arrays, Floats], Floats]

NETWORK = Network()
# In `global_state`: the condition of the system of equations, and what stands there where it determines no model.
CONDITION, UNDETERMINED = "condition", float(np.finfo(np.float64).max)
DEFAULT_RIDGE = 0.01  # in mean eigenvalues
FEWEST_LEFT = 1e-6  # rows; below it only rounding is left of weights that were taken back


def incfed(
    feature_count: Count,
    *,
    network: Network = NETWORK,
    ridge: NotNegative = DEFAULT_RIDGE,
    class_weight: ClassWeight = "none",
    fewest_rows: Count = 1,
    rounds: Count = 1,
    max_samples: Count = MAX_SAMPLES,
    normalisation: Normalisation = "own",
) -> Algorithm:
    """Incremental federated ridge regression of the readout, over F features.

    :param network: the echo state network; all gateways draw the same.
    :param ridge: β in mean eigenvalues of the summed Gram matrix, so that it means the same for any number of rows.
        With 0, sums that determine no readout are kept and leave the one before; `condition` says so with 1.8e308.
    :param class_weight: `balanced` lets every class of task `classify` count alike over all gateways together, exactly;
        the Gram matrix then travels once for each class.
    :param fewest_rows: a gateway with fewer time steps to learn from sends nothing.
    :param max_samples: most time steps that one gateway counts for; of more, its sums are scaled down.

    Raises `ValueError` for balanced classes where there are none.
    """
    if class_weight == "balanced" and network.task != "classify":
        raise ValueError(f"class_weight 'balanced' given for task {network.task!r}, expected 'classify' or 'none'")
    balanced, bounds = class_weight == "balanced", bounds_of(network, feature_count, max_samples)
    shapes = shapes_of(network.outputs(feature_count), len(bounds.regressors), balanced)

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        weight, step = weight_of(data), int(global_state[STEP])
        local_state = settled(local_state, data, step)
        if weight == 0.0:
            present = {name: np.zeros(shape) for name, shape in shapes.items()}
        else:
            taught = lesson(network, global_state, local_state, data, normalisation)
            local_state = taught.local_state
            if len(taught.regressors) < fewest_rows:
                return local_state, {}
            present = scaled(_sums(taught, balanced), weight, max_samples)
        local_state, change = difference(local_state, present, step, ridge_readout.sizes(present))
        return local_state, {**change, TURNED: _turned(local_state, present, change), IDENTITY: identity(global_state)}

    def advance(server: Server, total: Arrays) -> Server:
        return added(server, total, ridge)

    def check(server: Server, update: Arrays) -> None:
        judge(server.server_state, update, bounds)

    def start(rng: np.random.Generator) -> Server:
        return Server(untrained(esn.initial(rng, network, feature_count)), {})

    phase = Phase(learn, SUM, advance, schema_of({**shapes, TURNED: ()}), check, takes_back=True)
    return of_sums(network, start, (phase,), rounds, normalisation)


def of_sums(
    network: Network,
    start: Callable[[np.random.Generator], Server],
    phases: tuple[Phase, ...],
    rounds: int,
    normalisation: Normalisation,
) -> Algorithm:
    """Return the algorithm of a readout that is solved from sums, the last of these exchanges in every round."""
    return Algorithm(
        "esn",
        start,
        phases,
        rounds,
        personal_tensors(normalisation),
        setup=len(phases) - 1,
        labels=network.task == "classify",
        lacking=lacking,
        remembers=True,
        traits=traits_of(network),
    )


def lacking(server: Server) -> str:
    """Return why there is no readout in the server's state, or none any more; empty where there is one."""
    if float(server.server_state.get(SAMPLES, 1.0)) == 0.0:
        return "nobody is left in its sums"
    is_undetermined = float(server.global_state.get(CONDITION, 1.0)) >= UNDETERMINED  # none under masks
    return "its sums determine no model; see the setting 'ridge'" if is_undetermined else ""


def _turned(local_state: Arrays, present: Arrays, change: Arrays) -> Array:
    """Return how many rows a change adds and takes back: where there is one, all that were counted and all of now."""
    is_new = any(array.any() for array in change.values())
    return np.asarray(local_state.get(f"{BEFORE}.{SAMPLES}", 0.0) + present[SAMPLES] if is_new else 0.0)


def untrained(params: Arrays) -> Arrays:
    """Return the shared state of a training that has counted nothing yet."""
    return {**params, STEP: np.array(0, dtype=np.int64), CONDITION: np.array(1.0)}


def scaled(sums: Arrays, weight: float, max_samples: int) -> Arrays:
    """Return the sums of a gateway as often as it counts, for at most `max_samples` rows."""
    share = min(weight, max_samples / float(sums[SAMPLES]))
    return {name: np.asarray(share * array) for name, array in sums.items()}


def shapes_of(outputs: int, size: int, balanced: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a gateway's sums over regressors (M,) and targets (c,)."""
    grams = (outputs,) if balanced else ()
    return {GRAM: (*grams, triangle(size)), CROSS: (outputs, size), SQUARES: (outputs,), SAMPLES: ()}


def schema_of(shapes: Mapping[str, Shape]) -> dict[str, Field]:
    """Return the form of sums of these shapes over the rows of one reservoir."""
    schema = {name: Field(shape, "weight" if name == SAMPLES else "sum") for name, shape in shapes.items()}
    return {**schema, IDENTITY: OF_RESERVOIR}


def _sums(taught: Lesson, balanced: bool) -> Arrays:
    """Return the sums of what a gateway's rows teach; where `balanced` with a Gram matrix for each class."""
    found = ridge_readout.sums(taught.regressors, taught.targets)
    if not balanced:
        return found
    rows = (taught.classes == index for index in range(taught.targets.shape[1]))
    return {
        **found,
        GRAM: np.array([ridge_readout.sums(taught.regressors[at], taught.targets[at])[GRAM] for at in rows]),
    }


def _balanced(total: Arrays) -> Arrays:
    """Return the sums with every class weighing as if all had the same number of rows; one without rows stays so."""
    counts = total[SQUARES]  # of a one-hot target
    weights = np.divide(
        counts.sum() / max((counts > 0.0).sum(), 1), counts, out=np.zeros_like(counts), where=counts > 0.0
    )
    return {
        GRAM: np.asarray(weights @ total[GRAM]),
        CROSS: weights[:, None] * total[CROSS],
        SQUARES: weights * counts,
        SAMPLES: total[SAMPLES],
    }


def added(server: Server, total: Arrays, ridge: float) -> Server:
    """Return the server with the sums of an exchange added to what was kept, and the readout of all of it.

    Sums that determine no readout are kept too: to the gateways they are counted.
    """
    sums = {
        name: np.asarray(server.server_state.get(name, 0.0) + array) for name, array in total.items() if name != TURNED
    }
    if float(sums[SAMPLES]) < -FEWEST_LEFT:  # several took back what only one of them can have had
        global_state = {**server.global_state, CONDITION: np.array(UNDETERMINED)}
    elif float(sums[SAMPLES]) < FEWEST_LEFT:  # everyone has left
        sums = {name: np.zeros_like(array) for name, array in sums.items()}
        ones = {
            name: np.ones_like(server.global_state[name])
            for name in ("variance", CONDITION)
            if name in server.global_state
        }
        global_state = {**server.global_state, "readout": np.zeros_like(server.global_state["readout"]), **ones}
    else:
        global_state = solved(server.global_state, _balanced(sums) if sums[GRAM].ndim > 1 else sums, ridge)
    return server._replace(
        global_state={**global_state, STEP: np.asarray(server.global_state[STEP] + 1)}, server_state=sums
    )


def _as_it_is(_global_state: Arrays, weights: Floats) -> Floats:
    return weights


def solved(global_state: Arrays, total: Arrays, ridge: float, *, widen: Widen = _as_it_is) -> Arrays:
    """Return the shared parameters with the readout of these sums, `widen`ed to all regressors where they are those of
    fewer, or the one before where they determine none; the `condition` tells which.
    """
    try:
        found = ridge_readout.solve(total, ridge)
    except RankError as error:  # whoever was counted stays counted, so that there is nothing to raise
        warnings.warn(str(error), RankWarning, stacklevel=2)
        return {**global_state, CONDITION: np.array(UNDETERMINED)}
    fitted = esn.fitted(global_state, total, found)
    return {**fitted, "readout": widen(global_state, found.weights), CONDITION: np.array(found.condition)}
