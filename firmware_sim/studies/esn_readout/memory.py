"""Remembers what a reservoir makes of rows: a study trains on the same rows some hundred times, and what a reservoir
makes of them never changes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgate.models.arrays import FEATURES, LABELS, Array, Arrays, Floats
from fedgate.models.detectors.esn import esn
from fedgate.models.detectors.esn.network import Network
from fedgate.models.detectors.esn.reservoir import DIGEST
from fedgate.models.federated.closed_form.series import Lesson, lesson

Key = tuple[bytes, ...]


class Memory:
    """Lessons and states by reservoir and rows; for gateways without a normalisation of their own."""

    def __init__(self) -> None:
        self._lessons: dict[Key, Lesson] = {}
        self._states: dict[Key, Floats] = {}

    def lesson(self, network: Network, shared: Arrays, own: Arrays, data: Arrays, normalisation: str) -> Lesson:
        """Return the same as `series.lesson`."""
        if normalisation != "none":
            raise ValueError(f"normalisation {normalisation!r} given, expected 'none': the rows would not be enough")
        key = (shared[DIGEST].tobytes(), data[FEATURES].tobytes(), data[LABELS].tobytes())
        if key not in self._lessons:
            found = lesson(network, shared, {}, data, normalisation)
            self._lessons[key] = found._replace(regressors=found.regressors.astype(np.float64))
        return self._lessons[key]._replace(local_state=own)

    def states(self, shared: Mapping[str, Array], x: Array) -> Floats:
        """Return the regressors (n, M) of rows x (n, F)."""
        key = (shared[DIGEST].tobytes(), x.tobytes())
        if key not in self._states:
            self._states[key] = esn.states_of(shared, x)[0].astype(np.float64)
        return self._states[key]

    def score(self, shared: Arrays, x: Array) -> Floats:
        """Return the same as `esn.score` for a readout of one output on rows of one step."""
        return np.asarray(self.states(shared, x) @ shared["readout"][0])
