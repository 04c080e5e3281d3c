"""The models between two events: the one that all have, and the one whose release is under way."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.limits import Spent
from fedgate.cloud_aggregator.releases import build
from fedgate.cloud_aggregator.releases.rollout import BuiltModel, Staging
from fedgate.config.protocol.messages import Manifest, Newest
from fedgate.models.records import replace

NOTHING_NEWEST = Newest(version=0, highest_version=0, training=0)


@dataclass(frozen=True)
class Releases:
    """What is released, and what was published of it."""

    manifest: Manifest | None = None  # of the model that all have
    model: bytes = b""
    staging: Staging = field(default_factory=Staging)  # of a model that not all have yet
    newest: Newest = NOTHING_NEWEST  # that was published last, or came back to an aggregator that had lost its own
    announced_week: int = -1  # in which what is retained was signed
    reminded_ns: int = (
        0  # since the boot, when manifests were last repeated to those who seem not to have received them
    )
    fetched: dict[str, Spent] = field(default_factory=dict)  # by gateway: bodies, see `announce.send_due_chunks`

    @property
    def everywhere(self) -> BuiltModel | None:
        """The model that all have."""
        return None if self.manifest is None else BuiltModel(self.manifest, self.model)

    @property
    def version(self) -> int:
        """The version of the model that all have; 0 where there is none."""
        return 0 if self.manifest is None else self.manifest.version

    @property
    def highest_version(self) -> int:
        """The highest version that this aggregator gave to a model, also where its record of that was lost and its own
        signed word of it came back. What gateways say of theirs counts for nothing.
        """
        return max(self.newest.highest_version, self.version, self.staging.newest)


def restore(context: Context, released: tuple[Manifest, bytes] | None, staging: Staging) -> Releases:
    """Return the releases that go on from what the store held."""
    rollout = staging.rollout
    # Begun now at the latest: the clock that it began by may have been ahead.
    since_ns = min(rollout.since_ns - context.anchor_ns, context.uptime_ns)
    releases = Releases(
        staging=replace(staging, rollout=replace(rollout, since_ns=since_ns)), reminded_ns=context.uptime_ns
    )
    if released is None:
        return releases
    return replace(releases, manifest=build.fitting(*released, context.settings.limits), model=released[1])
