"""From named arrays to a recording, for the formats that are bags of arrays (.npz and .mat).

Nothing standard says which array is what, so this follows the names that recordings in circulation use:

    samples   data; acc with scale; acc_counts with counts_per_g; otherwise the only matrix, or the only vector
    names     channels or nodes
    rate      fs or rate_hz (one number, or one a channel); otherwise from t, time or t_ms
    start     t0
    state     label and state_name or state, one for all or one a sample; note
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.recordings.errors import ChoiceError, DamagedError
from fedgate.firmware_sim.recordings.options import ReadOptions
from fedgate.firmware_sim.recordings.readers.columns import split_unit, states_from, written_state
from fedgate.firmware_sim.recordings.recording import Channel, Recording, State, as_float64, positions, shortened
from fedgate.firmware_sim.recordings.timing import Timing, date_ns, stamp_reader, timing

Arrays = Mapping[str, NDArray[Any]]

_KNOWN_SAMPLES = ("data", "acc", "acc_counts")
_NOT_SAMPLES = {"scale", "counts_per_g", "fs", "rate_hz", "t", "time", "t_ms", "t0", "label", "state", "setups"}
_TIME_UNITS = {"t": "", "time": "", "t_ms": "ms"}
_RATE_NAMES = ("fs", "rate_hz")


def recording_from(name: str, arrays: Arrays, options: ReadOptions) -> Recording:
    """Assemble a recording from the arrays of one file.

    Raises:
        ChoiceError: the samples, their block or the rate cannot be told without an option.
        DamagedError: arrays contradict each other in shape; the place is the array.
    """
    key = _samples_key(arrays, options)
    values, unit, found = _samples(arrays, key, options)  # (T, C)
    names = _names(arrays, key, values.shape[1])
    pairs = [split_unit(text) for text in names]
    chosen = positions([pair[0] for pair in pairs], options.columns) if options.columns else list(range(len(pairs)))
    clock = _clock(arrays, chosen, len(values), len(names), options)
    if "note" in arrays:
        found = (*found, f"the file notes: {_text(arrays['note'])}")
    return Recording(
        name=name,
        channels=tuple(Channel(pairs[i][0], pairs[i][1] or unit) for i in chosen),
        rate_hz=clock.rate_hz,
        values=values[:, chosen],
        t0_ns=clock.t0_ns,
        states=_states(arrays, len(values), clock),
        found=(*found, *clock.found),
        gaps=clock.gaps,
    )


def _samples_key(arrays: Arrays, options: ReadOptions) -> str:
    if options.array is not None:
        if options.array not in arrays:
            raise ChoiceError("arrays", f"no array {options.array!r}", f"choose among {_shapes(arrays)}")
        return options.array
    known = [key for key in _KNOWN_SAMPLES if key in arrays]
    if len(known) == 1:
        return known[0]
    numeric = {key: a for key, a in arrays.items() if a.dtype.kind in "biuf" and a.size and key not in _NOT_SAMPLES}
    matrices = [key for key, a in numeric.items() if a.ndim in (2, 3) and min(a.shape[-2:]) > 1]
    vectors = [key for key, a in numeric.items() if _is_vector(a)]
    fitting = known or matrices or vectors
    if len(fitting) != 1:
        problem = f"{len(fitting)} arrays may be the samples" if fitting else "no array looks like samples"
        raise ChoiceError("arrays", problem, f"set array to one of {_shapes(arrays)}")
    return fitting[0]


def _is_vector(array: NDArray[Any]) -> bool:
    return array.ndim in (1, 2) and array.size > 1 and max(array.shape) == array.size


def _samples(arrays: Arrays, key: str, options: ReadOptions) -> tuple[NDArray[np.float64], str, tuple[str, ...]]:
    """Values in float64, shape (T, C), with their unit where the scaling tells it."""
    raw = arrays[key]
    if raw.dtype.kind not in "biuf":
        raise DamagedError(f"array {key}", f"elements of type {raw.dtype}, expected numbers", "set array")
    block = _block(raw, key, options)
    values = block[:, np.newaxis] if block.ndim == 1 else block.T if block.shape[0] == 1 else block
    if values.ndim != 2 or values.shape[0] < values.shape[1]:
        problem = f"shape {raw.shape}, expected (samples, channels) with more samples than channels"
        raise DamagedError(f"array {key}", problem, "store it transposed, or set array")
    if key == "acc" and "scale" in arrays:
        scale = _block(arrays["scale"], "scale", options) if raw.ndim == 3 else arrays["scale"].reshape(-1)
        with np.errstate(all="ignore"):
            scaled = as_float64(values) * _one_a_channel(scale, "scale", values.shape[1])
        return scaled, "", ("values are acc times scale",)
    if key == "acc_counts" and "counts_per_g" in arrays:
        counts_per_g = _one_a_channel(arrays["counts_per_g"], "counts_per_g", values.shape[1])
        if not np.all(counts_per_g > 0):
            raise DamagedError("array counts_per_g", f"found {counts_per_g}, expected above 0", "correct it")
        with np.errstate(all="ignore"):
            return as_float64(values) / counts_per_g, "g", ("values are acc_counts over counts_per_g",)
    return as_float64(values), "", (f"values are array {key}",)


def _block(array: NDArray[Any], key: str, options: ReadOptions) -> NDArray[Any]:
    """One block along the first axis, where `array_index` asks for one."""
    if options.array_index is None:
        if array.ndim == 3:
            remedy = f"set array_index, 0 to {array.shape[0] - 1}"
            raise ChoiceError(f"array {key}", f"shape {array.shape}, several blocks of samples", remedy)
        return array
    if array.ndim < 2 or (array.ndim < 3 and key != "scale"):
        raise ChoiceError(f"array {key}", f"array_index is set, but the shape is {array.shape}", "leave it out")
    if options.array_index >= len(array):
        problem = f"array_index {options.array_index} of {len(array)} blocks"
        raise ChoiceError(f"array {key}", problem, f"set array_index, 0 to {len(array) - 1}")
    block: NDArray[Any] = array[options.array_index]
    return block


def _one_a_channel(numbers: NDArray[Any], key: str, channels: int) -> NDArray[np.float64]:
    """Shape (C,); one number holds for all."""
    if numbers.dtype.kind not in "biuf" or numbers.size not in (1, channels):
        problem = f"{numbers.size} elements of type {numbers.dtype}, expected 1 or {channels} numbers"
        raise DamagedError(f"array {key}", problem, "correct it")
    return np.broadcast_to(as_float64(numbers).reshape(-1), (channels,))


def _names(arrays: Arrays, key: str, channels: int) -> list[str]:
    given = next((name for name in ("channels", "nodes") if name in arrays), None)
    if given is None:
        return [f"{key}_{i + 1}" for i in range(channels)] if channels > 1 else [key]
    names = [str(name).strip() for name in arrays[given].reshape(-1)]
    if len(names) != channels:
        raise DamagedError(f"array {given}", f"{len(names)} names for {channels} channels", "correct it, or set array")
    return names


def _clock(arrays: Arrays, chosen: Sequence[int], rows: int, channels: int, options: ReadOptions) -> Timing:
    t0_ns = _start_ns(arrays)
    key = next((name for name in _RATE_NAMES if name in arrays), None)
    stamps = next((name for name in _TIME_UNITS if name in arrays), None)
    if stamps is not None and (arrays[stamps].size != rows or arrays[stamps].dtype.kind not in "biuf"):
        stamps = None
    if options.rate_hz is None and key is not None:
        rates_hz = set(_one_a_channel(arrays[key], key, channels)[list(chosen)].tolist())
        if len(rates_hz) > 1:
            written = ", ".join(f"{rate:.9g}" for rate in sorted(rates_hz))
            remedy = "choose columns of one rate, or set rate_hz"
            raise ChoiceError(f"array {key}", f"channels of different rates ({written} Hz)", remedy)
        clock = Timing(rates_hz.pop(), t0_ns, (f"rate from array {key}",))
        if stamps is None:
            return clock
        stamped = _clock_of_stamps(arrays[stamps].reshape(-1), stamps, clock.rate_hz)
        known_ns = stamped.t0_ns if t0_ns is None else t0_ns
        return replace(clock, t0_ns=known_ns, found=(*clock.found, *stamped.found[2:]), gaps=stamped.gaps)
    if stamps is not None:
        return _clock_of_stamps(arrays[stamps].reshape(-1), stamps, options.rate_hz)
    if options.rate_hz is None:
        raise ChoiceError("arrays", f"no sampling rate among {_shapes(arrays)}", "set rate_hz")
    return Timing(options.rate_hz, t0_ns, (f"rate {options.rate_hz:g} Hz as declared",))


def _clock_of_stamps(stamps: NDArray[Any], key: str, declared_hz: float | None) -> Timing:
    reader = stamp_reader(str(stamps[0]), _TIME_UNITS[key])
    try:
        stamps_ns = np.array([reader.to_ns(str(stamp)) for stamp in stamps.tolist()], dtype=np.int64)
    except ValueError as error:
        raise DamagedError(f"array {key}", f"not a time ({error})", "set rate_hz and remove the array") from error
    clock = timing(stamps_ns, reader.absolute, declared_hz)
    return replace(clock, found=(reader.meaning, *clock.found))


def _start_ns(arrays: Arrays) -> int | None:
    if "t0" not in arrays or arrays["t0"].size == 0:
        return None
    written = sorted({str(element) for element in arrays["t0"].reshape(-1).tolist()})
    if len(written) > 1:
        raise DamagedError("array t0", f"several start times {shortened(written)}", "keep one of them")
    try:
        numeric = arrays["t0"].dtype.kind in "iuf"
        return stamp_reader(written[0], "s").to_ns(written[0]) if numeric else date_ns(written[0])
    except ValueError as error:
        raise DamagedError("array t0", str(error), "correct it") from error


def _states(arrays: Arrays, rows: int, clock: Timing) -> tuple[State, ...]:
    labels, texts = arrays.get("label"), arrays.get("state_name", arrays.get("state"))
    if labels is not None and labels.dtype.kind not in "biuf":
        raise DamagedError("array label", f"elements of type {labels.dtype}, expected 0, 1 or -1", "correct it")
    if labels is not None and labels.size == rows > 1:
        several = None if texts is None or texts.size != rows else [str(text) for text in texts.reshape(-1)]
        return states_from(as_float64(labels.reshape(-1)), several, clock.rate_hz, clock.gaps)
    if labels is None and texts is None:
        return ()
    if labels is not None and labels.size != 1:
        raise DamagedError("array label", f"{labels.size} labels for {rows} samples", "expected one, or one a sample")
    value = -1.0 if labels is None else float(labels.reshape(-1)[0])
    return (written_state(value, "" if texts is None else _text(texts), 0.0, clock.gaps.end_s(rows, clock.rate_hz)),)


def _text(array: NDArray[Any]) -> str:
    return ", ".join(str(element) for element in array.reshape(-1)[:10])


def _shapes(arrays: Arrays) -> str:
    return shortened([f"{key} {array.dtype}{list(array.shape)}" for key, array in arrays.items()])
