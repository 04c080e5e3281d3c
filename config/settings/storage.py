"""What a gateway may keep on its flash, and how often it may write there: the table [store] of gateway.toml."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedgate.config.settings.base import Table

MIB = 1024 * 1024


class Keeping(Table):
    """[store]: bounds of what waits to be sent, and of what is written in a day."""

    max_bytes: Annotated[int, Field(ge=64 * 1024, le=4096 * MIB)] = 64 * MIB  # of what waits to be sent
    group_commit_s: Annotated[float, Field(ge=0, le=3_600)] = 60.0  # how long what may wait waits to be written
    flash_bytes_per_day: Annotated[int, Field(ge=MIB)] = 32 * MIB  # beyond that telemetry is not stored any more
