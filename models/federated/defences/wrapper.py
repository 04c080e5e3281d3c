"""A defence in front of any sum: updates are judged one by one before they are added (federated-esn paper, Chapter 4).

`defended` returns the algorithm with another `admit` in the exchange that makes the model. Each update is first
admitted as before, then judged against the server as it was when the exchange began, so the order of arrival does not
matter. Who passes counts once, whatever weight it claims: a filter sees directions and lengths, and a liar of a usual
length that claimed the most rows turned the round by itself (docs/decisions/13). What a filter must remember goes with
the update as more numbers to be added, is taken out of the total before the algorithm sees it, and rests in
`server_state` under `judge.`, out of the algorithm's sight.

A filter looks at single updates, so it cannot be joined with secure aggregation, under which the cloud sees only sums:
whoever joins masks to an algorithm must refuse one of which `is_defended` says so. Exchanges before the last of a round
(an election of neurons, say) are not judged, and a filter may refuse everybody: then the model stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedgate.models.arrays import Arrays, generator
from fedgate.models.federated.defences.discriminator import MOVES
from fedgate.models.federated.defences.filters import (
    Score,
    UpdateFilter,
    network_filter,
    statistic_filter,
    trusted_filter,
)
from fedgate.models.federated.defences.norm_filter import norm_filter
from fedgate.models.federated.defences.single_update import counted_once, moving
from fedgate.models.federated.protocol.algorithm import JUDGE, Algorithm, Phase, Server, UpdateError
from fedgate.models.federated.protocol.reducer import SURVEY_SUM

PREFIX = JUDGE


class DefenceError(ValueError):
    """A defence that does not go together with the algorithm, or lacks what it judges by."""


class Defence(BaseModel):
    """How updates are judged.

    :param kind: `trusted` by a loss on trusted tables, `statistic` by what is usual, `network` by a discriminator,
        `norm` by the length of the change alone.
    :param factor: of `trusted`: how many times the mean loss of the best round so far an update may have, alone.
    :param width: of `statistic`: how many deviations from the usual are usual.
    :param norm_factor: of `norm`: how many times the median length of earlier rounds a change may have.
    :param teach: of `trusted`, for algorithms that average: the trusted tables are summed too, as honest gateways of
        their own (ours). Where half of the fleet lies, refusing leaves few to learn from.
    :param paper: of `network`: as the thesis does, a rejected gateway counts with all its rows and no change, which
        makes the step of the round shorter; by default its update is refused, and the gateway told.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["trusted", "statistic", "network", "norm"] = "trusted"
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.5
    width: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0
    norm_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 4.0
    teach: bool = False
    paper: bool = False


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
    if is_defended(algorithm):
        raise DefenceError("the algorithm has a defence, expected one without; choose one of both")
    last = max(index for index, phase in enumerate(algorithm.phases) if phase.reducer != SURVEY_SUM)
    if last < algorithm.setup or not algorithm.phases[last].reducer.additive:
        raise DefenceError(
            f"the model is made by the reducer {algorithm.phases[last].reducer.name!r}, expected 'sum', before which a"
            " defence stands; choose an additive algorithm"
        )
    update_filter = _filter_of(algorithm, algorithm.phases[last], defence, trusted, network, score)

    def start(rng: np.random.Generator) -> Server:
        server = algorithm.start(rng)
        update_filter.check(server.global_state)
        return server

    phases = [_hidden_from(phase) for phase in algorithm.phases]
    lessons = trusted if defence.teach else ()
    following = last + 1 if last + 1 < len(phases) else algorithm.setup
    phases[last] = _guarded(algorithm.phases[last], following, update_filter, lessons, paper=defence.paper)
    rounds = algorithm.rounds + (defence.kind == "norm")  # whose first one only measures
    return algorithm._replace(start=start, phases=tuple(phases), rounds=rounds)


def is_defended(algorithm: Algorithm) -> bool:
    """Tell whether the algorithm looks at single updates, so that they cannot travel masked."""
    return any(isinstance(phase.admit, _Guard) for phase in algorithm.phases)


def _filter_of(
    algorithm: Algorithm,
    phase: Phase,
    defence: Defence,
    trusted: Sequence[Arrays],
    network: Arrays | None,
    score: Score | None,
) -> UpdateFilter:
    if defence.paper and defence.kind != "network":
        raise DefenceError(f"paper given for defence {defence.kind!r}, expected 'network', which is the thesis's own")
    if defence.teach and defence.kind != "trusted":
        raise DefenceError(f"teach given for defence {defence.kind!r}, expected 'trusted', which has tables for it")
    if defence.kind == "statistic":
        return statistic_filter(defence.width)
    if defence.kind == "norm":
        if phase.reducer.bears == "nothing":
            raise DefenceError(
                f"defence 'norm' given for reducer {phase.reducer.name!r}, expected a sum of changes or contributions:"
                " its first round only measures, and what was sent in it would be missing from a sum that is kept"
            )
        return norm_filter(defence.norm_factor)
    if defence.kind == "trusted":
        if not trusted:
            raise DefenceError("defence 'trusted' given without tables, expected at least one labelled table")
        return trusted_filter(algorithm, trusted, defence.factor, score)
    if network is None:
        raise DefenceError("defence 'network' given without a network, expected one of train_discriminator")
    if defence.paper and not network[MOVES]:
        raise DefenceError("paper given for an algorithm that does not average, expected one whose updates are changes")
    return network_filter(network)


def _split(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Return what belongs to the algorithm, and what to the filter, without the prefix."""
    others = {name: array for name, array in arrays.items() if not name.startswith(PREFIX)}
    return others, {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}


def _prefixed(notes: Arrays) -> Arrays:
    return {PREFIX + name: array for name, array in notes.items()}


class _Guard:
    """The `admit` of an exchange behind a filter."""

    def __init__(self, phase: Phase, update_filter: UpdateFilter, *, paper: bool) -> None:
        self._phase, self._filter, self._paper = phase, update_filter, paper

    def __call__(self, server: Server, update: Arrays) -> Arrays:
        kept, memory = _split(server.server_state)
        bare = server._replace(server_state=kept)
        admitted = self._phase.admit(bare, update)
        try:
            notes = self._filter.notes(self._phase, bare, memory, admitted)
        except UpdateError:
            if not self._paper:
                raise
            return {
                **admitted,
                **{name: np.zeros_like(admitted[name]) for name in moving(server.global_state, admitted)},
            }
        counted = admitted if self._paper else counted_once(self._phase, server.global_state, admitted)
        return {**counted, **_prefixed(notes)}


def _guarded(
    phase: Phase, following: int, update_filter: UpdateFilter, lessons: Sequence[Arrays], *, paper: bool
) -> Phase:
    def advance(server: Server, total: Arrays) -> Server:
        if not total:
            return server
        sums, notes = _split(total)
        kept, memory = _split(server.server_state)
        bare = server._replace(server_state=kept)
        if update_filter.measures(memory):
            remembered = _prefixed(update_filter.remembered(memory, notes))
            return bare._replace(server_state={**kept, **remembered}, phase=following)
        for index, table in enumerate(lessons):
            rng = generator(0, server.round_index, f"trusted/{index}")
            _, update = phase.train(server.global_state, {}, table, rng)
            lesson = phase.admit(bare, update) if update else {}
            if lesson and not moving(server.global_state, lesson):
                raise DefenceError("teach given for an algorithm that does not average, expected one that does")
            sums = phase.reducer.merge(sums, counted_once(phase, server.global_state, lesson))
        advanced = phase.advance(bare, sums)
        return advanced._replace(
            server_state={**advanced.server_state, **_prefixed(update_filter.remembered(memory, notes))}
        )

    return phase._replace(advance=advance, admit=_Guard(phase, update_filter, paper=paper))


def _hidden_from(phase: Phase) -> Phase:
    """Return an exchange that is not judged, and does not see what the filter keeps."""

    def advance(server: Server, total: Arrays) -> Server:
        if not total:
            return server
        kept, memory = _split(server.server_state)
        advanced = phase.advance(server._replace(server_state=kept), total)
        return advanced._replace(server_state={**advanced.server_state, **_prefixed(memory)})

    def admit(server: Server, update: Arrays) -> Arrays:
        return phase.admit(server._replace(server_state=_split(server.server_state)[0]), update)

    return phase._replace(advance=advance, admit=admit)
