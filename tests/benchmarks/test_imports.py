"""What importing costs the agent, each in a fresh interpreter: time at every start, memory for good."""

from __future__ import annotations

import statistics
import sys

import pytest

from fedgate.firmware_sim import children
from tests.benchmarks.conftest import Note
from tests.benchmarks.station import ROOT
from tests.support.waiting import PATIENCE_S

RUNS = 5
MODEL = "from pydantic import BaseModel\nclass Message(BaseModel): number: int"
IMPORTS = {
    "numpy": "import numpy",
    "onnxruntime (with numpy)": "import onnxruntime",
    "paho.mqtt.client": "import paho.mqtt.client",
    "pydantic, one model": MODEL,
    "cryptography, Ed25519": "import cryptography.hazmat.primitives.asymmetric.ed25519",
    "fedgate.gateway_agent.__main__": "import fedgate.gateway_agent.__main__",
    "gateway_agent.__main__ and agent": "import fedgate.gateway_agent.__main__, fedgate.gateway_agent.runtime.agent",
}
PROGRAM = """
import time

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

before_kib, began_s = resident(), time.perf_counter()
{}
print(1e3 * (time.perf_counter() - began_s), (resident() - before_kib) / 1024)
"""

pytestmark = pytest.mark.slow


def cost(statement: str) -> tuple[float, float]:
    """Return (ms, MiB) of a statement in a fresh interpreter."""
    command = [sys.executable, "-c", PROGRAM.format(statement)]
    done = children.run(command, PATIENCE_S, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    taken_ms, grown_mib = map(float, done.stdout.split())
    return taken_ms, grown_mib


@pytest.mark.parametrize("what", IMPORTS)
def test_import(what: str, note: Note) -> None:
    cost(IMPORTS[what])  # compiles, and brings the files into memory
    costs = [cost(IMPORTS[what]) for _ in range(RUNS)]
    note(f"import {what}", statistics.median(taken_ms for taken_ms, _ in costs), "ms")
    note(f"import {what}", statistics.median(grown_mib for _, grown_mib in costs), "MiB")
