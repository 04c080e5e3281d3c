"""Renews the gateway's certificate before it expires, beside the agent and without ever getting in its way.

When it is due is told by the wall clock, which may jump, so it is asked at every look and nothing is scheduled by it.
A clock that says a time before the certificate was made cannot tell, and the aggregator is asked to. So it is while the
broker does not let us in, or passes on nothing that we say: a clock that stood still while the gateway was off knows
nothing of the end that the broker sees, the authority may have been replaced, and the aggregator may know why. Whatever
goes wrong is tried again for ever: what is here stays here.
"""

from __future__ import annotations

import json
import logging
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fedgate.config.settings.identity import Membership
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent.runtime.membership import find_files
from fedgate.gateway_agent.trust.trust import KeysOutcome

LOG = logging.getLogger("fedgate.identity")
CHILD_S = 120.0
ENDED, STOP_S = (-signal.SIGTERM, -signal.SIGINT), 5.0
URGENT_CHECK_S = 300.0  # between two attempts where a renewal is due
AT_ONCE_S = 60.0  # within which a fleet asks for certificates of a new authority
SPREAD = 0.05  # of a certificate's life, so that gateways that were installed in one go do not come back in one go


class Renewer:
    """The thread that looks after the certificate, and after the keys by which the site is known."""

    def __init__(
        self,
        settings: GatewaySettings,
        spec: Membership,
        is_shut_out: Callable[[], bool] = lambda: False,
        between: Callable[[float, float], float] = random.uniform,  # spreads load, guards nothing
    ) -> None:
        self._spec, self._is_shut_out, self._between = spec, is_shut_out, between
        files = {name: str(path) for name, path in asdict(find_files(settings)).items()}
        self._job = {"gateway": settings.gateway.id, "address": spec.enrolment, "files": files}
        self._share = spec.renew_share - between(0.0, SPREAD)
        self._statement = settings.trust.keys
        self._validity: tuple[float, float] | None = None
        self._is_superseded = False  # the certificate is of an authority that has been replaced
        self._failures, self._notice = 0, ""
        self._was_shut_out = False  # when it was looked at last
        self._stopping, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; a child that waits for an answer is left to end by itself."""
        self._stopping.set()
        self._woken.set()

    def take_keys(self, statement: bytes) -> KeysOutcome:
        """Keep a statement of the site's keys where its root key signed it; called by the thread of the machine."""
        if self._statement.exists() and self._statement.read_bytes() == statement:
            return KeysOutcome()
        answer, problem = self._run_child("take", {"keys": statement.decode(errors="replace")})
        if not answer.get("is_new"):
            return KeysOutcome(problem=problem)
        self._woken.set()  # the authority may be another
        return KeysOutcome(is_new=True)

    def _run(self) -> None:
        while not self._stopping.is_set():
            is_due = self.look(time.time())
            if self._woken.wait(self.pause_s(is_due=is_due)):
                self._woken.clear()
                self._validity = None  # to be looked at again
                self._stopping.wait(self._between(0.0, min(self._spec.check_s, AT_ONCE_S)))

    def pause_s(self, *, is_due: bool) -> float:
        """Return for how long to wait before the next look."""
        pause_s = min(self._spec.check_s, URGENT_CHECK_S) if is_due else self._spec.check_s
        return pause_s * self._between(0.5, 1.5)

    def look(self, wall_s: float) -> bool:
        """Renew the certificate where that is due at this wall time, or may be; return whether it still is.

        It may be where the broker does not let the gateway in, at two looks: at the first it may be connecting yet.
        """
        was_out, is_out = self._was_shut_out, self._is_shut_out()
        self._was_shut_out = is_out
        if self._validity is None:
            self._ask("look")
        if self._validity is None or not (self.is_due(wall_s) or (was_out and is_out)):
            return self._validity is None or is_out
        if not self._ask("renew"):
            return self.is_due(wall_s) or is_out
        LOG.info("the certificate is new; good until %s", time.strftime("%Y-%m-%d", time.gmtime(self._validity[1])))
        return False

    def is_due(self, wall_s: float) -> bool:
        """Tell whether a new certificate is to be asked for: late in its life, after it, where nobody can tell, or
        where another authority has taken the place of the one that made it.
        """
        if self._validity is None:
            return True
        first_s, last_s = self._validity
        return self._is_superseded or wall_s < first_s or wall_s >= first_s + self._share * (last_s - first_s)

    def _ask(self, act: str) -> bool:
        """Have the child do it; True where there is a new certificate."""
        answer, problem = self._run_child(act, {})
        if problem:
            self._note_failure(problem)
        if not answer:
            return False
        self._failures = 0
        self._validity = (answer["not_before_s"], answer["not_after_s"])
        self._is_superseded = answer["is_superseded"]
        if answer["notice"] and answer["notice"] != self._notice:
            LOG.warning("the aggregator says: %s", answer["notice"])
        self._notice = answer["notice"]
        return bool(answer["is_new"])

    def _run_child(self, act: str, more: dict[str, str]) -> tuple[dict[str, Any], str]:
        """Return what the child says and no problem, or nothing and why; nothing at all where the agent ends."""
        command = [sys.executable, "-P", "-m", "fedgate.gateway_agent.runtime.enrolment"]
        job = json.dumps({"act": act, **self._job, **more}).encode()
        try:
            done = subprocess.run(command, input=job, capture_output=True, timeout=CHILD_S, check=False)  # noqa: S603 - our own module
        except (OSError, subprocess.SubprocessError) as error:
            return {}, str(error)
        if done.returncode in ENDED and self._stopping.wait(STOP_S):  # who stops the agent stops its children too
            return {}, ""
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            return {}, lines[-1]
        return json.loads(done.stdout), ""

    def _note_failure(self, problem: str) -> None:
        self._failures += 1
        if self._failures.bit_count() == 1:  # at 1, 2, 4, 8, ...: an outage may last for weeks
            LOG.warning("certificate not renewed (attempt %d): %s; trying on", self._failures, problem)
