"""Sends changes of alarms to a channel of `[[notify]]`, by way of Apprise in a child process; see `notify_worker`."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from fedgate.cloud_aggregator.events import Post, Posted
from fedgate.cloud_aggregator.notifications.notices import Notice
from fedgate.cloud_aggregator.runtime.posting import Poster, is_refusal
from fedgate.config.settings.notifications import NotifyChannel
from fedgate.config.settings.settings import SettingsError

COMMAND = (sys.executable, "-P", "-m", "fedgate.cloud_aggregator.runtime.notify_worker")
ADDRESSES_MAX, FILE_MAX = 10, 16_384  # of a channel; bytes
CHECK_S = 30.0  # within which the addresses of all channels are understood; a slow card loads Apprise in ten
GRACE_S = 2.0  # in which a child ends by itself
# Of the environment what Python, TLS and a proxy need, and nothing that is a secret of the aggregator or of another
# channel.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
PROXIES = ("http_proxy", "https_proxy", "no_proxy")


class Answer(NamedTuple):
    """How sending to one address of a channel went; `problem` is empty where it was taken."""

    place: int  # of the address among those of its channel, from 1
    service: str = ""  # as Apprise calls it; the address itself is never shown
    problem: str = ""
    is_refused: bool = False
    is_silent: bool = False  # nothing was heard of it in time

    def __str__(self) -> str:
        return f"address {self.place}{f' ({self.service})' if self.service else ''}: {self.problem or 'taken'}"


class NotifyClient(Poster):
    """Sends one change at a time to all addresses of a channel at once, which are read for each.

    Of a change that not all have taken those that have it are not sent it again, while this process runs.
    """

    def __init__(self, spec: NotifyChannel, done: Callable[[Posted], None]) -> None:
        super().__init__(done)
        self._spec = spec
        self._taken: tuple[str, frozenset[str]] = ("", frozenset())  # the change, and the addresses that have it
        self._child: subprocess.Popen[bytes] | None = None
        self._lock, self._is_stopped = threading.Lock(), False

    def attempt(self, post: Post) -> Posted:
        """Send a change to all who have not taken it yet, and return how it went."""
        of_change, had = self._taken
        had = had if of_change == post.id else frozenset()
        try:
            urls = read_addresses(self._spec)
            answers = self._ask_unless(urls, had, Notice(**json.loads(post.body)))
        except (SettingsError, ModuleNotFoundError) as error:  # it waits until somebody has put that right
            return Posted(post.id, str(error), channel=self._spec.name)
        failed = [one for one in answers if one.problem]
        self._taken = (post.id, had | {urls[one.place - 1] for one in answers if not one.problem})
        text = "; ".join(map(str, failed))
        return Posted(post.id, text, bool(failed) and all(one.is_refused for one in failed), self._spec.name)

    def deliver(self, notice: Notice) -> list[Answer]:
        """Send a notice to all addresses and return what each answered; raises `SettingsError` where they cannot be
        read, and `ModuleNotFoundError` where Apprise is not installed.
        """
        return self._ask_unless(read_addresses(self._spec), frozenset(), notice)

    def _ask_unless(self, urls: Sequence[str], had: frozenset[str], notice: Notice) -> list[Answer]:
        wanted = [(place, url) for place, url in enumerate(urls, 1) if url not in had]
        return self.ask(wanted, notice._asdict(), self._spec.timeout_s)

    def ask(self, urls: Sequence[tuple[int, str]], what: dict[str, Any], within_s: float) -> list[Answer]:
        """Have a child answer for numbered addresses; raises `ModuleNotFoundError` where Apprise is not installed."""
        if importlib.util.find_spec("apprise") is None:
            raise ModuleNotFoundError("No module named 'apprise'; install fedgate's extra notify", name="apprise")
        job = json.dumps({"urls": urls, "within_s": within_s + GRACE_S, **what}).encode()
        try:
            with self._lock:
                if self._is_stopped:
                    return [Answer(place, problem="the service ends") for place, _ in urls]
                child = self._child = _start()
        except OSError as error:
            return [Answer(place, problem=f"no process can be started ({error.strerror})") for place, _ in urls]
        return read_answers(*_talk(child, job, within_s), [place for place, _ in urls], within_s)

    def stop(self) -> None:
        """End the child that is under way, and start no other."""
        with self._lock:
            self._is_stopped = True
            if self._child is not None:
                _end(self._child)


def check(specs: Iterable[NotifyChannel], asker: NotifyClient | None = None) -> list[str]:
    """Return the services of each channel, as one text; raises `SettingsError` where an address cannot be understood,
    or cannot be read, `ChildProcessError` where Apprise does not say, `ModuleNotFoundError` where it is not installed.
    """
    channels = [(spec, read_addresses(spec)) for spec in specs]
    urls = [url for _, of_channel in channels for url in of_channel]
    if not urls:
        return []
    asker = asker or NotifyClient(channels[0][0], lambda _posted: None)  # given by whoever may want to stop it
    found = asker.ask(list(enumerate(urls, 1)), {}, CHECK_S)
    answers, services = iter(found), list[str]()
    for spec, of_channel in channels:
        own = [next(answers)._replace(place=place) for place, _ in enumerate(of_channel, 1)]
        if bad := [one for one in own if one.problem]:
            error = ChildProcessError if bad[0].is_silent else SettingsError
            raise error(f"notify {spec.name}: {_name_source(spec)}: {bad[0]}")
        services.append(", ".join(one.service for one in own))
    return services


def read_addresses(spec: NotifyChannel) -> list[str]:
    """Return the addresses of a channel: one a line, without empty ones and those that begin with `#`; raises
    `SettingsError`, which shows none of them.
    """
    where = f"notify {spec.name}: {_name_source(spec)}"
    if spec.url_file is None:
        text = os.environ.get(spec.url_env or "", "")
    else:
        try:
            text = spec.url_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise SettingsError(f"{where}: cannot be read ({reason})") from None
    urls = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if not 1 <= len(urls) <= ADDRESSES_MAX or len(text) > FILE_MAX:
        raise SettingsError(
            f"{where}: {len(urls)} addresses in {len(text)} characters; expected 1 to {ADDRESSES_MAX} addresses of "
            f"Apprise, one a line, in at most {FILE_MAX} characters"
        )
    return urls


def _name_source(spec: NotifyChannel) -> str:
    return f"environment variable {spec.url_env}" if spec.url_file is None else f"url_file {spec.url_file}"


def select_environment() -> dict[str, str]:
    """Return what a child gets of the environment."""
    return {name: text for name, text in os.environ.items() if name in PASSED_ON or name.lower() in PROXIES}


def _start() -> subprocess.Popen[bytes]:
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    # A session of its own: with it ends what a plugin has started.
    return subprocess.Popen(  # noqa: S603 - our own module
        COMMAND, stdin=pipe, stdout=pipe, stderr=nothing, env=select_environment(), start_new_session=True
    )


def _talk(child: subprocess.Popen[bytes], job: bytes, within_s: float) -> tuple[bytes, int | None]:
    """Return what a child answers within a time, and its exit code; None: it was still at work."""
    with child:
        try:
            return child.communicate(job, timeout=within_s)[0], child.returncode
        except subprocess.TimeoutExpired:
            _end(child)
        try:
            return child.communicate(timeout=GRACE_S)[0], None
        except subprocess.TimeoutExpired as error:  # what it has started holds its output open
            return error.output or b"", None


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def read_answers(output: bytes, code: int | None, places: Sequence[int], within_s: float) -> list[Answer]:
    """Return the answer for each place, by what a child has said and how it ended."""
    said: dict[int, Answer] = {}
    for line in output.splitlines():
        with suppress(ValueError, TypeError, KeyError):  # the last line of a child that was ended
            fields = json.loads(line)
            said[fields["place"]] = _judge(fields)
    if code is None:
        silence = f"no answer within {within_s:g} s"
    elif code < 0:
        silence = f"Apprise ended its process with signal {-code}"
    else:
        silence = f"Apprise gave no answer (exit code {code})"
    return [said.get(place, Answer(place, problem=silence, is_silent=True)) for place in places]


def _judge(fields: dict[str, Any]) -> Answer:
    place, service, problem = fields["place"], fields["service"], fields.get("problem", "")
    outcome = fields.get("outcome")
    if isinstance(outcome, int):
        return Answer(place, service, f"it answers {outcome}", is_refusal(outcome))
    return Answer(place, service, f"it cannot be reached ({outcome})" if outcome else problem)
