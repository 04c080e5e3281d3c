"""Settings of algorithms, from a file or from Python: what is of another type is refused, true is no number (ours)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Strict

Several = TypeVar("Several")

STRICT = ConfigDict(strict=True)
Listed = Annotated[Several, Strict(False)]  # a tuple that a file gives as a list; what is in it stays strict


class Options(BaseModel):
    """A table of settings: no unknown key, no change after loading, nothing infinite or of another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the numbers of numpy, which a grid of them holds, as numbers of Python."""
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in settings.items()}
