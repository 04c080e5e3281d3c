"""The agent as a function: `step(state, uptime_ns, event) -> (state, effects)`.

It reads no clock and touches no file and no socket, so the service, a simulation and a test run the same code. An event
goes to one component, whose functions take its own record, the context and values. What a component wants of another it
returns as a request (`events`), which `_apply` answers. Then advances follow, which do nothing where there is nothing
to do; the last one sends what is due. A message that makes no sense is dropped, counted and logged; it can not stop the
agent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fedgate.config.protocol import topics
from fedgate.config.protocol.frames import Frame
from fedgate.config.protocol.messages import STATUS, MessageError, Receipt, Score, Want
from fedgate.config.protocol.samples import Piece
from fedgate.config.settings.settings import Source
from fedgate.gateway_agent import downloads
from fedgate.gateway_agent.context import save_starts
from fedgate.gateway_agent.deployment import activation, probation, reloading
from fedgate.gateway_agent.deployment.deployment import Deployment, Swap, count_windows
from fedgate.gateway_agent.downloads import Downloads
from fedgate.gateway_agent.events import (
    UPDATE_PRIORITY,
    ClipRead,
    ClockSet,
    Connection,
    Deliver,
    Effect,
    Event,
    Fetch,
    Keep,
    KeysChanged,
    Log,
    Publish,
    PublishStatus,
    Received,
    RecordSamples,
    Reload,
    SetRefusal,
    StoreState,
    Tick,
    Trained,
    Wanted,
)
from fedgate.gateway_agent.monitor import alarms, maintenance
from fedgate.gateway_agent.monitor.alarms import Finding
from fedgate.gateway_agent.monitor.monitor import Monitor
from fedgate.gateway_agent.outbox import outbox as queue
from fedgate.gateway_agent.outbox import scores, summaries
from fedgate.gateway_agent.outbox.outbox import Outbox
from fedgate.gateway_agent.pipeline import pipeline as walk
from fedgate.gateway_agent.pipeline import spectra
from fedgate.gateway_agent.pipeline.memory import save_memory
from fedgate.gateway_agent.pipeline.pipeline import WindowResult
from fedgate.gateway_agent.samples import samples as raw
from fedgate.gateway_agent.samples.samples import Samples
from fedgate.gateway_agent.sources import frames, json_values, units
from fedgate.gateway_agent.state import FEATURES, State, Stored, save_features, save_link
from fedgate.gateway_agent.status import status
from fedgate.gateway_agent.training import training
from fedgate.gateway_agent.training.training import Training
from fedgate.gateway_agent.trust.trust import Trust, receive_numbers, receive_statement, repeat_numbers, watch_age
from fedgate.models.alarms.rules import Height
from fedgate.models.onnx_policy import ModelRefusedError
from fedgate.models.time_units import NS
from fedgate.models.windows.grid import Block, SignalError

REMEMBER_S = 900.0  # a page of the store at a time, which flash bears; a clean stop stores the rest
FULL: Final = "disk-full"
DAMAGED: Final = "store-damaged"  # causes of sensor alarms, which the next start ends
Result = tuple[State, list[Effect]]
Record = Monitor | Samples | Outbox | Downloads | Training | Deployment | Trust
FIELDS: dict[type[Record], str] = {
    Monitor: "monitor",
    Samples: "samples",
    Outbox: "outbox",
    Downloads: "downloads",
    Training: "training",
    Deployment: "deployment",
    Trust: "trust",
}


def begin(state: State, stored: Stored) -> Result:
    """Return the first step after a start: the stored model back in force, alarms of what is no longer watched
    cleared.
    """
    context = replace(state.context, starts=state.context.starts + 1)
    models = state.deployment.models
    state = replace(state, context=context, deployment=replace(state.deployment, marked=models.list_marked_at_start()))
    effects: list[Effect] = [save_starts(context)]
    features = save_features(context)
    if stored.blobs.get(FEATURES) != features.body:
        effects.append(features)
    unwatched = sorted(state.monitor.alarms.active.keys() - alarms.list_watched_causes(context.settings))
    state, cleared = _report(state, *(Finding(cause, context.now_ns) for cause in unwatched))
    effects += cleared
    if not state.monitor.pipeline.commissioned:
        return state, effects
    if "center" not in state.training.own:  # fewer windows are wanted than before
        state, more = _finish_baseline(state)
        effects += more
    pipeline = state.monitor.pipeline
    loaded = reloading.reload(state.deployment, state.context, pipeline, state.training.own, stored.blobs)
    state, more = _put_swap(state, loaded)
    return state, [*effects, *more]


def step(state: State, uptime_ns: int, event: Event) -> Result:
    """Take in one event, so long after the boot."""
    before = state.outbox
    state = replace(state, context=replace(state.context, uptime_ns=uptime_ns))
    state, effects = _route(state, event)
    state, more = _advance(state)
    may_be_due = isinstance(event, Tick | Connection) or queue.may_be_due(before, state.outbox)
    state, sends = _send_due(state) if may_be_due else (state, [])
    return state, [*effects, *more, *sends]


def _route(state: State, event: Event) -> Result:
    match event:
        case Received():
            return _receive(state, event)
        case Tick():
            return _tick(state, event)
        case Trained():
            return _put(state, training.receive_answer(state.training, state.context, event))
        case Connection(up=up):
            return _change_connection(state, up)
        case ClockSet(anchor_ns=anchor_ns):
            return _follow_clock(state, anchor_ns)
        case StoreState():
            return _change_store_health(state, event)
        case ClipRead():
            return _put(state, raw.queue_clip(state.samples, state.context, event))
        case Reload(blobs=blobs):
            pipeline = state.monitor.pipeline
            own = state.training.own
            return _put_swap(state, reloading.load_due(state.deployment, state.context, pipeline, own, blobs))


def _advance(state: State) -> Result:
    """Take part in an open round and put a candidate in force as soon as all that they need is here."""
    pipeline, bodies, effects = state.monitor.pipeline, state.downloads.bodies, list[Effect]()
    if state.training.round is not None and pipeline.commissioned:
        is_waiting, baseline = state.outbox.is_update_waiting, pipeline.baseline
        part = training.take_part(state.training, state.context, baseline, bodies, is_update_waiting=is_waiting)
        state, effects = _put(state, part)
    if state.deployment.candidate is not None:
        own = training.own_in(state.training, state.deployment.candidate.run)
        put = activation.put_in_force(state.deployment, state.context, pipeline, own, bodies)
        state, more = _put_swap(state, put)
        effects += more
    needed = {state.deployment.candidate.model.digest} if state.deployment.candidate else set()
    needed |= {state.training.round.shared.digest} if state.training.round else set()
    if state.downloads.bodies or state.downloads.receiver.incoming:
        state = replace(state, downloads=downloads.forget(state.downloads, needed))
    return state, effects


def _send_due(state: State) -> Result:
    return _put(state, queue.send_due(state.outbox, state.context, state.monitor.alarms.active))


def _apply(state: State, wanted: Sequence[Wanted]) -> Result:
    """Answer the requests among what a component wants, each in its place among the effects."""
    effects: list[Effect] = []
    for one in wanted:
        match one:
            case Deliver(name=name, item=item):
                outbox, more = queue.enqueue(state.outbox, state.context, name, item)
                state = replace(state, outbox=outbox)
                effects += more
            case RecordSamples():
                state, more = _put(state, raw.begin_recording(state.samples, state.context, one))
                effects += more
            case Fetch(transfer=transfer):
                state = replace(state, downloads=downloads.want(state.downloads, state.context, transfer))
            case SetRefusal(reason=reason):
                state = replace(state, context=replace(state.context, refusal=reason))
            case PublishStatus():
                effects.append(Publish(state.context.topic("status", "agent"), status(state).to_bytes(), retain=True))
                state = replace(state, status_ns=state.context.uptime_ns)
            case KeysChanged(is_other_release_key=is_other):
                state, more = _change_keys(state, is_other_release_key=is_other)
                effects += more
            case _:
                effects.append(one)
    return state, effects


def _change_keys(state: State, *, is_other_release_key: bool) -> Result:
    effects: list[Effect] = []
    if is_other_release_key:
        state, effects = _put(state, training.forget_numbers(state.training))
        state, more = _put(state, maintenance.forget_maintenance(state.monitor))
        effects = [*effects, *more]
    changed = activation.change_keys(state.deployment, state.context, is_other_release_key=is_other_release_key)
    state, more = _put(state, changed)
    return state, [*effects, *more]


def _put(state: State, result: tuple[Record, Sequence[Wanted]]) -> Result:
    """Return the state with the record that a component has returned, and its effects."""
    record, wanted = result
    changed: dict[str, Any] = {FIELDS[type(record)]: record}
    return _apply(replace(state, **changed), wanted)


def _report(state: State, *found: Finding) -> Result:
    return _put(state, alarms.report_findings(state.monitor, state.context, found))


def _put_swap(state: State, swap: Swap) -> Result:
    deployment, pipeline, wanted = swap
    if pipeline is not state.monitor.pipeline:
        state = replace(state, monitor=replace(state.monitor, pipeline=pipeline))
    return _apply(replace(state, deployment=deployment), wanted)


def _finish_baseline(state: State) -> Result:
    pipeline = state.monitor.pipeline
    healthy, saved = spectra.save(pipeline.healthy)
    state = replace(state, monitor=replace(state.monitor, pipeline=replace(pipeline, healthy=healthy)))
    state, effects = _put(state, training.fix_normalisation(state.training, state.context, pipeline.baseline))
    return state, [*saved, *effects]


def _change_connection(state: State, up: bool) -> Result:
    state = replace(state, context=replace(state.context, is_connected=up))
    if not up:
        return state, [save_link(state.context)]
    state = replace(
        state,
        outbox=queue.begin_connection(state.outbox, state.context),
        downloads=downloads.ask_again(state.downloads, state.context),
    )
    state, effects = _apply(state, [PublishStatus(), *repeat_numbers(state.trust, state.context)])
    state, kept = _put(state, scores.queue_unsent(state.outbox, state.context))
    return state, [*effects, *kept, save_link(state.context)]


def _follow_clock(state: State, anchor_ns: int) -> Result:
    """Go on after the wall clock was set; no pause and no deadline goes by it.

    A board without a clock of its own boots years ago, and learns the time when the network comes, weeks later perhaps.
    Windows begin anew: what lies on both sides of the step has no common time. What was published before keeps its id
    and its times, for the aggregator holds them; with the boot's id and the time since the boot, which every message
    carries, it can correct them.
    """
    by_ns = anchor_ns - state.context.anchor_ns
    state, kept = _put(state, summaries.queue_gathered(state.outbox, state.context))  # of the time before
    context = replace(state.context, anchor_ns=anchor_ns, clock="synchronised")
    state = replace(state, context=context, monitor=state.monitor.begin_anew())
    text = f"the wall clock was set by {by_ns / 1e9:+.0f} s: windows begin anew at the new time"
    state, ended = _put(state, raw.begin_anew(state.samples, context))
    state, effects = _apply(state, [Log("warning", text), PublishStatus()])
    return state, [*kept, *ended, *effects]


def _change_store_health(state: State, event: StoreState) -> Result:
    """Go on with a store that is full, damaged or well again: give up the least important, and raise an alarm."""
    context = state.context
    if event.problem == DAMAGED:  # a thing of the past as soon as it is reported: the store is a new one
        # Another damage while one is still an active alarm is an alarm of its own.
        return _report(state, Finding(DAMAGED, context.now_ns), Finding(DAMAGED, context.now_ns, event.text))
    context = replace(context, store=replace(context.store, problem=event.problem))
    state, given_up = replace(state, context=context), list[Effect]()
    if event.problem == FULL:
        state, given_up = _put(state, queue.give_up_telemetry(state.outbox, context))
    state, effects = _report(state, Finding(FULL, context.now_ns, event.text if event.problem == FULL else ""))
    state, published = _apply(state, [PublishStatus()])
    return state, [*given_up, *effects, *published]


def _tick(state: State, event: Tick) -> Result:
    context, outbox = state.context, state.outbox
    context = replace(
        context,
        clock=event.clock,
        bytes_sent=event.bytes_sent,
        bytes_received=event.bytes_received,
        line_payload_bytes=event.payload_bytes,
    )
    outbox = replace(outbox, bytes_waiting=event.bytes_waiting, conflict=event.conflict)
    state = replace(state, context=context, outbox=outbox)
    effects: list[Effect] = []
    # What may be due without anything having happened; each does nothing where there is nothing to do.
    for act in (_check_silence, _end_clips, _ask, _clear_marks, _check_model, _watch_age, _save_memory):
        state, more = act(state)
        effects += more
    if state.context.uptime_ns - state.status_ns >= state.context.settings.exchange.status_s * NS:
        state, more = _apply(state, [PublishStatus()])
        effects += more
    return state, effects


def _check_silence(state: State) -> Result:
    return _report(state, *alarms.check_silence(state.monitor, state.context))


def _end_clips(state: State) -> Result:
    return _put(state, raw.end_due(state.samples, state.context))


def _ask(state: State) -> Result:
    return _put(state, downloads.ask(state.downloads, state.context))


def _clear_marks(state: State) -> Result:
    return _put(state, probation.clear_marks(state.deployment, state.context, state.monitor.windows))


def _check_model(state: State) -> Result:
    deployment = state.deployment
    newest_version = max(deployment.models.newest, deployment.models.current.version)
    return _report(state, alarms.check_model(state.context, deployment.manifest, newest_version))


def _watch_age(state: State) -> Result:
    return _put(state, watch_age(state.trust, state.context, state.deployment.highest_version))


def _save_memory(state: State) -> Result:
    uptime_ns = state.context.uptime_ns
    if uptime_ns - state.monitor.remembered_ns < REMEMBER_S * NS:
        return state, []
    pipeline = state.monitor.pipeline
    is_due = not pipeline.commissioned and spectra.has_grown(pipeline.healthy)
    healthy, saved = spectra.save(pipeline.healthy) if is_due else (pipeline.healthy, [])
    monitor = replace(state.monitor, remembered_ns=uptime_ns, pipeline=replace(pipeline, healthy=healthy))
    state = replace(state, monitor=monitor)
    return state, [*saved, *save_memory(state.monitor.pipeline, state.context, state.deployment.manifest)]


def _receive(state: State, event: Received) -> Result:
    readers = [
        source for source in state.context.settings.source if source.kind == "json" and source.topic == event.topic
    ]
    if not readers:
        return _drop_on_error(state, event, lambda state: _dispatch(state, topics.parse(event.topic), event.payload))
    effects: list[Effect] = []
    for source in readers:  # several may read one topic: a message often holds only what has changed
        state, more = _drop_on_error(state, event, partial(_read_json, source=source, payload=event.payload))
        effects += more
    return state, effects


def _drop_on_error(state: State, event: Received, take: Callable[[State], Result]) -> Result:
    try:
        return take(state)
    except (MessageError, topics.TopicError, SignalError) as error:
        count = state.messages_dropped + 1
        # At 1, 2, 4, 8, ...: a sensor that says the same wrong thing ten times a second must not fill the journal.
        log = Log("warning", f"{event.topic} dropped ({count} so far): {error}")
        return replace(state, messages_dropped=count), [log] if count.bit_count() == 1 else []


def _dispatch(state: State, where: topics.Topic, payload: bytes) -> Result:
    context, gateway = state.context, state.context.settings.gateway
    if where.site != gateway.site or where.gateway not in (gateway.id, topics.ALL):
        raise MessageError(f"it is for gateway {where.gateway} of site {where.site}")
    if where.item == topics.TRIED and not payload:
        return state, []
    if where.channel == "sample":
        return _read_frame(state, where.item, payload)
    state = replace(state, outbox=queue.note_answer(state.outbox, context))
    match where.channel:
        case "round":
            return _put(state, training.receive_invitation(state.training, context, payload))
        case "keys":
            return _put(state, receive_statement(state.trust, context, payload))
        case "manifest":
            signed, is_own = state.trust.signed_version, where.gateway != topics.ALL
            announced = activation.receive_announcement(
                state.deployment, context, payload, is_own=is_own, signed_version=signed
            )
            return _put(state, announced)
        case "newest":
            return _put(state, receive_numbers(state.trust, context, payload))
        case "maintenance-windows":
            return _put(state, maintenance.receive_maintenance(state.monitor, context, payload))
        case "chunk":
            return replace(state, downloads=downloads.take_chunk(state.downloads, context, payload)), []
        case "receipt" if where.item == STATUS:
            return replace(state, context=replace(context, challenge=Receipt.from_bytes(payload).challenge)), []
        case "receipt":
            return _take_receipt(state, where.item, Receipt.from_bytes(payload))
        case "resend":
            return _put(state, queue.resend(state.outbox, context, where.item, Want.from_bytes(payload).missing))
        case "fetch" if not queue.has_space_for_samples(state.outbox):  # the site asks again
            return state, []
        case "fetch":
            return _put(state, raw.receive_request(state.samples, context, payload))
    raise MessageError(f"channel {where.channel!r} is not for gateways")


def _take_receipt(state: State, name: str, receipt: Receipt) -> Result:
    """Take in a receipt. The status repeats a refusal, and what was said of an update; that an alarm has arrived says
    nothing of the training.
    """
    item, context = state.outbox.items.get(name), state.context
    if item is not None and (item.priority == UPDATE_PRIORITY or not receipt.accepted):
        context = replace(context, refusal=receipt.reason)
    is_counted = receipt.accepted and name == state.training.awaited
    changed, saved = training.note_receipt(state.training, receipt) if is_counted else (state.training, [])
    outbox, effects = queue.settle(state.outbox, name, receipt)
    return replace(state, context=context, training=changed, outbox=outbox), [*effects, *saved]


def _read_frame(state: State, stream: str, payload: bytes) -> Result:
    source = next((one for one in state.context.settings.source if one.name == stream and one.kind == "frames"), None)
    if source is None:
        raise MessageError(f"no source of kind 'frames' is named {stream!r} in the settings")
    context, sent = state.context, Frame.from_bytes(payload)
    block, offsets = frames.read(source, sent, context.uptime_ns, context.anchor_ns, state.monitor.offsets)
    return _push_samples(replace(state, monitor=replace(state.monitor, offsets=offsets)), source, block)


def _read_json(state: State, source: Source, payload: bytes) -> Result:
    return _push_samples(state, source, json_values.read(source, payload, state.context.now_ns))


def _push_samples(state: State, source: Source, block: Block) -> Result:
    """Take a block of samples, values as they came, through the pipeline, and what it found in each window to the
    alarms and the scores.
    """
    piece, block = Piece(block.t_ns, block.rate_hz, block.values), units.to_units(source, block)
    state, held = _put(state, raw.note_piece(state.samples, state.context, source.name, piece))
    now_ns = state.context.now_ns
    monitor = state.monitor.note_block(state.context.uptime_ns, now_ns, block)
    state, effects = _report(replace(state, monitor=monitor), Finding(f"silent-{source.name}", now_ns))
    effects = [*held, *effects]
    was_commissioned = state.monitor.pipeline.commissioned
    began_ns = state.context.stopwatch()
    try:
        pipeline, readings = walk.push(state.monitor.pipeline, block)
    except ModelRefusedError as error:  # the model in force cannot be run on it
        left = probation.leave(state.deployment, state.context, state.monitor.pipeline, str(error))
        state, more = _put_swap(state, left)
        effects += more
        pipeline, readings = walk.push(state.monitor.pipeline, block)
    elapsed_ns = state.context.stopwatch() - began_ns
    effects += map(Keep, pipeline.baseline[len(state.monitor.pipeline.baseline) :])
    state = replace(state, monitor=replace(state.monitor, pipeline=pipeline))
    for reading in readings:
        state, more = _report_window(state, reading)
        effects += more
    state, more = _put(state, count_windows(state.deployment, readings))
    effects += more
    pipeline = state.monitor.pipeline
    if state.deployment.trial is not None:
        watched = probation.watch_model(state.deployment, state.context, pipeline, readings, elapsed_ns)
        state, more = _put_swap(state, watched)
        effects += more
    if pipeline.commissioned and not was_commissioned:
        state, more = _finish_baseline(state)
        effects += more
    return state, effects


def _report_window(state: State, reading: WindowResult) -> Result:
    state, effects = _put(state, alarms.check_reading(state.monitor, state.context, state.deployment.manifest, reading))
    exchange = state.context.settings.exchange
    if reading.height is not None and exchange.publish_scores:
        score = _make_score(state, reading.t_ns, reading.height)
        state, more = _put(state, scores.publish(state.outbox, state.context, score))
        effects += more
    if exchange.publish_features:
        state, more = _summarise(state, reading)
        effects += more
    return state, effects


def _summarise(state: State, reading: WindowResult) -> Result:
    if reading.row is None or walk.is_in_maintenance(state.monitor.pipeline, reading.t_ns):
        return state, []
    return _put(state, summaries.take_in(state.outbox, state.context, reading.t_ns, reading.row))


def _make_score(state: State, t_ns: int, height: Height) -> Score:
    judge = state.monitor.pipeline.judge
    return Score(
        t_ns=t_ns,
        score=height.value,
        rule=height.rule,
        level=judge.levels.raise_level if judge else 0.0,
        alarm=state.monitor.pipeline.alarm.active,
        model_version=state.deployment.version,
    )
