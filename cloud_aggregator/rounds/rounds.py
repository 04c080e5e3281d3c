"""The training between two events: its server, its open round, and how both survive a restart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator.context import Context, Payload
from fedgate.cloud_aggregator.events import DropHeld, Effect, HoldUpdate, SaveTraining
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import LARGEST
from fedgate.config.protocol.receiver import Patience, Receiver
from fedgate.config.protocol.transfer import describe
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.models.arrays import Array, Arrays, exchange_secret, generator, joined, parted
from fedgate.models.federated.protocol.algorithm import Algorithm, Server
from fedgate.models.federated.wrappers.privacy_ledger import NOISE_SECRET
from fedgate.models.time_units import NS

RUN_LENGTH = 12
# Of what algorithms and this service store of a training. One that was stored in another format is begun anew: the
# model in force stays until the new training releases its own.
TRAINING_FORMAT = 4
UNFOLDED_BYTES_MAX = 64 * 1024 * 1024
PATIENCE = Patience(first_s=5.0, longest_s=20.0, lost_s=60.0, turn_s=600.0)  # for updates


@dataclass(frozen=True)
class Rounds:
    """A training: what it has learned, and the round at hand."""

    algorithm: Algorithm
    run: str  # names one training: what is trained, and which beginning of it
    training: int  # its number, higher than that of any before it; see `number_training`
    server: Server
    began: Arrays = field(default_factory=dict)  # the shared parameters with which the training began
    total: Arrays = field(default_factory=dict)
    folded: Arrays = field(default_factory=dict)  # the part of it that is stored as a sum, see `store_counted`
    unfolded_bytes: int = 0  # of the updates that are stored beside it
    counted: dict[str, str] = field(default_factory=dict)  # gateway -> digest of its update
    counted_before: dict[str, str] = field(default_factory=dict)  # the latest of earlier rounds: receipts get lost
    counted_late: dict[str, int] = field(default_factory=dict)  # gateway -> in which round, where that one came late
    answered: dict[str, int] = field(default_factory=dict)  # gateway -> the latest round that it answered
    remembered: dict[str, str] = field(default_factory=dict)  # see `Algorithm.remembers`: its last that said something
    turned_away: frozenset[str] = frozenset()  # whose answer to this round was refused: they will give no other
    given_up: int = 0  # rounds in a row, for want of a quorum
    abandoned: tuple[int, ...] = ()  # the newest rounds in which what was acknowledged came to nothing
    held: dict[str, HoldUpdate] = field(default_factory=dict)  # updates that came after their round, by gateway
    asked_before: dict[int, tuple[str, ...] | None] = field(default_factory=dict)  # `asked` of rounds still answerable
    asked: tuple[str, ...] | None = None  # who takes part in the round; None: everyone
    asked_round: int = -1  # the round for which `asked` was drawn
    sent_round: int = -1  # the round whose parameters were sent to all
    refused: int = 0
    refusals: tuple[tuple[str, str], ...] = ()  # whose, and why: the first `REFUSALS_MAX` of the round
    bytes_received: int = 0  # in chunks of updates, in this round
    empty: tuple[str, ...] = ()  # of those counted, who had nothing to send
    since_release: int = 0  # rounds of all phases since the last release
    rest_until_ns: int = 0
    opened: bool = False  # the invitation is out
    opened_ns: int = 0  # when it went out
    invited_ns: int = 0  # when it was last repeated
    compared_ns: int = 0  # when it was last looked whether the store was set back
    first_update_ns: int | None = None
    shared: Payload | None = None  # the parameters of the open round
    uploads: Receiver = field(default_factory=lambda: Receiver(PATIENCE))  # updates on their way, one a gateway

    def without(self, gateway: str) -> Rounds:
        """Return the same without what a gateway has on its way; what of it was counted stays in the sum."""
        return replace(
            self,
            uploads=self.uploads.without(gateway),
            held={name: one for name, one in self.held.items() if name != gateway},
        )


def identify(settings: AggregatorSettings) -> str:
    """Return what is trained as a digest: another algorithm, setting, seed, feature or format is another training."""
    chosen = (settings.algorithm.model_dump(mode="json"), settings.features.model_dump(mode="json"))
    chosen_defence = {"kind": settings.defence.kind, "settings": settings.defence.settings}  # not where its files lie
    judged = [] if settings.defence.kind == "none" else [chosen_defence]
    identity = [TRAINING_FORMAT, *chosen, *judged]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:RUN_LENGTH]


def run_name(settings: AggregatorSettings, beginning: str) -> str:
    """Return the name of a training: what is trained, and which beginning of it.

    `beginning` tells apart two that start from nothing, such as before and after the loss of a store; without it
    gateways would take the new rounds for the old ones that they have answered.
    """
    return f"{identify(settings)}.{beginning}"


def restore(
    context: Context,
    algorithm: Algorithm,
    beginning: str,
    training: SaveTraining | None,
    held: Mapping[str, HoldUpdate],
) -> Rounds:
    """Return the training that goes on from what the store held.

    A stored training of another run is left behind: the new one starts from its own beginning.
    """
    settings = context.settings
    run = run_name(settings, beginning)
    server = _put_secret(algorithm.start(generator(settings.algorithm.seed, 0, "cloud")), context.key, run)
    rounds = Rounds(
        algorithm, run, number_training(context.now_ns), server, server.global_state, compared_ns=context.uptime_ns
    )
    return rounds if training is None else _resume(rounds, context, training, held)


def _put_secret(server: Server, key: Ed25519PrivateKey, run: str) -> Server:
    """Return the beginning of a training with a secret of this aggregator in place of the one that follows from the
    seed, which every gateway knows and could take its noise off with.
    """
    if NOISE_SECRET not in server.server_state:
        return server
    secret = exchange_secret(key.private_bytes_raw(), run, 0, "cloud")
    return server._replace(server_state={**server.server_state, NOISE_SECRET: secret})


def store_counted(rounds: Rounds, held: HoldUpdate, arrived: Arrays, admitted: Arrays) -> tuple[Rounds, list[Effect]]:
    """Store what is in the total now of an update: as it was admitted, since a restart must add what was acknowledged
    and not judge it again by what is known then; and beside those before it, since to write the total anew for each
    would be to write twice as much. Where all of it was admitted as it came, but for its compression, its body is
    stored as it came. A sum takes the place of its updates as soon as these are `UNFOLDED_BYTES_MAX`: a thousand
    gateways need no more of the disk than a few.
    """
    stored = held if _is_as_it_came(admitted, arrived) else replace(held, body=wire.encode(admitted))
    unfolded = rounds.unfolded_bytes + len(stored.body)
    if unfolded <= UNFOLDED_BYTES_MAX or not rounds.algorithm.phases[rounds.server.phase].reducer.additive:
        return replace(rounds, unfolded_bytes=unfolded), [stored]
    return replace(rounds, folded=rounds.total, unfolded_bytes=0), [DropHeld(held.round_index)]


def save_training(rounds: Rounds, anchor_ns: int) -> SaveTraining:
    """Return the effect that stores everything a restart needs to go on with the round.

    The updates of the round are stored one by one, see `store_counted`. The end of a pause is stored by the wall clock:
    another boot has another uptime.
    """
    server = rounds.server
    arrays = joined({"shared": server.global_state, "kept": server.server_state, "total": rounds.folded})
    meta = {
        "run": rounds.run,
        "training": rounds.training,
        "phase": rounds.server.phase,
        "round_index": rounds.server.round_index,
        "cohort_index": rounds.server.cohort_index,
        "counted": rounds.counted,
        "counted_before": rounds.counted_before,
        "counted_late": rounds.counted_late,
        "asked": None if rounds.asked is None else list(rounds.asked),
        "asked_round": rounds.asked_round,
        "refused": rounds.refused,
        "refusals": rounds.refusals,
        "bytes_received": rounds.bytes_received,
        "empty": list(rounds.empty),
        "since_release": rounds.since_release,
        "rest_until_ns": rounds.rest_until_ns + anchor_ns,
        "sent_round": rounds.sent_round,
        "answered": rounds.answered,
        "remembered": rounds.remembered,
        "turned_away": sorted(rounds.turned_away),
        "given_up": rounds.given_up,
        "abandoned": list(rounds.abandoned),
        "asked_before": list(rounds.asked_before.items()),
    }
    return SaveTraining(arrays, meta)


def pack_shared(server: Server, max_payload_bytes: int) -> Payload:
    """Return what goes down to every gateway before it trains."""
    body = wire.encode(server.global_state)
    return Payload(describe(body, max_payload_bytes), body)


def _split(training: SaveTraining) -> dict[str, Arrays]:
    return {"shared": Arrays(), "kept": Arrays(), "total": Arrays()} | parted(training.arrays)


def list_server_arrays(training: SaveTraining) -> Arrays:
    """Return the arrays of the server in a stored training."""
    parts = _split(training)
    return {**parts["shared"], **parts["kept"]}


def _resume(rounds: Rounds, context: Context, training: SaveTraining, held: Mapping[str, HoldUpdate]) -> Rounds:
    parts, meta = _split(training), training.meta
    if meta["run"].partition(".")[0] != rounds.run.partition(".")[0]:
        return replace(rounds, training=number_training(context.now_ns, meta["training"]))
    rounds = replace(
        rounds,
        run=meta["run"],
        training=meta["training"],
        server=Server(parts["shared"], parts["kept"], meta["phase"], meta["round_index"], meta["cohort_index"]),
        total=parts["total"],
        folded=parts["total"],
        counted=meta["counted"],
        counted_before=meta["counted_before"],
        counted_late=meta["counted_late"],
        asked=_read_names(meta["asked"]),
        asked_round=meta["asked_round"],
        sent_round=meta["sent_round"],
        answered=meta["answered"],
        remembered=meta["remembered"],
        turned_away=frozenset(meta["turned_away"]),
        given_up=meta["given_up"],
        abandoned=tuple(meta["abandoned"]),
        asked_before={index: _read_names(asked) for index, asked in meta["asked_before"]},
        held={gateway: one for gateway, one in held.items() if one.run == meta["run"]},
        refused=meta["refused"],
        refusals=tuple((gateway, why) for gateway, why in meta["refusals"]),
        bytes_received=meta["bytes_received"],
        empty=tuple(meta["empty"]),
        since_release=meta["since_release"],
        # Never longer than from now: the clock that it was taken from may have been ahead.
        rest_until_ns=min(
            meta["rest_until_ns"] - context.anchor_ns,
            context.uptime_ns + round(context.settings.rounds.rest_s * 1e9),
        ),
        first_update_ns=context.uptime_ns if meta["counted"] else None,
    )
    return _sum_counted(rounds)


def _sum_counted(rounds: Rounds) -> Rounds:
    """Return the training with what was counted in the round at hand in its total, and not among what came late."""
    phase, total, unfolded_bytes = rounds.algorithm.phases[rounds.server.phase], rounds.folded, 0
    now = {name: one for name, one in rounds.held.items() if one.round_index == rounds.server.round_index}
    for one in now.values():
        stored, meta = wire.decode(one.body, len(one.body), is_verified=True)
        # What is stored as it came says which round it answers, as a message does, and is compressed if that was.
        admitted = phase.unpacked(rounds.server, stored) if "round_index" in meta else stored
        total, unfolded_bytes = phase.reducer.merge(total, _widen(admitted)), unfolded_bytes + len(one.body)
    held = {name: one for name, one in rounds.held.items() if name not in now}
    return replace(rounds, total=total, unfolded_bytes=unfolded_bytes, held=held)


def _widen(update: Arrays) -> Arrays:
    """Return an update with its numbers as they are summed (`fedgate.models.federated.protocol.schema.fitted`)."""
    return {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in update.items()}


def _is_as_it_came(admitted: Arrays, arrived: Arrays) -> bool:
    """Tell whether `_widen` makes of an update, unpacked, what was admitted of it."""
    return admitted.keys() == arrived.keys() and all(
        array is arrived[name] or _is_widened(array, arrived[name]) for name, array in admitted.items()
    )


def _is_widened(admitted: Array, arrived: Array) -> bool:
    kind = np.dtype(np.float64) if arrived.dtype.kind == "f" else arrived.dtype
    return admitted.dtype == kind and np.array_equal(admitted, arrived)


def _read_names(held: list[str] | None) -> tuple[str, ...] | None:
    return None if held is None else tuple(held)


def number_training(now_ns: int, known: int = 0) -> int:
    """Return the number of a training that begins now, `known` being that of the one before it.

    A broker hands out what it retained, also after it was restored from a backup; and an invitation that was signed
    once is signed for ever. So each training has a higher number than those before it, and gateways refuse an earlier
    one. Seconds of the wall clock make it higher also where the store was lost, and what gateways tell where the clock
    is wrong.
    """
    return max(now_ns // NS, increment(known))


def increment(number: int) -> int:
    """Return the number after this one. Beyond the highest there is none: then numbers order nothing any
    more, and invitations are taken as before there were any.
    """
    return min(number + 1, LARGEST)
