"""Spectra of a gateway's channels, for the evidence of an alarm: those of healthy windows, gathered with the baseline,
and that of the worst window behind the transition to an anomaly.

The first window at or above the level holds the transition, and with it a step or a blow that has a spectrum of its
own. So the worst is sought among the windows that share no sample with it: these show how things are now.

Outside the baseline a spectrum is taken of windows at or above the level alone, so that watching costs nothing. Of the
baseline at most `KEPT` are kept, evenly spread over it: when these are reached every second one goes and from then on
half as many come. They are stored as one blob, whenever as many windows again have been seen as at the last time, and
at the end of the baseline: a dozen writes in all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedgate.config.protocol import wire
from fedgate.gateway_agent.events import Save
from fedgate.models.arrays import Array, Floats, Singles
from fedgate.models.features.measures import Windows, one_sided
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.time_units import NS

SPECTRA = "spectra"  # key of a stored blob
KEPT = 256
BANDS = 64
BINS_LEAST = 8  # a window with fewer has no spectrum to speak of


class Spectra(NamedTuple):
    """Spectra (C, B) of healthy windows, the oldest first; `channels` are those that have one."""

    channels: tuple[str, ...] = ()
    rows: tuple[Singles, ...] = ()
    stride: int = 1  # of so many windows one is kept
    seen: int = 0  # windows
    saved: int = 0  # windows that had been seen when they were stored last


NONE = Spectra()


class Worst(NamedTuple):
    """The highest window of a run that may become an alarm, of those behind the transition; the latest, while there is
    none.
    """

    height: float
    t_ns: int  # its end
    rows: Singles  # (C, B)
    is_behind: bool  # the transition: it shares no sample with the first window of the run


def start(spec: FeatureSpec, regular: tuple[str, ...], *, is_wanted: bool) -> Spectra:
    """Return the spectra of a gateway that has seen nothing: of channels that are sampled at a steady rate, where a
    window has bins enough.
    """
    has_bins = spec.samples // 2 >= BINS_LEAST
    return Spectra(channels=tuple(name for name in spec.channels if name in regular) if is_wanted and has_bins else ())


def list_edges(spec: FeatureSpec) -> Floats:
    """Return the edges (B + 1,) of the bands in Hz: whole bins above 0 Hz, as evenly as it goes, at most `BANDS`."""
    return (_limits(spec) + 0.5) * spec.resolution_hz


def _limits(spec: FeatureSpec) -> Array:
    bins = spec.samples // 2
    return np.unique(np.round(np.linspace(0, bins, min(BANDS, bins) + 1)).astype(np.int64))


def measure(spec: FeatureSpec, channels: tuple[str, ...], values: Array) -> Singles:
    """Return the mean square of channels of a window, values (T, all channels), by band: (C, B)."""
    columns = [spec.channels.index(name) for name in channels]
    windows = Windows(np.ascontiguousarray(np.asarray(values, dtype=np.float64).T[columns])[None])
    energies = one_sided(windows.energies, windows.samples)[0]
    return np.add.reduceat(energies, _limits(spec)[:-1], axis=-1).astype(np.float32)


def gather(spectra: Spectra, spec: FeatureSpec, values: Array) -> Spectra:
    """Return the spectra with one more window of the baseline, where its turn has come."""
    if not spectra.channels:
        return spectra
    is_due, spectra = spectra.seen % spectra.stride == 0, spectra._replace(seen=spectra.seen + 1)
    if not is_due:
        return spectra
    rows = (*spectra.rows, measure(spec, spectra.channels, values))
    return (
        spectra._replace(rows=rows)
        if len(rows) <= KEPT
        else spectra._replace(rows=rows[::2], stride=2 * spectra.stride)
    )


def note_worst(
    worst: Worst | None, spectra: Spectra, spec: FeatureSpec, values: Array, height: float, t_ns: int, onset_ns: int
) -> Worst | None:
    """Return the worst window of a run, whose first window ended at `onset_ns`, with one more of it."""
    is_behind = t_ns - onset_ns > (spec.samples - 1) / spec.rate_hz * NS
    is_worse = worst is None or not worst.is_behind or worst.height < height
    if not spectra.channels or not is_worse:
        return worst
    return Worst(height, t_ns, measure(spec, spectra.channels, values), is_behind)


def has_grown(spectra: Spectra) -> bool:
    """Tell whether twice as many windows have been seen as when the spectra were stored last."""
    return bool(spectra.channels) and spectra.seen >= 2 * max(spectra.saved, 1)


def save(spectra: Spectra) -> tuple[Spectra, list[Save]]:
    """Return the spectra as stored, and the effect that stores them; nothing where nothing is new."""
    if not spectra.rows or spectra.saved == spectra.seen:
        return spectra, []
    return spectra._replace(saved=spectra.seen), [Save(SPECTRA, to_bytes(spectra))]


def to_bytes(spectra: Spectra) -> bytes:
    """Return the spectra as they are stored."""
    meta = {"channels": list(spectra.channels), "stride": spectra.stride, "seen": spectra.seen}
    return wire.encode({SPECTRA: np.stack(spectra.rows)}, meta)


def restore(stored: bytes | None, blank: Spectra, spec: FeatureSpec) -> Spectra:
    """Return what `to_bytes` gave; blank ones where there is nothing, or where it is of other channels."""
    if stored is None or not blank.channels:
        return blank
    tensors, meta = wire.decode(stored, size_max=len(stored))
    rows = tensors[SPECTRA]
    if tuple(meta["channels"]) != blank.channels or rows.shape[1:] != (len(blank.channels), len(_limits(spec)) - 1):
        return blank
    return blank._replace(rows=tuple(rows), stride=meta["stride"], seen=meta["seen"], saved=meta["seen"])
