"""Settings of algorithms, from a file or from Python: what is of another type is refused, true is no number (ours)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Strict, model_validator

Several = TypeVar("Several")

STRICT = ConfigDict(strict=True)
Listed = Annotated[Several, Strict(False)]  # a tuple that a file gives as a list; what is in it stays strict


class Options(BaseModel):
    """A table of settings: no unknown key, no change after loading, nothing infinite or of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _as_plain(cls, given: Any) -> Any:
        return plain(given)


def plain(given: Any) -> Any:
    """Return settings, a table of them or a list, with numbers and arrays of numpy, which a grid of them holds, as
    numbers and lists of Python.
    """
    if isinstance(given, np.generic | np.ndarray):
        return given.tolist()
    if isinstance(given, Mapping):
        return {key: plain(value) for key, value in given.items()}
    return type(given)(map(plain, given)) if type(given) in (list, tuple) else given
