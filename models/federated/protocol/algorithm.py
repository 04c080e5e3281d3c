"""What a federated algorithm is: records of pure functions over `Arrays`, and the laws they keep (ours).

    Algorithm(start, phases)   start(rng) -> Server
      Phase                    train(global_state, local_state, data, rng) -> (local_state, update)    on the gateway
                               admit(server, update) -> update by its schema                           in the cloud
                               reducer.merge(total, update) -> total, {} is zero                       anywhere
                               reducer.closed(total) -> total in its order                             in the cloud
                               advance(server, total) -> server                                        in the cloud

Every state has a half that travels and a half that stays: `global_state | server_state` in the cloud, `update |
local_state` on the gateway. A gateway always scores with `{**global_state, **local_state}`; that one line is
personalisation. An update is already summable (`n * delta` and `n`, never `delta` alone), so lifting and merging are
one operation. A protocol of several exchanges is several phases. The laws below hold for every algorithm;
`fedgate.models.testing.check_laws` asks them of any:

- `{}` is the identity of merge; merge is associative and commutative; the order of clients is irrelevant.
- No input is mutated. The same generator gives the same bytes. An empty exchange changes no parameter and begins the
  round anew, so that a round whose gateways vanished half way through it cannot stall the training.
- The update of an empty data set is `{}`, the identity. Names in `local_state` never occur in an update.
- A sum keeps its size over any number of merges.
- What `train` sends has the form of the schema. `admit` refuses what has not, what is not finite or absurdly weighted,
  and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedgate.models.arrays import FEATURES, IDENTITY, LABELS, MEMBERS, SECRET, Array, Arrays
from fedgate.models.federated.protocol.contributions import weight_of
from fedgate.models.federated.protocol.reducer import Reducer
from fedgate.models.federated.protocol.schema import Schema, fitted, named
from fedgate.models.units import in_own_units, scales

# Ranges of settings, which `registry.build` checks before a wrong one can stop or hang a training.
Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

# Whether features are in a gateway's own deviations or as they are (`normalise`).
Normalisation = Literal["own", "none"]

# The names under which a gateway keeps its centre and its scale of each feature.
NORMALISATION = ("center", "scale")

# One gateway counts for no more rows than the longest baseline there is (`fedgate.config.settings.settings.Baseline`).
MAX_SAMPLES = 20_000


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


def _as_sent(_server: Server, update: Arrays) -> Arrays:
    return update


def _anything(_server: Server, _update: Arrays) -> None:
    """Let any update pass that has the form of its schema."""


class Phase(NamedTuple):
    """One exchange: gateways train and send, the cloud admits, merges and advances.

    `learn` is what a gateway does that has rows, `schema` the form of what it sends. What an algorithm checks beyond
    that, `check` does: it raises `UpdateError` for a well-formed update that must not be counted. Of one that may
    `counted` makes what is added; `unpacked` makes the update of a message that travels in another form. A gateway that
    leaves, with weight 0, has no rows, and its training `takes_back` what was counted of it where anything was.
    """

    learn: Train
    reducer: Reducer
    advance: Callable[[Server, Arrays], Server]  # of a total that is not empty
    schema: Schema
    check: Callable[[Server, Arrays], None] = _anything
    counted: Callable[[Server, Arrays], Arrays] = _as_sent
    unpacked: Callable[[Server, Arrays], Arrays] = _as_sent
    takes_back: bool = False

    def train(self, global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        """Return the gateway's state after a training, and its update: `{}` where it has no rows, or leaves and has
        nothing to take back.
        """
        leaves = weight_of(data) == 0.0
        data = without_rows(data) if leaves else data
        if len(data[FEATURES]) == 0 and not (leaves and self.takes_back):
            return local_state, {}
        return self.learn(global_state, local_state, data, rng)

    def admit(self, server: Server, update: Arrays) -> Arrays:
        """Return what is counted of an update; raises `UpdateError` with the reason where it must not be."""
        return self.admit_unpacked(server, self.unpacked(server, update))

    def admit_unpacked(self, server: Server, update: Arrays) -> Arrays:
        """Return the same of an update that was unpacked: its own arrays where nothing had to be changed."""
        wide = fitted(self.schema, server.global_state, update)
        self.check(server, wide)
        return self.counted(server, wide)

    @property
    def bears(self) -> Literal["nothing", "rounding", "error"]:
        """Return what may be done to an update on its way: error of any kind where the model takes a step along its
        sum, rounding where every update says all anew; nothing where rows are kept apart or numbers belong together.
        """
        if not self.reducer.additive or named(self.schema, "sum", "bytes", "ring"):
            return "nothing"
        return "rounding" if named(self.schema, "full") else "error"


def _nothing(_server: Server) -> str:
    return ""


def _as_it_is(server: Server) -> Server:
    return server


class Algorithm(NamedTuple):
    """A federated algorithm with its settings bound in.

    `detector` names the entry of `fedgate.models.detectors.DETECTORS` that scores with the result; `rounds` is how many
    rounds of all phases make a model worth releasing. `personal` names the tensors that every gateway keeps for itself
    and feeds to the exported model. The first `setup` phases run once, at the beginning of a training. With `labels`
    the algorithm trains on windows of known condition and not on the baseline alone. Every `stride` exchanges belong
    together and begin together anew. Only gateways that have the `libraries` can train it. `restore` puts the model
    back into `global_state` where a round that came to nothing had moved it out of the way; `lacking` says why there is
    no model in a state, or none any more, and nothing where there is one. It `remembers` where a gateway's update rests
    on which of its earlier ones were counted: one of the two that forgets spoils the sum. Its `traits` say what it is
    put together with (`composition`).
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
    restore: Callable[[Server], Server] = _as_it_is
    lacking: Callable[[Server], str] = _nothing
    remembers: bool = False
    traits: frozenset[str] = frozenset()

    def exchanges(self, rounds: int | None = None) -> int:
        """Return how many exchanges make so many rounds from the beginning of a training, by default `self.rounds`."""
        return self.setup + (self.rounds if rounds is None else rounds) * (len(self.phases) - self.setup)

    def check_cohort(self, count: int) -> None:
        """Raise `ValueError` where a round of so many gateways comes to nothing, as under masks and robust means."""
        for phase in self.phases:
            phase.reducer.check(count)


def check_phase(algorithm: Algorithm, server: Server) -> None:
    """Raise `ValueError` where the exchange that a server leads to is none of the algorithm's."""
    if not 0 <= server.phase < len(algorithm.phases):
        raise ValueError(
            f"server.phase: expected 0 to {len(algorithm.phases) - 1}, one of the phases, got {server.phase}; see what "
            "start and advance set"
        )


def close_round(algorithm: Algorithm, server: Server, total: Arrays) -> Server:
    """Advance the server by one exchange; one in which nothing was counted only begins the round anew.

    Raises `ValueError` where the algorithm leads to an exchange that there is not.
    """
    if total:
        phase = algorithm.phases[server.phase]
        advanced = phase.advance(server, phase.reducer.closed(total))
    else:
        restart_phase = min(server.phase - server.phase % algorithm.stride, algorithm.setup)
        advanced = algorithm.restore(server)._replace(phase=restart_phase)
    check_phase(algorithm, advanced)
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


def without_rows(data: Arrays) -> Arrays:
    """Return what a gateway trains on that leaves: no rows, so that it sends nothing but what it takes back."""
    whole = (SECRET, IDENTITY, MEMBERS)
    return {name: array[:0] if array.ndim and name not in whole else array for name, array in data.items()}


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
