"""A gateway's part in a federated round: invitation -> shared parameters -> training child -> update -> receipt.

What leaves the gateway is the update that the algorithm defines, and nothing else; what the algorithm keeps for the
gateway is stored before the update is sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import RoundOpen, round_number
from fedgate.config.protocol.topics import ALL
from fedgate.config.protocol.transfer import digest_of, split
from fedgate.gateway_agent.events import UPDATE_PRIORITY, Effect, Item, Log, Train, Trained
from fedgate.gateway_agent.monitor.pipeline import training_data
from fedgate.gateway_agent.state import State, deliver, fetch, tell
from fedgate.gateway_agent.training.training import own_in, save_counted, save_invited, save_ledger, save_own
from fedgate.gateway_agent.trust import signatures
from fedgate.models.arrays import COUNTED, FEATURES, RADIUS, WEIGHT, Arrays, joined, parted, ratchet
from fedgate.models.federated.algorithm import normalise
from fedgate.models.records import replace

NS = 1_000_000_000
REMARK_LENGTH = 500  # of an exchange
HIDING = ("masking", "privacy")  # settings that promise what a training found to nobody but this gateway
NUMBER = re.compile(r"[-+]?\d+(?:[.,_]\d+)*(?:[eE][-+]?\d+)?")
RUNS_KEPT = 16  # trainings before the present one, of which no round is answered a second time
RETRY_S = 3_600.0  # a failed training would most likely fail alike; but it may have been a lack of time or memory


def invited(state: State, payload: bytes) -> tuple[State, list[Effect]]:
    """Take in the announcement of a round; the one before it, unanswered or not, is over.

    An empty payload says that no round is open. An invitation decides what is computed from this gateway's data and
    sent, so it must be signed. What was refused before is refused no more: a broker may say an earlier invitation
    again, and the aggregator reminds only those that do not refuse the open round. Raises `MessageError`.
    """
    if not payload:
        return replace(state, training=replace(state.training, round=None, refused_round="")), []
    message = RoundOpen.from_bytes(payload)
    shared_bytes, most_bytes = message.shared.size_bytes, state.context.settings.limits.max_update_bytes
    if message.features != state.context.settings.features:
        return _refuse_round(state, message, "its features differ from the [features] of this gateway")
    if problem := signatures.problem(state.trust, state.context, message, ALL):
        return refuse(state, f"round {message.round_index}: {problem}")
    if shared_bytes > most_bytes:
        reason = f"its shared parameters have {shared_bytes} bytes, at most {most_bytes} are taken"
        return _refuse_round(state, message, reason)
    if 0 < message.training < state.training.newest_training:
        # Kept by a broker that was set back, or sent again: whoever answered it would forget the training at hand.
        reason = f"it is of training {message.training}, an earlier one than {state.training.newest_training}"
        return _refuse_round(state, message, reason)
    saved: list[Effect] = []
    if message.training > state.training.newest_training:  # on the disk before anything is answered
        state = replace(state, training=replace(state.training, newest_training=message.training))
        saved = [save_invited(state.training)]
    lacking = [name for name in message.libraries if name not in state.training.libraries]
    if state.training.can_train and lacking:
        state, effects = _unable(
            replace(state, training=replace(state.training, round=None)),
            f"round {message.round_index}: {message.algorithm} needs {', '.join(lacking)}, not installed here; "
            "this gateway runs the models of the others, and takes part once it is",
        )
    else:
        state, effects = take_part(replace(state, training=replace(state.training, round=message, refused_round="")))
    return state, [*saved, *effects]


def _unable(state: State, reason: str) -> tuple[State, list[Effect]]:
    """Say once, and not with every invitation, why this gateway takes no part in a training."""
    return (state, []) if reason.partition(": ")[2] == state.refusal.partition(": ")[2] else refuse(state, reason)


def take_part(state: State) -> tuple[State, list[Effect]]:
    """Start the training where there is a round to answer and all it needs is here; ask for the shared parameters if
    not.
    """
    message = state.training.round
    if (
        message is None
        or state.training.running is not None
        or not state.monitor.pipeline.commissioned
        or not state.training.can_train
    ):
        return state, []
    number = (message.run, message.round_index)
    is_answered = (
        state.training.answered is not None
        and state.training.answered[0] == message.run
        and state.training.answered[1] >= number[1]
    )
    if is_answered:
        return state, []
    if message.round_index <= state.training.answered_before.get(message.run, -1):
        text = f"training {message.run} went back to a round that this gateway has answered, before others began"
        return _refuse_round(
            replace(state, training=replace(state.training, round=None)), message, f"{text}; choose another seed for it"
        )
    if state.training.failed == number and state.context.now_ns < state.training.retry_ns:
        return replace(state, training=replace(state.training, refused_round=round_number(*number))), []
    if message.cohort is not None and state.context.settings.gateway.id not in message.cohort:
        return state, []
    if any(item.priority == UPDATE_PRIORITY for item in state.outbox.items.values()):
        return state, []  # whether the last update was counted decides on what the next one says
    shared = state.downloads.bodies.get(message.shared.digest)
    if shared is None:
        return fetch(state, message.shared), []
    drawn, chain = ratchet(state.training.chain) if state.training.chain else (b"", b"")
    try:
        job = _job(state, message, shared, drawn)
    except wire.WireError as error:
        return _refuse_round(
            replace(state, training=replace(state.training, round=None)), message, f"shared parameters: {error}"
        )
    return replace(state, training=replace(state.training, running=message, refused_round="", chain=chain)), [
        Train(job)
    ]


def _job(state: State, message: RoundOpen, shared: bytes, drawn: bytes) -> bytes:
    data = training_data(state.monitor.pipeline, state.context.settings.baseline.calibration_windows)
    parts = {
        "shared": wire.decode(shared)[0],
        "own": own_in(state.training, message.run),
        "data": {**data, COUNTED: np.array(state.training.is_counted), **_of_this_gateway(state)},
        "labelled": state.training.labelled,
    }
    order = {
        "algorithm": message.algorithm,
        "settings": message.settings,
        "feature_count": data[FEATURES].shape[1],
        "phase": message.phase,
        "run": message.run,
        "seed": message.seed,
        "round_index": message.round_index,
        "gateway": state.context.settings.gateway.id,
        "secret": state.context.secret.hex(),
        "drawn": drawn.hex(),
    }
    return wire.encode(joined(parts), order)


def _of_this_gateway(state: State) -> Arrays:
    """Return what the settings say of this gateway alone, as the algorithms look for it beside the rows."""
    chosen = {WEIGHT: state.context.settings.training.weight, RADIUS: state.context.settings.training.radius}
    return {name: np.array(value) for name, value in chosen.items() if value is not None}


def trained(state: State, event: Trained) -> tuple[State, list[Effect]]:
    """Take in the child's answer: store what stays and the update, in one step, then send the update."""
    message, state = state.training.running, replace(state, training=replace(state.training, running=None))
    if message is None:
        return state, []
    if event.answer is None:
        return _failed(state, message, event.reason)
    try:
        arrays, said = wire.decode(event.answer, size_max=len(event.answer))
        parts = parted(arrays)
    except wire.WireError as error:
        return _failed(state, message, f"its answer cannot be read: {error}")
    if state.training.answered is None or state.training.answered[0] != message.run:
        before = {
            **state.training.answered_before,
            **dict([state.training.answered] if state.training.answered else []),
        }
        kept = {run: before[run] for run in list(before)[-RUNS_KEPT:] if run != message.run}
        state = replace(
            state, training=replace(state.training, last_counted="", answered_before=kept)
        )  # in this training nothing was
    answered = (message.run, message.round_index)
    remarks = _remarks(state, message, said.get("remarks", ()))
    is_news = remarks != state.training.remarks
    state = replace(
        state, training=replace(state.training, own=parts.get("own", {}), answered=answered, remarks=remarks)
    )
    meta = {"run": message.run, "round_index": message.round_index, "phase": message.phase}
    meta["after"] = state.training.last_counted  # for algorithms that hold sums of what gateways have sent
    body = wire.encode(parts.get("update", {}), meta)
    chunks = split(body, state.context.settings.limits.max_payload_bytes)
    digest = digest_of(body)
    item = Item(state.context.topic("update", digest), tuple(chunks), retain=False, priority=UPDATE_PRIORITY)
    if "update" in parts:  # of one that says nothing nothing can be counted
        state = replace(state, training=replace(state.training, awaited=digest, is_counted=False))
    saved = [save_own(state.training), *save_ledger(state.training), save_counted(state.training)]
    state, effects = deliver(state, digest, item)
    logged: list[Effect] = [Log("warning", f"round {message.round_index}: {text}") for text in said.get("remarks", ())]
    logged.append(Log("info", f"round {message.round_index}: update of {len(body)} bytes made"))
    state, told = tell(state) if is_news else (state, [])
    state, more = take_part(state)
    return state, [*saved, *effects, *logged, *told, *more]


def _remarks(state: State, message: RoundOpen, texts: Sequence[str]) -> dict[int, str]:
    """Return the remarks of the trainings so far with those of the latest: it replaces what an exchange of an earlier
    round left under its phase or a later one.
    """
    is_same = state.training.answered is not None and state.training.answered[0] == message.run
    kept = {phase: text for phase, text in state.training.remarks.items() if is_same and phase < message.phase}
    latest = f"round {message.round_index}: {_fit_to_tell(message, '; '.join(texts))}"[:REMARK_LENGTH]
    return {**kept, message.phase: latest} if texts else kept


def _failed(state: State, message: RoundOpen, reason: str) -> tuple[State, list[Effect]]:
    retry_ns = state.context.now_ns + round(RETRY_S * NS)
    state = replace(
        state, training=replace(state.training, failed=(message.run, message.round_index), retry_ns=retry_ns)
    )
    fit = _fit_to_tell(message, reason)
    state, effects = _refuse_round(state, message, f"training failed: {fit}")
    return state, effects if fit == reason else [*effects, Log("warning", f"round {message.round_index}: {reason}")]


def _fit_to_tell(message: RoundOpen, text: str) -> str:
    """Return what a training said as it may leave the gateway: under masks or privacy the cause without its numbers,
    which may be what others must not know; the log of the gateway keeps them.
    """
    is_hidden = any(message.settings.get(key) is not None for key in HIDING)
    return NUMBER.sub("…", text) if is_hidden else text


def commissioned(state: State) -> tuple[State, list[Effect]]:
    """The baseline is whole: fix this gateway's normalisation for good, say so, and answer a waiting round."""
    own, _ = normalise(
        state.training.own,
        training_data(state.monitor.pipeline, state.context.settings.baseline.calibration_windows),
        "own",
    )
    state = replace(state, training=replace(state.training, own=own))
    saved = save_own(state.training)
    state, told = tell(state)
    state, effects = take_part(state)
    return state, [
        saved,
        Log("info", f"baseline of {len(state.monitor.pipeline.baseline)} windows is whole"),
        *told,
        *effects,
    ]


def _refuse_round(state: State, message: RoundOpen, reason: str) -> tuple[State, list[Effect]]:
    """Say why this gateway will not answer a round, and which, so that nobody waits for it."""
    state = replace(
        state, training=replace(state.training, refused_round=round_number(message.run, message.round_index))
    )
    return refuse(state, f"round {message.round_index}: {reason}")


def refuse(state: State, reason: str) -> tuple[State, list[Effect]]:
    """Say, in the log and in the status, why something was not done."""
    state, told = tell(replace(state, refusal=reason))
    return state, [Log("warning", reason), *told]
