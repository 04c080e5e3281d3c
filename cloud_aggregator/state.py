"""Everything the aggregator knows between two events, and how the training survives a restart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator.access.device_sessions import DeviceSessions
from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.alarms.records import Outward
from fedgate.cloud_aggregator.events import HoldUpdate, RecordService, SaveTraining
from fedgate.cloud_aggregator.releases import build
from fedgate.cloud_aggregator.releases.rollout import Staging
from fedgate.cloud_aggregator.rounds import numbering
from fedgate.cloud_aggregator.runtime import defence
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Manifest, Newest, Status, Transfer
from fedgate.config.protocol.topics import Topic, topic_of
from fedgate.config.protocol.transfer import Assembly, describe
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.models.arrays import Arrays, exchange_secret, generator, joined, parted
from fedgate.models.federated.algorithm import NOISE_SECRET, Algorithm, Server, UpdateError
from fedgate.models.records import replace

NS = 1_000_000_000
RUN_LENGTH = 12
# Of what algorithms and this service store of a training. One that was stored in another format is begun anew: the
# model in force stays until the new training releases its own.
TRAINING_FORMAT = 3
NOTHING_NEWEST = Newest(version=0, highest_version=0, training=0)


@dataclass(frozen=True)
class Incoming:
    """An update on its way up, when it was last heard of, and how often it was asked for since.

    One that is `parked` came while others filled what `limits.incoming_bytes` allows; its chunks are asked for then.
    """

    assembly: Assembly
    received_ns: int  # something new of it
    asks: int = 0
    parked: bool = False
    started_ns: int = 0


@dataclass(frozen=True)
class HourlyCount:
    """How often something happened within an hour, and when that hour began."""

    count: int = 0
    started_ns: int = 0


@dataclass(frozen=True)
class Spent:
    """How much of what it may have a gateway has used, less what it had again by `at_ns`."""

    amount: float = 0.0
    at_ns: int = 0

    def after(self, now_ns: int, each_s: float) -> float:
        """Return how much is used at `now_ns`, where it has one more each `each_s`."""
        passed_s = (now_ns - self.at_ns) / NS
        return max(self.amount - passed_s / each_s, 0.0) if passed_s >= 0.0 else 0.0  # our clock was set back since


class Parcel(NamedTuple):
    """A body that goes down, described once."""

    transfer: Transfer
    body: bytes


@dataclass(frozen=True)
class State:
    """The aggregator between two events."""

    settings: AggregatorSettings
    key: Ed25519PrivateKey
    algorithm: Algorithm
    run: str  # names one training: what is trained, and which beginning of it
    training: int  # its number, higher than that of any before it; see `numbering`
    server: Server
    now_ns: int
    total: Arrays = field(default_factory=dict)
    counted: dict[str, str] = field(default_factory=dict)  # gateway -> digest of its update
    counted_before: dict[str, str] = field(default_factory=dict)  # the latest of earlier rounds: receipts get lost
    answered: dict[str, int] = field(default_factory=dict)  # gateway -> the latest round that it answered
    remembered: dict[str, str] = field(default_factory=dict)  # see `Algorithm.remembers`: its last that said something
    turned_away: frozenset[str] = frozenset()  # whose answer to this round was refused: they will give no other
    given_up: int = 0  # rounds in a row, for want of a quorum
    held: dict[str, HoldUpdate] = field(default_factory=dict)  # updates that came after their round, by gateway
    asked_before: dict[int, tuple[str, ...] | None] = field(default_factory=dict)  # `asked` of rounds still answerable
    asked: tuple[str, ...] | None = None  # who takes part in the round; None: everyone
    asked_round: int = -1  # the round for which `asked` was drawn
    sent_round: int = -1  # the round whose parameters were sent to all
    refused: int = 0
    bytes_received: int = 0  # in chunks of updates, in this round
    empty: tuple[str, ...] = ()  # of those counted, who had nothing to send
    since_release: int = 0  # rounds of all phases since the last release
    rest_until_ns: int = 0
    opened: bool = False  # the invitation is out
    opened_ns: int = 0  # when it went out
    invited_ns: int = 0  # when it was last repeated
    reminded_ns: int = 0  # when manifests were last repeated to those who seem not to have heard them
    first_update_ns: int | None = None
    shared: Parcel | None = None  # the parameters of the open round
    gateways: dict[str, Status] = field(default_factory=dict)
    sessions: dict[str, DeviceSessions] = field(default_factory=dict)  # gateway -> who speaks under its name
    spent: dict[str, float] = field(default_factory=dict)  # gateway -> the most it said of its privacy, also if revoked
    seen: dict[str, int] = field(default_factory=dict)  # gateway -> when it was last heard live, see `presence`
    incoming: dict[str, Incoming] = field(default_factory=dict)  # one a gateway, by gateway
    manifest: Manifest | None = None
    model: bytes = b""
    staging: Staging = field(default_factory=Staging)  # of a model that not all have yet
    newest: Newest = NOTHING_NEWEST  # that was published last, or came back to an aggregator that had lost its own
    announced_week: int = -1  # in which what is retained was signed
    connected: bool = False
    connected_ns: int = 0  # since when it is, or is not
    heartbeat: RecordService | None = None  # as it was last stored; None: it is not to be
    outward: Outward = field(default_factory=Outward)  # what is held of alarms, and of whom they were told
    keys: bytes = b""  # the statement of keys that the site goes by; empty: it has no root key
    registry: Registry | None = None  # who belongs to the site; None: everybody whom the broker lets in
    failures: dict[str, HourlyCount] = field(default_factory=dict)  # by gateway: messages whose handling failed
    fetched: dict[str, Spent] = field(default_factory=dict)  # by gateway: bodies, see `announce.send_due_chunks`
    alarmed: dict[str, Spent] = field(default_factory=dict)  # by gateway: changes, `alarms.handling.heard`
    described_ns: dict[str, int] = field(default_factory=dict)  # by gateway: when others were told of its device
    undescribed: frozenset[str] = frozenset()  # gateways of whose device others are to be told anew
    dropped: dict[tuple[str, str], HourlyCount] = field(default_factory=dict)  # of no sense, by gateway and channel
    logged: dict[str, HourlyCount] = field(default_factory=dict)  # by gateway: lines of the log that are about it
    uncertified: int = 0  # how often a device asked for a certificate and got none, since the start


def topic(state: State, gateway: str, channel: str, item: str) -> str:
    """Return a topic of this aggregator's site."""
    return topic_of(Topic(state.settings.aggregator.site, gateway, channel, item))


def run_name(settings: AggregatorSettings, beginning: str) -> str:
    """Return the name of a training: another algorithm, setting, seed, feature or format is another training.

    `beginning` tells apart two that start from nothing, such as before and after the loss of a store; without it
    gateways would take the new rounds for the old ones that they have answered.
    """
    chosen = (settings.algorithm.model_dump(mode="json"), settings.features.model_dump(mode="json"))
    chosen_defence = {"kind": settings.defence.kind, "settings": settings.defence.settings}  # not where its files lie
    judged = [] if settings.defence.kind == "none" else [chosen_defence]
    identity = [TRAINING_FORMAT, *chosen, *judged]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:RUN_LENGTH]
    return f"{digest}.{beginning}"


def restore(
    settings: AggregatorSettings,
    key: Ed25519PrivateKey,
    training: bytes | None,
    released: tuple[Manifest, bytes] | None,
    gateways: dict[str, Status],
    now_ns: int,
    beginning: str = "first",
    material: defence.Material = defence.NOTHING,
    outward: Outward | None = None,
    held: Mapping[str, HoldUpdate] | None = None,
    sessions: Mapping[str, DeviceSessions] | None = None,
    staging: Staging | None = None,
) -> State:
    """Return the state of an aggregator that starts with what its store held.

    A stored training of another run is left behind: the new one starts from its own beginning, model versions go on.
    """
    algorithm = defence.algorithm_of(settings, material)
    run = run_name(settings, beginning)
    state = State(
        settings=settings,
        key=key,
        algorithm=algorithm,
        run=run,
        training=numbering.beginning(now_ns),
        server=_with_secret(algorithm.start(generator(settings.algorithm.seed, 0, "cloud")), key, run),
        now_ns=now_ns,
        reminded_ns=now_ns,
        gateways=gateways,
        spent={name: one.privacy_epsilon for name, one in gateways.items() if one.privacy_epsilon is not None},
        sessions=dict(sessions or {}),
        outward=outward or Outward(),
        staging=_clip_start(staging or Staging(), now_ns),
    )
    if released is not None:
        state = replace(state, manifest=build.fitting(*released, settings.limits), model=released[1])
    return state if training is None else _resumed(state, training, held or {})


def _clip_start(staging: Staging, now_ns: int) -> Staging:
    """Return how a release stands, begun now at the latest: the clock that it began by may have been ahead."""
    stage = staging.rollout
    return replace(staging, rollout=replace(stage, since_ns=min(stage.since_ns, now_ns)))


def _with_secret(server: Server, key: Ed25519PrivateKey, run: str) -> Server:
    """Return the beginning of a training with a secret of this aggregator in place of the one that follows from the
    seed, which every gateway knows and could take its noise off with.
    """
    if NOISE_SECRET not in server.kept:
        return server
    secret = exchange_secret(key.private_bytes_raw(), run, 0, "cloud")
    return server._replace(kept={**server.kept, NOISE_SECRET: secret})


def save_training(state: State) -> SaveTraining:
    """Return the effect that stores everything a restart needs to go on with the round.

    A total that grows with every update is not part of it, or a round would write it over and over: its updates are
    stored one by one (`HoldUpdate`).
    """
    total = {} if is_growing(state) else state.total
    arrays = joined({"shared": state.server.shared, "kept": state.server.kept, "total": total})
    meta = {
        "run": state.run,
        "training": state.training,
        "phase": state.server.phase,
        "round_index": state.server.round_index,
        "cohort_index": state.server.cohort_index,
        "counted": state.counted,
        "counted_before": state.counted_before,
        "asked": None if state.asked is None else list(state.asked),
        "asked_round": state.asked_round,
        "refused": state.refused,
        "bytes_received": state.bytes_received,
        "empty": list(state.empty),
        "since_release": state.since_release,
        "rest_until_ns": state.rest_until_ns,
        "sent_round": state.sent_round,
        "answered": state.answered,
        "remembered": state.remembered,
        "turned_away": sorted(state.turned_away),
        "given_up": state.given_up,
        "asked_before": list(state.asked_before.items()),
    }
    return SaveTraining(arrays, meta)


def is_growing(state: State) -> bool:
    """Tell whether the total of the round at hand grows with every update that is counted."""
    return not state.algorithm.phases[state.server.phase].tally.bounded


def packed(server: Server, max_payload_bytes: int) -> Parcel:
    """Return what goes down to every gateway before it trains."""
    body = wire.encode(server.shared)
    return Parcel(describe(body, max_payload_bytes), body)


def training_place(training: bytes) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays of the server in a stored training, and what is stored of the round at hand."""
    arrays, _ = wire.decode(training, size_max=len(training))
    meta = json.loads(arrays.pop("meta").tobytes())
    parts = parted(arrays)
    return {**parts.get("shared", {}), **parts.get("kept", {})}, meta


def _resumed(state: State, training: bytes, held: Mapping[str, HoldUpdate]) -> State:
    arrays, _ = wire.decode(training, size_max=len(training))
    meta = json.loads(arrays.pop("meta").tobytes())
    if meta["run"].partition(".")[0] != state.run.partition(".")[0]:
        return replace(state, training=numbering.beginning(state.now_ns, meta["training"]))
    parts = {"shared": Arrays(), "kept": Arrays(), "total": Arrays()} | parted(arrays)
    state = replace(
        state,
        run=meta["run"],
        training=meta["training"],
        server=Server(parts["shared"], parts["kept"], meta["phase"], meta["round_index"], meta["cohort_index"]),
        total=parts["total"],
        counted=meta["counted"],
        counted_before=meta["counted_before"],
        asked=_names(meta["asked"]),
        asked_round=meta["asked_round"],
        sent_round=meta["sent_round"],
        answered=meta["answered"],
        remembered=meta["remembered"],
        turned_away=frozenset(meta["turned_away"]),
        given_up=meta["given_up"],
        asked_before={index: _names(asked) for index, asked in meta["asked_before"]},
        held={gateway: one for gateway, one in held.items() if one.run == meta["run"]},
        refused=meta["refused"],
        bytes_received=meta["bytes_received"],
        empty=tuple(meta["empty"]),
        since_release=meta["since_release"],
        # Never longer than from now: the clock that it was taken from may have been ahead.
        rest_until_ns=min(meta["rest_until_ns"], state.now_ns + round(state.settings.rounds.rest_s * 1e9)),
        first_update_ns=state.now_ns if meta["counted"] else None,
    )
    return _with_total(state) if is_growing(state) else state


def _with_total(state: State) -> State:
    """Return the state with what was counted in the round at hand in its total, and not among what came late.

    What this release or these settings no longer admit is not counted: one update must not end every start.
    """
    tally, total, counted = state.algorithm.phases[state.server.phase].tally, state.total, dict(state.counted)
    now = {name: one for name, one in state.held.items() if one.round_index == state.server.round_index}
    for gateway, one in now.items():
        if counted.get(gateway) != one.digest:
            continue
        update = admitted(state, one)
        if update is None:
            del counted[gateway]
        else:
            total = tally.merge(total, update)
    held = {name: one for name, one in state.held.items() if name not in now}
    return replace(state, total=total, counted=counted, held=held)


def admitted(state: State, held: HoldUpdate) -> Arrays | None:
    """Return what a stored update adds to the sum of the phase at hand; None where it is no longer admitted."""
    update, _ = wire.decode(held.body, len(held.body))
    if not update:
        return update
    try:
        return state.algorithm.phases[state.server.phase].admit(state.server, update)
    except UpdateError:
        return None


def _names(asked: list[str] | None) -> tuple[str, ...] | None:
    return None if asked is None else tuple(asked)
