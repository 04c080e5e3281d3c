"""A clip as charts: a line a channel, and of many samples the least and the greatest of each stretch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import numpy as np

from fedgate.cloud_aggregator.samples.clip_files import Segment, join_pieces
from fedgate.config.protocol.samples import Clip, ClipChannel
from fedgate.config.web.charts import Facts, make_chart, make_mark, make_series
from fedgate.models.time_units import NS

CHANNELS_SHOWN = 12
STRETCHES = 600  # of a line at most


def draw_clip(clip: Clip) -> list[Facts]:
    """Return of the first channels of a clip the name, the unit, and the chart of their values in it."""
    marks = [make_mark(clip.meta.onset_ns, "stays over the level"), make_mark(clip.meta.t_ns, "raised")]
    lines = (
        (channel, place, segments)
        for source, pieces in zip(clip.meta.sources, clip.pieces, strict=True)
        for segments in (join_pieces(pieces),)
        for place, channel in enumerate(source.channels)
        if segments
    )
    return [
        {
            "channel": channel.name,
            "unit": channel.unit,
            "chart": draw_channel(channel, place, segments) | {"marks": marks},
        }
        for channel, place, segments in islice(lines, CHANNELS_SHOWN)
    ]


def draw_channel(channel: ClipChannel, place: int, segments: Sequence[Segment]) -> Facts:
    """Return the values of one channel, the column `place` of the segments, with a hole before each but the first;
    single readings, and segments of which there are too many to be told apart, follow one another without one.
    """
    firsts = np.cumsum([0, *(len(one.values) for one in segments)])  # and behind them the number of all
    begins = {int(first) for first, one in zip(firsts, segments, strict=False) if len(one.values) > 1}
    if len(begins) > STRETCHES:
        begins = set()
    rows = np.array(sorted({*range(0, int(firsts[-1]), math.ceil(firsts[-1] / STRETCHES)), *begins}))
    with np.errstate(over="ignore", invalid="ignore"):  # what is no number then is not drawn
        column = np.concatenate([one.values[:, place] for one in segments]) * channel.gain + channel.bias
    seconds, values = list[float](), list[float | None]()
    for row, least, most in zip(rows, np.fmin.reduceat(column, rows), np.fmax.reduceat(column, rows), strict=True):
        of = int(np.searchsorted(firsts, row, side="right")) - 1
        rate_hz = segments[of].rate_hz
        at_s = segments[of].t_ns / NS + ((row - firsts[of]) / rate_hz if rate_hz else 0.0)
        if seconds and row in begins:
            seconds.append((seconds[-1] + at_s) / 2.0)
            values.append(None)
        for value in (least,) if least == most else (least, most):
            seconds.append(float(at_s))
            values.append(float(value) if math.isfinite(value) else None)
    return make_chart("time", seconds, [make_series(channel.name, "now", values)])
