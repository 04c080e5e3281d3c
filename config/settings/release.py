"""How models come into force: for how long a gateway watches a new one, and who of a fleet has it first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedgate.config.settings.base import FilePath, NotNegative, Positive, Share, Table


class Trust(Table):
    """[trust] of gateway.toml: whose models this gateway runs."""

    release_key: FilePath = Path("release.pub")
    # Of a gateway that was enrolled: who may put another release key and another authority in place of those here.
    root_key: FilePath = Path("root.pub")
    keys: FilePath = Path("keys.json")  # the newest statement of keys that the root key signed


class ModelsTable(Table):
    """[models] of gateway.toml."""

    # For how long a new model is watched beside the one before, which is back in force by itself where it breaks the
    # promise; counted in time that the gateway has watched. 0: not at all.
    probation_s: NotNegative = 86_400.0


class ReleaseTable(Table):
    """[release] of aggregator.toml: who gets a model that was made, and what stops it."""

    mode: Literal["all", "staged", "manual"] = "all"
    canary: Share = 0.1  # of the gateways, one at least, which get a model before the others
    watch_s: Positive = 86_400.0  # for which each of them watches with it, counted by its windows
    alarm_factor: Annotated[float, Field(ge=1)] = 3.0  # times what is promised, or what the other gateways raise
    rejected_share: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of the canaries, that may refuse it or go back from it
    patience_s: Positive = 604_800.0  # then a release that canaries have not watched is paused
