"""Goal: the raw samples around an alarm are drawn in their unit and at their time, and however many there are the chart
is short and shows each extreme.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.cloud_aggregator.samples.clip_charts import CHANNELS_SHOWN, STRETCHES, draw_clip
from fedgate.config.protocol.samples import ClipChannel, Piece
from fedgate.models.arrays import Array
from fedgate.models.time_units import NS
from tests.support.clip_samples import RATE_HZ, make_clip, make_pieces
from tests.support.sites import T0_NS


def column(values: Array) -> Array:
    return np.asarray(values)[:, None]


def test_few_samples_are_drawn_each_in_its_unit_with_a_hole_where_none_came() -> None:
    channel = ClipChannel(name="load", unit="kN", gain=2.0, bias=-1.0)
    pieces = make_pieces(column(np.array([1, 2, 3, 4], np.int16)), 0.0, 10.0)
    (drawn,) = draw_clip(make_clip(*pieces, channels=(channel,)))
    assert (drawn["channel"], drawn["unit"]) == ("load", "kN")
    assert drawn["chart"]["series"][0]["values"] == [1.0, 3.0, None, 5.0, 7.0]
    after_s = np.array(drawn["chart"]["x"]) - T0_NS / NS
    assert after_s == pytest.approx([0.0, 1.0 / RATE_HZ, (10.0 + 1.0 / RATE_HZ) / 2.0, 10.0, 10.0 + 1.0 / RATE_HZ])
    assert [mark["label"] for mark in drawn["chart"]["marks"]] == ["stays over the level", "raised"]


def test_of_many_samples_each_extreme_is_drawn_at_its_time() -> None:
    values = np.random.default_rng(1).normal(size=100_000).astype(np.float32)
    values[[12_345, 67_890]] = (50.0, -50.0)
    values[777] = np.nan
    (drawn,) = draw_clip(make_clip(*make_pieces(column(values), 0.0)))
    seconds, shown = drawn["chart"]["x"], drawn["chart"]["series"][0]["values"]
    assert len(shown) <= 2 * STRETCHES and seconds == sorted(seconds)
    for row, value in ((12_345, 50.0), (67_890, -50.0)):
        at_s = seconds[shown.index(value)] - T0_NS / NS
        assert 0.0 <= row / RATE_HZ - at_s < len(values) / STRETCHES / RATE_HZ + 1e-3


@pytest.mark.parametrize("rate_hz", [0.0, RATE_HZ])
def test_however_it_came_a_chart_is_short(rate_hz: float) -> None:
    one = np.array([[1.0]], np.float32) if not rate_hz else np.array([[1.0], [np.inf]], np.float32)
    pieces = [Piece(T0_NS + place * 3 * NS, rate_hz, place * one) for place in range(1, 5_000)]
    channels = tuple(ClipChannel(name=f"c{place}", gain=1e308) for place in range(CHANNELS_SHOWN + 3))
    wide = [piece._replace(values=np.repeat(piece.values, len(channels), axis=1)) for piece in pieces]
    drawn = draw_clip(make_clip(*wide, channels=channels))
    assert [one["channel"] for one in drawn] == [one.name for one in channels[:CHANNELS_SHOWN]]
    assert all(len(one["chart"]["x"]) <= 3 * STRETCHES for one in drawn)
    assert draw_clip(make_clip()) == []
