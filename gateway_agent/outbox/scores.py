"""Scores: told live while there is a link, kept in batches while there is none.

What was told in the last moments of a link that then broke may have been lost, since nobody acknowledges it and a dead
line is noticed late. So those scores are kept too: the first batch begins with them.
"""

from __future__ import annotations

from itertools import groupby

from fedgate.config.protocol import scores as telemetry
from fedgate.config.protocol.messages import Score
from fedgate.gateway_agent import downloads
from fedgate.gateway_agent.events import TELEMETRY_PRIORITY, Effect, Item, Publish
from fedgate.gateway_agent.outbox import queue
from fedgate.gateway_agent.state import State, topic
from fedgate.models.records import replace

NS = 1_000_000_000
WINDOWS = 60  # in a batch: about 1.5 kB
UNNOTICED = 1.5  # keep-alives, until a dead line is known to be


def told(state: State, score: Score) -> tuple[State, list[Effect]]:
    """Tell of a window, or keep what would be told."""
    exchange = state.settings.exchange
    effects: list[Effect] = []
    if state.connected:
        effects.append(Publish(topic(state, "score", "window"), score.to_bytes(), qos=0))
    if not exchange.keep_scores:
        return state, effects
    kept = (*state.scores, score)
    if state.connected:
        since_ns = score.t_ns - round(UNNOTICED * state.settings.broker.keepalive_s * NS)
        recent = tuple(one for one in kept[-WINDOWS:] if since_ns < one.t_ns <= score.t_ns)
        return replace(state, scores=recent), effects
    state = replace(state, scores=kept)
    return flushed(state) if len(kept) >= WINDOWS else (state, effects)


def flushed(state: State) -> tuple[State, list[Effect]]:
    """Queue what was kept: batches of one model and level each, times rising."""
    scores, state = state.scores, replace(state, scores=())
    effects: list[Effect] = []
    for _, group in groupby(scores, lambda one: (one.model_version, one.level)):
        series: list[Score] = []
        for score in group:
            if series and score.t_ns < series[-1].t_ns:  # the clock was set back
                state, queued = _queued(state, series)
                effects += queued
                series = []
            series.append(score)
        state, queued = _queued(state, series)
        effects += queued
    return state, effects


def _queued(state: State, scores: list[Score]) -> tuple[State, list[Effect]]:
    body = telemetry.gathered(scores, state.clock, state.boot_id).to_bytes()
    digest = downloads.digest_of(body)
    item = Item(topic(state, "telemetry", digest), (body,), retain=False, priority=TELEMETRY_PRIORITY)
    return queue.queue(state, digest, item)


def unsent(state: State) -> list[Effect]:
    """Return what is to be stored of the scores at the end of the agent: those that it could not tell."""
    return [] if state.connected else flushed(state)[1]
