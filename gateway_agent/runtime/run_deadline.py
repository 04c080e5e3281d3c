"""An end to a run of a model that does not come to one: a thread looks at the run at hand now and then.

No window costs a thread or a clock: a run that is still the same one after so many looks is ended. onnxruntime then
leaves it between two operators, which are bounded each (`onnx_policy`), and the agent goes back to the model before.
"""

from __future__ import annotations

import threading
import time

from onnxruntime import RunOptions

from fedgate.gateway_agent.deployment.session import RUNNING, SCORE_S

LOOK_S = 1.0
_watching: list[threading.Thread] = []


def watch_scoring(within_s: float = SCORE_S, look_s: float = LOOK_S) -> None:
    """Watch the runs of this process from now on; once is enough."""
    if not _watching:
        _watching.append(threading.Thread(target=_watch, args=(within_s, look_s), daemon=True))
        _watching[0].start()


def _watch(within_s: float, look_s: float) -> None:
    seen, since_s = list[RunOptions](), 0.0
    while threading.current_thread() in _watching:
        time.sleep(look_s)
        now_s, runs = time.monotonic(), RUNNING[:1]
        if runs != seen:
            seen, since_s = runs, now_s
        elif runs and now_s - since_s >= within_s:
            runs[0].terminate = True
