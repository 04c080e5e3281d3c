"""The model at work: onnxruntime on one thread, fed with the gateway's own tensors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as bindings

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.onnx_policy import BLOCK_ROWS, NEXT, ModelRefusedError

ERRORS_ONLY = 3
# That one run may take where `run_deadline` watches it: far beyond any of ours, and below the watchdog's time.
SCORE_S = 30.0
# How a graph with a memory says after how many windows its scores mean something, and what gap it bears.
WASHOUT_ROWS, MAX_GAP_ROWS = "washout_rows", "max_gap_rows"
# onnxruntime's errors have no base class of their own; these are what loading or running a model can raise.
ERRORS = (
    bindings.EPFail,
    bindings.Fail,
    bindings.InvalidArgument,
    bindings.InvalidGraph,
    bindings.InvalidProtobuf,
    bindings.NoSuchFile,
    bindings.NotImplemented,
    bindings.RuntimeException,
)


RUNNING: list[onnxruntime.RunOptions] = []  # of the run at hand, so that another thread can end it


class Scorer:
    """A loaded model with this gateway's own tensors in it: `scorer(x)` maps features (n, F) to scores (n,).

    `washout_rows` and `max_gap_rows` are those of a model with a memory, see
    `fedgate.gateway_agent.pipeline.recurrence`.
    """

    def __init__(self, model: bytes, personal: Mapping[str, Array]) -> None:
        options = onnxruntime.SessionOptions()
        # The default pool spins: three quarters of a core for a model that runs a third of a millisecond, 50 times a
        # second.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = ERRORS_ONLY
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except ERRORS as error:
            raise ModelRefusedError(f"onnxruntime cannot load it: {str(error)[:200]}") from None
        self._personal = {name: np.asarray(array, dtype=np.float32) for name, array in personal.items()}
        names = [output.name for output in self._session.get_outputs()]
        self._remembers = [name.removeprefix(NEXT) for name in names if name.startswith(NEXT)]
        if learned := sorted(personal.keys() & set(self._remembers)):
            raise ModelRefusedError(f"it would overwrite {learned}, which this gateway has learned")
        self._wanted = ["score", *(NEXT + name for name in self._remembers)]
        metadata = self._session.get_modelmeta().custom_metadata_map
        try:
            self.washout_rows, self.max_gap_rows = (int(metadata.get(key, 0)) for key in (WASHOUT_ROWS, MAX_GAP_ROWS))
        except ValueError as error:
            raise ModelRefusedError(f"its metadata is no number of windows: {error}") from None

    def __call__(self, x: Array) -> Floats:
        """Return the scores (n,) of one series of features (n, F), n >= 1, from its beginning."""
        return self.carried(x, {})[0]

    def carried(self, x: Array, memory: Arrays) -> tuple[Floats, Arrays]:
        """Return the scores (n,) of features (n, F), n >= 1, that follow on what the memory saw, and the memory after
        them; a block at a time.
        """
        return self._score_blocks(x, self._personal, memory)

    def neutral(self, x: Array) -> Floats:
        """Return the scores (n,) of x without the gateway's own tensors, as the golden pair of the manifest was
        made.
        """
        return self._score_blocks(x, {}, {})[0]

    def _score_blocks(self, x: Array, personal: Arrays, memory: Arrays) -> tuple[Floats, Arrays]:
        rows, scores = np.asarray(x, dtype=np.float32), []
        for first in range(0, len(rows), BLOCK_ROWS):
            found, memory = self._run({**personal, **memory, "x": rows[first : first + BLOCK_ROWS]})
            scores.append(found)
        return np.concatenate(scores), memory

    def _run(self, feed: Arrays) -> tuple[Floats, Arrays]:
        options = onnxruntime.RunOptions()
        RUNNING.append(options)
        try:
            first, *others = self._session.run(self._wanted, feed, options)
        except (*ERRORS, ValueError) as error:  # ValueError where it wants another input or has no such output
            if options.terminate:
                raise ModelRefusedError(f"it gave no score within {SCORE_S:g} s") from None
            raise ModelRefusedError(f"onnxruntime cannot run it: {str(error)[:200]}") from None
        finally:
            RUNNING.remove(options)
        scores = np.asarray(first, dtype=np.float64)
        if scores.shape != (len(feed["x"]),):
            raise ModelRefusedError(f"it gives scores of shape {scores.shape} for {len(feed['x'])} windows")
        return scores, dict(zip(self._remembers, others, strict=True))
