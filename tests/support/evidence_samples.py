"""Evidence of an alarm, with as much of everything as a test wants."""

from __future__ import annotations

from fedgate.config.protocol.evidence import (
    AlarmEvidence,
    BandSpectrum,
    ChannelHealth,
    Standout,
    make_trail,
    round_number,
)

T0_NS = 1_800_000_000 * 10**9
LONG = -1.234e-17  # no number of four digits is written longer


def make_evidence(
    label: str = "deck", contributions: int = 2, windows: int = 3, bands: int = 2, channels: int = 1
) -> AlarmEvidence:
    """Return evidence of so many of each."""
    of_bands = tuple(round_number(0.5 + band) for band in range(bands))
    return AlarmEvidence(
        alarm="north.anomaly.1.boot",
        cause="anomaly",
        t_ns=T0_NS,
        onset_ns=T0_NS - 10**9,
        window_s=1.0,
        model_version=1,
        model_digest="a" * 64,
        rule="score",
        score=3.58,
        level=0.681,
        level_of="own baseline",
        text="deck: 3.1-3.4 Hz carries 6 times its usual energy",
        contributions=tuple(
            Standout(feature=label, text=label, amount=2.5, value=3.0, median=LONG, spread=0.5, deviation=None)
            for _ in range(contributions)
        ),
        trail=make_trail([(T0_NS + place * 10**9, 0.1 * place, 0.681) for place in range(windows)]),
        spectrum=BandSpectrum(
            channel=label,
            t_ns=T0_NS,
            edges_hz=tuple(map(float, range(bands + 1))),
            worst=of_bands,
            healthy_5=of_bands,
            healthy_50=of_bands,
            healthy_95=of_bands,
            healthy_windows=256,
        ),
        health=tuple(ChannelHealth(channel=label, filled=2**40, windows_lost=7) for _ in range(channels)),
    )
