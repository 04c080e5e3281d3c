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

Fit are changes (role `delta`), in every exchange: of an algorithm with
one other it would leak past the noise. A Gram matrix with noise is none; and where a gateway remembers what the model
holds of it (one-class losses, ADMM, IncFed), bounds and noise would make that untrue. Nor may means of the rows travel
beside the changes: squared residuals are longer than any change, so that one bound for both would be spent on them.

What the inner algorithm says of the size of a change, such as `largest_change`, gives way to `clip`: noise of a
thousand numbers is far longer than what it hides, and who was promised to be heard must not pay ε for a refusal.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field as Setting

from fedgate.models.arrays import SECRET, Array, Arrays
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Positive, Server, Train, Trained
from fedgate.models.federated.protocol.composition import CLOUD_NOISE, check_composition, having
from fedgate.models.federated.protocol.namespace import hidden
from fedgate.models.federated.protocol.schema import Field, Schema, UpdateError, named, weight_of
from fedgate.models.federated.wrappers.privacy_ledger import EPSILON, LEDGER, NOISE_SECRET, RELEASES, SPENT, ledger_of
from fedgate.models.options import Options
from fedgate.models.secret_noise import SECRET_BYTES, noised

LIBRARY = "dp_accounting"
SLACK = 1e-6  # of the bound, for rounding
FARTHEST = 6.0  # deviations by which the length of the noise may pass the root of its size: one in 60 million does


class PrivacyWarning(UserWarning):
    """The budget of a gateway is spent; the message says how much it was, and what that means."""


class Privacy(Options):
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

    clip: Annotated[float, Setting(ge=1e-9, le=1e9)]
    noise_multiplier: Annotated[float, Setting(ge=1e-6, le=1e4)]
    epsilon: Positive
    delta: Annotated[float, Setting(gt=0, lt=0.1)] = 1e-5
    where: Literal["gateway", "cloud"] = "gateway"

    @property
    def deviation(self) -> float:
        """Return the deviation of the noise on each number."""
        return self.noise_multiplier * self.clip

    def longest(self, size: int) -> float:
        """Return the length that no honest update of so many numbers exceeds where the cloud sees it."""
        return self.clip + (0.0 if self.where == "cloud" else self.deviation * (math.sqrt(size) + FARTHEST))

    def epsilon_after(self, updates: int) -> float:
        """Return ε of so many updates; raises `ValueError` where the library that accounts for it is not installed."""
        return self.epsilon_of(updates * self.noise_multiplier**-2)

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
    check_composition(algorithm, "privacy")

    def start(rng: np.random.Generator) -> Server:
        server = algorithm.start(rng)
        secret = np.frombuffer(rng.bytes(SECRET_BYTES), dtype=np.uint8).copy()
        return server._replace(server_state={**server.server_state, NOISE_SECRET: secret})

    phases = tuple(_noised(phase, index, privacy) for index, phase in enumerate(algorithm.phases))
    libraries = (*algorithm.libraries, LIBRARY)
    if privacy.where == "gateway":
        return having(algorithm, "privacy", phases=phases, libraries=libraries)
    return having(algorithm, "privacy", CLOUD_NOISE, start=start, phases=phases, libraries=libraries)


def bounded(schema: Schema, update: Mapping[str, Array], clip: float) -> Arrays:
    """Return an update that counts once, with its change no longer than `clip`.

    Raises `ValueError` for one that has no length: of a change with one entry that is no number the others would pass
    as long as they are.
    """
    weight = weight_of(schema, update)
    with np.errstate(all="ignore"):  # what becomes of it is refused below
        mean = {name: np.asarray(update[name] / weight, dtype=np.float64) for name in named(schema, "delta")}
        length = _length(mean)
    if not math.isfinite(length):
        raise ValueError(
            "privacy: expected a change of finite length, which can be bounded, and this gateway's is not; nothing was "
            "sent or spent; take a smaller learning_rate, and see whether a sensor gives values beyond all bounds"
        )
    factor = min(1.0, clip / max(length, np.finfo(np.float64).tiny))
    short = {name: np.asarray(factor * array, dtype=update[name].dtype) for name, array in mean.items()}
    return {**update, **short, **{name: np.array(1.0) for name in named(schema, "weight")}}


def with_noise(update: Arrays, names: Sequence[str], deviation: float, secret: Array, purpose: str) -> Arrays:
    """Return a bounded update, or a sum of some, with noise on the arrays `names`, which follows from a
    secret (32,).
    """
    flat = np.concatenate([np.ravel(update[name]) for name in names])
    parts = np.split(noised(flat, deviation, secret, purpose), np.cumsum([update[name].size for name in names])[:-1])
    found = {name: part.reshape(update[name].shape) for name, part in zip(names, parts, strict=True)}
    return update | {name: np.asarray(part, dtype=update[name].dtype) for name, part in found.items()}  # no wider


def _length(arrays: Mapping[str, Array]) -> float:
    return float(np.sqrt(sum(float(np.square(array).sum()) for array in arrays.values())))


def _noised(phase: Phase, index: int, privacy: Privacy) -> Phase:
    """Return an exchange of bounded updates. Their length takes the place of what the algorithm says of one."""
    inner, names = hidden(phase, LEDGER), named(phase.schema, "delta")
    is_in_cloud = privacy.where == "cloud"

    def check(_server: Server, update: Arrays) -> None:
        with np.errstate(over="ignore"):
            length = _length({name: update[name] for name in names})
        longest = privacy.longest(sum(update[name].size for name in names))
        if not length <= longest * (1.0 + SLACK):
            what = "setting 'privacy.clip'" if is_in_cloud else "of 'privacy.clip' and its noise"
            raise UpdateError(f"change: expected a finite length up to {longest:g} ({what}), got {length:g}")

    def advance(server: Server, total: Arrays) -> Server:
        purpose = f"cloud/{server.round_index}/{index}"
        sums = with_noise(total, names, privacy.deviation, server.server_state[NOISE_SECRET], purpose)
        return inner.advance(server, sums)

    return inner._replace(
        learn=_learning(inner, names, index, privacy),
        advance=advance if is_in_cloud else inner.advance,
        schema={name: _bounded_by_length(field) for name, field in phase.schema.items()},
        check=check,
    )


def _bounded_by_length(field: Field) -> Field:
    """Return what an array of an update is where all gateways count alike and no number has a bound of its own."""
    if field.role == "weight":
        return field._replace(least=1.0, largest=1.0)
    return field._replace(least=-math.inf, largest=math.inf)


def _learning(phase: Phase, names: Sequence[str], index: int, privacy: Privacy) -> Train:
    """Return how a gateway trains, bounds what it says, adds its noise where it does, and keeps its ledger."""

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        ledger = ledger_of(local_state)
        following = _spent(ledger, privacy)
        if not float(following[EPSILON]) <= privacy.epsilon:  # nor where it is no number
            warnings.warn(_remark(ledger, following, privacy), PrivacyWarning, stacklevel=2)
            return local_state, {}
        after, update = phase.learn(global_state, local_state, data, rng)
        if not update:
            return after, {}
        release = bounded(phase.schema, update, privacy.clip)
        if privacy.where == "gateway":
            if SECRET not in data:
                raise ValueError(f"privacy: expected {SECRET!r} in the data, from which noise is drawn, and found none")
            release = with_noise(release, names, privacy.deviation, data[SECRET], f"gateway/{index}")
        return {**after, **following}, release

    return learn


def _spent(ledger: Arrays, privacy: Privacy) -> Arrays:
    """Return the ledger with one release more."""
    spent = float(ledger.get(SPENT, 0.0)) + privacy.noise_multiplier**-2
    releases = int(ledger.get(RELEASES, 0)) + 1
    epsilon = np.array(privacy.epsilon_of(spent) if math.isfinite(spent) else math.inf)
    return {**ledger, RELEASES: np.array(releases, np.int64), SPENT: np.array(spent), EPSILON: epsilon}


def _remark(ledger: Mapping[str, Array], following: Mapping[str, Array], privacy: Privacy) -> str:
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
