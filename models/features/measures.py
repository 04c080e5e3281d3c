"""What can be measured in a batch of windows, apart from the specification that asks for it
(`fedgate.models.features.spec`).

Kept as one object per batch because the measures build on each other: whatever is asked for, each sum and each Fourier
transform is computed once, and none that is not asked for.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedgate.models.arrays import Floats, Integers

NO_TIME = np.zeros(0, dtype=np.int64)


class Windows:
    """Measures of values (n, C, T): n windows, C channels, T samples. Statistics are (n, C).

    A constant channel has no shape: its crest, skewness, kurtosis and energies are 0. `starts_ns` (n,) is when each
    window starts, empty where nobody asks for it.
    """

    def __init__(self, values: Floats, starts_ns: Integers = NO_TIME) -> None:
        self.starts_ns = starts_ns
        self.samples = values.shape[-1]
        self.values = values
        # Without the first sample a constant is exactly zero, and a small signal on a large offset keeps its digits.
        start = values[..., :1]  # (n, C, 1)
        self.centred: Floats = values - start  # (n, C, T)
        shift: Floats = self.centred.mean(axis=-1, keepdims=True)
        self.centred -= shift
        self.level: Floats = (start + shift)[..., 0]

    @cached_property
    def deviation(self) -> Floats:
        """Standard deviation of the window, as of a whole population."""
        deviation: Floats = np.sqrt(self._mean_product(self.centred, self.centred))
        return deviation

    @property
    def rms(self) -> Floats:
        """Root mean square, level included."""
        return np.hypot(self.level, self.deviation)

    @cached_property
    def peak(self) -> Floats:
        """Largest distance from the level."""
        peak: Floats = np.maximum(self.centred.max(axis=-1), -self.centred.min(axis=-1))
        return peak

    @property
    def crest(self) -> Floats:
        """Peak in units of the deviation."""
        return ratio(self.peak, self.deviation)

    @cached_property
    def standardised(self) -> Floats:
        """Values of zero mean and unit deviation, (n, C, T)."""
        return ratio(self.centred, self.deviation[..., None])

    @property
    def skewness(self) -> Floats:
        """Third standardised moment."""
        return self._mean_product(self.standardised**2, self.standardised)

    @property
    def kurtosis(self) -> Floats:
        """Fourth standardised moment less that of a normal distribution, 3."""
        squares = self.standardised**2
        return np.where(self.deviation > 0, self._mean_product(squares, squares) - 3, 0.0)

    @cached_property
    def energies(self) -> Floats:
        """|DFT|² / T² at the bins above 0 Hz, (n, C, T // 2)."""
        return _squared(np.fft.rfft(self.centred, norm="forward")[..., 1:])

    def segment_energies(self, length: int) -> Floats:
        """Average the energies of Hann-windowed, half-overlapping segments less their means: (n, C, length // 2).

        A sinusoid on a bin has the same energy there as in `energies`. Method: P. D. Welch, IEEE Transactions on Audio
        and Electroacoustics 15 (1967) 70.
        """
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)  # (L,)
        segments = sliding_window_view(self.centred, length, axis=-1)[..., :: length - length // 2, :]  # (n, C, S, L)
        tapered = (segments - segments.mean(axis=-1, keepdims=True)) * hann
        energies: Floats = _squared(np.fft.rfft(tapered)[..., 1:]).mean(axis=-2)
        energies /= hann.sum() ** 2
        return energies

    def _mean_product(self, first: Floats, second: Floats) -> Floats:
        mean: Floats = np.vecdot(first, second) / self.samples
        return mean


def ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Divide, of any shape that broadcasts; where the denominator is 0 give 0."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    return np.divide(numerator, denominator, out=np.zeros(shape), where=denominator > 0)


def one_sided(energies: Floats, samples: int) -> Floats:
    """Add the negative frequencies to the positive ones, (..., bins): over all bins the sum is the variance (Parseval).

    The bin at half an even rate is its own mirror image.
    """
    doubled: Floats = 2 * energies
    if samples % 2 == 0:
        doubled[..., -1] /= 2
    return doubled


def _squared(bins: NDArray[np.complex128]) -> Floats:
    squares: Floats = np.square(bins.real)
    squares += np.square(bins.imag)
    return squares
