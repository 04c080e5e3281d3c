"""Federated averaging of a recurrent network (Abdel Sater and Ben Hamza 2021, Algorithm 1).

The paper's FSLSTM, FLSTM-1, FLSTM-2, FGRU and FLR are settings of the network. A gateway starts from the shared
weights, descends for some epochs on its own windows with an optimiser that begins afresh, and sends n·Δw and n; the
cloud averages over those that were counted (line 5 divides by the rows of all, though only a subset answers) and may
take another step along that (`server_optimiser`). What is sent is a sum of changes, so it may travel masked, noised or
compressed. Task `predict` trains on windows that nobody labelled as faults, `classify` on labelled ones.

With the change goes one sum more, of the model that the gateway received: of `predict` the squared residuals, which
make the variance that scores are in units of, and of `classify` with class weights the rows of each class, by whose
shares over the whole fleet errors are weighed. So both are one step behind the weights; the first step takes the
gateway's own shares. The mean of a gateway's squares counts as 16 at most, so that none decides the scale of all.
With `measure` = "own" neither is sent: a gateway scores in its own variance and weighs by its own shares. Under privacy
that is what there is, since a bound on change and sums together would go to the sums.

`mu` pulls the local weights back to the shared ones (FedProx, Li et al. 2020, Eq. 2). With `home` = "head" the dense
and output layers and the variance stay with each gateway, which trains them with the rest (FedPer, Arivazhagan et al.
2019); in a round that is repeated a head then trains twice.

The paper's form is to be asked for with `paper`: in the 25 to 50 steps of SGD at 0.001 that were measured it hardly
moved, and persistence beats the level that it predicts (docs/reference/algorithms.md). The defaults are what worked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from fedgate.models.arrays import FEATURES, LABELS, Arrays
from fedgate.models.detectors.base.checks import finite_rows, whole_classes
from fedgate.models.detectors.recurrent import recurrent
from fedgate.models.detectors.recurrent.recurrent_network import Descent, Optimiser, Recurrent, as_in_the_paper
from fedgate.models.federated.averaging.averaging import STEP, averaging, epochs_of, within
from fedgate.models.federated.averaging.server_optimiser import ServerOptimiser, stepping
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Count,
    Normalisation,
    NotNegative,
    Phase,
    Positive,
    Server,
    Trained,
    healthy_rows,
    personal_tensors,
)
from fedgate.models.federated.protocol.composition import FLOAT32, WINDOWS

SQUARES, CLASS_COUNTS, CLASS_SHARES = "squares", "class_counts", "class_shares"
VARIANCE = "variance"
LARGEST_SQUARE = 16.0  # of residuals, in the mean over rows: four deviations, farther off than a guess of zero is
WORKED = Descent()
PAPER = Descent(epochs=1, batch=1024, optimiser="sgd", learning_rate=1e-3, largest_gradient=math.inf)
NETWORK = Recurrent()


class Local(NamedTuple):
    """What a gateway does with its rows: the network, how it trains, the names of what it shares and of what it keeps
    at home, and what it measures.
    """

    network: Recurrent
    descent: Descent
    trained: tuple[str, ...]
    home: tuple[str, ...]
    measured: dict[str, str]

    def rows_of(self, data: Arrays) -> Arrays:
        """Return the rows that teach: for `predict` those of no fault, without labels, else those of a known class.

        Raises `DataError` for a row that holds what is no finite number.
        """
        finite_rows(data[FEATURES], recurrent.GAPS)  # before it can spoil the scale
        rest = {name: array for name, array in data.items() if name not in (FEATURES, LABELS)}
        if self.network.task == "predict":
            return {**rest, FEATURES: healthy_rows(data, data[FEATURES])}
        if LABELS not in data:
            return dict(data)
        known = np.asarray(data[LABELS]) >= 0
        return {**rest, FEATURES: data[FEATURES][known], LABELS: data[LABELS][known]}

    def improve(self, global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        """Return the gateway's state with what stays at home, and what the shared arrays became, with what it measured
        of the model that it received.
        """
        z, y = data[FEATURES], data.get(LABELS)
        received = {**global_state, **{name: local_state[name] for name in self.home if name in local_state}}
        shares = global_state[CLASS_SHARES] if CLASS_COUNTS in self.measured and int(global_state[STEP]) > 0 else None
        descent = self.descent._replace(epochs=epochs_of(data, self.descent.epochs))
        moved = recurrent.descended(received, z, y, rng, self.network, descent, shares=shares, anchored=self.trained)
        moved_arrays = {name: moved[name] for name in self.trained}
        if CLASS_COUNTS in self.measured:
            classes = whole_classes(y, self.network.classes)
            moved_arrays[CLASS_COUNTS] = np.bincount(classes, minlength=self.network.classes) / len(classes)
        elif self.network.task == "predict":
            mean = recurrent.squares(received, z).mean(axis=0)
            if VARIANCE in self.home:
                moved = recurrent.with_variance(moved, mean)
            else:
                moved_arrays[SQUARES] = np.minimum(mean, LARGEST_SQUARE)
        return {**local_state, **{name: moved[name] for name in self.home}}, moved_arrays

    def check_measured(self, means: Arrays) -> None:
        """Refuse more class counts than rows, of which each is of one class, and squares above the largest that count:
        one gateway must not decide the scale of all others' scores.
        """
        if CLASS_COUNTS in means:
            within(CLASS_COUNTS, float(means[CLASS_COUNTS].sum()), 1.0)
        if SQUARES in means:
            within(f"{SQUARES} of a row", float(means[SQUARES].max()), LARGEST_SQUARE)


def _local(
    feature_count: int,
    network: Recurrent,
    descent: Descent,
    home: Literal["none", "head"],
    measure: Literal["fleet", "own"],
) -> Local:
    if home == "head" and network.cell == "linear":
        raise ValueError(
            "home 'head' given for cell 'linear', expected 'none': it has one layer, and nothing is shared"
        )
    untrained = recurrent.initial(np.random.default_rng(0), network, feature_count)  # for the names alone
    at_home = recurrent.trained_names(untrained, recurrent.HEAD) if home == "head" else ()
    trained = tuple(name for name in recurrent.trained_names(untrained) if name not in at_home)
    measured: dict[str, str] = {}
    if network.task == "predict" and (at_home or measure == "own"):
        at_home = (*at_home, VARIANCE)
    elif network.task == "predict":
        measured = {SQUARES: VARIANCE}
    elif network.class_weights and measure == "fleet":
        measured = {CLASS_COUNTS: CLASS_SHARES}
    return Local(network, descent, trained, at_home, measured)


def _begin(local: Local, feature_count: int) -> Callable[[np.random.Generator], Server]:
    def start(rng: np.random.Generator) -> Server:
        global_state = {**recurrent.initial(rng, local.network, feature_count), STEP: np.array(0, dtype=np.int64)}
        if CLASS_COUNTS in local.measured:
            global_state[CLASS_SHARES] = np.full(local.network.classes, 1.0 / local.network.classes)
        return Server(global_state=global_state, server_state={})

    return start


def _on_teaching_rows(phase: Phase, local: Local) -> Phase:
    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        rows = local.rows_of(data)
        return phase.train(global_state, local_state, rows, rng)  # of which none may be left

    return phase._replace(learn=learn)


def recurrent_fedavg(
    feature_count: Count,
    *,
    network: Recurrent = NETWORK,
    epochs: Count | None = None,
    batch: Count | None = None,
    optimiser: Optimiser | None = None,
    learning_rate: Positive | None = None,
    largest_gradient: Positive | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    mu: NotNegative = 0.0,
    home: Literal["none", "head"] = "none",
    measure: Literal["fleet", "own"] = "fleet",
    rate: Positive = 1.0,
    server_optimiser: ServerOptimiser | None = None,
    paper: bool = False,
    largest_change: Positive = 1e3,
    rounds: Count = 15,
    max_samples: Count = MAX_SAMPLES,
    normalisation: Normalisation = "own",
) -> Algorithm:
    """Federated averaging of a recurrent network over rows of F features that are windows.

    :param epochs: 3, batch 64, optimiser `adam`, learning_rate 0.005 and largest_gradient, the norm to which a longer
        slope is cut, 1, where not given.
    :param precision: in which a gateway multiplies while it trains; where its processor does not do `bfloat16`, it
        takes float32 and says so in its log.
    :param mu: weight µ of the proximal term on what is averaged; 0 is plain averaging.
    :param home: `head` for dense and output layers that stay with each gateway.
    :param measure: over whom variance and class shares are taken; `own` ones never leave, which privacy asks for.
    :param rate: step of the cloud along the averaged change; 1 is plain averaging.
    :param server_optimiser: in place of `rate`: momentum, or an adaptive step of the cloud.
    :param paper: what is not given, in the network too, is as in the paper: SGD at 0.001, one epoch in batches of
        1,024, no cut.
    :param largest_change: longest change of each array that one update may ask for.
    :param max_samples: most rows that one gateway counts for.
    """
    given: dict[str, Any] = {"epochs": epochs, "batch": batch, "optimiser": optimiser}
    given |= {"learning_rate": learning_rate, "largest_gradient": largest_gradient}
    chosen = {name: value for name, value in given.items() if value}
    descent = (PAPER if paper else WORKED)._replace(**chosen, proximity=mu, bfloat16=precision == "bfloat16")
    network = as_in_the_paper(network) if paper else network
    local = _local(feature_count, network, descent, home, measure)
    phase = averaging(
        local.improve,
        None,
        local.trained,
        largest_change=largest_change,
        server_optimiser=stepping(rate, server_optimiser),
        measured=local.measured,
        check_measured=local.check_measured,
        max_samples=max_samples,
        normalisation=normalisation,
    )
    start, personal = _begin(local, feature_count), (*personal_tensors(normalisation), *local.home)
    return Algorithm(
        "recurrent",
        start,
        (_on_teaching_rows(phase, local),),
        rounds,
        personal,
        labels=network.task == "classify",
        libraries=("torch",),
        traits=frozenset({WINDOWS, FLOAT32}),
    )
