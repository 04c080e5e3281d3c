"""From baseline scores and a promised rate to the level that keeps it: the four ways, and what each of them needs.

A way is right where its assumption is: `conformal` needs nothing but scores that could have come in any order and many
of them, `quantile` more still, to read the level off, `peaks` fewer, whose tail behaves as tails do in the limit, and
`automatic` also works with tens, where it assumes an exponential tail. What lies beyond the scores is extrapolated,
and says so.

Hosking and Wallis, Parameter and quantile estimation for the generalized Pareto distribution, Technometrics 29, 1987.
Coles, An introduction to statistical modeling of extreme values, 2001. Vovk, Gammerman and Shafer, Algorithmic learning
in a random world, 2005. Hyndman and Fan, Sample quantiles in statistical packages, American Statistician 50, 1996.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Literal

import numpy as np

from fedgate.models.arrays import Floats
from fedgate.models.whole import round_down, round_up, settled

Method = Literal["automatic", "quantile", "peaks", "conformal"]

MINIMUM_SCORES = 20  # half of them are taken for the tail, and ten excesses give its scale to within a third
MINIMUM_PEAKS = 30  # excesses for a fit: its shape is then known to about 0.2
_LARGEST_ERROR = 1.0  # variance of the logarithm of the rate at a fitted level; beyond it no correction helps
_MOST_SCORES = 10**9
_TAIL = 10  # the fewest scores above a level to read or fit it from


class CalibrationError(ValueError):
    """Scores from which no level can be taken."""


def least_scores(method: Method, rate: float) -> int:
    """Return how many baseline scores a method needs at least to promise no more than `rate` alarms per window."""
    needed = {
        "automatic": MINIMUM_SCORES,
        "quantile": round_up(_TAIL / rate),
        "peaks": bisect_left(range(_MOST_SCORES), True, lo=4 * MINIMUM_PEAKS, key=lambda n: _fits(n, rate)),
        "conformal": round_up(1 / rate) - 1,
    }
    return max(needed[method], MINIMUM_SCORES)


def level_of(method: Method, ordered: Floats, rate: float) -> float:
    """Return the level that scores reach with the promised rate, of baseline scores (n,) in ascending order.

    Raises:
        CalibrationError: fewer scores than `least_scores`, or the highest all equal (a saturated score has no tail).
    """
    needed = least_scores(method, rate)
    if len(ordered) < needed:
        raise CalibrationError(
            f"{len(ordered)} scores given, method {method!r} needs at least {needed} to promise {rate:.3g} alarms per"
            " window: let the baseline run longer, promise more false alarms per day or choose method 'automatic'"
        )
    if method == "peaks":
        return _peaks(ordered, rate)
    if method == "quantile":
        return _quantile(ordered, rate)
    return _exponential(ordered, rate) if method == "automatic" and beyond(ordered, rate) else _ranked(ordered, rate)


def beyond(ordered: Floats, rate: float) -> bool:
    """Tell whether a rate is rarer than so many scores (n,) show, so that its level is extrapolated or hangs on few."""
    return settled(len(ordered) * rate) < _TAIL


def _excesses(ordered: Floats, count: int) -> tuple[float, Floats]:
    """Return the highest score but `count`, and how far those exceed it."""
    threshold = float(ordered[-count - 1])
    excesses = ordered[-count:] - threshold
    if excesses[-1] == 0:
        raise CalibrationError(
            f"the highest {count + 1} of {len(ordered)} scores all equal {threshold}: the score is saturated, so no"
            " level can tell a worse window; check the model and the sensors"
        )
    return threshold, excesses


def _just_above(value: float) -> float:
    return math.nextafter(value, math.inf)  # ties with the value stay below


def _ranked(ordered: Floats, rate: float) -> float:
    """Return the lowest level for which the promise holds whatever the distribution: conformal prediction.

    Of n + 1 scores that could have come in any order, the last exceeds the highest but k of the others with a
    probability of at most (k + 1) / (n + 1), and less by 1 / (n + 1) at most. This is the mean over all baselines; one
    baseline's own rate scatters around it by about √(rate / n).
    """
    above = round_down((len(ordered) + 1) * rate) - 1  # k
    _excesses(ordered, max(above, _TAIL - 1))  # refuses a saturated score
    return _just_above(float(ordered[-above - 1]))


def _quantile(ordered: Floats, rate: float) -> float:
    """Return the quantile 1 - rate between the scores at (n + 1) (1 - rate): right on average, on neither side safe
    (Hyndman and Fan's sixth).
    """
    _excesses(ordered, round_down(len(ordered) * rate))
    return _just_above(float(np.quantile(ordered, 1 - rate, method="weibull")))


def _exponential(ordered: Floats, rate: float) -> float:
    """Extrapolate an exponential tail, fitted to the mean excess over a high quantile, to a rate hardly or never seen.

    Scores are unbounded; logarithms of kernel sums and squared residuals alike have tails that are about exponential.
    The k = max(10, √n) highest of n are used. If their excesses' mean m were the tail's own, the level would be
    threshold + m ln(seen_rate / rate); but m comes from k values, and plugging it in exceeds the promise several times.
    For exponential excesses a further one exceeds c m with probability (1 + c / k)**-k, which gives c for the promise.
    So the promise is kept on average for exponential tails; tails as the normal one's make the level too high, and
    tails heavier than exponential make it too low.
    """
    count = max(_TAIL, math.isqrt(len(ordered)))
    threshold, excesses = _excesses(ordered, count)
    seen_rate = (count + 1) / (len(ordered) + 1)
    multiple = count * math.expm1(math.log(seen_rate / rate) / count)  # c; tends to ln(seen_rate / rate) for large k
    return threshold + multiple * float(excesses.mean())


def _peaks(ordered: Floats, rate: float) -> float:
    """Extrapolate a generalised Pareto tail over a high quantile (Coles 2001, equation 4.12).

    A fit taken for the truth exceeds the promise on average, as e**-depth does for a depth that is only known with a
    variance: so the level is taken half that variance deeper. On average over baselines the promise is then kept within
    a factor of 1.5 for tails from bounded (ξ = -0.2) to Student's with 4 degrees of freedom, the normal one included.
    """
    count = _excess_count(len(ordered), rate)
    threshold, excesses = _excesses(ordered, count)
    shape, scale = pareto_tail(excesses)
    depth = _depth(len(ordered), rate)
    depth += _variance(depth, count) / 2
    height = scale * depth if shape == 0 else scale * math.expm1(shape * depth) / shape
    return threshold + height


def _excess_count(scores: int, rate: float) -> int:
    # Of order √n, so that the quantile rises with n as the theory wants; twice the promised share at least.
    return max(MINIMUM_PEAKS, 2 * math.isqrt(scores), round_up(2 * scores * rate))


def _depth(scores: int, rate: float) -> float:
    """Return the logarithm of the excesses' own rate over the promised one."""
    return math.log(_excess_count(scores, rate) / (scores * rate))


def _variance(depth: float, count: int) -> float:
    """Return the variance of a fitted level at a depth, in scales: of σ (depth + ξ depth² / 2) at ξ = 0 with the
    covariance of the estimates, 7/3, -4/3 and 4/3 over their number (Hosking and Wallis 1987, section 4).
    """
    return depth**2 * (7 - 4 * depth + depth**2) / (3 * count)


def _fits(scores: int, rate: float) -> bool:
    return _variance(_depth(scores, rate), _excess_count(scores, rate)) <= _LARGEST_ERROR


def pareto_tail(excesses: Floats) -> tuple[float, float]:
    """Fit a generalised Pareto distribution to excesses (k,) in ascending order: shape (ξ, positive for heavy tails)
    and scale.

    By probability weighted moments (Hosking and Wallis 1987, section 3.2, where k = -ξ), which are steady for tens of
    excesses and for shapes below 1/2. A tail that would end below the highest excess is let end there.

    Raises:
        CalibrationError: all excesses are equal.
    """
    if excesses[0] == excesses[-1]:
        raise CalibrationError(
            f"the highest {len(excesses)} scores are all equal: the score is saturated, so its tail has no shape; check"
            " the model and the sensors"
        )
    count = len(excesses)
    weights = np.arange(count - 1, -1, -1) / (count - 1)  # unbiased for 1 - F
    first, second = float(excesses.mean()), float((weights * excesses).mean())  # a0, a1
    shape = 2 - first / (first - 2 * second)
    scale = 2 * first * second / (first - 2 * second)
    return max(shape, -scale / float(excesses[-1])), scale
