"""A gateway on its way through time, with its store, and models that look at one feature each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedgate.config.protocol.messages import Score
from fedgate.gateway_agent.events import Effect, Log, Reload
from fedgate.gateway_agent.state import State
from fedgate.models.arrays import Array
from fedgate.models.time_units import NS
from tests.gateway_agent.deployment.test_gateway_models import GOOD, Made, of_linear, signed
from tests.support.agents import TICK, after, chunks, commissioned, heard, kinds, sent
from tests.support.sites import WINDOWS, Shelf, agent, frame, gateway_settings, samples

PERSONAL = ("center", "scale")
DEVIATION, LEVEL = np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0])  # which feature a model looks at
BLOCK = 128
FRAME = 16  # windows


def model(version: int, weights: Array, **change: Any) -> Made:
    manifest, body = of_linear(GOOD, PERSONAL, weights=weights, intercept=np.array(version / 1e3))
    return signed(manifest, version=version, **change), body


CALM, SENSITIVE, THIRD = model(1, DEVIATION), model(2, LEVEL), model(3, DEVIATION)


class Gateway:
    """A gateway on its way through time, with its store."""

    def __init__(self, *made: Made, **tables: Any) -> None:
        self.shelf, self.tables, self.window = Shelf(), tables, WINDOWS
        self.state = commissioned(self.shelf, **tables)
        self.scores: list[Score] = []
        self.effects: list[Effect] = []
        for each in made:
            self.offer(each)

    def took(self, state: State, effects: list[Effect]) -> None:
        self.state = state
        self.shelf.commit(effects)
        self.effects += effects
        self.scores += [Score.from_bytes(one.payload) for one in sent(effects, "score")]
        if state.deployment.reload_due is not None:
            self.took(*after(state, Reload(dict(self.shelf.blobs))))

    def offer(self, made: Made) -> None:
        manifest, body = made
        for event in (heard("manifest", "current", manifest.to_bytes(), "all"), *chunks(body), TICK):
            self.took(*after(self.state, event))

    def watch(self, windows: int, shift: float = 0.0, until: Callable[[], bool] = lambda: False) -> None:
        for _ in range(0, windows, FRAME):
            values = samples(self.window, FRAME, shift)
            self.took(*after(self.state, heard("sample", "deck", frame(values, float(self.window)))))
            self.window += FRAME
            if until():
                return

    def tick(self, seconds: float = 1.0) -> None:
        self.took(*after(self.state, TICK, now_ns=self.state.context.now_ns + round(seconds * NS)))

    def restart(self, state: State | None = None) -> None:
        self.state = agent(gateway_settings(**self.tables), self.shelf, self.state.context.now_ns)
        self.state = replace(self.state, context=replace(self.state.context, is_connected=True))

    @property
    def version(self) -> int:
        return self.state.deployment.manifest.version if self.state.deployment.manifest else 0

    def said(self) -> str:
        return " ".join(log.text for log in kinds(self.effects, Log))
