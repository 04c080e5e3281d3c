"""The binary sample frame: a block of samples from a sensor node, as arrays on the wire.

Meta: `t_ns` time of the first sample, `rate_hz`, `clock` (`utc`: Unix time, `boot`: time since the node started),
`boot` an id of this run of the node, `sequence` a running number. Array `values` (T, C), any number type; float32 keeps
a frame small. Times and durations are bounded, so that one frame with a wrong rate or clock can neither overflow the
arithmetic behind it nor claim a million lost windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import MessageError, find_first_problem
from fedgate.models.arrays import Array

SAMPLES_MAX = 1_000_000
DURATION_S_MAX = 3_600.0
TIME_NS_MAX = 2**62  # the year 2116


class FrameMeta(BaseModel):
    """What a frame says of its samples."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    t_ns: int = Field(ge=-TIME_NS_MAX, le=TIME_NS_MAX)
    rate_hz: float = Field(ge=1e-6, le=1e9)
    clock: Literal["utc", "boot"] = "utc"
    boot: str = Field(default="", max_length=64)
    sequence: int = Field(default=0, ge=0)


@dataclass(frozen=True)
class Frame:
    """A block of samples: values (T, C) of any number type, one column a channel of the stream."""

    meta: FrameMeta
    values: Array

    def to_bytes(self) -> bytes:
        """Return the frame as a message."""
        return wire.encode({"values": np.asarray(self.values, dtype=np.float32)}, self.meta.model_dump())

    @classmethod
    def from_bytes(cls, payload: bytes) -> Frame:
        """Return the frame in a message; raises `MessageError`."""
        try:
            arrays, meta = wire.decode(payload)
            checked = FrameMeta.model_validate(meta)
        except wire.WireError as error:
            raise MessageError(f"frame: {error}") from None
        except ValidationError as error:
            raise MessageError(f"frame: {find_first_problem(error)}") from None
        values = arrays.get("values")
        if values is None or values.ndim != 2 or not 1 <= len(values) <= SAMPLES_MAX:
            shape = None if values is None else values.shape
            raise MessageError(f"frame: expected an array 'values' (1 to {SAMPLES_MAX}, channels), got {shape}")
        if (len(values) - 1) / checked.rate_hz > DURATION_S_MAX:
            given = f"{len(values)} samples at {checked.rate_hz:g} Hz"
            raise MessageError(f"frame: expected at most {DURATION_S_MAX:g} s in one frame, got {given}")
        return cls(checked, values)
