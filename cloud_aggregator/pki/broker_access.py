"""The broker shut against those whose certificates ended: its files, its signal, and the connections that stand.

The files follow from the registry. Where they cannot be written or the broker cannot be notified, that is tried again
for as long as it takes, also after a restart: whether the broker has read them nobody can see, so it is notified at
each start.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from fedgate.cloud_aggregator.enrolment import Denied, Revoke, Revoked
from fedgate.cloud_aggregator.events import Event
from fedgate.cloud_aggregator.pki import broker_process
from fedgate.cloud_aggregator.pki.authority import OUTLIVED, Authority
from fedgate.cloud_aggregator.pki.quarantine import Quarantine
from fedgate.config.identity.pki import OTHER_CLIENTS, IdentityError
from fedgate.config.protocol.topics import CLOUD, ROOT
from fedgate.config.settings.identity import Identity
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.config.transport.probe import Probe, ProbeError
from fedgate.models.time_units import NS

LOG = logging.getLogger("fedgate.identity")
AGAIN_S = 60.0
RELOADED_S = 1.0  # in which a broker has certainly seen its signal
SWEEP_S = 30.0  # at most, for what one gateway left behind
LISTEN_S = 0.2


class BrokerAccess:
    """The hands of the machine at the broker; `bar` and `tick` are called by the thread that steps it."""

    def __init__(
        self,
        settings: AggregatorSettings,
        spec: Identity,
        authority: Authority,
        put: Callable[[Event], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._spec, self._authority, self._put = settings, spec, authority, put
        self._now_s = now_s
        self._quarantine = Quarantine(spec.folder / OUTLIVED)
        self._now = Revoke((), frozenset(), ())  # what holds
        self._undone: Revoke | None = None
        self._is_unread = False  # the broker has files that it has not read
        self._held: frozenset[str] = frozenset()
        self._noted: frozenset[str] | None = None  # whom the store has as denied, as far as this process knows
        self._restarted_for: frozenset[str] = frozenset()
        self._process: str | None = None  # of the broker, when it was last notified
        self._again_s = 0.0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End."""
        self._stopping.set()

    def renew(self, authority: Authority) -> str:
        """Go by an authority that has other files than before, as the broker is to; return what is in the way."""
        self._authority, self._is_unread = authority, True
        return self.bar(self._undone or self._now)

    def tick(self) -> None:
        """Do again what could not be done, and let in who waited for the broker's next process."""
        if self._undone is None and not self._held:
            return
        is_due = self._undone is not None and self._now_s() >= self._again_s
        if is_due or broker_process.find_running(self._spec) != self._process:
            self.bar(self._undone or self._now)

    def is_held(self, name: str) -> bool:
        """Tell whether a name that is good stays denied until somebody restarts the broker."""
        return name in self._held and not self._spec.restart_command

    def bar(self, bar: Revoke) -> str:
        """Shut out whom the registry wants out, let in who is good again, and return what is in the way of that."""
        if self._undone is not None:  # what is undone of the one before is done with this one
            bar = replace(bar, cut=tuple(sorted({*bar.cut, *self._undone.cut})))
        self._undone, self._now = bar, replace(bar, cut=(), order=0, answer="")
        try:
            problem = self._update_broker(bar)
        except (OSError, IdentityError) as error:
            self._again_s = self._now_s() + AGAIN_S
            self._undone = replace(bar, order=0)
            problem = f"{error}; it is tried again every {AGAIN_S:g} s"
            who = ", ".join(sorted({*bar.barred, *bar.cut})) or "nobody"
            LOG.warning("the broker does not yet know that it must shut out %s: %s; trying on", who, error)
        else:
            self._undone, self._is_unread = None, False
            if bar.cut:
                self._begin_to_cut(bar.cut)
        if bar.order:
            self._put(Revoked(bar.order, bar.answer, problem))
        return problem

    def reload(self) -> str:
        """Have the broker read its files again; raises `BrokerError`. Return what is left to do by hand."""
        by_hand = broker_process.reload(self._spec)
        if by_hand:
            LOG.warning(by_hand)
        return by_hand

    def _update_broker(self, bar: Revoke) -> str:
        changed = self._authority.write_revoked((int(serial, 16), to_datetime(t_ns)) for serial, t_ns in bar.ended)
        self._process, before = broker_process.find_running(self._spec), self._held
        held = self._quarantine.list_held(bar.ended, bar.outlived, self._process)
        self._is_unread |= changed | self._authority.write_barred(bar.barred | held)
        by_hand = self.reload() if self._is_unread or bar.ended else ""
        self._held = held
        self._note_denied(held)
        if self._spec.restart_command and held - self._restarted_for:
            broker_process.restart(self._spec)
            self._restarted_for = held
            if self._spec.broker_pid_file is None:  # else it will be seen
                self._quarantine.release()
                self._process = ""
        elif held - before - self._restarted_for:
            LOG.warning(
                "%s: denied at the broker until that is restarted: the device that had the name may still be connected",
                ", ".join(sorted(held)),
            )
        elif before - held:
            LOG.info("the broker was restarted; good again: %s", ", ".join(sorted(before - held)))
        return by_hand

    def _note_denied(self, held: frozenset[str]) -> None:
        """Have it stored who is denied, where that is news, or this process has not said it yet."""
        if held != self._noted:
            self._noted = held
            self._put(Denied(held))

    def _begin_to_cut(self, names: tuple[str, ...]) -> None:
        threading.Thread(target=self._cut, args=(names,), daemon=True).start()

    def _cut(self, names: tuple[str, ...]) -> None:
        """End the connections that stand, and take away what the broker would show of them to whoever comes."""
        pause_s = RELOADED_S
        while names and not self._stopping.wait(pause_s):
            names, pause_s = tuple(name for name in names if not self._is_out(name)), AGAIN_S

    def _is_out(self, name: str) -> bool:
        """Cut the connections of a name, and take away what it retained where it is barred; False where that failed."""
        user = self._settings.broker.user or f"{CLOUD}.{self._settings.aggregator.site}"
        try:
            for client_id in (name, *(f"{name}{end}" for end in OTHER_CLIENTS)):
                with Probe(self._settings.broker, user, client_id):  # the broker ends the one that has the id
                    pass
            LOG.info("cut the connection of %s", name)
            if name in self._now.barred:
                self._sweep(name, user)
        except ProbeError as error:
            LOG.info("the connection of %s is not cut, or what it retained is still there (%s); trying on", name, error)
            return False
        return True

    def _sweep(self, name: str, user: str) -> None:
        """Take away what a gateway retained, until no more comes; raises `ProbeError`, also where it never ends."""
        topics = "/".join((*ROOT, self._settings.aggregator.site, name, "#"))
        end_s, count = time.monotonic() + SWEEP_S, 0
        with Probe(self._settings.broker, user, f"{user}.sweep") as probe:
            while found := _list_retained(probe, topics):
                if time.monotonic() >= end_s:
                    raise ProbeError(f"more comes after {SWEEP_S:g} s")
                for topic in found:
                    probe.publish(topic, b"", retain=True)
                count += len(found)
        LOG.info("took away %d messages that %s retained", count, name)


def _list_retained(probe: Probe, topics: str) -> set[str]:
    """Return under which topics the broker hands out retained messages within a moment."""
    probe.messages.clear()
    probe.subscribe(topics)
    probe.listen(LISTEN_S)
    return {message.topic for message in probe.messages if message.retain and message.payload}


def to_datetime(t_ns: int) -> datetime:
    """Return a moment of Unix time as a certificate wants it."""
    return datetime.fromtimestamp(t_ns // NS, UTC)
