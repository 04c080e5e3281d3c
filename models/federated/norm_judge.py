"""A judge by length alone: refused is a change longer than some times the usual one (ours).

Usual is the median of the lengths that were counted in earlier rounds, the last ones weighing most. It is read off a
histogram of logarithms, which adds up over updates: no update is kept, the cloud's memory does not grow with the fleet,
and a minority of liars cannot move a median as they can a mean. Whoever is refused leaves no note, so that shouting
does not widen the bound; liars just below it count as long ones among many.

The first round measures and moves nothing, or until three lengths are known: there is nothing to judge by yet, and one
shout in it would outlast all that follow. It costs a round; no model is released of it (`algorithm.lacking`).

A liar no longer than the bound is counted, whatever its direction. Where most gateways change at once by more than the
bound all of them are refused, the model stays, and every status says so; a larger factor begins another training.
"""

from __future__ import annotations

import numpy as np

from models.arrays import Arrays
from models.federated.algorithm import MOVED, Phase, Server, UpdateError
from models.federated.alone import change_of
from models.federated.judges import Judge

LENGTHS, KNOWN = "lengths", "known"  # the histogram (B,), and how many lengths were ever noted
FEWEST = 3  # lengths before one of them is the usual one
FORGET = 0.5  # what a round counts beside the next one: changes shrink as a training settles
STEP = 0.25  # of the logarithm to base 2, so that the median is right within a fifth
LEAST, MOST = -60.0, 60.0  # logarithms of the shortest and longest that are told apart
BINS = round((MOST - LEAST) / STEP)


def norm_judge(factor: float) -> Judge:
    """Return the judge that takes changes up to `factor` times the usual length."""

    def notes(phase: Phase, server: Server, memory: Arrays, update: Arrays) -> Arrays:
        del phase
        length = float(np.linalg.norm(change_of(server.shared, update)))
        if not measures(memory):
            bound = factor * usual_length(memory)
            if not length <= bound:
                raise UpdateError(
                    f"expected a change up to {bound:.3g} long, {factor:g} times the usual, got {length:.3g}"
                )
        noted = np.zeros(BINS)
        if length > 0.0:  # who asks for nothing is no example of what is usual
            noted[_bin_of(length)] = 1.0
        return {LENGTHS: noted}

    return Judge(_any_context, notes, _remembered, measures)


def measures(memory: Arrays) -> bool:
    """Tell whether too few lengths are known to judge by."""
    return float(memory.get(KNOWN, 0.0)) < FEWEST


def usual_length(memory: Arrays) -> float:
    """Return the median of the lengths remembered, rounded up to the end of its bin."""
    counts = np.cumsum(memory[LENGTHS])
    middle = int(np.searchsorted(counts, 0.5 * counts[-1]))
    return float(2.0 ** (LEAST + STEP * (middle + 1)))


def _remembered(memory: Arrays, total: Arrays) -> Arrays:
    known = float(memory.get(KNOWN, 0.0)) + float(total[LENGTHS].sum())
    before = memory.get(LENGTHS, np.zeros(BINS))
    is_any = bool(total[LENGTHS].any())  # where nobody asked for anything, what is usual is what it was
    lengths = (1.0 if measures(memory) or not is_any else FORGET) * before + total[LENGTHS]
    return {LENGTHS: lengths, KNOWN: np.array(known), MOVED: np.array(float(not measures(memory)))}


def _bin_of(length: float) -> int:
    return int(np.clip((np.log2(length) - LEAST) / STEP, 0, BINS - 1))


def _any_context(shared: Arrays) -> None:
    del shared
