"""A pulse sensor that is dead, on its way through the gateway's pipeline."""

from __future__ import annotations

import numpy as np

from fedgate.config.settings.alarm import AlarmTable
from fedgate.gateway_agent.pipeline import pipeline
from fedgate.models.testing.fleet import T0_NS
from fedgate.models.time_units import NS
from fedgate.models.windows.grid import Block, StreamSpec
from tests.models.features.test_physiology import RATE_HZ, SAMPLES, beats_of, pulse_wave
from tests.support.feature_specs import wrist


def test_a_dead_pulse_is_missing_and_no_heart_at_rest() -> None:
    spec = wrist({"kind": "pulse", "channels": ("bvp",)}, {"kind": "level"}, hop_s=30.0)
    streams = [StreamSpec(name="wrist", channels=("eda", "bvp"))]
    walk = pipeline.start(spec, streams, AlarmTable.model_validate({}), 2)
    rng = np.random.default_rng(4)
    alive = pulse_wave(beats_of(rng, 70.0, 0.02)) + rng.normal(0.0, 0.01, SAMPLES)
    dead = rng.normal(0.0, 0.01, SAMPLES).cumsum() * 1e-3 + np.linspace(0.0, 9.0, SAMPLES)
    for place, bvp in enumerate((alive, dead, alive)):
        values = np.stack([rng.normal(size=SAMPLES), bvp], axis=1)
        learned = len(walk.baseline)
        walk, readings = pipeline.push(walk, Block("wrist", T0_NS + place * 30 * NS, RATE_HZ, values))
        for reading in readings:
            assert (reading.lost is not None) == (bvp is dead) != (len(walk.baseline) > learned)
            if reading.lost is not None:
                assert reading.lost.channels == ("bvp",) and "bvp.heart_rate" in reading.lost.reason
