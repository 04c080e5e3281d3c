"""Whether the libraries work on this processor, each tried in a child process: a wheel that was built for another one
ends its process with an illegal instruction, and would take the doctor along.

Nothing heavy is imported here, so that a doctor can ask before it loads anything.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

from fedgate.config.doctor.report import Finding, failure, fit_line, ok, warning

# ONNX of exp(x @ x) for x (8, 8): importing onnxruntime runs none of its kernels, and those are what a processor lacks.
GRAPH = (
    "CAo6TQoRCgF4CgF4EgF5IgZNYXRNdWwKCwoBeRIBeiIDRXhwEgFnWhMKAXgSDgoMCAESCAoCCAgKAggIYhMKAXoSDgoMCAESCAoC"
    "CAgKAggIQgQKABAR"
)
TRIALS: Mapping[str, str] = {
    "numpy": "import numpy as n; assert n.isfinite(n.linalg.eigh(n.eye(64) @ n.eye(64))[0]).all(); v = n.__version__",
    "onnxruntime": "import base64, numpy as n, onnxruntime as o; "
    f"s = o.InferenceSession(base64.b64decode('{GRAPH}'), providers=['CPUExecutionProvider']); "
    "assert float(s.run(None, {'x': n.zeros((8, 8), 'f')})[0].sum()) == 64.0; v = o.__version__",
    "pydantic": "import pydantic as p; p.TypeAdapter(int).validate_python(1); v = p.VERSION",
    "scipy": "import scipy, scipy.linalg as s; s.cholesky([[2.0, 1.0], [1.0, 2.0]]); v = scipy.__version__",
    "sklearn": "import sklearn; from sklearn.svm import OneClassSVM as S; S().fit([[0.0], [1.0], [2.0]]); "
    "v = sklearn.__version__",
    "torch": "import torch as t; assert float((t.ones(8, 8) @ t.ones(8, 8)).sum()) == 512.0; v = t.__version__",
    "onnx": "import onnx; v = onnx.__version__",
    "sqlalchemy": "import sqlalchemy; v = sqlalchemy.__version__",
    "starlette": "import starlette; v = starlette.__version__",
    "uvicorn": "import uvicorn; v = uvicorn.__version__",
    "cryptography": "import cryptography; from cryptography.hazmat.primitives.asymmetric.ed25519 import "
    "Ed25519PrivateKey as K; K.generate().sign(b''); v = cryptography.__version__",
}
PACKAGES = {"sklearn": "scikit-learn"}


def check_imports(needed: tuple[str, ...], optional: Mapping[str, str], until_s: float) -> Iterator[Finding]:
    """Yield how each library fares by then (monotonic seconds); `optional` says what the lack of one means."""
    children = {name: _start(name) for name in (*needed, *optional)}
    for name, child in children.items():
        try:
            output, complaint = child.communicate(timeout=max(until_s - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            advice = "the machine is overloaded, or its card is slow; ask again"
            yield warning(f"import {name}", "not done in time", advice)
            continue
        yield _judge(name, child.returncode, output, complaint, optional.get(name))


def _start(name: str) -> subprocess.Popen[str]:
    code = f"{TRIALS[name]}; print(v)"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-P", "-c", code], stdout=pipe, stderr=pipe, text=True, env=environment)  # noqa: S603 - our own words


def _judge(name: str, code: int, output: str, complaint: str, lack: str | None) -> Finding:
    line, package = f"import {name}", PACKAGES.get(name, name)
    if code == 0:
        return ok(line, f"{package} {output.strip()} works")
    if code < 0:
        number = -code
        end = "an illegal instruction" if number == signal.SIGILL else signal.strsignal(number) or f"signal {number}"
        advice = f"its wheel is for another processor: pip install --force-reinstall --no-binary {package} {package}"
        return failure(line, f"{package} ends its process with {end}", f"{advice}, or an older version")
    last = fit_line((complaint.strip().splitlines() or [f"exit code {code}"])[-1])
    if "ModuleNotFoundError" in last and f"'{name}'" in last:
        if lack is not None:
            return ok(line, f"{package} is not installed: {lack}")
        return failure(line, f"{package} is not installed", f"pip install {package}")
    return failure(line, f"{package} does not work ({last})", f"pip install --force-reinstall {package}")
