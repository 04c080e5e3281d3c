"""Raw samples around alarms: what a gateway keeps of them, and what a site fetches; both are off unless switched on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from fedgate.config.settings.base import Table

KIB, MIB = 1024, 1024 * 1024
CLIP_BYTES_MAX = 16 * MIB  # of one clip, anywhere


class SamplesTable(Table):
    """[samples] of a gateway; without this table it keeps and sends no raw sample.

    :param before_s: how much is kept from before an anomaly is raised; in memory alone while there is none.
    :param after_s: how much is kept from after that.
    :param max_clip_bytes: of one clip, and of the samples in memory; what would be longer is cut.
    :param max_bytes: of the file beside the store, in which the oldest clip makes way for the newest.
    :param bytes_per_day: written into that file; what would be more is not kept.
    """

    before_s: Annotated[float, Field(ge=0, le=3_600)] = 60.0
    after_s: Annotated[float, Field(ge=0, le=3_600)] = 60.0
    max_clip_bytes: Annotated[int, Field(ge=64 * KIB, le=CLIP_BYTES_MAX)] = 4 * MIB
    max_bytes: Annotated[int, Field(ge=128 * KIB, le=4096 * MIB)] = 32 * MIB
    bytes_per_day: Annotated[int, Field(ge=64 * KIB)] = 8 * MIB

    @model_validator(mode="after")
    def _check_one_fits(self) -> SamplesTable:
        if 2 * self.max_clip_bytes > self.max_bytes:
            raise ValueError(
                f"max_bytes = {self.max_bytes} is less than two clips of max_clip_bytes = {self.max_clip_bytes}; "
                "expected at least twice as much, or the newest clip would leave no other"
            )
        return self


class FetchTable(Table):
    """[samples] of an aggregator: whether operators may fetch raw samples, and how much of them is kept."""

    fetch: bool = False
    max_clip_bytes: Annotated[int, Field(ge=64 * KIB, le=CLIP_BYTES_MAX)] = CLIP_BYTES_MAX
    max_gateway_bytes: Annotated[int, Field(ge=64 * KIB)] = 64 * MIB
    max_bytes: Annotated[int, Field(ge=64 * KIB)] = 256 * MIB

    @model_validator(mode="after")
    def _check_one_fits(self) -> FetchTable:
        if not self.max_clip_bytes <= self.max_gateway_bytes <= self.max_bytes:
            raise ValueError(
                f"expected max_clip_bytes <= max_gateway_bytes <= max_bytes, got {self.max_clip_bytes}, "
                f"{self.max_gateway_bytes}, {self.max_bytes}"
            )
        return self
