"""Training over a fleet in one process: what each gateway sent and received, and what it keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.evaluate.datasets import EvaluationError
from fedgate.models.arrays import FEATURES, Arrays, generator, select
from fedgate.models.federated.protocol.algorithm import (
    NORMALISATION,
    NOTHING_TO_SEND,
    Algorithm,
    RoundFailedError,
    normalise,
)
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.wrappers.differential_privacy import Privacy

NOTHING: Arrays = {}
LAYOUTS_REMEMBERED = 64  # of arrays that travel


class TrainingError(EvaluationError):
    """The algorithm cannot be trained on this data with these settings."""


class TooFewClientsError(TrainingError):
    """A round of so few clients would come to nothing."""


class NothingSentError(TrainingError):
    """No client had anything to send."""


class Fit(NamedTuple):
    """A finished training: the model, what stayed with each client, what each sent and received, after how many
    exchanges, how long it took, and where it was asked for the model after each round.
    """

    shared: Arrays
    own: dict[str, Arrays]
    sent_bytes: dict[str, int]
    received_bytes: int  # of each client, with every exchange
    exchanges: int
    fit_s: float
    after_round: tuple[Arrays, ...] = ()


def _keep_silent(text: str) -> None:
    del text


def _size_of(arrays: Arrays) -> int:
    """Return how many bytes arrays are on their way."""
    return _size_of_layout(tuple((name, array.dtype, array.shape) for name, array in arrays.items()))


@lru_cache(maxsize=LAYOUTS_REMEMBERED)
def _size_of_layout(layout: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]) -> int:
    """Return how many bytes arrays of these names, types and shapes are on their way, whatever they hold: all gateways
    send the same layout in every round, and to write it out each time took longer than anything else of the loop.
    """
    return len(encode({name: np.zeros(shape, dtype) for name, dtype, shape in layout}))


def train_fleet(
    algorithm: Algorithm,
    data: Mapping[str, Arrays],
    *,
    seed: int,
    rounds: int | None = None,
    fraction: float = 1.0,
    redraw: bool = True,
    secrets: Mapping[str, bytes] = MappingProxyType({}),
    keeps_rounds: bool = False,
    say: Callable[[str], None] = _keep_silent,
) -> Fit:
    """Train over the data of named clients, as `fedgate.models.federated.protocol.run.run` does, and weigh what they
    send; `say` is told of each update.

    With `keeps_rounds` the model after each round is returned too; rounds must not fail then.

    Raises:
        TrainingError: the algorithm refuses its data or settings, takes more clients (`TooFewClientsError`), or nobody
            could train (`NothingSentError`).
    """
    drawn = len(select(seed, 0, data, fraction))
    try:
        algorithm.check_cohort(drawn)
    except ValueError as error:
        found = f"{drawn} of {len(data)} gateways take part in a round (fraction {fraction:g})"
        raise TooFewClientsError(f"{found}, which comes to nothing: {error}") from None
    sent_bytes, received_bytes, received = dict.fromkeys(data, 0), list[int](), list[Arrays]()

    def weigh(client: str, update: Arrays) -> None:
        size = _size_of(update) if update else 0
        sent_bytes[client] += size
        say(f"{client} sends {size} bytes")

    def weigh_shared(shared: Arrays) -> None:
        received_bytes.append(_size_of(shared))
        if keeps_rounds:
            received.append(shared)

    started_s = time.perf_counter()
    drawing: dict[str, Any] = {"seed": seed, "rounds": rounds, "fraction": fraction, "redraw": redraw}
    try:
        outcome = run(algorithm, data, **drawing, secrets=secrets, on_exchange=weigh_shared, on_update=weigh)
    except (ArithmeticError, RuntimeError, ValueError) as error:  # data and settings are the user's, and so is
        is_silent = isinstance(error, RoundFailedError) and not any(sent_bytes.values())
        raise (NothingSentError if is_silent else TrainingError)(str(error)) from error  # what is wrong with them
    if not any(sent_bytes.values()):
        raise NothingSentError(f"nothing was sent: each of {len(data)} gateways had {NOTHING_TO_SEND}")
    if why := algorithm.lacking(outcome.server):
        raise TrainingError(f"the training makes no model: {why}")
    weigh_shared(outcome.server.global_state)
    # The same object for all who keep nothing, so that equal work is known as equal.
    own = {client: kept or NOTHING for client, kept in outcome.local_states.items()}
    server, fit_s = outcome.server, time.perf_counter() - started_s
    stride = len(algorithm.phases) - algorithm.setup
    after_round = tuple(received[algorithm.setup + stride :: stride])
    return Fit(server.global_state, own, sent_bytes, sum(received_bytes), server.round_index, fit_s, after_round)


def check_privacy_budget(settings: Mapping[str, Any]) -> None:
    """Raise `NothingSentError` where the setting `privacy` has a budget that one update would exceed, so that nobody
    ever sends one; and `TrainingError` where the library that accounts for it is not installed.
    """
    if settings.get("privacy") is None:
        return
    privacy = Privacy.model_validate(settings["privacy"])
    try:
        epsilon = privacy.epsilon_after(1)
    except ValueError as error:
        raise TrainingError(str(error)) from None
    if not epsilon <= privacy.epsilon:  # nor where it is no number
        raise NothingSentError(
            f"privacy.epsilon: {privacy.epsilon:g} given, a budget that is spent before anything is sent, since one "
            f"update of a gateway costs {epsilon:.4g}; take a larger privacy.epsilon or privacy.noise_multiplier"
        )


def commission(algorithm: Algorithm, shared: Arrays, data: Arrays, seed: int) -> Arrays:
    """Return what a client that never trained scores with besides the shared model: units from its own healthy rows
    and, where clients keep more than these, all that one training gives it, whose update is thrown away. Without rows
    it has none.

    Raises `TrainingError` where that training is under masks, which take a fleet.
    """
    if len(data[FEATURES]) == 0 or not algorithm.personal:
        return NOTHING
    if set(algorithm.personal) <= set(NORMALISATION):
        return normalise({}, data, "own")[0]
    if "masking" in algorithm.traits:
        raise TrainingError("masking given where clients keep a part of the model and one never trained: expected none")
    first = algorithm.phases[algorithm.setup]
    return first.train(shared, {}, data, generator(seed, 0, "commission"))[0]


def tensors_fed(personal: Collection[str], own: Arrays) -> Arrays:
    """Return what a client feeds to the exported model, of what it keeps."""
    return {name: own[name] for name in personal if name in own}
