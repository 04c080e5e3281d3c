"""The rules of `test_tidy.py` tested: each must catch its bad snippets and let the near misses pass."""

from __future__ import annotations

import pytest

from tests.project.test_tidy import FILE_LINES_MAX, FUNCTION_LINES_MAX, NEVER_IN_THE_AGENT, RULES, loaded_by
from tests.support.syntax import parse

LONG = "def f() -> None:\n" + "    pass\n" * FUNCTION_LINES_MAX
LONG_BY_ITS_DOCSTRING = (
    'def f() -> None:\n    """A\n' + "\n" * 60 + '    """\n' + "    pass\n" * (FUNCTION_LINES_MAX - 1)
)

# rule, path, snippet, the line that must be found
BAD = [
    ("arrows", "models/windows/grid.py", "import fedgate.config.protocol.wire", 1),
    ("arrows", "models/federated/x.py", "def f():\n    from fedgate.gateway_agent import store", 2),
    ("arrows", "config/protocol/wire.py", "from fedgate.cloud_aggregator.storage.store import Store", 1),
    ("arrows", "gateway_agent/machine.py", "from fedgate.cloud_aggregator import machine", 1),
    ("arrows", "cloud_aggregator/web.py", "from fedgate import gateway_agent", 1),
    ("arrows", "models/__init__.py", "from fedgate.firmware_sim.evaluate.loading import load_recording", 1),
    ("arrows", "models/arrays.py", "if TYPE_CHECKING:\n    from fedgate.firmware_sim import loading", 2),
    ("components", "cloud_aggregator/rounds/round.py", "from fedgate.cloud_aggregator.releases import deploy", 1),
    ("components", "cloud_aggregator/rounds/round.py", "from fedgate.cloud_aggregator.access.access import Access", 1),
    ("components", "gateway_agent/training/training.py", "from fedgate.gateway_agent.outbox.outbox import Outbox", 1),
    ("components", "cloud_aggregator/presence.py", "from fedgate.cloud_aggregator.access.access import Access", 1),
    ("components", "cloud_aggregator/access/admission.py", "from fedgate.cloud_aggregator.state import State", 1),
    ("plain_names", "gateway_agent/machine.py", "def heard():\n    pass", 1),
    ("plain_names", "cloud_aggregator/machine.py", "class SaidTwice:\n    pass", 1),
    ("plain_names", "config/transport/mqtt.py", "x = 1\nTOLD_MAX = 2", 2),
    ("plain_names", "config/transport/mqtt.py", "def f(told_s):\n    pass", 1),
    ("plain_names", "models/alarms/expectation.py", "class Usual:\n    pass", 1),
    ("plain_names", "models/alarms/rules.py", "def restored(text):\n    pass", 1),
    ("components", "gateway_agent/outbox/outbox.py", "from fedgate.gateway_agent.state import State", 1),
    ("components", "gateway_agent/pipeline/memory.py", "from fedgate.gateway_agent.monitor.monitor import Monitor", 1),
    ("components", "gateway_agent/sources/frames.py", "from fedgate.gateway_agent.outbox import outbox", 1),
    ("verbs", "gateway_agent/machine.py", "def _admitted_late():\n    pass", 1),
    ("verbs", "config/transport/mqtt.py", "x = 1\ndef shown():\n    pass", 2),
    ("components", "gateway_agent/downloads.py", "from fedgate.gateway_agent import outbox", 1),
    ("components", "gateway_agent/training/training.py", "from fedgate.gateway_agent.outbox import outbox", 1),
    ("components", "gateway_agent/deployment/activation.py", "from fedgate.gateway_agent import state", 1),
    (
        "components",
        "gateway_agent/deployment/validation.py",
        "from fedgate.gateway_agent.runtime import model_trial",
        1,
    ),
    ("one_name", "gateway_agent/machine.py", "from models.signal import Block", 1),
    ("one_name", "tests/test_x.py", "def f():\n    import config.protocol.wire as wire", 2),
    ("arrows", "gateway_agent/storage/store.py", "from fedgate.firmware_sim.world.world import World", 1),
    ("arrows", "cloud_aggregator/storage/store.py", "from tests import conftest", 1),
    ("third_party", "gateway_agent/storage/store.py", "import paho.mqtt.client", 1),
    ("third_party", "models/detectors/svm/svdd.py", "def f():\n    import torch", 2),
    ("third_party", "tests/test_x.py", "from torch.nn import GRU", 1),
    ("base_install", "models/features/spec.py", "import scipy.fft", 1),
    ("base_install", "config/settings/settings.py", "from sklearn.svm import OneClassSVM", 1),
    (
        "base_install",
        "gateway_agent/storage/store.py",
        "try:\n    import sqlalchemy\nexcept ImportError:\n    import amqtt",
        2,
    ),
    ("base_install", "gateway_agent/storage/store.py", "try:\n    pass\nexcept ImportError:\n    import amqtt", 4),
    ("base_install", "models/detectors/svm/svdd.py", "class A:\n    import onnx", 2),
    ("base_install", "models/detectors/base/graph.py", "import scipy", 1),
    ("purity", "models/windows/grid.py", "import time", 1),
    ("purity", "models/windows/grid.py", "def f():\n    from os import environ", 2),
    ("purity", "gateway_agent/machine.py", "from pathlib import Path", 1),
    ("purity", "cloud_aggregator/machine.py", "from datetime import datetime\nNOW = datetime.now()", 2),
    ("purity", "gateway_agent/pipeline/pipeline.py", "import datetime as d\nNOW = d.datetime.now(d.UTC)", 2),
    ("purity", "models/arrays.py", "def f():\n    return open('x')", 2),
    ("purity", "models/arrays.py", "print('x')", 1),
    ("purity", "models/arrays.py", "import numpy as np\nx = np.load('x.npy')", 2),
    ("purity", "models/arrays.py", "from uuid import uuid4 as fresh\nx = fresh()", 2),
    ("purity", "models/arrays.py", "import numpy as np\nrng = np.random.default_rng()", 2),
    ("global_randomness", "models/arrays.py", "import numpy as np\nx = np.random.rand(3)", 2),
    ("global_randomness", "tests/test_x.py", "from numpy import random\nrandom.seed(0)", 2),
    ("global_randomness", "models/arrays.py", "import numpy.random as r\nx = r.normal", 2),
    ("global_randomness", "models/arrays.py", "from numpy.random import normal\nx = normal()", 2),
    ("function_length", "models/x.py", "x = 1\n" + LONG, 2),
    ("function_length", "models/x.py", "class A:\n" + "".join(f"    {line}\n" for line in LONG.splitlines()), 2),
    ("file_length", "tests/test_x.py", "x = 1\n" * (FILE_LINES_MAX + 1), FILE_LINES_MAX + 1),
    ("module_docstring", "config/protocol/wire.py", "# not a docstring\nx = 1", 1),
    ("broad_errors", "tests/test_x.py", "try:\n    pass\nexcept Exception:\n    pass", 3),
    ("broad_errors", "config/protocol/wire.py", "try:\n    pass\nexcept:\n    pass", 3),
    (
        "broad_errors",
        "config/protocol/wire.py",
        "try:\n    pass\nexcept (OSError, BaseException) as error:\n    raise A(error)",
        3,
    ),
    (
        "broad_errors",
        "config/protocol/wire.py",
        "from contextlib import suppress\nwith suppress(Exception):\n    pass",
        2,
    ),
    ("bare_processes", "tests/test_x.py", "import subprocess\nsubprocess.run(['x'], timeout=5.0)", 2),
    ("bare_processes", "tests/benchmarks/x.py", "from subprocess import Popen as P\nwith P(['x']):\n    pass", 2),
    ("bare_processes", "tests/test_x.py", "import os\ndef f():\n    os.system('x')", 3),
    ("children_of_ours", "tests/test_x.py", "import sys\nx = [sys.executable, '-m', 'gateway_agent', 'run']", 2),
    ("children_of_ours", "tests/test_x.py", "import sys\nx = [sys.executable, '-m', 'fedgate.gateway_agent']", 2),
    ("children_of_ours", "firmware_sim/x.py", "import sys\nx = (sys.executable, '-P', '-m', module)", 2),
    ("children_of_ours", "tests/test_x.py", "called(environment, '-m', 'firmware_sim')", 1),
    ("promises", "config/protocol/wire.py", "x = 1\ny = 2  # TODO: three", 2),
    ("promises", "config/protocol/wire.py", 'def f():\n    """Return 1.\n\n    FIXME wrong.\n    """', 2),
    ("exemptions", "config/protocol/wire.py", "x = 1  # noqa", 1),
    ("exemptions", "config/protocol/wire.py", "x = 1  # noqa: S603, T201", 1),
    ("exemptions", "config/protocol/wire.py", "x = 1  # type: ignore[assignment]", 1),
    ("exemptions", "config/protocol/wire.py", "x = 1  # type: ignore[assignment]  # noqa: E501", 1),
    ("exemptions", "config/protocol/wire.py", "# mypy: ignore-errors", 1),
    ("exemptions", "config/protocol/wire.py", "# ruff: noqa: the whole file is special", 1),
]

# rule, path, snippet that looks like the bad ones and is right
GOOD = [
    ("arrows", "config/settings/settings.py", "from fedgate.models.features.spec import FeatureSpec"),
    ("arrows", "models/federated/protocol/run.py", "from . import tally"),
    (
        "arrows",
        "models/__init__.py",
        "if TYPE_CHECKING:\n    from fedgate.firmware_sim.evaluate.loading import load_recording",
    ),
    (
        "components",
        "gateway_agent/outbox/scores.py",
        "from fedgate.gateway_agent.context import Context\nfrom fedgate.gateway_agent.outbox import outbox",
    ),
    ("components", "cloud_aggregator/rounds/round.py", "from fedgate.cloud_aggregator.context import Statuses"),
    ("plain_names", "config/transport/mqtt.py", "def receive(lifetime_s):\n    result = 'what was said'"),
    ("plain_names", "firmware_sim/studies/attacks/study.py", "heard = 3"),
    ("verbs", "config/transport/mqtt.py", "def feed():\n    pass\nclass A:\n    def held(self):\n        pass"),
    ("verbs", "models/detectors/esn/esn.py", "def made():\n    pass"),
    ("components", "gateway_agent/machine.py", "from fedgate.gateway_agent.state import State"),
    ("components", "gateway_agent/training/training.py", "from fedgate.gateway_agent.pipeline import pipeline"),
    ("components", "gateway_agent/pipeline/memory.py", "from fedgate.gateway_agent.pipeline.pipeline import Pipeline"),
    (
        "one_name",
        "models/federated/protocol/run.py",
        "from . import models\nimport fedgate.models\nfrom fedgate import config",
    ),
    (
        "arrows",
        "gateway_agent/__main__.py",
        "from fedgate.gateway_agent import machine\nfrom fedgate.config import protocol\nfrom fedgate import models",
    ),
    (
        "arrows",
        "firmware_sim/world/world.py",
        "from fedgate.gateway_agent import machine\nfrom fedgate.cloud_aggregator import storage",
    ),
    ("third_party", "config/transport/mqtt.py", "import paho.mqtt.client"),
    ("third_party", "models/detectors/recurrent/torch_training.py", "import torch"),
    (
        "base_install",
        "models/features/spec.py",
        "import json\nimport numpy\nfrom fedgate.models.arrays import Arrays\nfrom . import signal",
    ),
    ("base_install", "models/detectors/svm/svdd.py", "def f():\n    from sklearn.svm import OneClassSVM"),
    ("base_install", "models/detectors/svm/svdd.py", "class A:\n    def f(self):\n        import scipy"),
    ("base_install", "models/detectors/svm/svdd.py", "if TYPE_CHECKING:\n    import onnx"),
    ("base_install", "models/detectors/base/graph.py", "from onnx import helper"),
    ("base_install", "cloud_aggregator/storage/store.py", "import sqlalchemy"),
    ("purity", "gateway_agent/storage/store.py", "import os\nimport time\nopen('x')\nprint(time.time())"),
    ("purity", "models/arrays.py", "from datetime import datetime\nx = datetime.fromtimestamp(0)"),
    ("purity", "models/arrays.py", "from fedgate.models.windows.grid import time\nx = record.open()"),
    ("purity", "models/arrays.py", "import numpy as np\nrng = np.random.default_rng([1, 2])"),
    ("purity", "models/arrays.py", "import numpy as np\nrng = np.random.default_rng(seed=1)"),
    (
        "global_randomness",
        "models/arrays.py",
        "import numpy as np\ndef f(rng: np.random.Generator): return rng.normal()",
    ),
    ("global_randomness", "tests/test_x.py", "import random\nrandom.seed(0)"),
    ("function_length", "models/x.py", LONG.replace("    pass\n", "", 1)),
    ("function_length", "models/x.py", LONG_BY_ITS_DOCSTRING),
    ("file_length", "models/x.py", "x = 1\n" * FILE_LINES_MAX),
    ("module_docstring", "models/__init__.py", ""),
    ("module_docstring", "models/x.py", '"""Why."""\nx = 1'),
    ("broad_errors", "config/protocol/wire.py", "try:\n    pass\nexcept (OSError, ValueError):\n    pass"),
    ("broad_errors", "config/protocol/wire.py", "try:\n    pass\nexcept BaseException:\n    close()\n    raise"),
    ("broad_errors", "tests/test_x.py", "with pytest.raises(Exception):\n    pass"),
    ("bare_processes", "tests/test_x.py", "from fedgate.firmware_sim import children\nchildren.run(['x'], 60.0)"),
    ("bare_processes", "tests/test_x.py", "import subprocess\ndef f(x: subprocess.Popen[bytes]): subprocess.PIPE"),
    ("bare_processes", "gateway_agent/runtime/agent.py", "import subprocess\nsubprocess.Popen(['x'])"),
    ("children_of_ours", "tests/test_x.py", "import sys\nx = [sys.executable, '-P', '-m', f'fedgate.{module}', 'run']"),
    ("children_of_ours", "tests/test_x.py", "x = ['-m', 'tests.support.walks', '-m', 'pip', '-m', 'venv']"),
    ("promises", "config/protocol/wire.py", "x = 'TODO'  # what a user wrote"),
    ("exemptions", "config/protocol/wire.py", "x = 1  # noqa: S603 - the arguments are ours"),
    (
        "exemptions",
        "config/protocol/wire.py",
        "x = 1  # type: ignore[arg-type]  # the stub says str, the function takes bytes",
    ),
    ("exemptions", "config/protocol/wire.py", "x = '# noqa'"),
]


@pytest.mark.parametrize(("rule", "path", "snippet", "line"), BAD)
def test_a_bad_snippet_is_caught_on_its_line(rule: str, path: str, snippet: str, line: int) -> None:
    found = [number for number, _ in RULES[rule](parse(path, snippet))]
    assert line in found


@pytest.mark.parametrize(("rule", "path", "snippet"), GOOD)
def test_a_near_miss_passes(rule: str, path: str, snippet: str) -> None:
    assert list(RULES[rule](parse(path, snippet))) == []


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_tested_both_ways(rule: str) -> None:
    assert rule in {case[0] for case in BAD}
    assert rule in {case[0] for case in GOOD}


def test_loaded_packages_are_seen_in_a_fresh_interpreter() -> None:
    assert loaded_by("scipy") & NEVER_IN_THE_AGENT == {"scipy"}
    assert not loaded_by("json") & NEVER_IN_THE_AGENT
