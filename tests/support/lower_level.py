"""What makes numpy, OpenBLAS and oneDNN compute as on a processor one level below.

Another processor takes other kernels, which add the same numbers in another order, so that sums differ in their last
bits. No result may hang on those. The settings are printed as `env` takes them, once each is shown to change bits here;
where this processor is at the lowest level, or of a make whose levels these libraries do not tell apart, nothing is.
onnxruntime has no such setting.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import numpy as np

from fedgate.firmware_sim import children
from tests.support.waiting import PATIENCE_S

# What a processor has -> what it computes with when it must do without, by variable.
LEVELS = {
    "X86_V4": {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "X86_V4", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "X86_V3": {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": "X86_V3", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
BEGIN = """import hashlib, numpy as np
rng = np.random.default_rng(7)
a, b = rng.standard_normal((2, 96, 96))
def tell(*arrays):
    print(hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest())
"""
# What each variable must change.
PROBES = {
    "OPENBLAS_CORETYPE": "tell(a @ b, np.linalg.solve(a, b))",
    "NPY_DISABLE_CPU_FEATURES": "tell(*(f(x) for f in (np.exp, np.tanh) for x in (a, a.astype(np.float32))))",
    "ONEDNN_MAX_CPU_ISA": """import torch
torch.manual_seed(0)
conv, lstm = torch.nn.Conv1d(8, 16, 3), torch.nn.LSTM(8, 16)
seen = torch.randn(12, 8, 40)
tell(conv(seen).detach().numpy(), lstm(seen.permute(2, 0, 1))[0].detach().numpy())""",
}


def main() -> int:
    """Print the settings of the level below; the exit code is 1 where one of them changes no bit."""
    found = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    level = next((name for name in LEVELS if name in found), None)
    if level is None:
        sys.stderr.write("lower level: numpy knows no level below this processor's, so nothing is run twice\n")
        return 0
    settings = dict(LEVELS[level])
    if find_spec("torch") is None and settings.pop("ONEDNN_MAX_CPU_ISA", ""):
        sys.stderr.write("lower level: torch is not installed, so oneDNN is not asked\n")
    unchanged = [name for name in settings if _bits(name, {}) == _bits(name, {name: settings[name]})]
    for name in unchanged:
        sys.stderr.write(f"lower level: {name}={settings[name]} changes no bit of what it should: {PROBES[name]}\n")
    print(*(f"{name}={value}" for name, value in settings.items()))
    return 1 if unchanged else 0


def _bits(probe: str, settings: dict[str, str]) -> bytes:
    """Return the digest of what a probe computes under these settings and no others of these."""
    environment = {name: value for name, value in os.environ.items() if name not in PROBES} | settings
    done = children.run([sys.executable, "-c", BEGIN + PROBES[probe]], PATIENCE_S, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    return bytes(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
