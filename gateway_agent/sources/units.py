"""What a sensor sends becomes values in the units of the settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedgate.config.settings.settings import Source
from fedgate.models.windows.grid import Block


def to_units(source: Source, block: Block) -> Block:
    """Return a block of a source, values (T, C) as they came, in the units of its channels: raw * gain + bias."""
    gains = np.array([channel.gain for channel in source.channels])
    biases = np.array([channel.bias for channel in source.channels])
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite counts as a gap
        return replace(block, values=block.values * gains + biases)
