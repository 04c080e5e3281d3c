"""A model that ends the process while it is loaded, with real processes and a real store: it is given up, for good."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedgate.config.settings.settings import GatewaySettings
from fedgate.firmware_sim import children
from fedgate.gateway_agent.deployment.deployment import STARTS_MAX, restore_models, save
from fedgate.gateway_agent.events import Keep, Save
from fedgate.gateway_agent.storage.store import Store
from tests.support.sites import T0_NS, gateway_settings
from tests.support.waiting import PATIENCE_S
from tests.support.watchers import CALM, SENSITIVE, Gateway

# What an agent does at its start, but that loading one model is the end of it, as a bad graph in onnxruntime would be.
AGENT = """
import os, signal, sys
from pathlib import Path
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent.deployment import validation
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.gateway_agent.runtime.service import Service
from fedgate.gateway_agent.state import Host
from fedgate.gateway_agent.storage.store import Store

settings = GatewaySettings.model_validate_json(Path(sys.argv[1]).read_bytes())
deadly = Path(sys.argv[2]).read_bytes()

class Deadly(Scorer):
    def __init__(self, model, personal):
        if model == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        super().__init__(model, personal)

validation.Scorer = Deadly
service = Service(
    settings, Store(Path(sys.argv[3])),
    Host(sys.argv[5], int(sys.argv[4]), lambda *_: True, lambda: bytes(32), clock="synchronised"),
)
manifest = service.state.deployment.manifest
print(manifest.version if manifest else 0, service.state.context.refusal)
service.close()
"""


def start(folder: Path, settings: GatewaySettings, boot_id: str) -> subprocess.CompletedProcess[str]:
    (folder / "settings.json").write_text(settings.model_dump_json())
    (folder / "deadly.onnx").write_bytes(SENSITIVE[1])
    given = [str(folder / name) for name in ("settings.json", "deadly.onnx", "gateway.db")]
    command = [sys.executable, "-c", AGENT, *given, str(T0_NS), boot_id]
    return children.run(command, PATIENCE_S, text=True)


@pytest.mark.soak
@pytest.mark.slow
def test_a_model_that_ends_the_process_at_each_start_gives_way_to_the_one_before(tmp_path: Path) -> None:
    gateway = Gateway(CALM, SENSITIVE)
    store = Store(tmp_path / "gateway.db")
    store.commit([Keep(seen) for seen in gateway.shelf.baseline])
    store.commit([Save(key, body) for key, body in gateway.shelf.blobs.items()])
    store.commit([save(gateway.state.deployment.models.finished())])
    store.close()
    boots = ["first"] * (STARTS_MAX - 1) + ["second"] * STARTS_MAX  # the power cut between them gives it another chance
    ends = [start(tmp_path, gateway_settings(), boot_id) for boot_id in boots]
    assert [end.returncode for end in ends] == [-signal.SIGKILL] * len(boots)
    end = start(tmp_path, gateway_settings(), "second")
    assert (end.returncode, end.stdout.split()[0]) == (0, "1"), end.stderr
    after = Store(tmp_path / "gateway.db", read_only=True)
    models = restore_models(after.read().blobs)
    after.close()
    assert models.trying == {} and models.newest == 2
    assert "the agent ended 5 times in a row while it loaded it" in models.rejected[0].why
