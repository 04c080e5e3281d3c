"""Everything the agent knows, as one value; `start` makes it from what was stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import numpy as np

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import SHORT_MAX, Device, Manifest, Newest, RoundOpen, Score, Status, round_number
from fedgate.config.protocol.topics import Topic, topic_of
from fedgate.config.protocol.transfer import Assembly
from fedgate.config.runtime.clock import Quality
from fedgate.config.runtime.version import VERSION
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent import store_identity as life
from fedgate.gateway_agent.deployment.slots import Models, Trial, told
from fedgate.gateway_agent.events import Effect, Item, Publish, Save
from fedgate.gateway_agent.monitor import decision
from fedgate.gateway_agent.monitor import pipeline as walk
from fedgate.gateway_agent.monitor import recurrence as recall
from fedgate.gateway_agent.monitor.decision import SCORE
from fedgate.gateway_agent.monitor.recurrence import Seen
from fedgate.gateway_agent.outbox.connection import Line
from fedgate.gateway_agent.outbox.item_size import held_bytes
from fedgate.gateway_agent.runtime.model_trial import Examine, take_any
from fedgate.gateway_agent.runtime.signature_worker import Take, Verified, take_none
from fedgate.gateway_agent.runtime.write_budget import Day
from fedgate.gateway_agent.sources.frames import Offsets
from fedgate.gateway_agent.store_identity import Life
from fedgate.models.arrays import Arrays, is_fleeting
from fedgate.models.federated.algorithm import EPSILON, ledger_of, outlives
from fedgate.models.records import replace

# Keys of stored blobs.
OWN, COUNTED, MEMORY = "own", "counted", "memory"
ALARMS, FEATURES, SECRET = "alarms", "features", "secret"
FLASH, RESCUED, NEWEST, INVITED, PRIVACY = "flash", "rescued", "newest", "invited", "privacy"
SIGNER = "signer"
ANOMALY = "anomaly"  # the cause of an alarm about the structure


class BaselineError(ValueError):
    """A stored baseline that cannot go on under the present settings; the message says what to do."""


@dataclass(frozen=True)
class Fetch:
    """A body on its way down, and when to ask for what is still missing."""

    assembly: Assembly
    ask_at_ns: int
    tries: int = 0


@dataclass(frozen=True)
class Stored:
    """What the store held when the agent started."""

    baseline: tuple[Seen, ...] = ()
    blobs: dict[str, bytes] = field(default_factory=dict)
    outbox: dict[str, Item] = field(default_factory=dict)


class RaisedBy(NamedTuple):
    """What raised the active anomaly, and so is named when it clears."""

    rule: str = SCORE
    feature: str = ""


BY_SCORE = RaisedBy()


class RaisedIn(NamedTuple):
    """When an alarm was raised, by what no clock can repeat: the boot, and its number among all items of its store."""

    boot_id: str
    sequence: int


@dataclass(frozen=True)
class State:
    """The agent between two events."""

    settings: GatewaySettings
    verified: Verified
    boot_id: str
    can_train: bool
    pipeline: walk.Pipeline
    now_ns: int
    life: Life = field(default_factory=Life)
    secret: bytes = b""  # makes this gateway's random numbers its own; never leaves it
    chain: bytes = (
        b""  # from which the secret of the next exchange follows, `fedgate.models.arrays.ratchet`; in memory alone
    )
    libraries: tuple[str, ...] = ()  # that some algorithms need, and that are installed here
    labelled: Arrays = field(default_factory=dict)  # windows of known condition, where the settings name some
    own: Arrays = field(default_factory=dict)
    outbox: dict[str, Item] = field(default_factory=dict)
    sent_ns: dict[str, int] = field(default_factory=dict)  # outbox item -> when it was last sent over this connection
    line: Line = field(default_factory=Line)
    scores: tuple[Score, ...] = ()  # that were told to nobody, or perhaps not; see `outbox.scores`
    connected: bool = False
    round: RoundOpen | None = None
    answered: tuple[str, int] | None = None  # (run, round_index) of the last update made
    answered_before: dict[str, int] = field(default_factory=dict)  # of earlier runs: the last round answered, by run
    newest_training: int = 0  # the highest number of a training that this gateway was invited to
    awaited: str = ""  # the last update that said something, by its digest
    is_counted: bool = True  # the aggregator's receipt for it is here
    last_counted: str = ""  # the last update of which that is known
    training: RoundOpen | None = None
    failed: tuple[str, int] | None = None  # (run, round_index) of a training that failed
    retry_ns: int = 0  # not before then again
    manifest: Manifest | None = None  # the model in force
    models: Models = field(default_factory=Models)
    trial: Trial | None = None  # the model before, while the one in force is on probation
    unrun_ns: int | None = None  # when a model that was proven last could not be run, or began to rest
    reload_due: str | None = None  # the stored model is to be loaded again or, for the reason given, the one before
    candidate: Manifest | None = None  # the model on its way
    candidate_is_own: bool = False  # whether it was announced to this gateway alone
    counted: frozenset[str] = frozenset()  # digests of models whose loads this process has marked
    tried: tuple[str, int] = ("", 0)  # the manifest whose model is or may be loaded, and when it was marked or loaded
    stopwatch: Callable[[], int] = int  # ns of this thread's CPU time; int() stands still
    examine: Examine = take_any  # tries a model where it can do no harm, before it is loaded here
    untried_ns: int | None = None  # when that could not begin
    newest: Newest | None = None  # that the aggregator has signed
    newest_ns: int = 0  # when this process took it in
    announced: int = 0  # the highest version of a model whose announcement this process found to be signed
    stale: str = ""  # why what is here may not be the newest
    unlent: str = ""  # the manifest, by its signed digest, whose site has no level for this gateway
    take_keys: Take = take_none  # keeps a statement of the site's keys
    refused_keys: str = ""  # the statement refused last, by its SHA-256
    signer: str = ""  # whose the numbers of models and trainings here are: the release key, by its SHA-256
    refused: tuple[str, str] = ("", "")  # the manifest refused last, by its signed digest, and why
    fetches: dict[str, Fetch] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)  # fetched whole, not used yet
    heard_ns: dict[str, int] = field(default_factory=dict)  # source -> when it last spoke
    offsets: Offsets = field(default_factory=dict)
    raised_by: RaisedBy = BY_SCORE
    sensor_alarms: dict[str, int] = field(default_factory=dict)  # cause -> onset
    raised_in: dict[str, RaisedIn] = field(default_factory=dict)  # by the cause of an active alarm
    lost_ns: dict[str, int] = field(default_factory=dict)  # channel -> start of its unbroken run of lost windows
    faulty_ns: dict[str, int] = field(default_factory=dict)  # channel -> its latest window with a fault
    counts: dict[str, int] = field(default_factory=dict)
    clock: Quality = "unknown"
    status_ns: int = 0
    remembered_ns: int = 0  # when the model's memory was stored last
    remarks: dict[int, str] = field(default_factory=dict)  # phase -> what its latest training warned of
    refusal: str = ""
    refused_round: str = ""  # that this gateway was asked for and will not answer, see `round_number`
    bytes_sent: int = 0
    bytes_received: int = 0
    flash: Day = field(default_factory=Day)  # what was written lately, as the service counts it
    store_problem: str = ""  # see `StoreState`
    is_unstored: bool = False  # what was to be stored is in memory alone, for the disk takes nothing

    @property
    def is_stood_in_for(self) -> bool:
        """Whether the model before is in force until the next start, as the stored one cannot be."""
        return self.manifest is not None and self.manifest.version < self.models.current.version


def topic(state: State, channel: str, item: str) -> str:
    """Return this gateway's topic of a channel."""
    gateway = state.settings.gateway
    return topic_of(Topic(gateway.site, gateway.id, channel, item))


def alarm_id(state: State, cause: str, onset_ns: int) -> str:
    """Return the id that the messages of one active alarm share, with the boot that raised it: where no clock is kept
    two boots begin at the same time.
    """
    named = f"{state.settings.gateway.id}.{cause}.{onset_ns}"
    return f"{named}.{state.raised_in[cause].boot_id}" if cause in state.raised_in else named  # 0.5 named no boot


def counted(state: State, what: str, count: int = 1) -> State:
    """Return the state with one more of something counted, or so many."""
    return replace(state, counts={**state.counts, what: state.counts.get(what, 0) + count})


def _counts(state: State, group: str) -> dict[str, int]:
    """Return what was counted in a group, by what stands behind its name."""
    return {what.removeprefix(group): n for what, n in state.counts.items() if what.startswith(group)}


def status(state: State) -> Status:
    """Return what this gateway tells the world of itself."""
    return Status(
        state="online",
        version=VERSION,
        boot_id=state.boot_id,
        clock=state.clock,
        can_train=state.can_train,
        libraries=state.libraries,
        baseline_windows=len(state.pipeline.baseline),
        baseline_needed=state.pipeline.baseline_needed,
        windows=state.counts.get("windows", 0),
        windows_lost=state.counts.get("windows_lost", 0),
        values_filled=_counts(state, "filled."),
        model_version=state.manifest.version if state.manifest else 0,
        model_digest=state.manifest.model.digest if state.manifest else "",
        settling=state.pipeline.settling,
        alarms_active=int(state.pipeline.alarm.active) + len(state.sensor_alarms),
        outbox=len(state.outbox),
        bytes_sent=state.bytes_sent,
        bytes_received=state.bytes_received,
        dropped=_counts(state, "dropped."),
        refusal=state.refusal,
        refused_round=state.refused_round,
        training_remarks="; ".join(state.remarks.values())[:SHORT_MAX],
        answered="" if state.answered is None else round_number(*state.answered),
        device=None if (device := state.settings.gateway.device) is None else Device(**device.model_dump()),
        privacy_epsilon=None if (spent := float(state.own.get(EPSILON, np.inf))) == np.inf else spent,
        **told(state.models, state.settings, state.candidate, is_watched=state.trial is not None),
        store_id=life.store_id(state.secret),
        starts=state.life.starts,
        sequence=state.life.sequence,
        t_ns=state.now_ns,
        monotonic_ns=state.life.monotonic_ns(state.now_ns),
        link=state.line.trouble,
        outbox_bytes=held_bytes(state.outbox),
        flash_bytes_written=state.flash.written_bytes,
        store_problem=state.store_problem,
        stale=state.stale,
    )


def tell(state: State) -> tuple[State, list[Effect]]:
    """Publish the status, and remember when."""
    publish = Publish(topic(state, "status", "agent"), status(state).to_bytes(), retain=True)
    return replace(state, status_ns=state.now_ns), [publish]


def save_own(state: State) -> Save:
    """Return the effect that stores what stays on this gateway, which round it answered last and what it said of it."""
    answered = list(state.answered) if state.answered else None
    stored = {name: array for name, array in state.own.items() if not is_fleeting(name)}
    meta = {"answered": answered, "before": [*state.answered_before.items()], "remarks": [*state.remarks.items()]}
    return Save(OWN, wire.encode(stored, meta))


def save_invited(state: State) -> Save:
    """Return the effect that stores to which training this gateway was invited: apart, for `own` may be megabytes."""
    return Save(INVITED, str(state.newest_training).encode())


def save_ledger(state: State) -> list[Save]:
    """Return the effect that stores once more what was spent of this gateway's privacy, none where there is no account:
    one damaged row must not begin it anew.
    """
    ledger = ledger_of(state.own)
    return [Save(PRIVACY, wire.encode(ledger))] if ledger else []


def save_counted(state: State) -> Save:
    """Return the effect that stores whether the last update was counted: apart, for `own` may be megabytes."""
    return Save(COUNTED, json.dumps([state.awaited, state.is_counted, state.last_counted]).encode())


def save_features(state: State) -> Save:
    """Return the effect that stores what the baseline is measured with."""
    return Save(FEATURES, state.settings.features.model_dump_json().encode())


def own_in(state: State, run: str) -> Arrays:
    """Return what this gateway keeps for itself in a training; a new one starts from its normalisation alone, and from
    what was spent of its privacy.
    """
    is_same = state.answered is not None and state.answered[0] == run
    return {name: array for name, array in state.own.items() if is_same or outlives(name)}


def save_memory(state: State) -> list[Effect]:
    """Return the effect that stores what the model and the rules in force remember, none where that is nothing."""
    pipeline = state.pipeline
    remembers = pipeline.memory.tensors or pipeline.watching != walk.UNSEEN
    if state.manifest is None or not pipeline.commissioned or not remembers:
        return []
    body = recall.to_bytes(pipeline.memory, decision.stored(pipeline.watching), owner(state, state.manifest))
    return [Save(MEMORY, body)]


def owner(state: State, manifest: Manifest) -> recall.Owner:
    """Return whose memory is that of a model now."""
    rules = state.settings.alarm.model_dump_json().encode()
    return recall.Owner(manifest.model.digest, state.boot_id, state.clock, hashlib.sha256(rules).hexdigest())


def save_alarms(state: State) -> Save:
    """Return the effect that stores which alarms are active."""
    held = {"anomaly": asdict(state.pipeline.alarm), "sensors": state.sensor_alarms, "raised_by": state.raised_by}
    return Save(ALARMS, json.dumps({**held, "raised_in": state.raised_in}).encode())
