"""The record of models on this gateway: the one in force, the one before, the one that may come, and those that it will
not have again.

On the disk two slots hold models, as two partitions hold a system: the one in force and the one before it. A swap
writes the slot that is not in force and, in the same transaction, which slot is; going back writes the latter alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Manifest, MessageError
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent.events import Save, Wanted
from fedgate.gateway_agent.feature_row import Row
from fedgate.gateway_agent.pipeline.pipeline import Pipeline, WindowResult
from fedgate.gateway_agent.pipeline.recurrence import Gaps
from fedgate.models.arrays import Arrays, joined, parted

MODELS, MODEL, OTHER = "models", "model", "model.b"  # keys of stored blobs
UNREADABLE = (wire.WireError, MessageError, KeyError)
REJECTED_MAX = 8  # remembered; what is older is below the newest version anyway
REASON_LENGTH = 300
STARTS_MAX = 3  # loads of a model in one boot of which none was finished: then it is the model that ends the agent
LOADS_MAX = 10  # the same over all boots, each of which may as well have been a power cut


class Rejected(NamedTuple):
    """A version that this gateway did not take or went back from, by the name of its manifest, and why."""

    version: int
    name: str
    why: str
    is_final: bool = True  # otherwise other settings may change that, so it is looked at again after a start


class SlotEntry(NamedTuple):
    """A model in a slot: its version (0: none), the digest of its bytes, the name of its manifest, and whether it was
    announced to this gateway alone.
    """

    version: int = 0
    digest: str = ""
    name: str = ""
    is_own: bool = False

    @classmethod
    def of(cls, manifest: Manifest, *, is_own: bool = False) -> SlotEntry:
        """Return what is remembered of a model in a slot."""
        return cls(manifest.version, manifest.model.digest, name_manifest(manifest), is_own)


NOTHING = SlotEntry()


class LoadAttempts(NamedTuple):
    """Loads of a model since one was finished: in one boot, the id of that boot, and in all.

    The power takes the boot with it and a model that ends the process does not, so they are counted apart.
    """

    in_boot: int = 0
    boot_id: str = ""
    in_all: int = 0
    rests: bool = False  # not loaded at this start; the next one tries again, once, or this one after an hour

    def with_load(self, boot_id: str) -> LoadAttempts:
        """Return the same with a load more, in this boot."""
        return LoadAttempts(self.in_boot + 1 if boot_id == self.boot_id else 1, boot_id, self.in_all + 1)

    def resting(self) -> LoadAttempts:
        """Return the same for a start that does without."""
        return LoadAttempts(STARTS_MAX - 1, self.boot_id, LOADS_MAX - 1, rests=True)

    def why_no_more(self, boot_id: str) -> str:
        """Return why there is not to be another in this boot, or an empty string: what ended the last load of another
        boot was the power, for all that is known.
        """
        in_boot = self.in_boot if boot_id == self.boot_id else 0
        if in_boot < STARTS_MAX and self.in_all < LOADS_MAX:
            return ""
        return f"the agent ended {max(in_boot, self.in_all)} times in a row while it loaded it"


UNTRIED = LoadAttempts()


class UntriedError(RuntimeError):
    """No process could try the model; the message says why."""


class Examination(NamedTuple):
    """A model with this gateway's own tensors for it, and what it is run on."""

    model: bytes
    personal: Arrays
    golden_x: Row  # (k, F), of the golden pair
    rows: Row  # (n, F), the baseline
    gaps: Gaps  # (n,)
    recent: Row  # (m, F), the windows seen last


Examine = Callable[[Examination], object]  # raises `session.ModelRefusedError` or `UntriedError`


def take_any(_asked: Examination) -> None:
    """Try nothing, as a simulation does and a start, which loads what came through before."""


class Bundle(NamedTuple):
    """A model as it is loaded and stored: what is said of it, its bytes, and this gateway's own tensors for it."""

    manifest: Manifest
    body: bytes
    personal: Arrays


@dataclass(frozen=True)
class Models:
    """What is remembered of models from one start to the next."""

    slot: str = MODEL  # of the model in force
    newest: int = 0  # the highest version that was ever in force
    current: SlotEntry = NOTHING
    previous: SlotEntry = NOTHING  # in the other slot, to go back to
    windows: int = 0  # judged by the model in force
    alarms: int = 0  # of the structure, raised under it
    blocks: int = 0  # of its probation, in which the model before was calm ...
    alarmed: int = 0  # ... and it was not
    compared: int = 0  # windows that both judged
    differing: int = 0  # of these: one was at its level, the other was not
    trying: Mapping[str, LoadAttempts] = field(
        default_factory=lambda: MappingProxyType({})
    )  # digest -> loads not finished
    rejected: tuple[Rejected, ...] = ()

    @property
    def other(self) -> str:
        """The slot that is not in force."""
        return OTHER if self.slot == MODEL else MODEL

    def list_marked_at_start(self) -> frozenset[str]:
        """Return the model whose load `mark_at_start` has marked; also where its bytes turn out to be lost.

        None where it rests as the one in force does: whatever loads it later has to mark it.
        """
        digest = (self.previous if self.find_attempts(self.current.digest).rests else self.current).digest
        return frozenset() if self.find_attempts(digest).rests else frozenset({digest})

    def rejecting(self, one: Rejected) -> Models:
        """Return the same with a version more that is not taken."""
        others = tuple(other for other in self.rejected if other.name != one.name)
        kept = one._replace(why=one.why[:REASON_LENGTH])
        return replace(self, rejected=(*others, kept)[-REJECTED_MAX:])

    def why_not(self, name: str) -> str:
        """Return why a manifest is never taken, or an empty string."""
        return next((one.why for one in self.rejected if one.name == name and one.is_final), "")

    def with_load(self, digest: str, boot_id: str) -> Models:
        """Return the same with a load more that has begun; to be stored before it begins."""
        return replace(self, trying={**self.trying, digest: self.find_attempts(digest).with_load(boot_id)})

    def find_attempts(self, digest: str) -> LoadAttempts:
        """Return the loads of a model that were not finished."""
        return self.trying.get(digest, UNTRIED)

    def resting(self, digest: str) -> Models:
        """Return the same with a model that is not loaded at this start."""
        return replace(self, trying={**self.trying, digest: self.find_attempts(digest).resting()})

    def finished(self, *digests: str) -> Models:
        """Return the same without the loads of these models, or of any, that have not ended: this agent lives."""
        left = {digest: tries for digest, tries in self.trying.items() if digests and digest not in digests}
        return replace(self, trying=left)

    def back(self) -> Models:
        """Return the same with the model before in force, as if it had never been replaced, or with none."""
        slot = self.other if self.previous.version else self.slot
        return Models(slot, self.newest, self.previous, trying=self.trying, rejected=self.rejected)


@dataclass(frozen=True)
class Probation:
    """The model before, which judges the windows of the one in force, and the block of windows at hand."""

    manifest: Manifest
    pipeline: Pipeline
    windows: int = 0
    alarmed: bool = False
    was_alarmed: bool = False  # the model before
    blind: int = 0  # windows without a finite score where the model before has one
    slow: int = 0  # steps in a row that took longer than the windows in them


@dataclass(frozen=True)
class Deployment:
    """A model's way into force, and back."""

    models: Models = field(default_factory=Models)
    manifest: Manifest | None = None  # the model in force
    trial: Probation | None = None  # the model before, while the one in force is on probation
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


Result = tuple[Deployment, list[Wanted]]
Swap = tuple[Deployment, Pipeline, list[Wanted]]  # a model in force judges in the pipeline


def count_judged(readings: Sequence[WindowResult]) -> int:
    """Return how many windows the model in force has judged."""
    return sum(reading.height is not None for reading in readings)


def count_windows(deployment: Deployment, readings: Sequence[WindowResult]) -> Result:
    """Count what the model in force said of windows; that it raised an alarm is stored."""
    judged, models = count_judged(readings), deployment.models
    raised = sum(reading.transition is not None and reading.transition.kind == "raised" for reading in readings)
    if judged and not deployment.is_stood_in_for:
        models = replace(models, windows=models.windows + judged, alarms=models.alarms + raised)
    return replace(deployment, models=models), [save(models)] if raised and models.current.version else []


def save(models: Models) -> Save:
    """Return the effect that stores what is remembered of models."""
    return Save(MODELS, json.dumps({**asdict(replace(models, trying={})), "trying": dict(models.trying)}).encode())


def restore_models(blobs: Mapping[str, bytes]) -> Models:
    """Return what the store remembers of models."""
    if MODELS in blobs:
        known: dict[str, Any] = json.loads(blobs[MODELS])
        rejected = tuple(Rejected(*one) for one in known["rejected"])
        slots = {"current": SlotEntry(*known["current"]), "previous": SlotEntry(*known["previous"])}
        trying = {digest: LoadAttempts(*one) for digest, one in known["trying"].items()}
        return Models(**{**known, **slots, "rejected": rejected, "trying": trying})
    return Models()


def save_model(bundle: Bundle, slot: str = MODEL) -> Save:
    """Return the effect that stores a model with the gateway's own tensors in it, which may change later."""
    parts = {"manifest": bundle.manifest.to_bytes(), "onnx": bundle.body}
    blobs = {name: np.frombuffer(part, np.uint8) for name, part in parts.items()}
    own = bundle.personal
    return Save(slot, wire.encode({**blobs, **joined({"personal": own})}, {"personal": sorted(own)}))


def read(stored: bytes) -> Bundle:
    """Return a stored model.

    Raises one of `UNREADABLE` for what is no stored model.
    """
    arrays, _ = wire.decode(stored, size_max=len(stored))
    personal = parted(arrays).get("personal", {})
    return Bundle(Manifest.from_bytes(arrays["manifest"].tobytes()), arrays["onnx"].tobytes(), personal)


def find_in_force(blobs: Mapping[str, bytes]) -> bytes | None:
    """Return the stored model in force."""
    models = restore_models(blobs)
    return blobs.get(models.slot) if models.current.version else None


def compute_probation_left_s(models: Models, settings: GatewaySettings) -> float:
    """Return for how long the model in force would still be watched, in time that it has watched."""
    return max(settings.models.probation_s - models.windows * settings.features.hop_s, 0.0)


def is_proven(models: Models, settings: GatewaySettings) -> bool:
    """Tell whether the model in force has come through its probation."""
    return compute_probation_left_s(models, settings) == 0


def put_in_slot(deployment: Deployment, bundle: Bundle) -> tuple[Models, list[Save]]:
    """Return what is remembered with another model in force, and what is stored of it; the proven one before is kept
    in the other slot.
    """
    models, current = deployment.models, SlotEntry.of(bundle.manifest, is_own=deployment.candidate_is_own)
    is_another = models.current.name != current.name
    is_loaded = deployment.manifest is not None and not deployment.is_stood_in_for
    is_kept = is_loaded and deployment.trial is None and models.current.version > 0 and is_another
    models = Models(
        slot=models.other if is_kept else models.slot,
        newest=max(models.newest, current.version),
        current=current,
        previous=models.current if is_kept else models.previous,
        trying=models.trying,
        rejected=models.rejected,
    )
    return models, [save_model(bundle, models.slot), save(models)]


def mark_at_start(blobs: Mapping[str, bytes], boot_id: str, settings: GatewaySettings) -> Save | None:
    """Return what is to be stored before an agent starts to load the model in force: that it does, or, where several
    starts have not come through that, that it goes back to the one before.

    A model that was proven, or the only one, is not given up for that: it rests for one start, in which the one before
    stands in for it, for what ends an agent may as well be a library, or memory that lacks.
    """
    models = restore_models(blobs)
    current, before = models.current, models.previous
    if current.version == 0:
        return None
    reason = models.find_attempts(current.digest).why_no_more(boot_id)
    if reason and before.version and not is_proven(models, settings):
        rejected = Rejected(current.version, current.name, f"model {current.version} rolled back: {reason}")
        models, reason = models.back().finished().rejecting(rejected), ""
    if not reason:
        return save(models.with_load(models.current.digest, boot_id))
    models = models.resting(current.digest)
    if before.version:
        is_deadly = bool(models.find_attempts(before.digest).why_no_more(boot_id))
        models = models.resting(before.digest) if is_deadly else models.with_load(before.digest, boot_id)
    return save(models)


def save_at_stop(deployment: Deployment) -> list[Save]:
    """Return what is stored at a stop that is no crash; a candidate is marked also where no model is in force."""
    models = deployment.models
    return [save(models.finished())] if models.current.version or models.trying else []


def name_manifest(manifest: Manifest) -> str:
    """Return the name of a manifest: a digest of what it says of its model, the same when it is signed anew."""
    return hashlib.sha256(manifest.content_bytes()).hexdigest()
