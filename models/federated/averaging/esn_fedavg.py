"""Federated averaging of the readout of an echo state network by gradient (federated-esn paper, Sections 2.2.1, 6.2).

All gateways share one fixed reservoir; what is learnt is the readout W (c, M): one output with a sigmoid tells two
classes apart, a softmax over c outputs more. A gateway starts from the shared W, trains some epochs on its own labelled
rows with an optimiser that begins afresh in every round, and sends n·ΔW and n; the cloud adds rate · ΣnΔW / Σn over
those that were counted (the paper's Algorithm 1 divides by the rows of all gateways, though only some answer). What is
sent is a plain sum but for the identity of the reservoir, which the cloud compares and takes off; centre and scale
stay.

How gateways train stands in `global_state` under `recipe.`, so that a defence can tell which updates it was made for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats
from fedgate.models.detectors.esn import esn
from fedgate.models.detectors.esn.gradient_readout import (
    Descent,
    Examples,
    Optimiser,
    descended,
    examples,
    output_count,
)
from fedgate.models.detectors.esn.network import Classifier, Network
from fedgate.models.detectors.esn.reservoir import IDENTITY, identity
from fedgate.models.federated.averaging.averaging import STEP, epochs_of
from fedgate.models.federated.averaging.averaging import averaging as averages
from fedgate.models.federated.closed_form.series import OF_RESERVOIR, Lesson, lesson, traits_of
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Count,
    Normalisation,
    Phase,
    Positive,
    Server,
    Trained,
    personal_tensors,
)
from fedgate.models.options import Listed

READOUT = "readout"
RECIPE = "recipe."
ClassWeights = Listed[tuple[Positive, ...]]
Teach = Callable[[Network, Arrays, Arrays, Arrays, str], Lesson]
# (shared, own, data, examples, how it descends, rng) -> (own, the readout that a gateway ends with)
Local = Callable[[Arrays, Arrays, Arrays, Examples, Descent, "np.random.Generator"], tuple[Arrays, Floats]]


class Averaging(NamedTuple):
    """What FedAvg and the algorithms on top of it have in common: the network, how gateways train, how the cloud steps.

    `teach` turns rows into lessons; who trains often on the same rows may put one here that remembers.
    """

    network: Network
    descent: Descent
    class_weights: ClassWeights | None
    rate: float
    largest_change: float
    max_samples: int
    normalisation: Normalisation
    teach: Teach = lesson

    def started(self, rng: np.random.Generator, feature_count: int) -> Arrays:
        """Return `global_state` at the beginning: a reservoir, a readout of zeros, and how gateways train."""
        global_state = esn.initial(rng, self.network, feature_count)
        outputs = output_count(self.network.classes)
        recipe = {
            "adam": float(self.descent.optimiser == "adam"),
            "learning_rate": self.descent.learning_rate,
            "epochs": float(self.descent.epochs),
            "batch": float(self.descent.batch),
            "class_weights": self.class_weights or (1.0,) * self.network.classes,
            "rate": self.rate,
        }
        return {
            **global_state,
            READOUT: np.zeros((outputs, global_state[READOUT].shape[1])),
            STEP: np.array(0, dtype=np.int64),
            **{RECIPE + name: np.asarray(value, dtype=np.float64) for name, value in recipe.items()},
        }

    def exchange(self, local: Local) -> Phase:
        """Return the exchange around what a gateway does with its examples: an average of changes of the readout, of
        gateways that have a row beyond the washout, each beside the identity of its reservoir.
        """

        def improve(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
            rows = examples(data[FEATURES], data[LABELS], self.network.classes, self.class_weights)
            descent = self.descent._replace(epochs=epochs_of(data, self.descent.epochs))
            local_state, moved = local(global_state, local_state, data, rows, descent, rng)
            return local_state, {READOUT: moved}

        average = averages(
            improve,
            None,
            (READOUT,),
            largest_change=self.largest_change,
            rate=self.rate,
            max_samples=self.max_samples,
            normalisation="none",  # of states, which are made of normalised features
        )

        def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
            taught = self.teach(self.network, global_state, local_state, data, self.normalisation)
            if len(taught.regressors) == 0:
                return taught.local_state, {}
            rows = {**data, FEATURES: taught.regressors, LABELS: taught.classes}
            local_state, update = average.learn(global_state, taught.local_state, rows, rng)
            return local_state, {**update, IDENTITY: identity(global_state)}

        return average._replace(learn=learn, schema={**average.schema, IDENTITY: OF_RESERVOIR})


def averaging(
    network: Network,
    descent: Descent,
    class_weights: ClassWeights | None,
    *,
    rate: float,
    largest_change: float,
    max_samples: int,
    normalisation: Normalisation,
) -> Averaging:
    """Return the settings together; raises `ValueError` where they do not go together."""
    if network.task != "classify":
        raise ValueError(
            f"network: task {network.task!r} given, expected 'classify': a readout that is trained by gradient tells "
            "classes apart; to predict or to reconstruct take incfed"
        )
    if class_weights is not None and len(class_weights) != network.classes:
        raise ValueError(
            f"class_weights: {len(class_weights)} numbers given, expected one for each of {network.classes} classes"
        )
    return Averaging(network, descent, class_weights, rate, largest_change, max_samples, normalisation)


def begin(
    step: Averaging, feature_count: int, more: Callable[[Arrays], Arrays] = dict
) -> Callable[[np.random.Generator], Server]:
    """Return `start` of an algorithm; `more` adds what else it shares from the beginning."""
    return lambda rng: Server(global_state=more(step.started(rng, feature_count)), server_state={})


def readout_fedavg(step: Averaging, feature_count: int, rounds: int) -> Algorithm:
    """Return FedAvg with settings that are checked already."""

    def local(
        global_state: Arrays,
        local_state: Arrays,
        _data: Arrays,
        rows: Examples,
        descent: Descent,
        rng: np.random.Generator,
    ) -> tuple[Arrays, Floats]:
        return local_state, descended(global_state[READOUT], rows, rng, descent)

    personal = personal_tensors(step.normalisation)
    return Algorithm(
        "esn",
        begin(step, feature_count),
        (step.exchange(local),),
        rounds,
        personal,
        labels=True,
        traits=traits_of(step.network),
    )


CLASSIFY = Network(task="classify")


def esn_fedavg(
    feature_count: Count,
    *,
    network: Classifier = CLASSIFY,
    epochs: Count = 1,
    batch: Count = 20,
    optimiser: Optimiser = "adam",
    learning_rate: Positive = 0.1,
    class_weights: ClassWeights | None = None,
    rate: Positive = 0.1,
    largest_change: Positive = 1e3,
    rounds: Count = 78,
    max_samples: Count = MAX_SAMPLES,
    normalisation: Normalisation = "own",
) -> Algorithm:
    """FedAvg of the readout of an echo state network over F features, on labelled rows.

    :param network: its task must be `classify`.
    :param class_weights: how much a row counts by its class; only their ratio matters.
    :param rate: step of the server along the mean change; 1 is plain averaging.
    :param largest_change: longest change of the readout that one update may ask for.
    :param max_samples: most rows that one gateway counts for.
    """
    step = averaging(
        network,
        Descent(epochs, batch, optimiser, learning_rate),
        class_weights,
        rate=rate,
        largest_change=largest_change,
        max_samples=max_samples,
        normalisation=normalisation,
    )
    return readout_fedavg(step, feature_count, rounds)
