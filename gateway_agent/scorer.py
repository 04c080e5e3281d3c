"""The model at work: onnxruntime on one thread, fed with the gateway's own tensors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as bindings

from models.arrays import Array, Arrays, Floats

ERRORS_ONLY = 3
BLOCK_ROWS = 64  # onnxruntime keeps the memory of its largest run for good: a baseline at once would be many MiB
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


class ModelRefusedError(ValueError):
    """A model that must not run here; the message says why."""


class Scorer:
    """A loaded model with this gateway's own tensors in it: `scorer(x)` maps features (n, F) to scores (n,)."""

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

    def __call__(self, x: Array) -> Floats:
        """Return the scores (n,) of features (n, F), n >= 1, a block at a time."""
        rows = np.asarray(x, dtype=np.float32)
        blocks = [rows[first : first + BLOCK_ROWS] for first in range(0, len(rows), BLOCK_ROWS)]
        return np.concatenate([self._run({"x": block, **self._personal}) for block in blocks])

    def neutral(self, x: Array) -> Floats:
        """Return the scores (n,) of x without the gateway's own tensors, as the golden pair of the manifest was
        made.
        """
        return self._run({"x": np.asarray(x, dtype=np.float32)})

    def _run(self, feed: Arrays) -> Floats:
        try:
            scores = np.asarray(self._session.run(["score"], feed)[0], dtype=np.float64)
        except (*ERRORS, ValueError) as error:  # ValueError where it wants another input or has no such output
            raise ModelRefusedError(f"onnxruntime cannot run it: {str(error)[:200]}") from None
        if scores.shape != (len(feed["x"]),):
            raise ModelRefusedError(f"it gives scores of shape {scores.shape} for {len(feed['x'])} windows")
        return scores
