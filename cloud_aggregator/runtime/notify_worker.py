"""Apprise in a child process, which ends after each change: what its plugins for 130 services do on the way, hang or
crash or leave behind, ends with it, and its 50 MB return.

Run as `python -P -m fedgate.cloud_aggregator.runtime.notify_worker`: a job as JSON on standard input; on standard
output a line of JSON for each address, as soon as it is known how it went. Without a `body` nothing is sent, and it is
only told whether the addresses can be understood. Nothing of Apprise's own words is passed on, for some have the
address in them.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import apprise
import requests

OOM_SCORE = Path("/proc/self/oom_score_adj")
# What the requests for one address came to, in order: HTTP statuses, and errors by the names of their classes.
OUTCOMES: ContextVar[list[int | str] | None] = ContextVar("outcomes", default=None)


def note_outcomes() -> None:
    """Have each request note what it came to; Apprise says of a failure only that it is one."""
    send = requests.Session.send

    def send_and_note(session: requests.Session, request: Any, **options: Any) -> requests.Response:
        noted = OUTCOMES.get()
        noted = [] if noted is None else noted
        try:
            response = send(session, request, **options)
        except Exception as error:
            noted.append(type(error).__name__)
            raise
        noted.append(response.status_code)
        return response

    requests.Session.send = send_and_note  # type: ignore[assignment, method-assign]  # in this process


def make_asset() -> apprise.AppriseAsset:
    """Return settings with which nothing is kept on disk, made up or followed."""
    return apprise.AppriseAsset(
        app_id="fedgate",
        app_desc="fedgate",
        async_mode=False,
        storage_mode=apprise.PersistentStoreMode.MEMORY,
        pgp_autogen=False,
        pem_autogen=False,
        http_redirects=False,  # one could lead to a receiver that nobody has chosen, without TLS
        service_timeout=0,  # the job has one for all
    )


def carry_out(job: dict[str, Any], url: str) -> dict[str, Any]:
    """Send to one address and return how that went."""
    service = apprise.Apprise.instantiate(url, asset=make_asset())
    if service is None:
        return {"service": "", "problem": "it is no address that Apprise knows"}
    name = str(service.service_name)
    if "body" not in job:
        return {"service": name}
    noted = list[int | str]()
    OUTCOMES.set(noted)
    all_of_it = apprise.Apprise(asset=make_asset())
    all_of_it.add(service)
    text = apprise.NotifyFormat.TEXT
    if all_of_it.notify(job["body"], job["title"], apprise.NotifyType(job["kind"]), body_format=text):
        return {"service": name}
    return {"service": name, "problem": "it was not taken", "outcome": noted[-1] if noted else ""}


def main() -> None:
    """Carry out the job on standard input for all addresses at once, within the time that it gives."""
    job = json.load(sys.stdin)
    signal.alarm(math.ceil(job["within_s"]))  # that ends this process whatever hangs, also where nobody waits for it
    with suppress(OSError):  # where memory is short it is this that must end, not the aggregator
        OOM_SCORE.write_text("800", encoding="ascii")
    answers, lock = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8"), threading.Lock()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a plugin prints is no answer
    note_outcomes()

    def answer(place: int, url: str) -> None:
        found = carry_out(job, url)
        with lock:
            answers.write(json.dumps({"place": place, **found}) + "\n")
            answers.flush()

    threads = [threading.Thread(target=answer, args=one, daemon=True) for one in job["urls"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
    os._exit(0)  # threads that Apprise leaves behind have nothing more to say
