"""A site of gateways with models to release: the machines of `sites`, and a store that holds staged releases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fedgate.cloud_aggregator import events as cloud_events
from fedgate.cloud_aggregator import state as cloud_state
from fedgate.cloud_aggregator.releases.releases import Rollout, restore
from tests.gateway_agent.deployment.test_gateway_models import Made
from tests.support.sites import CloudShelf, Site, aggregator_settings, gateway_settings, samples, start_cloud, topic

STATUS_S = 10.0
NEVER = {"quorum": 99}  # no training


@dataclass
class StagedShelf(CloudShelf):
    """What the aggregator's store would hold of models."""

    models: dict[int, Made] = field(default_factory=dict)
    rollout: bytes | None = None
    answers: dict[int, tuple[str, str]] = field(default_factory=dict)

    def commit(self, effects: Iterable[object]) -> None:
        held = list(effects)
        super().commit(held)
        for effect in held:
            match effect:
                case cloud_events.RecordModel(manifest=manifest, body=body):
                    self.models[manifest.version] = (manifest, body)
                case cloud_events.SaveRollout(body=body):
                    self.rollout = body
                case cloud_events.Answered(number=number, text=text, problem=problem):
                    self.answers[number] = (text, problem)


class Fleet(Site):
    """A site whose aggregator gives models to some first."""

    def __init__(self, *names: str, rounds: dict[str, Any] | None = None, **release: Any) -> None:
        self.staged = StagedShelf()
        cloud = aggregator_settings(rounds=rounds or NEVER, release=release)
        tables = {"exchange": {"status_s": STATUS_S}, "models": {"probation_s": 3_000.0}}
        super().__init__(cloud, [gateway_settings(name, **tables) for name in names])
        self.cloud_shelf = self.staged
        self.windows = dict.fromkeys(names, 60)

    def _cloud(self) -> cloud_state.State:
        shelf = self.staged
        released = restore(shelf.rollout, shelf.models.get, shelf.released)
        stored = cloud_state.Stored(shelf.training, released, dict(shelf.gateways), held=dict(shelf.held))
        return start_cloud(self.cloud_settings, stored, self.now_ns)

    def order(self, kind: str, made: Made | None = None, **body: Any) -> tuple[str, str]:
        """Give an order, as the command does; a model is one of the store."""
        number = len(self.staged.answers) + 1
        if made is not None:
            body["version"] = made[0].version
        self.step_cloud(cloud_events.Ordered(number, kind, body, made))
        return self.staged.answers[number]

    def watch(self, windows: int, shift: float = 0.0, *only: str) -> None:
        """Let gateways watch, and then tell of it."""
        for name in only or tuple(self.agents):
            self.feed(name, samples(self.windows[name], windows, shift), float(self.windows[name]), frame_s=64.0)
            self.windows[name] += windows
        self.told()

    def told(self) -> None:
        for _ in range(3):
            self.flow()
            self.tick(STATUS_S)
        self.flow()

    @property
    def stage(self) -> Rollout:
        return self.cloud.releases.rollout

    def versions(self) -> dict[str, int]:
        return {
            name: one.deployment.manifest.version if one.deployment.manifest else 0 for name, one in self.agents.items()
        }

    def own(self, name: str) -> bool:
        """Tell whether something is retained for one gateway alone."""
        return topic(name, "manifest", "current") in self.retained
