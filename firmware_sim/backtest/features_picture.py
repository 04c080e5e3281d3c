"""The picture of features: for each channel the spectrum, and for each feature its windows, healthy and damaged."""

from __future__ import annotations

from itertools import chain

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedgate.firmware_sim.backtest.features import Comparison, Measured, spectra
from fedgate.firmware_sim.pictures import BLUE, GREY, INK, VERMILLION
from fedgate.models.arrays import Floats
from fedgate.models.features.kinds import Bands
from fedgate.models.features.spec import FeatureSpec, feature_names

WIDTH_IN, SPECTRUM_IN, ROW_IN, MARGIN_IN = 11.0, 2.6, 0.32, 1.0
FEATURES_SHOWN = 40
LINEAR_SPREADS = 10.0  # beyond, the axis is logarithmic
QUANTILES = (0.05, 0.5, 0.95)
STATES = ((False, "healthy", BLUE, -0.16), (True, "damaged", VERMILLION, 0.16))


def draw(spec: FeatureSpec, measured: Measured, compared: list[Comparison], title: str) -> Figure:
    """Return the figure: spectra above, features below, those first that tell the states apart best."""
    shown = compared[:FEATURES_SHOWN]
    heights = [SPECTRUM_IN] * len(spec.channels) + [max(ROW_IN * len(shown), 1.0)]
    height_in = sum(heights) * 1.35 + MARGIN_IN
    figure = Figure(figsize=(WIDTH_IN, height_in), facecolor="white", layout="constrained")
    figure.suptitle(title, fontsize=13, fontweight="bold", color=INK).set_parse_math(False)
    *spectrum_axes, feature_axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    hz, power = spectra(spec, measured.values)
    for channel, axes in enumerate(spectrum_axes):
        _spectrum(axes, spec, hz, power[:, :, channel], measured, spec.channels[channel])
    _features(feature_axes, spec, measured, shown)
    return figure


def _spectrum(axes: Axes, spec: FeatureSpec, hz: Floats, power: Floats, measured: Measured, channel: str) -> None:
    """Draw the median power of the windows of each state, with their 5 and 95 % quantiles, and the edges of bands."""
    for is_damaged, name, colour, _ in STATES:
        rows = power[measured.is_damaged == is_damaged]
        if len(rows):
            low, median, high = np.quantile(rows, QUANTILES, axis=0)
            axes.fill_between(hz, low, high, color=colour, alpha=0.18, lw=0)
            axes.plot(hz, median, color=colour, lw=1.2, label=f"{name}, {len(rows)} windows")
    bands = [step for step in spec.steps if isinstance(step, Bands) and channel in (step.channels or spec.channels)]
    for edge_hz in sorted(set(chain.from_iterable(step.edges_hz for step in bands))):
        axes.axvline(edge_hz, color=GREY, lw=0.8, ls=":")
    axes.set_yscale("log")
    axes.set_xlim(0.0, hz[-1])
    axes.set_xlabel("frequency [Hz], with the edges of the bands")
    axes.set_ylabel("power")
    axes.set_title(channel, loc="left", fontsize=11, fontweight="bold", color=INK).set_parse_math(False)
    axes.legend(loc="upper right", frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _features(axes: Axes, spec: FeatureSpec, measured: Measured, shown: list[Comparison]) -> None:
    """Draw each feature's median with its 5 and 95 % quantiles, in spreads of healthy windows from their median."""
    columns = dict(zip(feature_names(spec), measured.x.T, strict=True))
    for row, one in enumerate(shown):
        if one.spread == 0.0:  # there is no unit to show it in
            continue
        for is_damaged, _, colour, offset in STATES:
            values = columns[one.feature][measured.is_damaged == is_damaged]
            values = values[np.isfinite(values)]
            if len(values):
                low, median, high = (np.quantile(values, QUANTILES) - one.healthy) / one.spread
                axes.plot([low, high], [row + offset] * 2, color=colour, lw=2.5, alpha=0.5, solid_capstyle="butt")
                axes.plot(median, row + offset, color=colour, marker="s" if is_damaged else "o", ms=4)
    names = [one.feature if np.isnan(one.auc) else f"{one.feature}  AUC {one.auc:.2f}" for one in shown]
    names = [
        name if one.spread else f"{name}, never moves when healthy" for name, one in zip(names, shown, strict=True)
    ]
    axes.set_yticks(range(len(shown)), names, fontsize=8, parse_math=False)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    reached = np.abs(axes.dataLim.intervalx).max()
    if np.isfinite(reached) and reached > LINEAR_SPREADS:
        axes.set_xscale("symlog", linthresh=LINEAR_SPREADS)
    axes.axvline(0.0, color=GREY, lw=0.8)
    axes.set_xlabel("spreads of healthy windows from their median: median and 5 to 95 % of the windows")
    axes.spines[["top", "right"]].set_visible(False)
