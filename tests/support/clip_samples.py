"""Clips of raw samples made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgate.config.protocol.samples import Clip, ClipChannel, ClipMeta, ClipSource, Piece
from fedgate.models.arrays import Array
from fedgate.models.time_units import NS
from tests.support.sites import T0_NS

RATE_HZ = 20.0


def make_clip(*pieces: Piece, channels: tuple[ClipChannel, ...] = (ClipChannel(name="load"),), **changes: Any) -> Clip:
    """Return a clip of one source."""
    meta: dict[str, Any] = {"gateway": "north", "alarm": "a", "cause": "anomaly", "onset_ns": T0_NS, "t_ns": T0_NS}
    source = ClipSource(name="deck", channels=channels)
    return Clip(ClipMeta(**{**meta, **changes}, sources=(source,)), (pieces,))


def make_pieces(values: Array, *starts_s: float) -> tuple[Piece, ...]:
    """Return values in as many pieces as there are starts, of equal length."""
    parts = np.split(values, len(starts_s))
    return tuple(Piece(T0_NS + round(at_s * NS), RATE_HZ, part) for at_s, part in zip(starts_s, parts, strict=True))
