"""A gateway's part in a federated round: invitation -> shared parameters -> training child -> update -> receipt.

What leaves the gateway is the update that the algorithm defines, and nothing else; what the algorithm keeps for the
gateway is stored before the update is sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Receipt, RoundOpen, round_number
from fedgate.config.protocol.topics import ALL
from fedgate.config.protocol.transfer import digest_of, split
from fedgate.gateway_agent.context import Context, check_signed
from fedgate.gateway_agent.events import (
    OF_ROUND,
    UPDATE_PRIORITY,
    Deliver,
    Effect,
    Fetch,
    Item,
    Log,
    PublishStatus,
    Save,
    Train,
    Trained,
    Wanted,
    refuse,
)
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.pipeline.pipeline import collect_data
from fedgate.models.arrays import (
    BEFORE_COUNTED,
    FEATURES,
    OF_ONE_GATEWAY,
    PENDING,
    Arrays,
    is_fleeting,
    joined,
    parted,
    ratchet,
)
from fedgate.models.arrays import COUNTED as IS_COUNTED
from fedgate.models.federated.protocol.algorithm import NORMALISATION, normalise
from fedgate.models.federated.wrappers.privacy_ledger import ledger_of
from fedgate.models.time_units import NS

OWN, COUNTED, INVITED, PRIVACY = "own", "counted", "invited", "privacy"  # keys of stored blobs
REMARK_LENGTH = 500  # of an exchange
HIDING = ("masking", "privacy")  # settings that promise what a training found to nobody but this gateway
NUMBER = re.compile(r"[-+]?\d+(?:[.,_]\d+)*(?:[eE][-+]?\d+)?")
RUNS_KEPT = 16  # trainings before the present one, of which no round is answered a second time
RETRY_S = 3_600.0  # a failed training would most likely fail alike; but it may have been a lack of time or memory


@dataclass(frozen=True)
class Training:
    """What this gateway was asked for, has answered, and keeps for itself."""

    can_train: bool = False
    libraries: tuple[str, ...] = ()  # that some algorithms need, and that are installed here
    labelled: Arrays = field(default_factory=dict)  # windows of known condition, where the settings name some
    chain: bytes = b""  # from which the secret of the next exchange follows, `models.arrays.ratchet`; in memory alone
    own: Arrays = field(default_factory=dict)
    round: RoundOpen | None = None  # that is open
    running: RoundOpen | None = None  # that the child answers now
    answered: tuple[str, int] | None = None  # (run, round_index) of the last update made
    answered_before: dict[str, int] = field(default_factory=dict)  # of earlier runs: the last round answered, by run
    newest_training: int = 0  # the highest number of a training that this gateway was invited to
    awaited: str = ""  # the last update that said something, by its digest
    awaited_round: int = -1  # which it answers
    is_counted: bool = True  # the aggregator's receipt for it is here
    last_counted: str = ""  # the last update of which that is known
    counted_in: int = -1  # the round in which that one counts: a later one than its own where it came late
    before_counted_in: int = -1  # the one before that: where in the same, the later one counts in its place
    failed: tuple[str, int] | None = None  # (run, round_index) of a training that failed
    retry_ns: int = 0  # not before then again
    remarks: dict[int, str] = field(default_factory=dict)  # phase -> what its latest training warned of
    refused_round: str = ""  # that this gateway was asked for and will not answer, see `round_number`


Result = tuple[Training, list[Wanted]]


def save_own(training: Training) -> Save:
    """Return the effect that stores what stays on this gateway, which round it answered last and what it said of it."""
    answered = list(training.answered) if training.answered else None
    stored = {name: array for name, array in training.own.items() if not is_fleeting(name)}
    meta = {"answered": answered, "before": [*training.answered_before.items()], "remarks": [*training.remarks.items()]}
    return Save(OWN, wire.encode(stored, meta))


def save_invited(training: Training) -> Save:
    """Return the effect that stores to which training this gateway was invited: apart, for `own` may be megabytes."""
    return Save(INVITED, str(training.newest_training).encode())


def save_ledger(training: Training) -> list[Save]:
    """Return the effect that stores once more what was spent of this gateway's privacy, none where there is no account:
    one damaged row must not begin it anew.
    """
    ledger = ledger_of(training.own)
    return [Save(PRIVACY, wire.encode(ledger))] if ledger else []


def save_counted(training: Training) -> Save:
    """Return the effect that stores whether the last update was counted: apart, for `own` may be megabytes."""
    last = (training.last_counted, training.counted_in, training.before_counted_in, training.awaited_round)
    return Save(COUNTED, json.dumps([training.awaited, training.is_counted, *last]).encode())


def read_counted(stored: bytes | None) -> dict[str, Any]:
    """Return what `save_counted` stored, as fields of the record."""
    fields = ("awaited", "is_counted", "last_counted", "counted_in", "before_counted_in", "awaited_round")
    return dict(zip(fields, json.loads(stored), strict=True)) if stored else {}


def own_in(training: Training, run: str) -> Arrays:
    """Return what this gateway keeps for itself in a training; a new one starts from its normalisation alone, and from
    what was spent of its privacy.
    """
    is_same = training.answered is not None and training.answered[0] == run
    outlives = {*NORMALISATION, *ledger_of(training.own)}
    return {name: array for name, array in training.own.items() if is_same or name in outlives}


def note_receipt(training: Training, receipt: Receipt) -> tuple[Training, list[Effect]]:
    """Return the training after the aggregator has counted the update that is awaited, and what is to be stored; it may
    have been given up here for lack of room. Of two that count in one round the later one stands for both.
    """
    before = training.counted_in
    if training.is_counted:
        return training, []
    counted_in = training.awaited_round if receipt.counts_in is None else receipt.counts_in
    training = replace(training, is_counted=True, last_counted=training.awaited, counted_in=counted_in)
    training = replace(training, before_counted_in=before)
    return training, [save_counted(training)]


def receive_invitation(training: Training, context: Context, payload: bytes) -> Result:
    """Take in the announcement of a round; the one before it, unanswered or not, is over.

    An empty payload says that no round is open. An invitation decides what is computed from this gateway's data and
    sent, so it must be signed. What was refused before is refused no more: a broker may say an earlier invitation
    again, and the aggregator reminds only those that do not refuse the open round. Raises `MessageError`.
    """
    if not payload:
        return replace(training, round=None, refused_round=""), []
    message = RoundOpen.from_bytes(payload)
    shared_bytes, most_bytes = message.shared.size_bytes, context.settings.limits.max_update_bytes
    if message.features != context.settings.features:
        return _refuse_round(training, message, "its features differ from the [features] of this gateway")
    if problem := check_signed(context, message, ALL):
        return training, refuse(f"round {message.round_index}: {problem}")
    if shared_bytes > most_bytes:
        reason = f"its shared parameters have {shared_bytes} bytes, at most {most_bytes} are taken"
        return _refuse_round(training, message, reason)
    if 0 < message.training < training.newest_training:
        # Kept by a broker that was set back, or sent again: whoever answered it would forget the training at hand.
        reason = f"it is of training {message.training}, an earlier one than {training.newest_training}"
        return _refuse_round(training, message, reason)
    saved: list[Wanted] = []
    if message.training > training.newest_training:  # on the disk before anything is answered
        training = replace(training, newest_training=message.training)
        saved = [save_invited(training)]
    lacking = [name for name in message.libraries if name not in training.libraries]
    if not (training.can_train and lacking):
        return replace(training, round=message, refused_round=""), saved
    reason = (
        f"{message.algorithm} needs {', '.join(lacking)}, not installed here; "
        "this gateway runs the models of the others, and takes part once it is"
    )
    is_known = context.refusal.partition(": ")[2] == reason  # it is said once, and not with every invitation
    refused = [] if is_known else refuse(f"{OF_ROUND}{message.round_index}: {reason}")
    return replace(training, round=None), [*saved, *refused]


def take_part(
    training: Training,
    context: Context,
    baseline: Sequence[FeatureRow],
    bodies: Mapping[str, bytes],
    *,
    is_update_waiting: bool,
) -> Result:
    """Start the training on a whole baseline where there is a round to answer and all it needs is here; ask for the
    shared parameters if not. An update that waits for its receipt decides, by whether it is counted, on what the next
    one says.
    """
    message = training.round
    if message is None or training.running is not None or not training.can_train:
        return training, []
    number = (message.run, message.round_index)
    is_answered = (
        training.answered is not None and training.answered[0] == message.run and training.answered[1] >= number[1]
    )
    if is_answered:
        return training, []
    if message.round_index <= training.answered_before.get(message.run, -1):
        text = f"training {message.run} went back to a round that this gateway has answered, before others began"
        return _refuse_round(replace(training, round=None), message, f"{text}; choose another seed for it")
    if training.failed == number and context.uptime_ns < training.retry_ns:
        return replace(training, refused_round=round_number(*number)), []
    if message.cohort is not None and context.settings.gateway.id not in message.cohort:
        return training, []
    if is_update_waiting:
        return training, []
    shared = bodies.get(message.shared.digest)
    if shared is None:
        return training, [Fetch(message.shared)]
    drawn, chain = ratchet(training.chain) if training.chain else (b"", b"")
    try:
        job = _job(training, context, _collect(context, baseline), message, shared, drawn)
    except wire.WireError as error:
        return _refuse_round(replace(training, round=None), message, f"shared parameters: {error}")
    return replace(training, running=message, refused_round="", chain=chain), [Train(job)]


def _collect(context: Context, baseline: Sequence[FeatureRow]) -> Arrays:
    return collect_data(baseline, context.settings.features.hop_s, context.settings.baseline.calibration_windows)


def _job(training: Training, context: Context, data: Arrays, message: RoundOpen, shared: bytes, drawn: bytes) -> bytes:
    parts = {
        "shared": wire.decode(shared)[0],
        "own": own_in(training, message.run),
        "data": {
            **data,
            **of_last_update(training, message.round_index, message.abandoned),
            **_choose_own_settings(context),
        },
        "labelled": training.labelled,
    }
    order = {
        "algorithm": message.algorithm,
        "settings": message.settings,
        "feature_count": data[FEATURES].shape[1],
        "phase": message.phase,
        "run": message.run,
        "seed": message.seed,
        "round_index": message.round_index,
        "gateway": context.settings.gateway.id,
        "secret": context.secret.hex(),
        "drawn": drawn.hex(),
    }
    return wire.encode(joined(parts), order)


def of_last_update(training: Training, round_index: int, abandoned: Sequence[int]) -> Arrays:
    """Return what became of the last update and of the one before it, and what may still become of that which was
    counted last, when a round is answered. `abandoned` are the rounds in which nothing was counted, whatever was
    acknowledged.
    """
    counted_in = training.counted_in
    before_in, is_replaced = training.before_counted_in, training.before_counted_in == counted_in >= 0
    if not training.is_counted:  # then the one before it is that which was counted last
        before_in, is_replaced = counted_in, False
    return {
        IS_COUNTED: np.array(training.is_counted and counted_in not in abandoned),
        BEFORE_COUNTED: np.array(not is_replaced and before_in not in abandoned),
        PENDING: np.array(counted_in >= round_index),
    }


def _choose_own_settings(context: Context) -> Arrays:
    """Return what the settings say of this gateway alone, as the algorithms look for it beside the rows."""
    chosen = {name: getattr(context.settings.training, name) for name in OF_ONE_GATEWAY}
    return {name: np.array(value) for name, value in chosen.items() if value is not None}


def receive_answer(training: Training, context: Context, event: Trained) -> Result:
    """Take in the child's answer: store what stays and the update, in one step, then send the update."""
    message, training = training.running, replace(training, running=None)
    if message is None:
        return training, []
    if event.answer is None:
        return _fail(training, context, message, event.reason)
    try:
        arrays, remarked = wire.decode(event.answer, size_max=len(event.answer))
        parts = parted(arrays)
    except wire.WireError as error:
        return _fail(training, context, message, f"its answer cannot be read: {error}")
    if training.answered is None or training.answered[0] != message.run:
        before = training.answered_before | dict([training.answered] if training.answered else [])
        kept = {run: before[run] for run in list(before)[-RUNS_KEPT:] if run != message.run}
        training = replace(training, answered_before=kept)
        training = replace(training, last_counted="", counted_in=-1, before_counted_in=-1)  # in this one nothing was
    answered = (message.run, message.round_index)
    remarks = _replace_remarks(training, message, remarked.get("remarks", ()))
    is_news = remarks != training.remarks
    training = replace(training, own=parts.get("own", {}), answered=answered, remarks=remarks)
    meta = {"run": message.run, "round_index": message.round_index, "phase": message.phase}
    meta["after"] = training.last_counted  # for algorithms that hold sums of what gateways have sent
    body = wire.encode(parts.get("update", {}), meta)
    chunks = split(body, context.payload_bytes)
    digest = digest_of(body)
    item = Item(context.topic("update", digest), tuple(chunks), retain=False, priority=UPDATE_PRIORITY)
    if "update" in parts:  # of one that says nothing nothing can be counted
        training = replace(training, awaited=digest, awaited_round=message.round_index, is_counted=False)
    saved = [save_own(training), *save_ledger(training), save_counted(training)]
    about = {"run": message.run, "round": message.round_index, "digest": digest}
    logged = [Log("warning", f"round {message.round_index}: {text}", about) for text in remarked.get("remarks", ())]
    logged.append(Log("info", f"round {message.round_index}: update of {len(body)} bytes made", about))
    return training, [*saved, Deliver(digest, item), *logged, *([PublishStatus()] if is_news else [])]


def _replace_remarks(training: Training, message: RoundOpen, texts: Sequence[str]) -> dict[int, str]:
    """Return the remarks of the trainings so far with those of the latest: it replaces what an exchange of an earlier
    round left under its phase or a later one.
    """
    is_same = training.answered is not None and training.answered[0] == message.run
    kept = {phase: text for phase, text in training.remarks.items() if is_same and phase < message.phase}
    latest = f"round {message.round_index}: {_hide_numbers(message, '; '.join(texts))}"[:REMARK_LENGTH]
    return {**kept, message.phase: latest} if texts else kept


def _fail(training: Training, context: Context, message: RoundOpen, reason: str) -> Result:
    retry_ns = context.uptime_ns + round(RETRY_S * NS)
    training = replace(training, failed=(message.run, message.round_index), retry_ns=retry_ns)
    fit = _hide_numbers(message, reason)
    training, effects = _refuse_round(training, message, f"training failed: {fit}")
    log = Log("warning", f"round {message.round_index}: {reason}", {"run": message.run, "round": message.round_index})
    return training, effects if fit == reason else [*effects, log]


def _hide_numbers(message: RoundOpen, text: str) -> str:
    """Return what a training said as it may leave the gateway: under masks or privacy the cause without its numbers,
    which may be what others must not know; the log of the gateway keeps them.
    """
    is_hidden = any(message.settings.get(key) is not None for key in HIDING)
    return NUMBER.sub("…", text) if is_hidden else text


def fix_normalisation(training: Training, context: Context, baseline: Sequence[FeatureRow]) -> Result:
    """The baseline is whole: fix this gateway's normalisation for good, and publish that it can train now."""
    training = replace(training, own=normalise(training.own, _collect(context, baseline), "own")[0])
    whole = Log("info", f"baseline of {len(baseline)} windows is whole")
    return training, [save_own(training), whole, PublishStatus()]


def forget_numbers(training: Training) -> Result:
    """Forget the number of the newest training and the open round, which the release key before has signed."""
    training = replace(training, newest_training=0, round=None)
    return training, [save_invited(training)]


def _refuse_round(training: Training, message: RoundOpen, reason: str) -> Result:
    """Say why this gateway will not answer a round, and which, so that nobody waits for it."""
    training = replace(training, refused_round=round_number(message.run, message.round_index))
    return training, refuse(f"{OF_ROUND}{message.round_index}: {reason}")
