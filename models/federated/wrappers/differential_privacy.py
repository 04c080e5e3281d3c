"""Any algorithm of steps with differential privacy of whole gateways: bounded updates with Gaussian noise (Abadi et al.
2016, "Deep Learning with Differential Privacy"; McMahan et al. 2018, "Learning Differentially Private Recurrent
Language Models", Algorithm 1, with a fixed bound).

Every gateway counts alike: what it sends is divided by the number of rows it claims, and counts once, so that its size
betrays nothing. The change of the model, all arrays together, is made no longer than `clip` (in L2), and then noise of
deviation `noise_multiplier` · `clip` is added to each of its numbers: by the gateway before it leaves, so that not even
the cloud sees more, or by the cloud, once, to the sum, for the same promise towards all others at far less noise.

What is promised: neighbours are two fleets that differ in the whole data of one gateway, all of its rows: its update is
in the sum of the one and zero in that of the other. Not in one row of it, which is a weaker promise. One release then
is a Gaussian mechanism of sensitivity `clip`; k of them are one whose multiplier is smaller by √k, and its ε follows
exactly (Balle and Wang 2018, Eq. 6, by the library `dp-accounting`). Of a gateway whose rows are exchanged for others
the sum moves twice as far: read ε at half the multiplier. Who takes part is known, so that nothing is claimed for
drawing a part of the fleet. Nor are centre and scale covered, which stay.

The ledger rests on the gateway under `privacy.`, and outlives a training: `releases`, `spent` = Σ 1 / multiplier²,
`epsilon`. It counts an update once it is made, be it lost or not. When the next one would exceed the budget the gateway
sends nothing any more, and says so.

Fit are sums of changes (`fedgate.models.federated.protocol.reducer.CHANGES`), in every exchange: of an algorithm with
one other it would leak past the noise. A Gram matrix with noise is none; and where a gateway remembers what the model
holds of it (one-class losses, ADMM, IncFed), bounds and noise would make that untrue. Nor may means of the rows travel
beside the changes: squared residuals are longer than any change, so that one bound for both would be spent on them.

What the inner algorithm says of the size of a change, such as `largest_change`, gives way to `clip`: noise of a
thousand numbers is far longer than what it hides, and who was promised to be heard must not pay ε for a refusal.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedgate.models.arrays import FEATURES, SECRET, Array, Arrays
from fedgate.models.detectors.esn.reservoir import IDENTITY
from fedgate.models.federated.defences.single_update import WEIGHTS
from fedgate.models.federated.protocol.algorithm import (
    EPSILON,
    NOISE_SECRET,
    RELEASES,
    SPENT,
    Algorithm,
    Phase,
    Positive,
    Server,
    Train,
    Trained,
    UpdateError,
    ledger_of,
)
from fedgate.models.federated.protocol.reducer import MEASURED_CHANGES
from fedgate.models.secret_noise import SECRET_BYTES, noised

LIBRARY = "dp_accounting"
SLACK = 1e-6  # of the bound, for rounding
FARTHEST = 6.0  # deviations by which the length of the noise may pass the root of its size: one in 60 million does


class PrivacyWarning(UserWarning):
    """The budget of a gateway is spent; the message says how much it was, and what that means."""


class Privacy(BaseModel):
    """How much a gateway may give away.

    :param clip: longest change of the model, in L2 over all its arrays, that one gateway asks for.
    :param noise_multiplier: deviation of the noise on each number, in units of `clip`.
    :param epsilon: budget of a gateway over all its trainings; before it would be exceeded the gateway falls silent.
        It holds between fleets with and without the whole data of one gateway; of one whose data are exchanged for
        other data read it at half the multiplier.
    :param delta: with what probability ε may not hold; far below one over the number of gateways.
    :param where: `gateway`, so that the cloud sees noised updates alone, or `cloud`, which then is trusted with
        bounded ones, unless they travel masked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    clip: Annotated[float, Field(ge=1e-9, le=1e9)]
    noise_multiplier: Annotated[float, Field(ge=1e-6, le=1e4)]
    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=0.1)] = 1e-5
    where: Literal["gateway", "cloud"] = "gateway"

    @property
    def deviation(self) -> float:
        """Return the deviation of the noise on each number."""
        return self.noise_multiplier * self.clip

    def longest(self, size: int) -> float:
        """Return the length that no honest update of so many numbers exceeds where the cloud sees it."""
        return self.clip + (0.0 if self.where == "cloud" else self.deviation * (math.sqrt(size) + FARTHEST))

    def epsilon_of(self, spent: float) -> float:
        """Return ε of releases whose Σ 1 / multiplier² is `spent`; composed they are one of multiplier spent^(-1/2).

        Raises `ValueError` where the library that accounts for it is not installed.
        """
        try:
            from dp_accounting import get_epsilon_gaussian
        except ModuleNotFoundError:
            raise ValueError(
                "privacy needs the library dp-accounting, which is not installed here; expected it from: pip install "
                "'.[privacy]' in a checkout of fedgate"
            ) from None
        return float(get_epsilon_gaussian(spent**-0.5, self.delta))


def with_differential_privacy(algorithm: Algorithm, privacy: Privacy) -> Algorithm:
    """Return the algorithm with bounded and noised updates.

    Raises `ValueError` where an exchange would leak past the noise.
    """
    if any(isinstance(phase.admit, _Bounding) for phase in algorithm.phases):
        raise ValueError("privacy given for an algorithm that has it, expected one without")
    for index, phase in enumerate(algorithm.phases):
        if phase.reducer == MEASURED_CHANGES:
            raise ValueError(
                f"privacy given for an algorithm whose exchange {index} is a {phase.reducer.name}, expected changes "
                "alone, or the bound is spent on the means; set measure = 'own', with which they stay on the gateway"
            )
        if phase.reducer.bears != "error":
            raise ValueError(
                f"privacy given for an algorithm whose exchange {index} is of kind {phase.reducer.name!r}, expected a "
                "'sum of changes' in each: what others send does not bear noise, and would leak past it; leave "
                "whitening, compensation and surveys out, give a kernel's gamma, with normalisation 'none' take unit "
                "'feature', and choose an algorithm that averages changes, such as fedavg with loss 'logistic'"
            )

    def start(rng: np.random.Generator) -> Server:
        server = algorithm.start(rng)
        secret = np.frombuffer(rng.bytes(SECRET_BYTES), dtype=np.uint8).copy()
        return server._replace(server_state={**server.server_state, NOISE_SECRET: secret})

    phases = tuple(_noised(algorithm, index, privacy) for index in range(len(algorithm.phases)))
    begin = start if privacy.where == "cloud" else algorithm.start
    return algorithm._replace(start=begin, phases=phases, libraries=(*algorithm.libraries, LIBRARY))


def is_noised_in_cloud(algorithm: Algorithm) -> bool:
    """Tell whether the cloud adds the noise, and so relies on updates that are bounded one by one."""
    return any(isinstance(phase.admit, _Bounding) and phase.admit.in_cloud for phase in algorithm.phases)


def bounded(update: Mapping[str, Array], clip: float) -> Arrays:
    """Return an update that counts once, with its change no longer than `clip`.

    Raises `ValueError` for one that does not say how much it counts, or holds what cannot be noised or has no length:
    of a change with one entry that is no number the others would pass as long as they are.
    """
    weights = [name for name in WEIGHTS if name in update]
    numbers = sorted(name for name in update if name not in (*WEIGHTS, IDENTITY))
    odd = [name for name in numbers if update[name].dtype.kind != "f"]
    if len(weights) != 1 or odd:
        raise ValueError(
            f"privacy: expected floating-point arrays and one weight of {WEIGHTS}, got {sorted(update)}; choose an "
            "algorithm that averages changes"
        )
    weight = float(update[weights[0]])
    with np.errstate(all="ignore"):  # what becomes of it is refused below
        mean = {name: np.asarray(update[name] / weight, dtype=np.float64) for name in numbers}
        length = _length(mean)
    if not math.isfinite(length):
        raise ValueError(
            "privacy: expected a change of finite length, which can be bounded, and this gateway's is not; nothing was "
            "sent or spent; take a smaller learning_rate, and see whether a sensor gives values beyond all bounds"
        )
    factor = min(1.0, clip / max(length, np.finfo(np.float64).tiny))
    exact = {name: array for name, array in update.items() if name == IDENTITY}
    short = {name: np.asarray(factor * array, dtype=update[name].dtype) for name, array in mean.items()}
    return short | exact | {weights[0]: np.array(1.0)}


def with_noise(update: Arrays, deviation: float, secret: Array, purpose: str) -> Arrays:
    """Return a bounded update, or a sum of some, with noise on all it says but on how much it counts; the noise follows
    from a secret (32,).
    """
    names = sorted(name for name in update if name not in (*WEIGHTS, IDENTITY))
    flat = np.concatenate([np.ravel(update[name]) for name in names])
    parts = np.split(noised(flat, deviation, secret, purpose), np.cumsum([update[name].size for name in names])[:-1])
    found = {name: part.reshape(update[name].shape) for name, part in zip(names, parts, strict=True)}
    return update | {name: np.asarray(part, dtype=update[name].dtype) for name, part in found.items()}  # no wider


def _length(arrays: Mapping[str, Array]) -> float:
    return float(np.sqrt(sum(float(np.square(array).sum()) for array in arrays.values())))


def _noised(algorithm: Algorithm, index: int, privacy: Privacy) -> Phase:
    phase = algorithm.phases[index]
    admit = _Bounding(phase, privacy)
    if privacy.where == "gateway":
        return phase._replace(train=_training(algorithm, index, privacy), admit=admit)

    def advance(server: Server, total: Arrays) -> Server:
        if not total:
            return server
        secret = server.server_state[NOISE_SECRET]
        sums = with_noise(total, privacy.deviation, secret, f"cloud/{server.round_index}/{index}")
        advanced = phase.advance(_unkept(server), sums)
        return advanced._replace(server_state={**advanced.server_state, NOISE_SECRET: secret})

    return phase._replace(train=_training(algorithm, index, privacy), advance=advance, admit=admit)


def _unkept(server: Server) -> Server:
    return server._replace(
        server_state={name: array for name, array in server.server_state.items() if name != NOISE_SECRET}
    )


class _Bounding:
    """The `admit` of a private exchange: the inner one judges the form of an update, and this one its length."""

    def __init__(self, phase: Phase, privacy: Privacy) -> None:
        self._phase, self._privacy, self.in_cloud = phase, privacy, privacy.where == "cloud"

    def __call__(self, server: Server, update: Arrays) -> Arrays:
        said = [name for name in update if name not in (*WEIGHTS, IDENTITY)]
        form = {name: np.zeros_like(array) if name in said else array for name, array in update.items()}
        admitted = self._phase.admit(_unkept(server), form)
        for name in WEIGHTS:
            if name in admitted and float(admitted[name]) != 1.0:
                raise UpdateError(f"{name}: expected 1, as all gateways count alike, got {float(admitted[name]):g}")
        wide = {name: np.asarray(update[name], dtype=np.float64) for name in admitted}
        with np.errstate(over="ignore"):
            length = _length({name: wide[name] for name in said})
        longest = self._privacy.longest(sum(wide[name].size for name in said))
        if not length <= longest * (1.0 + SLACK):  # what is no number is no length either
            what = "setting 'privacy.clip'" if self.in_cloud else "of 'privacy.clip' and its noise"
            raise UpdateError(f"change: expected a finite length up to {longest:g} ({what}), got {length:g}")
        return wide


def _training(algorithm: Algorithm, index: int, privacy: Privacy) -> Train:
    """Return how a gateway trains, bounds what it says, adds its noise where it does, and keeps its ledger."""
    phase = algorithm.phases[index]

    def train(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        ledger = ledger_of(local_state)
        inner = {name: array for name, array in local_state.items() if name not in ledger}
        following = _spent(ledger, privacy) if len(data[FEATURES]) else ledger
        if following and not float(following[EPSILON]) <= privacy.epsilon:  # nor where it is no number
            warnings.warn(_told(ledger, following, privacy), PrivacyWarning, stacklevel=2)
            return local_state, {}
        after, update = phase.train(global_state, inner, data, rng)
        if not update:
            return {**after, **ledger}, {}
        release = bounded(update, privacy.clip)
        if privacy.where == "gateway":
            if SECRET not in data:
                raise ValueError(f"privacy: expected {SECRET!r} in the data, from which noise is drawn, and found none")
            release = with_noise(release, privacy.deviation, data[SECRET], f"gateway/{index}")
        return {**after, **following}, release

    return train


def _spent(ledger: Arrays, privacy: Privacy) -> Arrays:
    """Return the ledger with one release more."""
    spent = float(ledger.get(SPENT, 0.0)) + privacy.noise_multiplier**-2
    releases = int(ledger.get(RELEASES, 0)) + 1
    epsilon = np.array(privacy.epsilon_of(spent) if math.isfinite(spent) else math.inf)
    return {**ledger, RELEASES: np.array(releases, np.int64), SPENT: np.array(spent), EPSILON: epsilon}


def _told(ledger: Mapping[str, Array], following: Mapping[str, Array], privacy: Privacy) -> str:
    spent, count = float(ledger.get(EPSILON, 0.0)), int(ledger.get(RELEASES, 0))
    if not math.isfinite(spent):
        return (
            "what this gateway has spent of its privacy is not known any more, for its store was damaged: it counts as "
            "all, and no update is sent; docs/reference/operations.md says how to go on"
        )
    return (
        f"the privacy budget is spent: epsilon {spent:.4g} after {count} updates, and the next one would make it "
        f"{float(following[EPSILON]):.4g} of {privacy.epsilon:g}; this gateway runs the models of the others and sends "
        "no update any more"
    )
