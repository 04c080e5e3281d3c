"""The recurrent network in the paper's size, 3 x 128 on windows of 40 steps of 10 channels."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fedgate.config.protocol import wire
from fedgate.firmware_sim import children
from fedgate.models.arrays import FEATURES, Arrays, Floats, generator, joined
from fedgate.models.detectors import DETECTORS, PERSONAL
from fedgate.models.detectors.recurrent import recurrent
from fedgate.models.detectors.recurrent.recurrent_network import Descent, PrecisionWarning, Recurrent
from fedgate.models.federated import build
from tests.benchmarks.conftest import Note
from tests.benchmarks.station import ROOT
from tests.benchmarks.timing import in_turns, median_of_calls_s, median_s, repeat
from tests.support.waiting import PATIENCE_S

CHANNELS, STEPS = 10, 40
FEATURE_COUNT = CHANNELS * STEPS
LAYERS, UNITS = 3, 128
PRODUCT, PRODUCTS = 1_024, 9  # numbers a side, and how often
TURNS, CALLS = 10, 50
WINDOWS, FEW_WINDOWS = 2_000, 64
WINDOW_MS, EPOCH_S, AGENT_MIB = 0.4, 1.5, 85.0
MIB = 2.0**20
PAPER = {"paper": True, "steps": STEPS}
AGENT = """
import pathlib, sys
import fedgate.gateway_agent.__main__, fedgate.gateway_agent.runtime.agent
from fedgate.gateway_agent.deployment.session import Scorer
import numpy as np

scorer = Scorer(pathlib.Path(sys.argv[1]).read_bytes(), {})
for _ in range(50):
    scorer(np.zeros((1, int(sys.argv[2])), np.float32))
with open("/proc/self/status") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024)
"""


def made(**settings: Any) -> tuple[Recurrent, Arrays]:
    network = Recurrent.model_validate({**PAPER, **settings})
    return network, recurrent.initial(np.random.default_rng(0), network, FEATURE_COUNT)


def bare_nodes(cell: str) -> bytes:
    """Return the three nodes of a network of 3 x 128 as ONNX, with weights of zero and nothing around them."""
    from onnx import TensorProto, helper, numpy_helper

    from fedgate.models.detectors.base.graph import IR_VERSION, OPSET

    gates, nodes, tensors, inputs = {"lstm": 4, "gru": 3}[cell], [], [], CHANNELS
    for layer in range(LAYERS):
        shapes = {f"W{layer}": (1, gates * UNITS, inputs), f"R{layer}": (1, gates * UNITS, UNITS)}
        tensors += [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in shapes.items()]
        nodes.append(helper.make_node(cell.upper(), [f"x{layer}", *shapes], [f"y{layer}"], hidden_size=UNITS))
        nodes.append(helper.make_node("Squeeze", [f"y{layer}", "direction"], [f"x{layer + 1}"]))
        inputs = UNITS
    tensors.append(numpy_helper.from_array(np.array([1]), "direction"))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [STEPS, 1, count])
        for name, count in (("x0", CHANNELS), (f"x{LAYERS}", UNITS))
    ]
    graph = helper.make_graph(nodes, "bare", ends[:1], ends[1:], tensors)
    made_for = [helper.make_opsetid("", OPSET)]
    return bytes(helper.make_model(graph, opset_imports=made_for, ir_version=IR_VERSION).SerializeToString())


def session_of(model: bytes) -> Any:
    """Return a session on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def products_s(windows: int) -> float:
    """Return how long the products of an epoch take alone, at the speed of one large product of this core.

    Forward each step of a layer multiplies its inputs and its state with the weights of four gates, and the way back
    costs two such products for one.
    """
    side = np.ones((PRODUCT, PRODUCT), np.float32)
    per_s = 2.0 * PRODUCT**3 / median_of_calls_s(lambda: side @ side, PRODUCTS)
    inputs = [CHANNELS, *[UNITS] * (LAYERS - 1)]
    forward = windows * STEPS * sum(2.0 * 4 * UNITS * (count + UNITS) for count in inputs)
    return 3.0 * forward / per_s


def rows(count: int) -> Floats:
    return np.random.default_rng(1).normal(size=(count, FEATURE_COUNT))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_window_in_onnx(cell: str, benchmark: BenchmarkFixture, note: Note) -> None:
    _, params = made(cell=cell, task="classify")
    model = DETECTORS["recurrent"].graph(params, PERSONAL)
    session, bare = session_of(model), session_of(bare_nodes(cell))
    feed = {"x": rows(1).astype(np.float32)}
    (scores,) = benchmark(session.run, ["score"], feed)
    np.testing.assert_allclose(scores, recurrent.score(params, feed["x"]), atol=1e-5)
    if benchmark.enabled:
        window = {"x0": np.ones((STEPS, 1, CHANNELS), np.float32)}
        ours_s, bare_s = in_turns(partial(session.run, ["score"], feed), partial(bare.run, None, window), TURNS, CALLS)
        note(f"ONNX window, {cell} 3 x 128", 1e3 * ours_s, "ms", at_most=WINDOW_MS, hardware_limit=1e3 * bare_s)
        note(f"ONNX model, {cell} 3 x 128", len(model) / 1e6, "MB")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_epoch(precision: str, benchmark: BenchmarkFixture, note: Note) -> None:
    pytest.importorskip("torch", reason="torch is in the extra [lstm] only")
    network, params = made()
    x = rows(WINDOWS if benchmark.enabled else FEW_WINDOWS)
    descent = Descent(epochs=1, bfloat16=precision == "bfloat16")

    def epoch() -> Arrays:
        return recurrent.descended(params, x, None, np.random.default_rng(0), network, descent)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", PrecisionWarning)
        after = repeat(benchmark, epoch, rounds=3)
    assert not np.array_equal(after["cell.2.state"], params["cell.2.state"])
    if benchmark.enabled:
        what = f"epoch of {WINDOWS} windows, lstm 3 x 128 with dropout, batch {descent.batch}, {precision}"
        what += ", which this processor does in float32" if told else ""
        limit_s = products_s(WINDOWS) if precision == "float32" else None
        note(what, median_s(benchmark), "s", at_most=EPOCH_S, hardware_limit=limit_s)


@pytest.mark.slow
def test_memory_of_a_process_with_the_model(tmp_path: Path, note: Note) -> None:
    (tmp_path / "model").write_bytes(DETECTORS["recurrent"].graph(made()[1], PERSONAL))
    command = [sys.executable, "-c", AGENT, str(tmp_path / "model"), str(FEATURE_COUNT)]
    done = children.run(command, PATIENCE_S, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    note("agent's modules with lstm 3 x 128 loaded and run: resident", float(done.stdout), "MiB", at_most=AGENT_MIB)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "settings"), [("3 x 128", {"paper": True}), ("1 x 16", {})])
def test_memory_of_a_training(what: str, settings: dict[str, Any], note: Note) -> None:
    pytest.importorskip("torch", reason="torch is in the extra [lstm] only")
    chosen = {**settings, "network": {"steps": STEPS}, "batch": 64, "epochs": 1}
    server = build("recurrent-fedavg", FEATURE_COUNT, chosen).start(generator(0, 0, "cloud"))
    order = {"algorithm": "recurrent-fedavg", "settings": chosen, "feature_count": FEATURE_COUNT, "phase": 0}
    parts = {"shared": server.global_state, "data": {FEATURES: rows(WINDOWS).astype(np.float32)}}
    told = {**order, "seed": 0, "round_index": 0, "gateway": "north", "secret": "", "drawn": "", "run": "0"}
    command = [sys.executable, "-P", "-m", "fedgate.gateway_agent.runtime.training_worker"]
    child = children.start(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=ROOT
    )
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(wire.encode(joined(parts), told))
    child.stdin.close()
    answer = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.stdout.close()
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0 and answer
    name = f"recurrent-fedavg: child that trains lstm {what} on {WINDOWS} windows"
    note(f"{name}, peak", usage.ru_maxrss * 1024 / MIB, "MiB")
    note(f"{name}, one core with start and end", usage.ru_utime + usage.ru_stime, "s")
