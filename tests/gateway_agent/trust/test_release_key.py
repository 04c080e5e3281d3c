"""The release key in the agent: checked by a child, and nothing but the key's own signature is believed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedgate.config.identity.signing import load_private, make_key, sign
from fedgate.firmware_sim import children
from fedgate.gateway_agent.runtime import signature_worker
from tests.support.waiting import PATIENCE_S

MESSAGE = b"manifest"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    make_key(tmp_path / "release.key", tmp_path / "release.pub")
    return tmp_path / "release.pub"


@pytest.mark.soak
def test_the_keys_own_signature_is_believed_and_no_other(key_file: Path, tmp_path: Path) -> None:
    make_key(tmp_path / "other.key", tmp_path / "other.pub")
    verified = signature_worker.make_verifier(key_file)
    signature = sign(load_private(tmp_path / "release.key"), MESSAGE)
    assert verified(MESSAGE, signature)
    assert not verified(MESSAGE + b" ", signature)
    assert not verified(MESSAGE, sign(load_private(tmp_path / "other.key"), MESSAGE))
    assert not verified(MESSAGE, "")
    assert not verified(MESSAGE, "not base64")


def test_a_key_that_vanished_believes_nothing(key_file: Path, tmp_path: Path) -> None:
    signature = sign(load_private(tmp_path / "release.key"), MESSAGE)
    verified = signature_worker.make_verifier(key_file)
    key_file.unlink()
    assert not verified(MESSAGE, signature)


@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), subprocess.TimeoutExpired("child", 60.0)])
def test_a_child_that_cannot_be_had_believes_nothing_and_ends_nothing(
    error: Exception, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = sign(load_private(tmp_path / "release.key"), MESSAGE)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    assert not signature_worker.make_verifier(key_file)(MESSAGE, signature)


@pytest.mark.soak
def test_a_file_that_is_no_key_is_named(key_file: Path) -> None:
    signature_worker.check(key_file)
    key_file.write_text("no key")
    with pytest.raises(signature_worker.ReleaseKeyError, match=r"release\.pub: no Ed25519 public key"):
        signature_worker.check(key_file)
    with pytest.raises(signature_worker.ReleaseKeyError, match=r"nowhere\.pub"):
        signature_worker.check(key_file.with_name("nowhere.pub"))


@pytest.mark.soak
def test_the_agents_process_never_loads_the_library() -> None:
    code = "import sys, fedgate.gateway_agent.runtime.agent; print('cryptography' in sys.modules)"
    done = children.run([sys.executable, "-c", code], PATIENCE_S, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


@pytest.mark.soak
def test_the_agent_carries_no_algorithm_and_no_detector() -> None:
    """They belong to the training child; each would cost every gateway memory for as long as it runs."""
    ours = "(name for name in sys.modules if name.startswith('fedgate.models.'))"
    code = f"import sys, fedgate.gateway_agent.runtime.agent; print(*{ours})"
    done = children.run([sys.executable, "-c", code], PATIENCE_S, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "fedgate.models.features.spec" in loaded
    assert not {name for name in loaded if name.startswith("fedgate.models.detectors")}
    assert {name for name in loaded if name.startswith("fedgate.models.federated")} <= {
        "fedgate.models.federated",
        "fedgate.models.federated.protocol",
        "fedgate.models.federated.protocol.algorithm",
        "fedgate.models.federated.protocol.contributions",
        "fedgate.models.federated.protocol.reducer",
        "fedgate.models.federated.protocol.schema",
        "fedgate.models.federated.wrappers",
        "fedgate.models.federated.wrappers.privacy_ledger",
    }
