"""A filter by length alone: refused is a change longer than some times the usual one (ours).

Usual is the median of the lengths that were counted in earlier rounds, the last ones weighing most. It is read off a
histogram of logarithms, which adds up over updates: no update is kept, the cloud's memory does not grow with the fleet,
and a minority of liars cannot move a median as they can a mean. Whoever is refused leaves no note, so that shouting
does not widen the bound; liars just below it count as long ones among many. As many as are missing beside the fullest
round so far, refused or silent, count as one of the usual length each: they move it neither way. Or else few quiet
liars could pull it down step by step, each time having more of the long honest ones refused, until they are the most.

The first round measures and moves nothing, or until three lengths are known: there is nothing to judge by yet, and one
shout in it would outlast all that follow. It costs a round; no model is released of it
(`fedgate.config.settings.checks.lacking`).

What it does not see: a liar no longer than the bound is counted, whatever its direction. Quiet liars lower what is
usual as far as the shortest honest ones, once and for good where these differ much; then honest gateways beyond the
bound are refused in every round. Where more than half of the fullest round stay away it follows nobody, and liars are a
minority only of those that report. Where most gateways change at once by more than the bound all of them are refused,
the model stays, and every status says so; a larger factor begins another training.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import Array, Arrays
from fedgate.models.federated.defences.filters import UpdateFilter
from fedgate.models.federated.defences.single_update import change_of
from fedgate.models.federated.protocol.algorithm import Phase, Server
from fedgate.models.federated.protocol.schema import UpdateError

MOVED = "moved"  # () whether any round has moved the model yet
# The histogram (B,), how many lengths were ever noted, and how many in the round with most of them.
LENGTHS, KNOWN, MOST_NOTED = "lengths", "known", "most_noted"
FEWEST = 3  # lengths before one of them is the usual one
FORGET = 0.5  # what a round counts beside the next one: changes shrink as a training settles
ON_EDGE = 1e-9  # of a bin
STEP = 0.25  # of the logarithm to base 2, so that the median is right within a fifth
LEAST, MOST = -60.0, 60.0  # logarithms of the shortest and longest that are told apart
BINS = round((MOST - LEAST) / STEP)


def norm_filter(factor: float) -> UpdateFilter:
    """Return the filter that takes changes up to `factor` times the usual length."""

    def notes(phase: Phase, _server: Server, memory: Arrays, update: Arrays) -> Arrays:
        length = float(np.linalg.norm(change_of(phase.schema, update)))
        if not measures(memory):
            bound = factor * median_length(memory)
            if not length <= bound:
                raise UpdateError(
                    f"expected a change up to {bound:.3g} long, {factor:g} times the usual, got {length:.3g}"
                )
        noted = np.zeros(BINS)
        if length > 0.0:  # who asks for nothing is no example of what is usual
            noted[_bin_of(length)] = 1.0
        return {LENGTHS: noted}

    return UpdateFilter(notes, _remembered, measures=measures)


def measures(memory: Arrays) -> bool:
    """Tell whether too few lengths are known to judge by."""
    return float(memory.get(KNOWN, 0.0)) < FEWEST


def median_length(memory: Arrays) -> float:
    """Return the median of the lengths remembered, rounded up to the end of its bin."""
    return float(2.0 ** (LEAST + STEP * (_middle(memory[LENGTHS]) + 1)))


def _remembered(memory: Arrays, total: Arrays) -> Arrays:
    noted, before = float(total[LENGTHS].sum()), memory.get(LENGTHS, np.zeros(BINS))
    most_noted = max(noted, float(memory.get(MOST_NOTED, 0.0)))
    lengths = before + total[LENGTHS]
    if not measures(memory) and noted > 0.0:  # where nobody asked for anything, what is usual is what it was
        lengths = FORGET * before + total[LENGTHS]
        lengths[_middle(before)] += most_noted - noted
    return {
        LENGTHS: lengths,
        KNOWN: np.array(float(memory.get(KNOWN, 0.0)) + noted),
        MOST_NOTED: np.array(most_noted),
        MOVED: np.array(float(not measures(memory))),
    }


def _middle(lengths: Array) -> int:
    """Return the bin of the median of a histogram (B,)."""
    counts = np.cumsum(lengths)
    return int(np.searchsorted(counts, 0.5 * counts[-1]))


def _bin_of(length: float) -> int:
    # Lengths on an edge are usual, such as 1 of what is clipped: rounding must not put one of them into the bin below.
    return int(np.clip((np.log2(length) - LEAST) / STEP + ON_EDGE, 0, BINS - 1))
