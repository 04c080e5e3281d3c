"""Whether a model keeps the promise of its gateway, told from few windows, and how often that is told wrongly.

The promise is a rate of windows at or above the level. High scores come in runs, for windows that follow each other
share weather and traffic; so not windows are counted but blocks of them, each alarmed or not, and blocks are taken to
be independent. A level from tens of calibration windows misses its promise by a factor of a few, whatever the model:
only a rate of more than TOLERANCE times the promise counts as broken. The test is the exact binomial one (Clopper and
Pearson, The use of confidence or fiducial limits illustrated in the case of the binomial, Biometrika 26, 1934).
"""

from __future__ import annotations

import math

LEVEL = 0.01  # how often a model that keeps the promise is called broken, at most
TOLERANCE = 10.0  # times the promise
LEAST_BLOCKS = 3  # alarmed; one storm that one model notices and the other does not is no evidence
BLOCK_S, BLOCK_WINDOWS = 900.0, 128  # the length of a block, whichever is shorter
_SHARE_MAX = 0.5  # of windows: a promise of more can not be told from a model that always alarms


def block_windows(hop_s: float) -> int:
    """Return how many windows make a block."""
    return max(min(round(BLOCK_S / hop_s), BLOCK_WINDOWS), 1)


def block_share(rate: float, windows: int) -> float:
    """Return the share of blocks of so many windows that a model may alarm which promises `rate` alarms per window."""
    return -math.expm1(windows * math.log1p(-min(TOLERANCE * rate, _SHARE_MAX)))


def tail(alarmed: int, blocks: int, share: float) -> float:
    """Return the probability that of so many blocks at least `alarmed` are, where each is with `share`."""
    if alarmed <= 0:
        return 1.0
    yes, no = math.log(share), math.log1p(-share)
    terms = (
        math.lgamma(blocks + 1) - math.lgamma(k + 1) - math.lgamma(blocks - k + 1) + k * yes + (blocks - k) * no
        for k in range(alarmed, blocks + 1)
    )
    return math.fsum(math.exp(term) for term in terms)


def is_broken(alarmed: int, blocks: int, share: float, level: float = LEVEL) -> bool:
    """Tell whether more blocks alarmed than the promise explains; wrong with a probability of at most `level`."""
    return alarmed >= LEAST_BLOCKS and tail(alarmed, blocks, share) <= level


def level_at(look: int) -> float:
    """Return the level for the `look`-th test of a series, counted from 1: all of them together are wrong with a
    probability of at most LEVEL, as 1 / (1 · 2) + 1 / (2 · 3) + ... is 1.
    """
    return LEVEL / (look * (look + 1))
