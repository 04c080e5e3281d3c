"""The process that tries a model: what it cannot do, what it dies of, and what the agent makes of that."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedgate.config.protocol.messages import Manifest
from fedgate.firmware_sim import children
from fedgate.gateway_agent.deployment import activation
from fedgate.gateway_agent.deployment.deployment import Examination, Examine, UntriedError, take_any
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.gateway_agent.runtime import model_trial
from fedgate.gateway_agent.runtime.agent import Agent
from fedgate.gateway_agent.runtime.model_trial import ONE_THREAD, Tried, examine
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.status import status
from fedgate.models.arrays import NEW_SERIES
from fedgate.models.detectors import DETECTORS, PERSONAL
from fedgate.models.onnx_policy import ModelRefusedError
from fedgate.models.time_units import NS
from tests.gateway_agent.deployment.test_gateway_models import FIRST, SECOND, in_force, offered
from tests.models.detectors.test_graph import FITS, noise
from tests.support.agents import TICK, after, changed
from tests.support.graph_tricks import WIDTH, beyond, hours, node, outer, remembering, stored_elsewhere, tricks, wide
from tests.support.sites import KEY, gateway_settings
from tests.support.soak import some
from tests.support.waiting import PATIENCE_S

SOON_S = 3.0  # of a trial, after its process has begun


def job(body: bytes, width: int = WIDTH, rows: int = 40) -> Examination:
    """Return what a process is asked to do with a model and some windows."""
    x = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    return Examination(body, {}, x[:4], x, np.array([NEW_SERIES] + [0] * (rows - 1)), x[:20])


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["svdd", "esn", "recurrent"])
def test_our_models_come_through(kind: str) -> None:
    name, fit = FITS[kind]
    found = examine(job(DETECTORS[name].graph(fit(noise(1)), PERSONAL), 5))
    assert 0.0 < found.window_s < 1.0 and found.lacks == ""


# What a graph could have the process do if it took it over. Each has to fail by an error of the system.
MISDEEDS = {
    "read a file": "open('/etc/hostname').read()",
    "write a file": "open('here', 'w')",
    "list a folder": "os.listdir('/')",
    "look for a file": "os.stat('/etc/hostname')",
    "remove a file": "os.unlink('here')",
    "make a socket": "socket.socket()",
    "make a local socket": "socket.socket(socket.AF_UNIX)",
    "fork": "os.fork()",
    "start a program": "os.execv('/bin/true', ['true'])",
    "start a thread": "threading.Thread(target=int).start()",
    "end its parent": "os.kill(os.getppid(), 9)",
    "become another user": "os.setuid(65534)",
    "take a limit back": "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    "copy a file that is open": "os.dup(1)",
    "look into another process": "failed(libc.ptrace(16, os.getppid(), 0, 0))",
    "mount": "failed(libc.mount(b'a', b'/', b'tmpfs', 0, None))",
    "make a name space": "failed(libc.unshare(0x10000000))",
}
HARNESS = """
import ctypes, json, os, resource, socket, sys, threading
import numpy
from fedgate.gateway_agent.runtime import sandbox
libc = ctypes.CDLL(None, use_errno=True)
def failed(code):
    if code != 0:
        raise OSError(ctypes.get_errno(), "refused")
assert sandbox.enter(20, 1 << 28) == ""
try:
    {code}
except (OSError, RuntimeError, ValueError) as error:
    print("refused", type(error).__name__, error)
else:
    print("done")
"""


def run(code: str, folder: Path) -> Any:
    """Return what a process said and how it ended that ran a line of Python behind the same walls."""
    return children.run([sys.executable, "-c", HARNESS.format(code=code)], PATIENCE_S, text=True, cwd=folder)


ALL = """
    for deed in json.loads(sys.argv[1]):
        try:
            eval(deed)
        except (OSError, RuntimeError, ValueError) as error:
            print("refused", type(error).__name__, error)
        else:
            print("done", deed)
"""


@pytest.mark.soak
def test_what_a_model_could_do_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("kept")
    command = [sys.executable, "-c", HARNESS.format(code=ALL.strip()), json.dumps(list(MISDEEDS.values()))]
    ended = children.run(command, PATIENCE_S, text=True, cwd=tmp_path)
    found = dict(zip(MISDEEDS, ended.stdout.splitlines(), strict=False))
    assert ended.returncode == 0 and found.keys() == MISDEEDS.keys(), ended.stdout + ended.stderr
    assert not {deed: said for deed, said in found.items() if not said.startswith("refused")}
    assert (tmp_path / "here").read_text() == "kept"


@pytest.mark.soak
def test_arithmetic_goes_on_there(tmp_path: Path) -> None:
    ended = run("print(float(numpy.linalg.inv(numpy.eye(300)).sum()), len(numpy.zeros(1 << 22)))", tmp_path)
    assert ended.stdout.split() == ["300.0", str(1 << 22), "done"], ended.stderr


@pytest.mark.soak
def test_where_the_kernel_offers_less_that_is_said(tmp_path: Path) -> None:
    code = HARNESS.replace('assert sandbox.enter(20, 1 << 28) == ""', "sandbox.NUMBERS.clear(); {code}")
    command = [sys.executable, "-c", code.format(code="print(sandbox.enter(20, 1 << 28)); open('/etc/hostname')")]
    ended = children.run(command, PATIENCE_S, text=True, cwd=tmp_path)
    assert "seccomp (its calls are not known on" in ended.stdout and "OSError" in ended.stderr  # by the limit of files


def hidden_file(place: str) -> bytes:
    """Return a model that scores with the bytes of a file, each window with the one that it names."""
    nodes = [
        node("Cast", ["w"], "bytes", to=1),
        node("ReduceMax", ["x"], "named", axes=[1], keepdims=0),
        node("Cast", ["named"], "place", to=7),
        node("Gather", ["bytes", "place"], "score", axis=0),
    ]
    return outer(nodes, [stored_elsewhere(beyond, place)])


@pytest.mark.soak
@pytest.mark.parametrize("place", ["key.bin", "../key.bin", "/etc/hostname", "/proc/self/environ"])
def test_a_file_is_not_read_even_where_the_reader_is_deceived(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key.bin").write_bytes(bytes(range(4 * WIDTH)))
    monkeypatch.chdir(tmp_path)
    if place == "key.bin":  # it is, where nothing keeps it from that
        x = np.repeat(np.arange(4 * WIDTH, dtype=np.float32)[:, None], WIDTH, axis=1)
        found = Scorer(hidden_file(place), {}).neutral(x)
        assert found.astype(np.uint8).tobytes() == (tmp_path / place).read_bytes()
    with pytest.raises(ModelRefusedError, match="onnxruntime cannot load it"):
        examine(job(hidden_file(place)))


@pytest.mark.soak
@pytest.mark.parametrize("trick", some(list(tricks()), 3))
def test_whatever_comes_past_the_reader_ends_in_time_and_harms_nothing(trick: str) -> None:
    try:
        found = examine(job(tricks()[trick][0]), within_s=SOON_S)
    except ModelRefusedError as error:
        assert str(error)
    else:
        assert isinstance(found, Tried)


@pytest.mark.soak
def test_a_model_that_never_ends_is_ended() -> None:
    with pytest.raises(ModelRefusedError, match="was not done within 2 s in a process of its own"):
        examine(job(hours(3, 1_000_000)), within_s=2.0)


@pytest.mark.soak
def test_a_model_that_takes_too_much_of_the_processor_or_of_memory_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from fedgate.gateway_agent.runtime import model_trial; model_trial.CPU_S = 1; model_trial.main()"
    with pytest.raises(ModelRefusedError, match="took more than 50 s of the processor"):
        examine(job(hours(3, 1_000_000)), [sys.executable, "-c", code])
    with pytest.raises(ModelRefusedError, match="running ConstantOfShape node"):
        examine(job(wide(20_000, 20_000)))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nothing_of_that_name", "No module named"),
        ("raise SystemExit(7)", "ended with code 7"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    ],
)
def test_where_the_process_cannot_begin_nothing_is_known_of_the_model(code: str, words: str) -> None:
    with pytest.raises(UntriedError, match=words):
        examine(job(FIRST[1]), [sys.executable, "-c", code])
    with pytest.raises(UntriedError, match="no child process can be started"):
        examine(job(FIRST[1]), ["/no/such/program"])


@pytest.mark.parametrize(
    "code",
    [
        "print('ready')",
        "print('ready'); print('not a number')",
        "print('ready'); raise SystemExit(1)",
        "import os; print('ready', flush=True); os.kill(os.getpid(), 11)",
        "import sys; print('ready')\nwhile True: sys.stdout.write('x' * 4096)",
    ],
)
def test_a_process_that_was_taken_over_can_at_most_say_yes(code: str) -> None:
    with pytest.raises(ModelRefusedError, match="the process of its own that tried it ended"):
        examine(job(FIRST[1]), [sys.executable, "-c", code], within_s=PATIENCE_S)


@pytest.mark.soak
def test_onnxruntime_tells_its_maker_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in ONE_THREAD.items():  # those of BLAS are none of its
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    code = (
        "import fedgate.gateway_agent.deployment.session, os\n"
        "print(len(os.listdir('/proc/self/task')), os.environ['HOME'])"
    )
    ended = children.run([sys.executable, "-c", code], PATIENCE_S, text=True)
    assert ended.stdout.split() == ["1", str(tmp_path)] and not list(tmp_path.iterdir()), ended.stderr


@pytest.mark.soak
def test_the_running_agent_tries_models_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = tmp_path / "release.pub"
    key.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    base = gateway_settings()
    place = base.gateway.model_copy(update={"store": tmp_path / "gateway.db"})
    agent = Agent(
        base.model_copy(update={"gateway": place, "trust": base.trust.model_copy(update={"release_key": key})})
    )
    agent.service.state.deployment.examine(job(FIRST[1]))
    with pytest.raises(ModelRefusedError, match="running ConstantOfShape node"):
        agent.service.state.deployment.examine(job(wide(20_000, 20_000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_trial, "examine", lambda _: Tried(0.1, "seccomp (not here)"))
        agent.service.state.deployment.examine(job(FIRST[1]))
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"][-1:] == [
        "the process that tried the model was limited in all but seccomp (not here)"
    ]
    agent.stop()
    agent.run()


def trying(state: State, act: Examine) -> State:
    return replace(state, deployment=replace(state.deployment, examine=act))


def refusing(_asked: Examination) -> None:
    raise ModelRefusedError("the process of its own that tried it ended by SIGKILL")


def missing(_asked: Examination) -> None:
    raise UntriedError("no child process can be started (no memory)")


def test_a_model_that_ends_the_process_is_refused_and_the_agent_goes_on() -> None:
    state, _ = offered(trying(in_force(), refusing), SECOND)
    assert state.deployment.manifest == FIRST[0] and "refused: the process of its own" in status(state).refusal
    assert SECOND[0].model.digest not in state.deployment.models.trying and state.deployment.candidate is None
    state, _ = offered(trying(state, take_any), SECOND)
    assert state.deployment.manifest == FIRST[0]  # until the next start


def test_a_model_that_nothing_could_try_waits_and_is_tried_again() -> None:
    calls = list[Examination]()

    def counted(given: Examination) -> None:
        calls.append(given)
        missing(given)

    state, _ = offered(trying(in_force(), counted), SECOND)
    state, _ = after(state, TICK)
    assert state.deployment.candidate == SECOND[0] and state.deployment.manifest == FIRST[0] and len(calls) == 1
    assert "model 2 waits: no child process" in status(state).refusal
    assert SECOND[0].model.digest not in state.deployment.models.trying  # nothing loaded it
    at_ns = state.context.uptime_ns + round(activation.UNTRIED_S * NS)
    state = changed(state, "context", uptime_ns=at_ns)
    state, _ = after(state, TICK, TICK)
    assert len(calls) == 2 and state.deployment.candidate == SECOND[0]
    at_ns += round(activation.UNTRIED_S * NS)
    state = trying(changed(state, "context", uptime_ns=at_ns), take_any)
    state, _ = after(state, TICK, TICK)
    assert state.deployment.manifest == SECOND[0] and status(state).refusal == ""


@pytest.mark.soak
def test_the_process_has_what_the_model_will_see(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[Tried]()
    state, _ = offered(trying(in_force(), lambda given: found.append(examine(given))), SECOND)
    assert (
        state.deployment.manifest == SECOND[0] and len(found) == 1 and isinstance(state.deployment.manifest, Manifest)
    )


@pytest.mark.soak
def test_it_takes_no_module_from_where_somebody_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path)
    examine(job(outer([node("ReduceMax", ["x"], "score", axes=[1], keepdims=0)])))
    assert not Path("ran").exists()


def test_what_a_gateway_has_learned_is_no_memory_of_a_model() -> None:
    body = remembering("state", [node("Identity", ["state"], "next.state")], 1, WIDTH)
    Scorer(body, {})
    with pytest.raises(ModelRefusedError, match=r"it would overwrite \['state'\], which this gateway has learned"):
        Scorer(body, {"state": np.ones((1, WIDTH))})
