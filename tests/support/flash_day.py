"""A day in the life of a gateway's card: alarms with evidence, scores of an outage, an update, a new model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedgate.config.protocol.messages import Receipt, Score
from fedgate.gateway_agent.events import UPDATE_PRIORITY, Connection, Item, Received, Save
from fedgate.gateway_agent.outbox import scores
from fedgate.gateway_agent.runtime.service import Service
from tests.support.kept import ME, give, item, queued, ticked
from tests.support.sites import T0_NS, WINDOWS, frame, samples, topic

HOURS, OUTAGE_H = 24, range(8, 16)
HOP_S, TICK_S = 5.0, 15.0
ALARM_BYTES = 700
EVIDENCE_BYTES = 6_000
UPDATE_BYTES = MODEL_BYTES = 1_300_000
CHUNK_BYTES = 122_000
MEMORY_S, MEMORY_BYTES = 900.0, 6_000
ACCEPTED = Receipt(accepted=True).to_bytes()


def commission(agent: Service) -> None:
    agent.step(T0_NS, Received(topic(ME, "sample", "deck"), frame(samples(1, WINDOWS))))
    agent.step(T0_NS, Connection(up=True))


def _acknowledged(agent: Service, hour: int) -> None:
    for name in list(agent.state.outbox.items) if hour not in OUTAGE_H else ():
        agent.step(agent.state.context.uptime_ns, Received(topic(ME, "receipt", name), ACCEPTED))


def _told(agent: Service, number: int) -> None:
    t_ns = agent.state.context.now_ns
    score = Score(t_ns=t_ns, score=1.0 + number % 7, level=5.0, alarm=False, model_version=1)
    outbox, effects = scores.publish(agent.state.outbox, agent.state.context, score)
    agent.state = replace(agent.state, outbox=outbox)
    agent.commit(agent.state.context.uptime_ns, effects)


def _learned(agent: Service, seed: int) -> None:
    """Store what stays of a training, queue the update, and store the model that comes of it."""
    rng = np.random.default_rng(seed)
    chunks = tuple(rng.bytes(CHUNK_BYTES) for _ in range(UPDATE_BYTES // CHUNK_BYTES))
    agent.commit(agent.state.context.uptime_ns, [Save("own", rng.bytes(20_000))])
    give(
        agent, "u" * 64, Item(topic(ME, "update", "u" * 64), chunks, False, UPDATE_PRIORITY, agent.state.context.now_ns)
    )
    agent.commit(agent.state.context.uptime_ns, [Save("model", rng.bytes(MODEL_BYTES))])


def live(agent: Service, hours: int = HOURS) -> None:
    """Let the hours pass, each with an alarm raised and cleared."""
    rng, memory_ns, number = np.random.default_rng(0), agent.state.context.now_ns, 0
    for hour in range(hours):
        if hour in (OUTAGE_H.start, OUTAGE_H.stop):
            agent.step(agent.state.context.uptime_ns, Connection(up=hour == OUTAGE_H.stop))
        if hour == 2:
            _learned(agent, hour)
        for quarter in range(round(3_600 / TICK_S)):
            ticked(agent, TICK_S)
            for _ in range(round(TICK_S / HOP_S)):
                number += 1
                _told(agent, number)
            if quarter in (40, 80):
                name = f"{hour:02d}.{'raised' if quarter == 40 else 'cleared'}"
                agent.commit(agent.state.context.uptime_ns, [Save("alarms", rng.bytes(300))])
                told = [(name, item(name, 0, ALARM_BYTES))]
                if quarter == 40:
                    told.append((f"{hour:02d}.evidence", item(f"{hour:02d}.evidence", 2, EVIDENCE_BYTES)))
                agent.state, effects = queued(agent.state, *told)
                agent.commit(agent.state.context.uptime_ns, effects)
            if agent.state.context.now_ns - memory_ns >= MEMORY_S * 1e9:
                memory_ns = agent.state.context.now_ns
                agent.commit(agent.state.context.uptime_ns, [Save("memory", rng.bytes(MEMORY_BYTES))])
            _acknowledged(agent, hour)
