"""What a federated algorithm is: records of pure functions over `Arrays`, and the laws they keep.

    Algorithm(start, phases)                start(rng) -> Server
      Phase(train, tally, advance, admit)   train(shared, own, data, rng) -> (own, update)     on the gateway
                                            tally.merge(total, update) -> total, {} is zero    anywhere
                                            advance(server, total) -> server                   in the cloud
                                            admit(server, update) -> update                    in the cloud

Every state has a half that travels and a half that stays: `shared | kept` in the cloud, `update | own` on the gateway.
A gateway always scores with `{**shared, **own}`; that one line is personalisation. An update is already summable (`n *
delta` and `n`, never `delta` alone), so lifting and merging are one operation. A protocol of several exchanges is
several phases. The laws below hold for every algorithm and are run over all of them in `tests/test_laws.py`:

- `{}` is the identity of merge; merge is associative and commutative; the order of clients is irrelevant.
- No input is mutated. The same generator gives the same bytes. An empty round changes nothing.
- The update of an empty data set is `{}`, the identity. Names in `own` never occur in an update.
- A bounded tally keeps its size over any number of merges.
- `admit` refuses what is not finite, wrongly named or shaped, or absurdly weighted, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from models.arrays import FEATURES, Array, Arrays, finite
from models.federated.tally import Tally

# A feature that never moved during commissioning has no scale of its own; below this share of its level it counts as
# constant.
CONSTANT_SHARE = 1e-9


class UpdateError(ValueError):
    """An update that must not be counted; the message says what was wrong with it."""


class Server(NamedTuple):
    """The state of the cloud: `shared` goes down to every gateway, `kept` never leaves, `phase` is the exchange to run
    next.
    """

    shared: Arrays
    kept: Arrays
    phase: int = 0
    round_index: int = 0


Train = Callable[[Arrays, Arrays, Arrays, np.random.Generator], tuple[Arrays, Arrays]]


class Phase(NamedTuple):
    """One exchange: gateways train and send, the cloud judges, merges and advances."""

    train: Train
    tally: Tally
    advance: Callable[[Server, Arrays], Server]
    admit: Callable[[Server, Arrays], Arrays]


class Algorithm(NamedTuple):
    """A federated algorithm with its settings bound in.

    `detector` names the entry of `models.detectors.DETECTORS` that scores with the result; `rounds` is how many rounds
    of all phases make a model worth releasing.
    """

    detector: str
    start: Callable[[np.random.Generator], Server]
    phases: tuple[Phase, ...]
    rounds: int = 1


def close_round(algorithm: Algorithm, server: Server, total: Arrays) -> Server:
    """Advance the server by one round; a round in which nothing was counted leaves it exactly as it was."""
    if not total:
        return server
    advanced = algorithm.phases[server.phase].advance(server, total)
    return advanced._replace(round_index=server.round_index + 1)


def checked(update: Arrays, shapes: Mapping[str, tuple[int | None, ...]]) -> Arrays:
    """Return the update if its names, shapes and values are as expected, else raise `UpdateError`.

    `shapes` gives the expected shape of every array; `None` stands for any length.
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
    return update


def normalise(own: Arrays, data: Arrays, mode: str) -> tuple[Arrays, Array]:
    """Return the gateway's state with its normalisation, and the features (n, F) in normalised units.

    With mode `own` each feature is centred and scaled by the gateway's own commissioning data, once: later rounds keep
    the first centre and scale so that a model and its normalisation always belong together (docs/decisions/0004). With
    mode `none` the features are taken as they are, for tables whose columns already share one scale.
    """
    x = np.asarray(data[FEATURES], dtype=np.float64)
    if mode == "none":
        return own, x
    if "center" not in own:
        center, deviation = x.mean(axis=0), x.std(axis=0)
        floor = CONSTANT_SHARE * np.maximum(np.abs(center), 1.0)
        own = {**own, "center": center, "scale": np.where(deviation > floor, deviation, 1.0)}
    return own, (x - own["center"]) / own["scale"]
