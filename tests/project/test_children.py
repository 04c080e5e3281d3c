"""Goal: whatever a demo or a test starts is gone when it is, however it went, and a busy machine is no failure.

Method: real processes; what is killed is killed with SIGKILL, after which nobody can tidy up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fedgate.firmware_sim import children
from tests import conftest
from tests.support.waiting import until

CALL_S = 0.5
DEMO = (
    "from fedgate.firmware_sim import children; children.start_module('firmware_sim', 'demo', '--out', {out!r}).wait()"
)
GATEWAYS = 3


@pytest.mark.soak
def test_kill_9_of_who_started_the_demo_leaves_no_process(tmp_path: Path) -> None:
    """The demo, its broker, its aggregator and its agents are of three generations."""
    command = [sys.executable, "-c", DEMO.format(out=str(tmp_path / "demo"))]
    with (tmp_path / "words").open("wb") as words:
        starter = children.start(command, stdout=words, stderr=words)

    def programs() -> str:
        return "\n".join(map(conftest._command, children.family(starter.pid)))  # one may have ended meanwhile

    def is_running() -> bool:
        return programs().count("gateway_agent run") == GATEWAYS

    until(is_running, (tmp_path / "words").read_text)
    below = children.family(starter.pid)
    assert len(below) >= GATEWAYS + 5  # who started it, the demo, a broker, the aggregator, its page
    starter.kill()
    starter.wait()
    until(lambda: not any(map(children.is_alive, below)), idle_s=2.0)  # the demo itself would go on for a minute


@pytest.mark.soak
def test_ctrl_c_is_not_lost_while_a_process_starts() -> None:
    """Python ignores what is raised in the functions that it calls around a fork."""
    program = (
        "import os, signal\nfrom fedgate.firmware_sim import children\n"
        "os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))\n"
        "try: children.start(['true']); print('lost')\nexcept KeyboardInterrupt: print('interrupted')"
    )
    assert children.run([sys.executable, "-c", program], 60.0, text=True).stdout == "interrupted\n"


@pytest.mark.soak
def test_modules_of_ours_start_wherever_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what lies there under their names, or under those of libraries, is not loaded."""
    monkeypatch.chdir(tmp_path)
    for name in ("numpy", "gateway_agent", "fedgate"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    for module in ("gateway_agent", "cloud_aggregator", "firmware_sim"):
        done = children.run_module(module, "--version", idle_s=60.0)
        assert done.returncode == 0, done.stderr


@pytest.mark.soak
def test_a_wait_goes_on_while_something_below_us_works_and_no_longer() -> None:
    working = f"import time; end = time.monotonic() + {6 * CALL_S}\nwhile time.monotonic() < end: pass"
    child = children.start([sys.executable, "-c", working])
    assert children.wait_until(lambda: child.poll() is not None, 2 * CALL_S)
    begun_s = time.monotonic()
    assert not children.wait_until(lambda: False, 2 * CALL_S)
    assert time.monotonic() - begun_s >= 2 * CALL_S


def test_a_look_that_comes_late_counts_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it is the one who waits that was not let run, and nothing says what the others did then."""
    looks = iter((0.0, 5.0, 10.0, 10.5))
    monkeypatch.setattr(children, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    monkeypatch.setattr(children, "is_at_work", lambda: False)
    patience = children.Patience(3 * children.LOOK_S)
    assert [patience.is_over() for _ in range(3)] == [False, False, True]


@pytest.mark.soak
def test_what_works_for_ever_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "LONGEST", 3)
    with children.start([sys.executable, "-c", "while True: pass"]) as child:
        with pytest.raises(subprocess.TimeoutExpired):
            children.wait_for_end(child, CALL_S)
        child.kill()


def test_a_command_is_read_while_it_runs_and_ended_where_it_does_nothing() -> None:
    done = children.run([sys.executable, "-c", "print('x' * 300_000)"], 60.0, text=True)
    assert (done.returncode, len(done.stdout), done.stderr) == (0, 300_001, "")
    with pytest.raises(subprocess.TimeoutExpired):
        children.run(["sleep", "600"], CALL_S)
    assert not [one for one in psutil.Process().children() if one.name() == "sleep"]


def test_workers_end_with_the_process_that_is_killed() -> None:
    code = (
        "import os, time; from fedgate.firmware_sim import children\n"
        "if __name__ == '__main__':\n"
        "    pool = children.workers(1)\n"
        "    print(pool.submit(os.getpid).result(), flush=True)\n"
        "    pool.submit(time.sleep, 600)\n"
        "    time.sleep(600)\n"
    )
    with children.start([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        worker = int(made.stdout.readline())
        made.kill()
    until(lambda: not children.is_alive(worker))


def test_who_has_ended_and_is_not_waited_for_has_no_words() -> None:
    with children.start(["true"]) as ended:
        until(lambda: not children.is_alive(ended.pid))
        assert ended.pid in children.family(os.getpid()) and conftest._command(ended.pid) == ""


def test_a_family_is_all_generations() -> None:
    with children.start(["sh", "-c", "sleep 600; true"]) as shell:
        until(lambda: len(children.family(shell.pid)) == 2)
        (sleeping,) = set(children.family(shell.pid)) - {shell.pid}
        assert {shell.pid, sleeping} < set(children.family(os.getpid()))
        os.kill(sleeping, signal.SIGKILL)
    assert children.family(shell.pid) == [shell.pid]


def test_an_orphan_becomes_a_child_of_the_tests_which_can_end_it() -> None:
    with children.start(["sh", "-c", "sleep 600 > /dev/null & echo $!"], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        orphan = int(shell.stdout.read())
    assert orphan in conftest._children() and conftest._command(orphan).startswith("sleep")
    os.kill(orphan, signal.SIGKILL)
    os.waitpid(orphan, 0)
    assert orphan not in conftest._children()
