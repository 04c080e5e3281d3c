"""Any algorithm with smaller updates, whose error is made good by the next ones: error feedback (Seide et al. 2014,
"1-Bit Stochastic Gradient Descent"; Karimireddy et al. 2019, "Error Feedback Fixes SignSGD", Algorithm 1).

A gateway sends C(u + e) and keeps e' = u + e - C(u + e), where u is what it would send and C rounds and thins
(`fedgate.models.packing`). So the sums over rounds are right but for one last e, however coarse C is. An update that
was not counted (`COUNTED`) took nothing of e with it: then e is that of before. One that came late counts unless the
next one does in the same round, or that round comes to nothing, of which a gateway is told only after it has made that
(`PENDING`, `BEFORE_COUNTED`): until then it has the e of both cases, and sends their mean (ours: with one of them
alone, what is missing grows where the other case comes true each time). The residuals rest on the gateway under
`compression.`, in float32, and belong to one training.

What may be done to an array is a matter of its role (`fedgate.models.federated.protocol.schema`). A `delta` is a step
of the model: it bears all of this. What is `full` (one-class losses, ADMM) says all anew in every update, also what the
last one left out, so that feedback would say it twice: it is rounded, without feedback, and never thinned. Exchanges
with a `sum` travel as they are: a Gram matrix of rounded entries is no longer positive, which already float32 does to
it, and a Fisher information no longer fits its readout, so that the cloud would refuse them. The cloud sees what the
inner algorithm admits, in float64 and in its place.

A masked sum needs one unit for all gateways, and here each array of each gateway has its own; sparse values could be
masked, since zeros stay where they are, but then all of them must travel. So neither goes under masks. Nor does it go
with noise that the cloud adds: with a residual in it, one update has no bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import numpy as np
from pydantic import model_validator

from fedgate.models.arrays import BEFORE_COUNTED, COUNTED, PENDING, Array, Arrays, under
from fedgate.models.federated.protocol.algorithm import (
    Algorithm,
    Phase,
    Server,
    Share,
    Train,
    Trained,
)
from fedgate.models.federated.protocol.composition import FLOAT32, check_composition, having
from fedgate.models.federated.protocol.namespace import hidden, prefixed, split
from fedgate.models.federated.protocol.schema import Schema, UpdateError, layout_of, named, numbers_in
from fedgate.models.options import Options
from fedgate.models.packing import Number, PackingError, packed, unpacked

PREFIX = "compression."
WIDE_BYTES, FLOAT32_BYTES = 8, 4  # of a number as most updates hold it, and of one that torch made
LEFT, SENT, LESS = "left.", "sent.", "less."  # e before the last update, after it, before it had none before it counted


class Compression(Options):
    """How updates travel.

    :param number: what their numbers are rounded to, float32 with half the bytes of the float64 they are made in;
        `float16` and `int8` in units of each array's largest entry.
    :param share: of the entries of each array, the largest by size, that are sent; the others wait.
    """

    number: Number = "float32"
    share: Share = 1.0

    @property
    def bytes_per_entry(self) -> float:
        """Return what an entry of a long array costs, with its bit of the bitmap where there is one."""
        return self.share * np.dtype(self.number).itemsize + (0.125 if self.share < 1.0 else 0.0)

    @model_validator(mode="after")
    def _saves_something(self) -> Self:
        if self.bytes_per_entry >= WIDE_BYTES:
            raise ValueError(
                f"number {self.number!r} with share {self.share:g} saves nothing, expected fewer bits, a share, or no "
                "such table"
            )
        return self


def with_error_feedback(algorithm: Algorithm, compression: Compression) -> Algorithm:
    """Return the algorithm with its sums of changes compressed.

    Raises `ValueError` where its sums do not bear that, it is compressed already, or the cloud adds noise to it.
    """
    check_composition(algorithm, "compression")
    if FLOAT32 in algorithm.traits and compression.bytes_per_entry >= FLOAT32_BYTES:
        raise ValueError(
            f"compression with number {compression.number!r} and share {compression.share:g} given for an algorithm "
            "whose updates are float32 as they are, so that it saves nothing; expected float16, int8 or a share"
        )
    if compression.share < 1.0 and not any(phase.bears == "error" for phase in algorithm.phases):
        raise ValueError(
            f"compression.share {compression.share:g} given for an algorithm whose updates say everything anew, "
            "expected 1: what is left out of one would be missing in its sum"
        )
    phases = [_compressed(phase, index, compression) for index, phase in enumerate(algorithm.phases)]
    return having(algorithm, "compression", phases=tuple(phases))


def _compressed(phase: Phase, index: int, compression: Compression) -> Phase:
    inner = hidden(phase, PREFIX)
    if phase.bears == "nothing":
        return inner._replace(learn=_learning(inner, index, compression))

    def unpack(server: Server, update: Arrays) -> Arrays:
        try:
            return inner.unpacked(server, _unpacked(phase.schema, server.global_state, update, compression))
        except PackingError as error:
            raise UpdateError(str(error)) from None

    return inner._replace(learn=_learning(inner, index, compression), unpacked=unpack)


def _unpacked(schema: Schema, global_state: Arrays, message: Arrays, compression: Compression) -> Arrays:
    """Return the update of a message. Nothing is expanded beyond what its schema asks for."""
    names, layout = narrowed(schema, global_state), layout_of(schema, global_state)
    most = numbers_in(layout[name] for name in names)
    return unpacked(message, names, compression.number, compression.share, most)


def _learning(phase: Phase, index: int, compression: Compression) -> Train:
    """Return how a gateway trains in an exchange and keeps what its message leaves out.

    Every exchange learns from `COUNTED` what became of the last update, also one whose own updates are not compressed.
    """

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        after, update = phase.learn(global_state, local_state, data, rng)
        if not update:
            return after, {}
        others, mine = split(after, PREFIX)
        left, less = _settled(mine, data)
        after = {**others, **prefixed(PREFIX, prefixed(LEFT, left) | prefixed(LESS, less))}
        names = narrowed(phase.schema, global_state)
        if phase.bears == "nothing":
            return after, update
        if phase.bears == "rounding":
            return after, packed(update, names, compression.number, compression.share)
        owed = {name: left.get(f"{index}.{name}", 0.0) for name in names}
        owed_without = {name: less.get(f"{index}.{name}", owed[name]) for name in names}
        waiting = update | {name: update[name] + (owed[name] + owed_without[name]) / 2.0 for name in names}
        message = packed(waiting, names, compression.number, compression.share)
        arrived = _unpacked(phase.schema, global_state, message, compression)
        unsent = {name: update[name] + owed[name] - arrived[name] for name in names}
        residual = {f"{SENT}{index}.{name}": array.astype(np.float32) for name, array in unsent.items()}
        return {**after, **prefixed(PREFIX, residual)}, message

    return learn


def narrowed(schema: Schema, global_state: Arrays) -> list[str]:
    """Return the names of what is compressed in an update: arrays of steps, or of all that there is to say."""
    return [name for name in named(schema, "delta", "full") if schema[name].shape_in(global_state)]


def _settled(mine: Arrays, data: Mapping[str, Array]) -> tuple[Arrays, Arrays]:
    """Return what is left of all updates that were counted, given what the gateway kept of the last one; and what would
    be without the last of those, while that is pending.
    """
    left, sent, less = under(LEFT, mine), under(SENT, mine), under(LESS, mine)
    is_pending = bool(data.get(PENDING, False))
    without = left if bool(data.get(BEFORE_COUNTED, True)) else left | less
    if not bool(data.get(COUNTED, True)):
        return without, (left | less if is_pending else {})
    zeros = {name: np.zeros_like(residual) for name, residual in sent.items()}
    before, without = zeros | left, zeros | without
    after = {name: residual + (without[name] - before[name]) for name, residual in sent.items()}
    return without | after, (without if is_pending else {})
