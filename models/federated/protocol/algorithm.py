"""What a federated algorithm is: records of pure functions over `Arrays`, and the laws they keep (ours).

    Algorithm(start, phases)                start(rng) -> Server
      Phase(train, reducer, advance, admit)   train(global_state, local_state, data, rng) -> (local_state, update)   on
      the gateway
                                            reducer.merge(total, update) -> total, {} is zero    anywhere
                                            reducer.closed(total) -> total in its order          in the cloud
                                            advance(server, total) -> server                   in the cloud
                                            admit(server, update) -> update                    in the cloud

Every state has a half that travels and a half that stays: `global_state | server_state` in the cloud, `update |
local_state` on the gateway. A gateway always scores with `{**global_state, **local_state}`; that one line is
personalisation. An update is already summable (`n * delta` and `n`, never `delta` alone), so lifting and merging are
one operation. A protocol of several exchanges is several phases. The laws below hold for every algorithm;
`fedgate.models.testing.check_laws` asks them of any:

- `{}` is the identity of merge; merge is associative and commutative; the order of clients is irrelevant.
- No input is mutated. The same generator gives the same bytes. An empty exchange changes no parameter and begins the
  round anew, so that a round whose gateways vanished half way through it cannot stall the training.
- The update of an empty data set is `{}`, the identity. Names in `local_state` never occur in an update.
- A bounded reducer keeps its size over any number of merges.
- `admit` refuses what is not finite, wrongly named or shaped, or absurdly weighted, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from fedgate.models.arrays import FEATURES, LABELS, SECRET, WEIGHT, Array, Arrays, finite
from fedgate.models.federated.protocol.reducer import Reducer
from fedgate.models.units import in_own_units, scales

# Ranges of settings, which `registry.build` checks before a wrong one can stop or hang a training.
Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

# The names under which a gateway keeps its centre and its scale of each feature.
NORMALISATION = ("center", "scale")

# What a gateway has spent of its privacy belongs to its data and not to one training; EPSILON is the sum of it.
LEDGER = "privacy."
EPSILON, RELEASES, SPENT = f"{LEDGER}epsilon", f"{LEDGER}releases", f"{LEDGER}spent"

# In `server_state`: what the cloud's own noise is drawn from. It follows from the seed, until an aggregator puts in a
# real one.
NOISE_SECRET = f"{LEDGER}secret"

# What a defence remembers in `server_state`; and there, whether any round has moved the model yet.
JUDGE, MOVED = "judge.", "moved"

# Before the names of what a survey leaves in `global_state`.
SITE = "site."

# What an update may hold where nothing is known of its units: below it sums, squares and the float32 of the exported
# model stay finite. Moments of rows in large units are larger and pass a bound of their own.
LARGEST = 1e15

# One gateway counts for no more rows than the longest baseline there is (`fedgate.config.settings.settings.Baseline`).
MAX_SAMPLES = 20_000

# In `global_state` of algorithms that solve a system of equations: its condition, and what stands there where there is
# none.
CONDITION, UNDETERMINED = "condition", float(np.finfo(np.float64).max)


class UpdateError(ValueError):
    """An update that must not be counted; the message says what was wrong with it."""


class RoundFailedError(ValueError):
    """A round that came to nothing, such as one of too few survivors: raised by `advance`, and repeated."""


class Server(NamedTuple):
    """The state of the cloud: `global_state` goes down to every gateway, `server_state` never leaves, `phase` is the
    exchange to run next and `round_index` counts the exchanges so far. By `cohort_index` gateways are drawn: it stays
    the same from one phase of a round to the next, so that who took part in one is asked again in the other.
    """

    global_state: Arrays
    server_state: Arrays
    phase: int = 0
    round_index: int = 0
    cohort_index: int = 0


Trained = tuple[Arrays, Arrays]  # the local state after a training, and the update

# Quoted, since reading the name would load numpy.random: 2 MiB in every agent, for what only its training child needs.
Train = Callable[[Arrays, Arrays, Arrays, "np.random.Generator"], Trained]


class Phase(NamedTuple):
    """One exchange: gateways train and send, the cloud judges, merges and advances."""

    train: Train
    reducer: Reducer
    advance: Callable[[Server, Arrays], Server]
    admit: Callable[[Server, Arrays], Arrays]


def _as_it_is(server: Server) -> Server:
    return server


class Algorithm(NamedTuple):
    """A federated algorithm with its settings bound in.

    `detector` names the entry of `fedgate.models.detectors.DETECTORS` that scores with the result; `rounds` is how many
    rounds of all phases make a model worth releasing. `personal` names the tensors that every gateway keeps for itself
    and feeds to the exported model. The first `setup` phases run once, at the beginning of a training. With `labels`
    the algorithm trains on windows of known condition and not on the baseline alone. Every `stride` exchanges belong
    together and begin together anew. Only gateways that have the `libraries` can train it. `restored` puts the model
    back into `global_state` where a round that came to nothing had moved it out of the way. It `remembers` where a
    gateway's update rests on which of its earlier ones were counted: one of the two that forgets spoils the sum.
    """

    detector: str
    start: Callable[[np.random.Generator], Server]
    phases: tuple[Phase, ...]
    rounds: int = 1
    personal: tuple[str, ...] = ()
    setup: int = 0
    labels: bool = False
    stride: int = 1
    libraries: tuple[str, ...] = ()
    restored: Callable[[Server], Server] = _as_it_is
    remembers: bool = False

    def exchanges(self, rounds: int | None = None) -> int:
        """Return how many exchanges make so many rounds from the beginning of a training, by default `self.rounds`."""
        return self.setup + (self.rounds if rounds is None else rounds) * (len(self.phases) - self.setup)


def close_round(algorithm: Algorithm, server: Server, total: Arrays) -> Server:
    """Advance the server by one exchange; one in which nothing was counted only begins the round anew."""
    if total:
        phase = algorithm.phases[server.phase]
        advanced = phase.advance(server, phase.reducer.closed(total))
    else:
        begun = min(server.phase - server.phase % algorithm.stride, algorithm.setup)
        advanced = algorithm.restored(server)._replace(phase=begun)
    following = server.round_index + 1
    cohort_index = server.cohort_index if advanced.phase > server.phase else following
    return advanced._replace(round_index=following, cohort_index=cohort_index)


NOTHING_TO_SEND = (
    "nothing to send: the rows are too few (an echo state network washes out 5 / leak of them after each gap), all the "
    "same or, with normalisation 'none', all zero; expected more rows and rows that differ: see whether the sensors "
    "are connected and not stuck"
)


def is_silent(algorithm: Algorithm, phase: int, total: Arrays) -> bool:
    """Tell whether nobody had anything to send in an exchange, nor would a moment later. In the last of several that
    belong together they had, and it came to nothing.
    """
    return not total and (algorithm.stride == 1 or phase % algorithm.stride < algorithm.stride - 1)


def site_of(global_state: Arrays) -> Arrays:
    """Return what the last survey left: `scores` (B,), and of a profile `count` (C,), `sum` and `square` (C, F)."""
    return {name.removeprefix(SITE): array for name, array in global_state.items() if name.startswith(SITE)}


def lacking(server: Server) -> str:
    """Return why there is no model in the server's state, or none any more; empty where there is one."""
    if float(server.server_state.get("samples", 1.0)) == 0.0:
        return "nobody is left in its sums"
    if float(server.server_state.get(JUDGE + MOVED, 1.0)) == 0.0:
        return "its defence has only measured so far"
    if float(server.global_state.get(CONDITION, 1.0)) >= UNDETERMINED:
        return "its sums determine no model; see the setting 'ridge'"
    return ""


def checked(update: Arrays, shapes: Mapping[str, tuple[int | None, ...]], *, largest: float = LARGEST) -> Arrays:
    """Return the update as float64 if its names, shapes and values are as expected, else raise `UpdateError`.

    `shapes` gives the expected shape of every array; `None` stands for any length. No value may be above `largest`.
    Narrower numbers are widened, so that no sum can overflow or depend on its order, whatever type a gateway chose to
    send.
    """
    if update.keys() != shapes.keys():
        raise UpdateError(f"expected arrays {sorted(shapes)}, got {sorted(update)}")
    for name, shape in shapes.items():
        found = update[name].shape
        if len(found) != len(shape) or any(want not in (None, have) for want, have in zip(shape, found, strict=True)):
            raise UpdateError(f"{name}: expected shape {shape}, got {found}")
        if update[name].dtype.kind not in "fiu":
            raise UpdateError(f"{name}: expected numbers, got {update[name].dtype}")
    if not finite(update):
        raise UpdateError("expected finite values, got NaN or infinity")
    wide = {name: np.asarray(array, dtype=np.float64) for name, array in update.items()}
    for name, array in wide.items():
        found_largest = float(np.abs(array).max(initial=0.0))
        if found_largest > largest:
            raise UpdateError(f"{name}: expected values up to {largest:g}, got {found_largest:g}")
    return wide


def counting(data: Arrays) -> Arrays:
    """Return what a gateway trains on: all its data, or where its weight is 0 no rows, so that it sends nothing but
    what it takes back.
    """
    if float(data.get(WEIGHT, 1.0)) != 0.0:
        return data
    return {name: array[:0] if array.ndim and name != SECRET else array for name, array in data.items()}


def outlives(name: str) -> bool:
    """Tell whether a gateway's own tensor of this name is kept when another training begins."""
    return name in NORMALISATION or name.startswith(LEDGER)


def ledger_of(local_state: Mapping[str, Array]) -> Arrays:
    """Return what a gateway's own tensors say of the privacy that it has spent."""
    return {name: array for name, array in local_state.items() if name.startswith(LEDGER)}


def lost_ledger() -> Arrays:
    """Return the ledger of a gateway that no longer knows what it has spent: there is no budget that it has left."""
    return {RELEASES: np.array(0, np.int64), SPENT: np.array(np.inf), EPSILON: np.array(np.inf)}


def personal_tensors(normalisation: str) -> tuple[str, ...]:
    """Return the names of the gateway's own tensors under a mode of `normalise`."""
    return NORMALISATION if normalisation == "own" else ()


def healthy_rows(data: Arrays, z: Array) -> Array:
    """Return the rows of z (n, F) that are labelled as normal, all where the data holds no labels."""
    return z[data[LABELS] == 0] if LABELS in data else z


def normalise(local_state: Arrays, data: Arrays, mode: str) -> tuple[Arrays, Array]:
    """Return the gateway's state with its normalisation, and the features (n, F) in normalised units.

    With mode `own` each feature is centred and scaled by the gateway's own commissioning data, once: later rounds keep
    the first centre and scale so that a model and its normalisation always belong together (docs/decisions/03). Rows
    that are labelled as faults are no commissioning data. With mode `none` the features are taken as they are, for
    tables whose columns already share one scale.

    Raises `ValueError` where every row is labelled as a fault, so that nothing gives the scale.
    """
    x = np.asarray(data[FEATURES], dtype=np.float64)
    if mode == "none":
        return local_state, x
    if "center" not in local_state:
        healthy = healthy_rows(data, x)
        if len(healthy) == 0:
            raise ValueError("every row is labelled as a fault; expected normal rows (label 0), which give the scale")
        center, deviation = healthy.mean(axis=0), healthy.std(axis=0)
        local_state = {**local_state, "center": center, "scale": scales(center, deviation)}
    return local_state, in_own_units(local_state, x)
