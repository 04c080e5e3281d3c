"""Processes that a demo or a test starts: they end with the one that started them, and are waited for while they work.

The kernel ends a child of ours with SIGKILL when the thread that started it is gone, however it went (prctl(2),
PR_SET_PDEATHSIG): neither a failed wait nor `kill -9` leaves a broker or an agent behind. So start them from a thread
that lasts, which the main thread does.

A machine that is busy with other things is no failure. A wait therefore counts only the time in which nothing of ours
is at work: no thread of this process or of those below it runs, waits for a processor or waits for a disk.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
POLL_S = 0.05
LOOK_S = 0.5  # between two looks at who is at work: a look reads /proc, for some milliseconds
LONGEST = 10  # times the patience, for something that is at work for ever
PROC = Path("/proc")
ENDED = "ZX"  # and is waited for, or is gone
AT_WORK = "RD"  # states of a thread in proc(5): runs or could run, waits for a disk

_libc = ctypes.CDLL(None, use_errno=True)


def start(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
    """Start a process that ends when this one does; `options` are those of `subprocess.Popen`."""
    parent = os.getpid()

    def end_with_parent() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the kernel was told
            os.kill(os.getpid(), signal.SIGKILL)

    with _postpone_interrupt():
        return subprocess.Popen(command, preexec_fn=end_with_parent, **options)  # noqa: PLW1509, S603 - two system calls; our own commands


@contextmanager
def _postpone_interrupt() -> Iterator[None]:
    """Let Ctrl-C wait until a process has started: Python ignores what is raised in the functions that it calls around
    a fork, and nobody would ever hear of it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def start_module(module: str, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
    """Start a module of fedgate, named below it, as `start` does, whatever the working directory holds."""
    return start([sys.executable, "-P", "-m", f"fedgate.{module}", *arguments], **options)


def workers(count: int) -> ProcessPoolExecutor:
    """Return a pool of processes, each with an interpreter of its own, which end when this one does."""
    return ProcessPoolExecutor(count, get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """End this worker when the process that started it is gone: killed, it cannot tell its workers."""
    parent = parent_process()
    if parent is not None:
        sentinel = parent.sentinel
        threading.Thread(target=lambda: (wait_for([sentinel]), os._exit(1)), daemon=True).start()


class Patience:
    """How long something is waited for: `idle_s` seconds in which nothing of ours is at work."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s, self._longest_s = idle_s, LONGEST * idle_s
        self._begun_s = self._looked_s = time.monotonic()

    def is_over(self) -> bool:
        """Tell whether nothing is to be expected any more; asked again and again while one waits."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            if not is_at_work():
                self._idle_s -= LOOK_S  # and no more: a look that comes late tells of a busy machine
        return self._idle_s <= 0.0 or now_s - self._begun_s > self._longest_s


def wait_until(done: Callable[[], object], idle_s: float, poll_s: float = POLL_S) -> bool:
    """Wait until something is so, and tell whether it came to be before patience was over."""
    patience = Patience(idle_s)
    while not done():
        if patience.is_over():
            return False
        time.sleep(poll_s)
    return True


def wait_for_end(process: subprocess.Popen[Any], idle_s: float) -> int:
    """Return the code with which a process ends; raises `subprocess.TimeoutExpired` where it does not."""
    if not wait_until(lambda: process.poll() is not None, idle_s):
        raise subprocess.TimeoutExpired(process.args, idle_s)
    return process.wait()


def run(command: Sequence[str | Path], idle_s: float, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end and return what it printed, as `subprocess.run` does with `capture_output`.

    What it is to read goes into a file that is its `stdin`. Raises `subprocess.TimeoutExpired` where patience is over;
    the command is ended then.
    """
    patience = Patience(idle_s)
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    out, err = process.communicate(timeout=LOOK_S)
                    return subprocess.CompletedProcess(command, process.returncode, out, err)
                if patience.is_over():
                    raise subprocess.TimeoutExpired(process.args, idle_s)
        finally:
            process.kill()


def run_module(module: str, *arguments: str, idle_s: float) -> subprocess.CompletedProcess[str]:
    """Run a module of fedgate, named below it, as `run` does, and return what it printed as text."""
    return run([sys.executable, "-P", "-m", f"fedgate.{module}", *arguments], idle_s, text=True)


def is_at_work() -> bool:
    """Tell whether a thread of this process or of those below it, this thread apart, is at work."""
    me = threading.get_native_id()
    return any(
        _state(thread)[0] in AT_WORK
        for process in family(os.getpid())
        for thread in _folders(PROC / str(process) / "task")
        if thread.name != str(me)
    )


def family(pid: int) -> list[int]:
    """Return a process and all below it, by their process ids."""
    below: dict[int, list[int]] = {}
    for folder in _folders(PROC):
        below.setdefault(_state(folder)[1], []).append(int(folder.name))
    found = [pid]
    for one in found:  # grows as it is walked
        found += below.get(one, [])
    return found


def is_alive(pid: int) -> bool:
    """Tell whether a process has not ended yet; one that nobody has waited for has."""
    return _state(PROC / str(pid))[0] not in ENDED


def _folders(path: Path) -> Iterator[Path]:
    """Return the folders of processes or threads under a path of /proc; none where it is gone."""
    with suppress(OSError):
        yield from (folder for folder in path.iterdir() if folder.name.isdigit())


def _state(folder: Path) -> tuple[str, int]:
    """Return the state of a process or thread and its parent; a dead one's where it is gone."""
    with suppress(OSError):
        state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        return state, int(parent)
    return "X", 0
