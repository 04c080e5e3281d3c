"""A model tried in a child process of its own, before this process loads it.

The child has no files, no network and no new privileges, and a limit of time and memory, see `sandbox`. It loads the
model and runs it on its golden pair, on this gateway's baseline and on its recent windows. What it dies of is the
model's fault, and no harm; where it cannot even begin nothing is known of the model.

Run as `python -m fedgate.gateway_agent.runtime.model_trial`: a job on standard input in the wire format. Its first line
of output says that it gave up what it could, its last one the time that a window takes or what is wrong with the model.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np

from fedgate.config.protocol import wire
from fedgate.gateway_agent.deployment.deployment import Examination, UntriedError
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.pipeline import recurrence
from fedgate.models.arrays import joined, parted
from fedgate.models.onnx_policy import ModelRefusedError

EXAMINATION_S = 60.0  # on the clock
BEGINNING_S = 60.0  # until the child has its libraries; with a trial after it far below what the watchdog waits
CPU_S = 50
MEASURE_S = 0.1
MEMORY_BYTES = 256 * 1024 * 1024  # beyond what the child takes before it loads the model
READY = b"ready"
ANSWER_BYTES = 65_536  # of output that is looked at
REASON_LENGTH = 300
REFUSED = 3
OOM_SCORE = Path("/proc/self/oom_score_adj")
COMMAND = (sys.executable, "-P", "-m", "fedgate.gateway_agent.runtime.model_trial")
# What children compute is many small products, for which threads of BLAS mostly wait; and the other cores belong to the
# sampling.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Tried(NamedTuple):
    """What is known of a model that came through."""

    window_s: float  # of the processor, for a window as it is scored when the model is in force
    lacks: str  # what this machine does not offer of the limits


def examine(asked: Examination, command: Sequence[str] = COMMAND, within_s: float = EXAMINATION_S) -> Tried:
    """Return what a child process says of a model that came through within so many seconds of its beginning.

    Raises `ModelRefusedError` where it did not, and `UntriedError` where no child could try.
    """
    job, pipe = _to_bytes(asked), subprocess.PIPE
    try:
        child = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env={**os.environ, **ONE_THREAD}
        )
    except OSError as error:
        raise UntriedError(f"no child process can be started ({error})") from None
    timer = _kill_later(child, BEGINNING_S)
    try:
        with child, cast(IO[bytes], child.stdin) as order, cast(IO[bytes], child.stdout) as answer:
            first = answer.readline(ANSWER_BYTES)  # a busy machine takes its time, and that is not the model's
            timer.cancel()
            deadline_s = time.monotonic() + within_s
            timer = _kill_later(child, within_s)
            with suppress(BrokenPipeError):
                order.write(job)
                order.flush()
            with suppress(BrokenPipeError):
                order.close()
            more = answer.read(ANSWER_BYTES)
    finally:
        timer.cancel()
    return _judge(first, more, child.returncode, is_late=time.monotonic() >= deadline_s, within_s=within_s)


def _kill_later(child: subprocess.Popen[bytes], after_s: float) -> threading.Timer:
    timer = threading.Timer(after_s, child.kill)
    timer.start()
    return timer


def _to_bytes(asked: Examination) -> bytes:
    """Return what a child is asked, as `answer` reads it."""
    given = asked._asdict() | {"model": np.frombuffer(asked.model, np.uint8)}
    personal = given.pop("personal")
    return wire.encode(joined({"given": given, "personal": personal}))


def _judge(first: bytes, more: bytes, code: int, *, is_late: bool, within_s: float) -> Tried:
    last = b" ".join((first + more).rstrip().rpartition(b"\n")[2].split()).decode(errors="replace")[:REASON_LENGTH]
    if not first.startswith(READY):
        raise UntriedError(f"the child process that tries models did not begin ({last or _end(code)})")
    if is_late:
        raise ModelRefusedError(f"it was not done within {within_s:g} s in a process of its own")
    if code == REFUSED:
        raise ModelRefusedError(last)
    try:
        if code != 0 or not more:
            raise ValueError
        return Tried(float(last), first.removeprefix(READY).decode(errors="replace").strip())
    except ValueError:
        raise ModelRefusedError(f"the process of its own that tried it {_end(code)}") from None


def _end(code: int) -> str:
    if code == -signal.SIGXCPU:
        return f"took more than {CPU_S} s of the processor"
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def answer(job: bytes) -> float:
    """Return the seconds of the processor that a window takes; raises `ModelRefusedError`."""
    arrays, _ = wire.decode(job, size_max=len(job))
    parts = parted(arrays)
    given = parts["given"]
    scorer = Scorer(given["model"].tobytes(), parts.get("personal", {}))
    scorer.neutral(given["golden_x"])
    recurrence.score(scorer, given["rows"], given["gaps"])
    windows, began_s = 0, time.process_time()
    while (spent_s := time.process_time() - began_s) < MEASURE_S:  # in whole milliseconds, on many machines
        recurrence.replay(scorer, [FeatureRow(row, None) for row in given["recent"]], 1.0)
        windows += len(given["recent"])
    return spent_s / windows


def main() -> int:
    """Try the model on standard input."""
    from fedgate.gateway_agent.runtime import sandbox

    with suppress(OSError):  # where memory is short it is the trial that must end, not the watching
        OOM_SCORE.write_text("1000", encoding="ascii")
    lacks = sandbox.enter(CPU_S, MEMORY_BYTES)
    print(READY.decode(), lacks, flush=True)  # noqa: T201 - it is the answer
    try:
        reply, code = f"{answer(sys.stdin.buffer.read()):.9f}", 0
    except ModelRefusedError as error:
        reply, code = " ".join(str(error).split()), REFUSED
    except MemoryError:
        reply, code = f"it takes more than {MEMORY_BYTES >> 20} MiB of memory", REFUSED
    print(f"\n{reply}", flush=True)  # noqa: T201 - it is the answer
    return code


if __name__ == "__main__":
    sys.exit(main())
