"""What every table of a settings file is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table of a settings file: unknown keys are errors, values do not change after loading."""

    # Built when first used: a gateway would pay a MiB for what only the aggregator reads.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
