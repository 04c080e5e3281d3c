"""What all tables of settings files are made of."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]


class Table(BaseModel):
    """A table of a settings file: unknown keys are errors, values do not change after loading."""

    # Built when first used: a gateway would pay a MiB for what only the aggregator reads.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


def is_loopback(host: str) -> bool:
    """Tell whether a host is reached without leaving this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
