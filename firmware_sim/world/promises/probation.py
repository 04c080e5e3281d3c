"""Whether the probations of a simulated world end: of a sound model once, and a way back on a model that is there.

What a gateway has of models is held against what it committed; how long it has watched, against the windows that it
counted. A store that was handled may hold anything when it opens again, and the models that it names may be lost; from
then on it counts as any other. One that was lost so and is taken again is on probation again, like any that comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedgate.config.settings.settings import GatewaySettings
from fedgate.firmware_sim.world.environment.disk import Renewed
from fedgate.gateway_agent import events
from fedgate.gateway_agent.deployment.deployment import (
    MODEL,
    MODELS,
    OTHER,
    UNREADABLE,
    Models,
    SlotEntry,
    is_proven,
    name_manifest,
    read,
    restore_models,
)
from fedgate.gateway_agent.deployment.probation import STORED_S
from fedgate.gateway_agent.state import State, Stored

# Not every window counts for a model: one whose memory is fresh says nothing of some, after each gap in the samples.
WINDOWS_PER_COUNTED, SETTLING_WINDOWS = 4, 60
FRAME_WINDOWS = 8  # at most, that one message of a sensor completes: they are counted together


@dataclass
class Device:
    """What a device has committed of its models, and how long it has watched since its start."""

    settings: GatewaySettings
    slots: dict[str, str] = field(default_factory=dict)  # slot -> name of the manifest in it
    models: Models = field(default_factory=Models)
    proven: set[str] = field(default_factory=set)  # names of manifests whose probations are over
    begun: tuple[str, int] = ("", 0)  # the model on probation, and the windows of this start before it was
    watched: SlotEntry | None = None  # the model on probation, as long as all of it was stored
    windows: int = 0  # that it was watched for
    spared: set[str] = field(default_factory=set)  # names of manifests that may be lost: the store was handled


class Probations:
    """The probations of a world, by device."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self._devices: dict[str, Device] = {}
        self.counts = {"proven": 0, "rolled_back": 0}

    def known(self, device: str, settings: GatewaySettings) -> None:
        """Take note of a device and its settings."""
        self._devices[device] = Device(settings)

    def doubled(self, device: str, host: str) -> None:
        """Take note of a copy of a device."""
        one, other = self._devices[device], self._devices[host]
        one.slots, one.models, one.proven = {**other.slots}, other.models, {*other.proven}
        one.spared = {*other.spared}

    def committed(self, device: str, effects: Sequence[events.Durable | Renewed]) -> None:
        """Take note of what a gateway's store holds from now on."""
        saved = {effect.key: effect.body for effect in effects if isinstance(effect, events.Save)}
        if not saved.keys() & {MODEL, OTHER, MODELS}:
            return
        one, slots = self._devices[device], _named(saved)
        taken_again = one.spared.intersection(slots.values()).difference(one.slots.values())
        one.proven -= taken_again
        one.slots |= slots
        if MODELS not in saved:
            return
        before, one.models = one.models, restore_models(saved)
        self._compare(device, one, before)
        if one.models.current.version and is_proven(one.models, one.settings):
            self.counts["proven"] += one.models.current.name not in one.proven
            one.proven.add(one.models.current.name)

    def _compare(self, device: str, one: Device, before: Models) -> None:
        models, current = one.models, one.models.current
        if current.version and one.slots.get(models.slot) != current.name and current.name not in one.spared:
            self._violate(f"{device} goes on with model {current.version}, which is not in its store")
        final = {rejected.name for rejected in models.rejected if rejected.is_final}
        if before.current.version and current != before.current and before.current.name in final:
            self.counts["rolled_back"] += 1
            if before.current.name in one.proven:
                self._violate(f"{device} gave up model {before.current.version}, whose probation was over")
            if current.version and current.name in final:
                self._violate(f"{device} went back to model {current.version}, which it had given up")
        # After a way back nothing stands beside it, and its windows are counted anew.
        if current.name in one.proven and models.previous.version and not is_proven(models, one.settings):
            self._violate(f"{device} has model {current.version} on probation, which was over")

    def opened(self, device: str, stored: Stored, *, is_handled: bool) -> None:
        """Hold what a store has of models against what was committed; it alone counts from now on."""
        one, models = self._devices[device], restore_models(stored.blobs)
        if not is_handled and models != one.models:
            self._violate(f"the store of {device} has other models than it committed: {models}, {one.models}")
        if not is_handled and one.watched == models.current and not is_proven(models, one.settings):
            lost = one.windows - models.windows
            if lost > STORED_S / one.settings.features.hop_s + FRAME_WINDOWS:
                self._violate(f"{device} lost {lost} windows of a probation in a restart")
        one.models, one.begun, one.watched, one.windows = models, ("", 0), None, 0
        one.slots = _named(stored.blobs)
        if is_handled:
            one.proven, one.spared = set(), {models.current.name, models.previous.name}

    def stepped(self, device: str, state: State) -> None:
        """See that the probation at hand has not lasted for longer than it should."""
        one, current, windows = self._devices[device], state.deployment.models.current, state.monitor.windows
        if state.deployment.trial is None or state.deployment.is_stood_in_for:
            one.begun, one.watched = ("", 0), None
            return
        if one.begun[0] != current.name:
            one.begun = (current.name, windows)
        needed = one.settings.models.probation_s / one.settings.features.hop_s
        counted = windows - one.begun[1]
        if (
            is_proven(state.deployment.models, one.settings)
            or counted > WINDOWS_PER_COUNTED * needed + SETTLING_WINDOWS
        ):
            self._violate(f"{device} has watched {counted} windows with model {current.version}, still on probation")
            one.begun = (current.name, windows)
        one.watched, one.windows = None if state.context.store.is_unstored else current, state.deployment.models.windows


def _named(blobs: Mapping[str, bytes]) -> dict[str, str]:
    """Return the names of the manifests in the slots of a store, by slot; of one that is damaged an empty one."""
    names = {}
    for slot in (MODEL, OTHER):
        if slot in blobs:
            try:
                names[slot] = name_manifest(read(blobs[slot]).manifest)
            except UNREADABLE:
                names[slot] = ""
    return names
