"""The agent as a function: `step(state, now_ns, event) -> (state, effects)`.

It reads no clock and touches no file and no socket, so the service, a simulation and a test run the same code. A
message that makes no sense is dropped, counted and logged; it can not stop the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fedgate.config.protocol import topics
from fedgate.config.protocol.frames import Frame
from fedgate.config.protocol.messages import MessageError, Receipt, Score, Want
from fedgate.config.settings.settings import Source
from fedgate.gateway_agent import clock_steps, downloads, store_faults
from fedgate.gateway_agent.deployment import candidate, probation, startup
from fedgate.gateway_agent.events import (
    UPDATE_PRIORITY,
    Anchored,
    Connection,
    Effect,
    Event,
    Heard,
    Keep,
    Log,
    Reload,
    Save,
    StoreState,
    Tick,
    Trained,
)
from fedgate.gateway_agent.monitor import alarms
from fedgate.gateway_agent.monitor.pipeline import Reading
from fedgate.gateway_agent.monitor.recurrence import Seen
from fedgate.gateway_agent.outbox import delivery, scores
from fedgate.gateway_agent.sources import frames, json_values
from fedgate.gateway_agent.state import State, Stored, active_alarms, counted, save_features, save_memory, tell
from fedgate.gateway_agent.store_identity import STARTS
from fedgate.gateway_agent.training import participation
from fedgate.gateway_agent.training.training import note_receipt
from fedgate.gateway_agent.trust import newest, site_keys
from fedgate.models.records import replace
from fedgate.models.rules import Height
from fedgate.models.signal import Block, SignalError

NS = 1_000_000_000
REMEMBER_S = 900.0  # a page of the store at a time, which flash bears; a clean stop stores the rest


def begin(state: State, stored: Stored) -> tuple[State, list[Effect]]:
    """Return the first step after a start: the stored model back in force, alarms of what is no longer watched
    cleared.
    """
    state = replace(state, context=replace(state.context, starts=state.context.starts + 1))
    effects: list[Effect] = [Save(STARTS, str(state.context.starts).encode())]
    features = save_features(state)
    if stored.blobs.get(features.key) != features.body:
        effects.append(features)
    watched = {f"silent-{source.name}" for source in state.context.settings.source}
    watched |= {alarms.NO_MODEL}
    watched |= {alarms.OUTDATED} if state.context.settings.alarm.drift is not None else set()
    watched |= {f"faulty-{channel}" for channel in state.context.settings.features.channels}
    watched |= alarms.stuck_causes(state.context.settings)
    for cause in sorted(state.monitor.sensor_alarms.keys() - watched):
        state, cleared = alarms.sensor_well(state, cause, state.context.now_ns)
        effects += cleared
    if (
        state.monitor.pipeline.commissioned and "center" not in state.training.own
    ):  # fewer windows are wanted than before
        state, more = participation.commissioned(state)
        effects += more
    state = replace(state, deployment=replace(state.deployment, marked=state.deployment.models.counted_at_start()))
    if state.monitor.pipeline.commissioned:
        state, loaded = startup.reload(state, stored.blobs)
        effects += loaded
    return state, effects


def step(state: State, now_ns: int, event: Event) -> tuple[State, list[Effect]]:
    """Take in one event at `now_ns` on the gateway's timeline."""
    state = replace(state, context=replace(state.context, now_ns=now_ns))
    match event:
        case Heard():
            return _heard(state, event)
        case Tick():
            return _tick(state, event)
        case Trained():
            return participation.trained(state, event)
        case Connection(up=up):
            return _connection(state, up)
        case Anchored():
            return clock_steps.set_clock(state, event)
        case StoreState():
            return store_faults.of_store(state, event)
        case Reload(blobs=blobs):
            return startup.again(state, blobs)


def _connection(state: State, up: bool) -> tuple[State, list[Effect]]:
    state = replace(state, context=replace(state.context, is_connected=up))
    if not up:
        return state, []
    state = replace(
        state,
        outbox=delivery.begin_connection(state.outbox, state.context),
        downloads=downloads.ask_anew(state.downloads, state.context),
    )
    state, told = tell(state)
    outbox, kept = scores.queue_kept(state.outbox, state.context, active_alarms(state))
    state, sends = _send_due(replace(state, outbox=outbox))
    return state, [*told, *newest.repeated(state), *kept, *sends]


def _tick(state: State, event: Tick) -> tuple[State, list[Effect]]:
    line = replace(state.outbox.line, bytes_waiting=event.bytes_waiting, trouble=event.trouble)
    sent, received = event.bytes_sent, event.bytes_received
    context = replace(state.context, clock=event.clock, bytes_sent=sent, bytes_received=received)
    state = _forget(replace(state, context=context, outbox=replace(state.outbox, line=line)))
    effects: list[Effect] = []
    # What may be due without anything having happened; each does nothing where there is nothing to do.
    in_turn = (alarms.silent_sources, _send_due, participation.take_part, _ask)
    for advance in (*in_turn, candidate.put_in_force, probation.ticked, alarms.without_model, newest.watch_age):
        state, more = advance(state)
        effects += more
    state = _forget(state)
    if state.context.now_ns - state.monitor.remembered_ns >= REMEMBER_S * NS:
        state = replace(state, monitor=replace(state.monitor, remembered_ns=state.context.now_ns))
        effects += save_memory(state)
    if state.context.now_ns - state.status_ns >= state.context.settings.exchange.status_s * NS:
        state, more = tell(state)
        effects += more
    return state, effects


def _send_due(state: State) -> tuple[State, list[Effect]]:
    outbox, sends = delivery.send_due(state.outbox, state.context, active_alarms(state))
    return replace(state, outbox=outbox), sends


def _ask(state: State) -> tuple[State, list[Effect]]:
    asked, effects = downloads.ask(state.downloads, state.context)
    return replace(state, downloads=asked), effects


def _forget(state: State) -> State:
    """Drop bodies that no round and no candidate needs any more."""
    candidate_, round_ = state.deployment.candidate, state.training.round
    needed = {candidate_.model.digest} if candidate_ else set()
    needed |= {round_.shared.digest} if round_ else set()
    return replace(state, downloads=downloads.forget(state.downloads, needed))


def _heard(state: State, event: Heard) -> tuple[State, list[Effect]]:
    readers = [
        source for source in state.context.settings.source if source.kind == "json" and source.topic == event.topic
    ]
    if not readers:
        return _or_dropped(state, event, lambda state: _addressed(state, topics.parse(event.topic), event.payload))
    effects: list[Effect] = []
    for source in readers:  # several may read one topic: a message often holds only what has changed
        state, more = _or_dropped(state, event, partial(_reading, source=source, payload=event.payload))
        effects += more
    return state, effects


def _or_dropped(
    state: State, event: Heard, take: Callable[[State], tuple[State, list[Effect]]]
) -> tuple[State, list[Effect]]:
    try:
        return take(state)
    except (MessageError, topics.TopicError, SignalError) as error:
        state = counted(state, "dropped.message")
        count = state.counts["dropped.message"]
        # At 1, 2, 4, 8, ...: a sensor that says the same wrong thing ten times a second must not fill the journal.
        told = Log("warning", f"{event.topic} dropped ({count} so far): {error}")
        return state, [told] if count.bit_count() == 1 else []


def _addressed(state: State, where: topics.Topic, payload: bytes) -> tuple[State, list[Effect]]:
    gateway = state.context.settings.gateway
    if where.site != gateway.site or where.gateway not in (gateway.id, topics.ALL):
        raise MessageError(f"it is for gateway {where.gateway} of site {where.site}")
    if where.item == topics.TRIED and not payload:
        return state, []
    if where.channel == "sample":
        return _frame(state, where.item, payload)
    state = replace(state, outbox=delivery.note_answer(state.outbox, state.context))
    match where.channel:
        case "round":
            return participation.invited(state, payload)
        case "keys":
            return site_keys.heard(state, payload)
        case "manifest":
            return candidate.heard(state, payload, is_own=where.gateway != topics.ALL)
        case "newest":
            return newest.announced(state, payload)
        case "chunk":
            return _chunk(state, payload)
        case "receipt":
            return _settle(state, where.item, Receipt.from_bytes(payload))
        case "resend":
            missing = Want.from_bytes(payload).missing
            outbox, sends = delivery.resend(state.outbox, state.context, where.item, missing)
            return replace(state, outbox=outbox), sends
    raise MessageError(f"channel {where.channel!r} is not for gateways")


def _settle(state: State, name: str, receipt: Receipt) -> tuple[State, list[Effect]]:
    """Take in a receipt. The status repeats a refusal, and what was said of an update; that an alarm has arrived says
    nothing of the training.
    """
    item = state.outbox.items.get(name)
    if item is not None and (item.priority == UPDATE_PRIORITY or not receipt.accepted):
        state = replace(state, refusal=receipt.reason)
    training, saved = note_receipt(state.training, name) if receipt.accepted else (state.training, [])
    outbox, effects = delivery.settle(state.outbox, state.context, active_alarms(state), name, receipt)
    return replace(state, training=training, outbox=outbox), [*effects, *saved]


def _frame(state: State, stream: str, payload: bytes) -> tuple[State, list[Effect]]:
    source = next((one for one in state.context.settings.source if one.name == stream and one.kind == "frames"), None)
    if source is None:
        raise MessageError(f"no source of kind 'frames' is named {stream!r} in the settings")
    block, offsets = frames.read(source, Frame.from_bytes(payload), state.context.now_ns, state.monitor.offsets)
    return _sampled(replace(state, monitor=replace(state.monitor, offsets=offsets)), source, block)


def _chunk(state: State, payload: bytes) -> tuple[State, list[Effect]]:
    state = replace(state, downloads=downloads.take_chunk(state.downloads, state.context, payload))
    state, trains = participation.take_part(state)
    state, swaps = candidate.put_in_force(state)
    return _forget(state), [*trains, *swaps]


def _reading(state: State, source: Source, payload: bytes) -> tuple[State, list[Effect]]:
    return _sampled(state, source, json_values.read(source, payload, state.context.now_ns))


def _sampled(state: State, source: Source, block: Block) -> tuple[State, list[Effect]]:
    state = replace(
        state, monitor=replace(state.monitor, heard_ns={**state.monitor.heard_ns, source.name: state.context.now_ns})
    )
    state, effects = alarms.sensor_well(state, f"silent-{source.name}", state.context.now_ns)
    was_commissioned = state.monitor.pipeline.commissioned
    began_ns = state.context.stopwatch()
    state, readings, more = probation.pushed(state, block)
    elapsed_ns, pipeline = state.context.stopwatch() - began_ns, state.monitor.pipeline
    effects += more
    for reading in readings:
        state, more = _read(state, reading)
        effects += more
    state, more = probation.watched(state, readings, elapsed_ns)
    effects += more
    if pipeline.commissioned and not was_commissioned:
        state, more = participation.commissioned(state)
        state, swaps = candidate.put_in_force(state)
        effects += [*more, *swaps]
    elif not pipeline.commissioned:  # a few windows are enough to watch at the level of the site
        state, swaps = candidate.put_in_force(state)
        effects += swaps
    return state, effects


def _read(state: State, reading: Reading) -> tuple[State, list[Effect]]:
    for channel, count in reading.filled.items():
        state = counted(state, f"filled.{channel}", count)
    if reading.lost is not None:
        is_first = not state.monitor.lost_ns  # of a run of lost windows; the count of all stands in the status
        state, effects = alarms.window_lost(counted(state, "windows_lost"), reading.lost)
        told = Log("info", f"window lost ({', '.join(reading.lost.channels)}): {reading.lost.reason}")
        return state, [told, *effects] if is_first else effects
    state, effects = alarms.window_whole(counted(state, "windows"), reading.faulty, reading.t_ns)
    if reading.learned and reading.row is not None:
        effects.append(Keep(Seen(reading.row, reading.t_ns)))
    state, more = alarms.stuck(state, reading.stuck, reading.moved, reading.t_ns)
    effects += more
    if reading.height is None:
        return state, effects
    if reading.transition is not None:
        state, more = alarms.of_transition(state, reading.transition, reading.height)
        effects += more
    state, more = alarms.outdated(state, reading.t_ns)
    effects += more
    if state.context.settings.exchange.publish_scores:
        score = _score(state, reading.t_ns, reading.height)
        outbox, more = scores.publish(state.outbox, state.context, active_alarms(state), score)
        state, effects = replace(state, outbox=outbox), [*effects, *more]
    return state, effects


def _score(state: State, t_ns: int, height: Height) -> Score:
    judge, manifest = state.monitor.pipeline.judge, state.deployment.manifest
    return Score(
        t_ns=t_ns,
        score=height.value,
        rule=height.rule,
        level=judge.levels.raise_level if judge else 0.0,
        alarm=state.monitor.pipeline.alarm.active,
        model_version=manifest.version if manifest else 0,
    )
