"""What all tables of settings files are made of."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]


def _resolve(given: Any, parse: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Path:
    """Return a path as a settings file means it: from the folder of that file, which is the context; `~` is a home."""
    path = given if isinstance(given, Path) else parse(given)  # a default is one already
    try:
        return (info.context or Path()) / path.expanduser()
    except RuntimeError as error:  # of a home, such as ~somebody, that there is not
        raise ValueError(f"begins with ~ and cannot be understood ({error})") from None


FilePath = Annotated[Path, WrapValidator(_resolve)]


class Table(BaseModel):
    """A table of a settings file: unknown keys are errors, values do not change after loading."""

    # Built when first used: a gateway would pay a MiB for what only the aggregator reads. What is not given is checked
    # too, as a path that is left to its default belongs beside the file.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,
        validate_default=True,
        revalidate_instances="always",
    )


def is_loopback(host: str) -> bool:
    """Tell whether a host is reached without leaving this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
