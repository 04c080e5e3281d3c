"""A defence in front of any sum: updates are judged one by one before they are added (federated-esn paper, Chapter 4).

`with_update_filter` puts a filter into the exchange that makes the model. Each update is first admitted as before, then
judged against the server as it was when the exchange began, so the order of arrival does not
matter. Who passes counts once, whatever weight it claims: a filter sees directions and lengths, and a liar of a usual
length that claimed the most rows turned the round by itself (docs/decisions/13). What a filter must remember goes with
the update as more numbers to be added, is taken out of the total before the algorithm sees it, and rests in
`server_state` under `judge.`, out of the algorithm's sight.

A filter looks at single updates, so it cannot be joined with secure aggregation, under which the cloud sees only sums,
and has nothing to stand before where no sum is taken (`composition`). Exchanges before the last of a round (an election
of neurons, say) are not judged, and a filter may refuse everybody: then the model stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedgate.models.arrays import Arrays, generator
from fedgate.models.federated.defences.filters import (
    Score,
    UpdateFilter,
    network_filter,
    statistic_filter,
    trusted_filter,
)
from fedgate.models.federated.defences.norm_filter import MOVED, norm_filter
from fedgate.models.federated.defences.single_update import counted_once
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Server
from fedgate.models.federated.protocol.composition import check_composition, having, model_phase
from fedgate.models.federated.protocol.namespace import hidden, prefixed, split
from fedgate.models.federated.protocol.schema import moving
from fedgate.models.options import Options

JUDGE = "judge."  # before what a filter remembers in `server_state`


class DefenceError(ValueError):
    """A defence that does not go together with the algorithm, or lacks what it judges by."""


class Defence(Options):
    """How updates are judged.

    :param kind: `trusted` by a loss on trusted tables, `statistic` by what is usual, `network` by a discriminator,
        `norm` by the length of the change alone.
    :param factor: of `trusted`: how many times the mean loss of the best round so far an update may have, alone.
    :param width: of `statistic`: how many deviations from the usual are usual.
    :param norm_factor: of `norm`: how many times the median length of earlier rounds a change may have.
    :param teach: of `trusted`, for algorithms that average: the trusted tables are summed too, as honest gateways of
        their own (ours). Where half of the fleet lies, refusing leaves few to learn from.
    """

    kind: Literal["trusted", "statistic", "network", "norm"] = "trusted"
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.5
    width: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    norm_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 4.0
    teach: bool = False


def with_update_filter(
    algorithm: Algorithm,
    defence: Defence,
    trusted: Sequence[Arrays] = (),
    network: Arrays | None = None,
    score: Score | None = None,
) -> Algorithm:
    """Return the algorithm with a defence in front of its sum.

    :param trusted: of `trusted`: tables of features and labels, each normalised like a gateway of its own.
    :param network: of `network`: what `train_discriminator` returned for this algorithm and this seed.
    :param score: in place of the detector's own, for who has at hand what it would compute again and again.

    Raises:
        DefenceError: the model is not made by a sum, there is a defence already, or what is needed to judge is missing.
    """
    check_composition(algorithm, "defence")
    last = model_phase(algorithm)
    update_filter = _filter_of(algorithm, algorithm.phases[last], defence, trusted, network, score)

    def start(rng: np.random.Generator) -> Server:
        server = algorithm.start(rng)
        update_filter.check(server.global_state)
        return server

    def lacking(server: Server) -> str:
        has_moved = float(server.server_state.get(JUDGE + MOVED, 1.0)) != 0.0
        return algorithm.lacking(server) if has_moved else "its defence has only measured so far"

    phases = [hidden(phase, JUDGE) for phase in algorithm.phases]
    lessons = trusted if defence.teach else ()
    following = last + 1 if last + 1 < len(phases) else algorithm.setup
    phases[last] = _guarded(algorithm.phases[last], following, update_filter, lessons)
    rounds = algorithm.rounds + (defence.kind == "norm")  # whose first one only measures
    return having(algorithm, "defence", start=start, phases=tuple(phases), rounds=rounds, lacking=lacking)


def _filter_of(
    algorithm: Algorithm,
    phase: Phase,
    defence: Defence,
    trusted: Sequence[Arrays],
    network: Arrays | None,
    score: Score | None,
) -> UpdateFilter:
    if defence.teach and defence.kind != "trusted":
        raise DefenceError(f"teach given for defence {defence.kind!r}, expected 'trusted', which has tables for it")
    if defence.teach and not moving(phase.schema):
        raise DefenceError("teach given for an algorithm that does not average, expected one that does")
    if defence.kind == "statistic":
        return statistic_filter(defence.width)
    if defence.kind == "norm":
        if phase.bears == "nothing":
            raise DefenceError(
                "defence 'norm' given for a sum over rows, expected one of changes or of all that gateways have to say:"
                " its first round only measures, and what was sent in it would be missing from a sum that is kept"
            )
        return norm_filter(defence.norm_factor)
    if defence.kind == "trusted":
        if not trusted:
            raise DefenceError("defence 'trusted' given without tables, expected at least one labelled table")
        return trusted_filter(algorithm, trusted, defence.factor, score)
    if network is None:
        raise DefenceError("defence 'network' given without a network, expected one of train_discriminator")
    return network_filter(network)


def _guarded(phase: Phase, following: int, update_filter: UpdateFilter, lessons: Sequence[Arrays]) -> Phase:
    """Return the exchange behind a filter, which sees an update when it is admitted otherwise."""
    inner = hidden(phase, JUDGE)

    def counted(server: Server, update: Arrays) -> Arrays:
        inner_state, memory = split(server.server_state, JUDGE)
        admitted = inner.counted(server, update)
        notes = update_filter.notes(phase, server._replace(server_state=inner_state), memory, admitted)
        return {**counted_once(phase.schema, admitted), **prefixed(JUDGE, notes)}

    def advance(server: Server, total: Arrays) -> Server:
        sums, notes = split(total, JUDGE)
        inner_state, memory = split(server.server_state, JUDGE)
        remembered = prefixed(JUDGE, update_filter.remembered(memory, notes))
        if update_filter.measures(memory):
            return server._replace(server_state={**inner_state, **remembered}, phase=following)
        for index, table in enumerate(lessons):
            rng = generator(0, server.round_index, f"trusted/{index}")
            _, update = phase.train(server.global_state, {}, table, rng)
            lesson = inner.admit(server, update) if update else {}
            sums = phase.reducer.merge(sums, counted_once(phase.schema, lesson) if lesson else {})
        advanced = inner.advance(server, sums)
        return advanced._replace(server_state={**split(advanced.server_state, JUDGE)[0], **remembered})

    return inner._replace(advance=advance, counted=counted)
