"""The agent as a function: `step(state, now_ns, event) -> (state, effects)`.

It reads no clock and touches no file and no socket, so the service, a simulation and a test run the same code. A
message that makes no sense is dropped, counted and logged; it can not stop the agent.
"""

from __future__ import annotations

from dataclasses import replace

from config import topics
from config.frames import Frame
from config.messages import Manifest, MessageError, Receipt, RoundOpen, Score, Want
from config.settings import Source
from gateway_agent import alarms, candidate, fetching, learning, outbox
from gateway_agent import pipeline as walk
from gateway_agent.events import Connection, Effect, Event, Heard, Keep, Log, Publish, Tick, Trained
from gateway_agent.pipeline import Reading
from gateway_agent.sources import frames, json_values
from gateway_agent.state import MODEL, State, Stored, counted, tell, topic
from models.signal import Block, SignalError

NS = 1_000_000_000


def begin(state: State, stored: Stored) -> tuple[State, list[Effect]]:
    """Return the first step after a start: the stored model back in force."""
    if MODEL not in stored.blobs or not state.pipeline.commissioned:
        return state, []
    return candidate.reload(state, stored.blobs[MODEL])


def step(state: State, now_ns: int, event: Event) -> tuple[State, list[Effect]]:
    """Take in one event at `now_ns` on the gateway's timeline."""
    state = replace(state, now_ns=now_ns)
    match event:
        case Heard():
            return _heard(state, event)
        case Tick():
            return _tick(state, event)
        case Trained():
            return learning.trained(state, event)
        case Connection(up=up):
            return _connection(state, up)


def _connection(state: State, up: bool) -> tuple[State, list[Effect]]:
    state = replace(state, connected=up)
    if not up:
        return state, []
    state, told = tell(state)
    state, sends = outbox.send_due(state, everything=True)
    return state, [*told, *sends]


def _tick(state: State, event: Tick) -> tuple[State, list[Effect]]:
    state = replace(state, clock=event.clock, bytes_sent=event.bytes_sent, bytes_received=event.bytes_received)
    effects: list[Effect] = []
    for act in (alarms.silent_sources, outbox.send_due, fetching.ask):
        state, more = act(state)
        effects += more
    if state.now_ns - state.status_ns >= state.settings.exchange.status_s * NS:
        state, more = tell(state)
        effects += more
    return state, effects


def _heard(state: State, event: Heard) -> tuple[State, list[Effect]]:
    try:
        for source in state.settings.source:
            if source.kind == "json" and event.topic == source.topic:
                return _sampled(state, source, json_values.read(source, event.payload, state.now_ns))
        return _addressed(state, topics.parse(event.topic), event.payload)
    except (MessageError, topics.TopicError, SignalError) as error:
        return counted(state, "dropped.message"), [Log("warning", f"{event.topic} dropped: {error}")]


def _addressed(state: State, where: topics.Topic, payload: bytes) -> tuple[State, list[Effect]]:
    match where.channel:
        case "sample":
            return _frame(state, where.item, payload)
        case "round":
            return learning.invited(state, RoundOpen.from_bytes(payload))
        case "manifest":
            return candidate.announced(state, Manifest.from_bytes(payload))
        case "chunk":
            return _chunk(state, payload)
        case "receipt":
            return outbox.settle(state, where.item, Receipt.from_bytes(payload))
        case "resend":
            return outbox.resend(state, where.item, Want.from_bytes(payload).missing)
    raise MessageError(f"channel {where.channel!r} is not for gateways")


def _frame(state: State, stream: str, payload: bytes) -> tuple[State, list[Effect]]:
    source = next((one for one in state.settings.source if one.name == stream and one.kind == "frames"), None)
    if source is None:
        raise MessageError(f"no source of kind 'frames' is named {stream!r} in the settings")
    block, offsets = frames.read(source, Frame.from_bytes(payload), state.now_ns, state.offsets)
    return _sampled(replace(state, offsets=offsets), source, block)


def _chunk(state: State, payload: bytes) -> tuple[State, list[Effect]]:
    state = fetching.arrived(state, payload)
    state, trains = learning.take_part(state)
    state, swaps = candidate.put_in_force(state)
    needed = {state.candidate.model.digest} if state.candidate else set()
    if state.round is not None:
        needed.add(state.round.shared.digest)
    return fetching.forget_all_but(state, needed), [*trains, *swaps]


def _sampled(state: State, source: Source, block: Block) -> tuple[State, list[Effect]]:
    state = replace(state, heard_ns={**state.heard_ns, source.name: state.now_ns})
    state, effects = alarms.sensor_well(state, f"silent-{source.name}", state.now_ns)
    was_commissioned = state.pipeline.commissioned
    pipeline, readings = walk.push(state.pipeline, block)
    state = replace(state, pipeline=pipeline)
    for reading in readings:
        state, more = _read(state, reading)
        effects += more
    if pipeline.commissioned and not was_commissioned:
        state, more = learning.commissioned(state)
        state, swaps = candidate.put_in_force(state)
        effects += [*more, *swaps]
    return state, effects


def _read(state: State, reading: Reading) -> tuple[State, list[Effect]]:
    if reading.lost is not None:
        where = ", ".join(reading.lost.channels)
        return counted(state, "windows_lost"), [Log("info", f"window lost ({where}): {reading.lost.reason}")]
    state, effects = _sensor_faults(counted(state, "windows"), reading)
    if reading.learned and reading.row is not None:
        effects.append(Keep(reading.row))
    if reading.transition is not None:
        state, more = alarms.of_transition(state, reading.transition)
        effects += more
    if reading.score is not None and state.settings.exchange.publish_scores:
        effects.append(_score(state, reading.t_ns, reading.score))
    return state, effects


def _sensor_faults(state: State, reading: Reading) -> tuple[State, list[Effect]]:
    effects: list[Effect] = []
    for channel in state.settings.features.channels:
        if channel in reading.faulty:
            text = f"channel {channel} is stuck or clipped; its windows are not scored"
            state, more = alarms.sensor(state, f"faulty-{channel}", text, reading.t_ns)
        else:
            state, more = alarms.sensor_well(state, f"faulty-{channel}", reading.t_ns)
        effects += more
    return state, effects


def _score(state: State, t_ns: int, score: float) -> Publish:
    judge, manifest = state.pipeline.judge, state.manifest
    message = Score(
        t_ns=t_ns,
        score=score,
        level=judge.levels.raise_level if judge else 0.0,
        alarm=state.pipeline.alarm.active,
        model_version=manifest.version if manifest else 0,
    )
    return Publish(topic(state, "score", "window"), message.to_bytes(), qos=0)
