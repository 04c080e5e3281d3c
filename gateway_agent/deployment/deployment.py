"""The record of models on this gateway: the one in force, the one before, and the one that may come."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedgate.config.protocol.messages import Manifest
from fedgate.gateway_agent.deployment.slots import Models, Trial
from fedgate.gateway_agent.runtime.model_trial import Examine, take_any


@dataclass(frozen=True)
class Deployment:
    """A model's way into force, and back."""

    models: Models = field(default_factory=Models)
    manifest: Manifest | None = None  # the model in force
    trial: Trial | None = None  # the model before, while the one in force is on probation
    candidate: Manifest | None = None  # the model on its way
    candidate_is_own: bool = False  # whether it was announced to this gateway alone
    announced: int = 0  # the highest version of a model whose announcement this process found to be signed
    marked: frozenset[str] = frozenset()  # digests of models whose loads this process has marked
    tried: tuple[str, int] = ("", 0)  # the manifest whose model is or may be loaded, and when it was marked or loaded
    examine: Examine = take_any  # tries a model where it can do no harm, before it is loaded here
    untried_ns: int | None = None  # when that could not begin
    unrun_ns: int | None = None  # when a model that was proven last could not be run, or began to rest
    reload_due: str | None = None  # the stored model is to be loaded again or, for the reason given, the one before
    unlent: str = ""  # the manifest, by its signed digest, whose site has no level for this gateway
    refused: tuple[str, str] = ("", "")  # the manifest refused last, by its signed digest, and why

    @property
    def is_stood_in_for(self) -> bool:
        """Whether the model before is in force until the next start, as the stored one cannot be."""
        return self.manifest is not None and self.manifest.version < self.models.current.version

    @property
    def version(self) -> int:
        """The version of the model in force; 0: none is."""
        return self.manifest.version if self.manifest else 0

    @property
    def highest_version(self) -> int:
        """The highest version of a model that this gateway has, had, refused or is about to have."""
        refused = max((one.version for one in self.models.rejected), default=0)
        candidate = self.candidate.version if self.candidate else 0
        return max(self.models.newest, self.announced, refused, candidate)
