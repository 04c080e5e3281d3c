"""FedAvg and FedCurv on the readout of an echo state network, and defences against bad gateways (A. Di Mauro,
"Federated Echo State Networks for Stress Prediction in the Automotive Use Case", Pisa 2022, Tables 6.4 and 6.5).

Two subjects are scored, of which no row trains, is trusted or sets a threshold; two others are trusted; the rest are
gateways. Beside the trainings by gradient stand what needs no gradient, no memory or no others, the constant answer,
and FedCurv as it is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from fedgate.config.settings import settings
from fedgate.config.settings.base import Positive
from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.studies.datasets.wesad import STRESS, load_subject
from fedgate.firmware_sim.studies.literal.printed_fedcurv import (
    batch_fisher,
    passed_off,
    printed_fedcurv,
    softmax_of_one,
    sums_of_algorithm_2,
    with_printed_discriminator,
)
from fedgate.firmware_sim.studies.probes.networks.corruption import Attack, corrupt
from fedgate.firmware_sim.studies.probes.networks.memoryless import Memoryless, fit_memoryless
from fedgate.models.arrays import FEATURES, LABELS, Array, Arrays, Floats, generator
from fedgate.models.detectors.esn import esn, reservoir
from fedgate.models.detectors.esn.gradient_readout import Descent, fisher
from fedgate.models.detectors.esn.network import Classifier, Network
from fedgate.models.detectors.esn.reservoir import DIGEST, IDENTITY, PREFIX
from fedgate.models.federated import build
from fedgate.models.federated.averaging.esn_fedavg import READOUT, Averaging, averaging, readout_fedavg
from fedgate.models.federated.averaging.esn_fedcurv import DEFAULT_PENALTY, readout_fedcurv
from fedgate.models.federated.closed_form.series import Lesson, lesson
from fedgate.models.federated.defences.discriminator import train_discriminator
from fedgate.models.federated.defences.robust_mean import Robust, with_robust_mean
from fedgate.models.federated.defences.wrapper import Defence, with_update_filter
from fedgate.models.federated.protocol.algorithm import MAX_SAMPLES, Algorithm
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError

LARGEST_CHANGE = 1e3
LATE_ROUNDS, STEADY_ROUNDS = 10, 30

Method = Literal["esn-fedavg", "esn-fedcurv", "listed", "softmax", "tape", "printed", "incfed", "local", Memoryless]


class Case(settings.Table):
    """What is measured.

    :param method: how the readout is found; `listed` is FedCurv as the thesis lists it, `softmax` and `tape` the same
        with one of its two faults, and `printed` says how far both are from FedAvg.
    :param scored: subjects of which two are scored for each seed; nothing was chosen by how a model does on them.
    :param chosen_on: the others. Two of all that are not scored are trusted, the rest are gateways.
    :param answer: how an attack is met: by a defence, a median in place of the mean, the thesis's discriminator as it
        is printed, not at all, or by leaving out the bad gateways, whom nobody knows in the field.
    :param take_part: gateways drawn in each round.
    :param bad_share: of the gateways that do what an attack says.
    :param discriminator_rounds: of each of the two trainings on the trusted subjects that it learns from.
    """

    folder: str
    scored: list[str] = Field(min_length=2)
    chosen_on: list[str]
    method: Method
    attack: Attack = Attack()
    answer: Defence | Literal["none", "median", "printed", "honest only"] = "none"
    reservoirs: Literal["same", "different"] = "same"
    rate: Positive = 1.0
    seed: int = 0
    rounds: int = Field(default=78, ge=1)
    take_part: int = Field(default=5, ge=1)
    bad_share: float = Field(default=0.5, ge=0, le=1)
    network: Classifier
    descent: Descent
    class_weights: tuple[Positive, ...]
    discriminator_rounds: int = Field(default=40, ge=1)

    @model_validator(mode="after")
    def _scores_what_was_not_tuned_on(self) -> Self:
        if shared := sorted(set(self.scored) & set(self.chosen_on)):
            raise ValueError(f"scored: {shared[0]} was tuned on, as chosen_on says; expected subjects that were not")
        return self


class Fleet(NamedTuple):
    """Rows of subjects by what they do under one seed; `gateways` train, `bad` are those that an attack changed."""

    scored: list[Arrays]
    trusted: list[Arrays]
    gateways: dict[str, Arrays]
    bad: list[str]

    @property
    def feature_count(self) -> int:
        return int(self.trusted[0][FEATURES].shape[1])

    @property
    def labels(self) -> Array:
        """Whether each row of the scored subjects is of stress."""
        return np.concatenate([rows[LABELS] for rows in self.scored])


def reads(case: Case, data: Path) -> list[Path]:
    """Return the files of all subjects."""
    return [data / case.folder / f"{name}.npz" for name in (*case.chosen_on, *case.scored)]


def measure(case: Case, data: Path) -> Figures:
    """Return the figures of the scored subjects, after every round and of the last ones, and the share of updates that
    were told right.
    """
    return FIGURES.get(case.method, trained_figures)(case, fleet_of(case, data))


def roles(case: Case) -> tuple[list[str], list[str], list[str]]:
    """Return who is scored, two subjects, the next pair for the next seed; and of the others, dealt at random, who is
    trusted and who is a gateway.
    """
    count = len(case.scored)
    first, turn = case.seed % count, 1 + (case.seed // count) % (count - 1)
    scored = [case.scored[first], case.scored[(first + turn) % count]]
    others = [name for name in (*case.chosen_on, *case.scored) if name not in scored]
    order = generator(0, case.seed, "roles").permutation(len(others))
    return scored, [others[at] for at in order[:2]], [others[at] for at in order[2:]]


def fleet_of(case: Case, data: Path) -> Fleet:
    """Return what each subject has: rows in units of its own recording, whether each is of stress, and what is bad."""

    def rows_of(name: str) -> Arrays:
        rows = load_subject(data / case.folder, name)
        return {**rows, LABELS: (rows[LABELS] == STRESS).astype(np.int64)}

    scored, trusted, names = roles(case)
    bad = names[: round(case.bad_share * len(names))] if case.attack.kind != "none" else []
    gateways = {name: rows_of(name) for name in names if case.answer != "honest only" or name not in bad}
    for name in gateways.keys() & bad:
        gateways[name] = corrupt(gateways[name], case.attack, generator(0, case.seed, f"attack/{name}"))
    return Fleet([*map(rows_of, scored)], [*map(rows_of, trusted)], gateways, bad)


class Memory:
    """Remembers what a reservoir makes of rows, which never changes: a training asks for it in every round."""

    def __init__(self) -> None:
        self._lessons: dict[tuple[bytes, ...], Lesson] = {}
        self._states: dict[tuple[bytes, ...], Floats] = {}

    def lesson(self, network: Network, shared: Arrays, own: Arrays, data: Arrays, normalisation: str) -> Lesson:
        """Return the same as `series.lesson` for gateways without a normalisation of their own."""
        key = (shared[DIGEST].tobytes(), data[FEATURES].tobytes(), data[LABELS].tobytes())
        if key not in self._lessons:
            found = lesson(network, shared, {}, data, normalisation)
            self._lessons[key] = found._replace(regressors=found.regressors.astype(np.float64))
        return self._lessons[key]._replace(local_state=own)

    def states(self, shared: Arrays, x: Array) -> Floats:
        """Return the regressors (n, M) of rows x (n, F)."""
        key = (shared[DIGEST].tobytes(), x.tobytes())
        if key not in self._states:
            self._states[key] = esn.states_of(shared, x)[0].astype(np.float64)
        return self._states[key]

    def score(self, shared: Arrays, x: Array) -> Floats:
        """Return the same as `esn.score` for a readout of one output on rows of one step."""
        return np.asarray(self.states(shared, x) @ shared[READOUT][0])


def step_of(case: Case, memory: Memory) -> Averaging:
    """Return what all methods have in common, with states that are computed once."""
    step = averaging(
        case.network,
        case.descent,
        case.class_weights,
        rate=case.rate,
        largest_change=LARGEST_CHANGE,
        max_samples=MAX_SAMPLES,
        normalisation="none",
    )
    return step._replace(teach=memory.lesson)


def algorithm_of(case: Case, method: Method, memory: Memory, feature_count: int) -> Algorithm:
    """Return a method without a defence."""
    step = step_of(case, memory)
    if method == "esn-fedavg":
        return readout_fedavg(step, feature_count, case.rounds)
    if method == "esn-fedcurv":
        return readout_fedcurv(step, DEFAULT_PENALTY, feature_count, case.rounds)
    fisher_of = softmax_of_one if method == "softmax" else batch_fisher
    return printed_fedcurv(step, feature_count, case.rounds, fisher_of=fisher_of, is_in_tape=method != "tape")


class Verdicts:
    """Whose update counted, in the order in which updates came."""

    def __init__(self) -> None:
        self.all: list[tuple[str, bool]] = []

    def on_update(self, name: str, update: Arrays) -> None:
        self.all += [(name, True)] if update else []

    def on_refusal(self, name: str, error: UpdateError) -> None:
        del error
        self.all[-1] = (name, False)

    def on_rejection(self) -> None:
        self.all[-1] = (self.all[-1][0], False)

    def figures(self, bad: list[str]) -> Figures:
        """Return the share of updates told right, counted for honest ones and refused for bad ones, and of the former
        alone; nan where there were none.
        """
        right = [counted != (name in bad) for name, counted in self.all]
        honest = [counted for name, counted in self.all if name not in bad]
        nothing = float("nan")
        return {
            "told_right": float(np.mean(right)) if right else nothing,
            "honest_counted": float(np.mean(honest)) if honest else nothing,
        }


def defended(case: Case, fleet: Fleet, algorithm: Algorithm, memory: Memory, verdicts: Verdicts) -> Algorithm:
    """Return the algorithm with what meets the attack in front of, or in place of, its sum."""
    if isinstance(case.answer, Defence):
        network = discriminator(case, fleet, algorithm, "cloud") if case.answer.kind == "network" else None
        return with_update_filter(algorithm, case.answer, fleet.trusted, network, memory.score)
    if case.answer == "median":
        return with_robust_mean(algorithm, Robust(rule="median"))
    if case.answer == "printed":
        elsewhere = passed_off(discriminator(case, fleet, algorithm, "other cloud"), algorithm, case.seed)
        return with_printed_discriminator(algorithm, elsewhere, verdicts.on_rejection)
    return algorithm


def discriminator(case: Case, fleet: Fleet, algorithm: Algorithm, cloud: str) -> Arrays:
    """Return the thesis's network for a training, of the reservoir that a cloud draws."""
    rng = generator(case.seed, 0, cloud)
    return train_discriminator(algorithm, fleet.trusted, rng, rounds=case.discriminator_rounds)


def with_own_reservoirs(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm for gateways whose data holds a reservoir of their own, passed off as the common one, which
    the cloud would refuse by its digest.
    """
    (phase,) = algorithm.phases

    def learn(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        reservoir_ = {name: array for name, array in data.items() if name.startswith(PREFIX)}
        rows = {name: array for name, array in data.items() if name not in reservoir_}
        own, update = phase.train({**shared, **reservoir_}, own, rows, rng)
        return own, {**update, IDENTITY: reservoir.identity(shared)} if update else {}

    return algorithm._replace(phases=(phase._replace(learn=learn),))


def reservoirs_beside(case: Case, fleet: Fleet) -> dict[str, Arrays]:
    """Return the rows of each gateway beside a reservoir of its own."""
    network, count = case.network, fleet.feature_count
    rngs = {name: generator(case.seed, 0, f"reservoir/{name}") for name in fleet.gateways}
    return {name: {**rows, **reservoir.initial(rngs[name], network, count)} for name, rows in fleet.gateways.items()}


def trained_figures(case: Case, fleet: Fleet) -> Figures:
    """Return the figures of one training by gradient."""
    memory, verdicts, readouts = Memory(), Verdicts(), list[Floats]()
    plain = algorithm_of(case, case.method, memory, fleet.feature_count)
    algorithm = defended(case, fleet, plain, memory, verdicts)
    if case.reservoirs == "different":
        algorithm, fleet = with_own_reservoirs(algorithm), fleet._replace(gateways=reservoirs_beside(case, fleet))
    shared = trained_over(
        case,
        fleet,
        algorithm,
        on_exchange=lambda global_state: readouts.append(global_state[READOUT][0]),
        on_update=verdicts.on_update,
        on_refusal=verdicts.on_refusal,
    )
    after = np.array([*readouts[1:], shared[READOUT][0]][: case.rounds])  # (rounds, M)
    scores = [memory.states(shared, rows[FEATURES]) @ after.T for rows in fleet.scored]
    return curve_figures(np.concatenate(scores), fleet.labels) | verdicts.figures(fleet.bad)


def trained_over(case: Case, fleet: Fleet, algorithm: Algorithm, **hooks: Any) -> Arrays:
    """Return what gateways share after a training in which some take part in each round, the same share of whoever is
    left where bad ones are left out.
    """
    *_, names = roles(case)
    fraction = min(case.take_part / len(names), 1.0)
    return run(algorithm, fleet.gateways, seed=case.seed, fraction=fraction, **hooks).server.global_state


def curve_figures(scores: Floats, labels: Array) -> Figures:
    """Return the figures of scores (n, rounds), stress above zero, on labels (n,) of 0 and 1: of the last round, the
    balanced accuracy of the last ten, how much it moves over the last thirty, and `curve.<round>`, that of every one.

    Micro-F1 over both classes is the accuracy: a wrong row is a false alarm of one class and a miss of the other.
    """
    stressed = scores > 0.0
    curve = np.array([metrics.balanced_accuracy(labels, answers) for answers in stressed.T])
    figures = {
        "accuracy": float(np.mean(stressed[:, -1] == (labels == 1))),
        "f1": metrics.f1(labels, stressed[:, -1]),
        "balanced": float(curve[-1]),
        "balanced.late": float(curve[-LATE_ROUNDS:].mean()),
        "unsteady": float(curve[-STEADY_ROUNDS:].std()),
    }
    return figures | {f"curve.{index}": float(value) for index, value in enumerate(curve, start=1)}


def beside_figures(case: Case, fleet: Fleet) -> Figures:
    """Return the figures of what is no training by gradient; of `local` the mean over the gateways' own models."""
    found = []
    for score in models_beside(case, fleet):
        scores = np.concatenate([score(rows[FEATURES]) for rows in fleet.scored])
        found.append(curve_figures(scores[:, None], fleet.labels))
    return {name: float(np.mean([figures[name] for figures in found])) for name in ("accuracy", "f1", "balanced")}


def models_beside(case: Case, fleet: Fleet) -> list[Callable[[Array], Floats]]:
    """Return what scores rows, stress above zero: without memory, or IncFed of all gateways or of each alone."""
    if case.method == "majority" or case.method == "logistic":
        predict = fit_memoryless(case.method, fleet.gateways.values(), class_weight="balanced")
        return [lambda x: np.asarray(predict(x) @ np.array([-1.0, 1.0]))]
    given = {"network": case.network, "normalisation": "none", "unit": "feature"}
    algorithm = build("incfed", fleet.feature_count, given)
    alone = [{name: rows} for name, rows in fleet.gateways.items()]
    parts = alone if case.method == "local" else [fleet.gateways]
    return [partial(esn.score, run(algorithm, part, seed=case.seed).server.global_state) for part in parts]


def printed_figures(case: Case, fleet: Fleet) -> Figures:
    """Return how many weights differ from those of FedAvg under each fault of FedCurv as printed, and the sums of its
    Algorithm 2, of each the number largest in size.
    """
    memory, count = Memory(), fleet.feature_count

    def trained(method: Method) -> Floats:
        return trained_over(case, fleet, algorithm_of(case, method, memory, count))[READOUT]

    expected = trained("esn-fedavg")
    shared = step_of(case, memory).started(generator(case.seed, 0, "cloud"), count)
    taught = [memory.lesson(case.network, shared, {}, rows, "none") for rows in fleet.gateways.values()]
    sums = sums_of_algorithm_2([fisher(expected, each.regressors) for each in taught[: case.take_part]])
    return {
        "softmax.bits_differ": bits_that_differ(trained("softmax"), expected),
        "tape.bits_differ": bits_that_differ(trained("tape"), expected),
        **{f"sum.{index}": value for index, value in enumerate(sums, start=1)},
    }


def bits_that_differ(first: Floats, second: Floats) -> float:
    """Return how many numbers are not the same to the last bit."""
    return float(np.count_nonzero(first.view(np.uint64) != second.view(np.uint64)))


# By the name of what is no training by gradient.
FIGURES = {
    "printed": printed_figures,
    **dict.fromkeys(("incfed", "local", "majority", "logistic"), beside_figures),
}
