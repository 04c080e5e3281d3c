"""The machine with its store: an event in, what it changed made durable, and then what is to be done outside.

The order is the promise of the whole agent, so it stands in one place, which the running agent and the simulated world
share: whoever cuts the power between two lines of this file loses nothing that anyone was told. What may wait waits
for the next commit, see `commit_policy`; and where the disk is full everything waits, in memory, until it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent import machine
from fedgate.gateway_agent.deployment.deployment import mark_at_start, save_at_stop
from fedgate.gateway_agent.events import ClockSet, Durable, Effect, Event, Log, Outward, Reload, Save, StoreState, Tick
from fedgate.gateway_agent.machine import DAMAGED, FULL
from fedgate.gateway_agent.monitor.monitor import save_memory
from fedgate.gateway_agent.outbox import scores
from fedgate.gateway_agent.runtime.commit_policy import WriteBatch
from fedgate.gateway_agent.runtime.write_budget import restore_day
from fedgate.gateway_agent.state import FLASH, RESCUED, SECRET, Host, Stored, restore, to_store
from fedgate.gateway_agent.storage.store import Store, StoreDamagedError, StoreFullError
from fedgate.models.time_units import NS

SPENT_COMMIT_S = 3_600.0  # what may wait waits so long where the budget of the day is spent
REGAIN_S = 60.0
SAVED_SHARE = 0.01  # of the budget of a day, which a power cut may forget


class Service:
    """An agent between its start and its end; use it from one thread."""

    def __init__(self, settings: GatewaySettings, store: Store, host: Host) -> None:
        """Go on with what the store holds; `first_effects` is what a start has to publish and log."""
        self.store, self._settings, self._limits = store, settings, settings.store
        stored = store.read()
        self._batch = WriteBatch(stored.outbox)
        self._held: list[Outward] = []  # what rests on effects that the disk does not take
        self._is_stuck = False  # it does not take any
        self._broken = ""  # what is wrong with the file, while there is no room for a new one
        self._first_stored(stored, host)
        self._regain_ns = host.uptime_ns
        self._renewed_ns: int | None = None
        self._flash = restore_day(stored.blobs.get(FLASH), host.uptime_ns, host.anchor_ns)
        self._flash_saved, self._flash_counted = self._flash, 0
        self.state = restore(settings, stored, host)
        self._note_store(flash=self._flash, is_unstored=self._is_stuck)
        self.first_effects = self._begin(stored)

    def _begin(self, stored: Stored) -> list[Outward]:
        """Return what a start has to tell."""
        self.state, effects = machine.begin(self.state, stored)
        is_whole = bool(stored.blobs.get(RESCUED)) and self.state.monitor.pipeline.commissioned  # the baseline, again
        outward = self._done([*effects, Save(RESCUED, b"")] if is_whole else effects)
        outward += self._report_store(StoreState(DAMAGED, self.store.damage)) if self.store.damage else []
        if self.store.written_bytes is None:
            text = "this kernel does not say what a process writes, so [store] flash_bytes_per_day cannot be kept"
            outward.append(Log("warning", text))
        return outward

    def _first_stored(self, stored: Stored, host: Host) -> None:
        """Store what goes before all else; on a full disk the start goes on without."""
        secret = host.random_bytes()
        first = [] if SECRET in stored.blobs else [Save(SECRET, secret)]
        # On the disk before the model is loaded.
        if tried := mark_at_start(stored.blobs, host.boot_id, self._settings):
            first.append(tried)
        if not first:
            return
        stored.blobs.update((effect.key, effect.body) for effect in first)
        self._batch.add(first, host.uptime_ns)
        try:
            self.store.commit(first)
        except StoreFullError:
            self._is_stuck = True
        else:
            self._batch.stored()

    def step(self, uptime_ns: int, event: Event) -> list[Outward]:
        """Take in one event and return what is to be done outside, all it rests on being on disk."""
        if not isinstance(event, Tick):
            self.state, effects = machine.step(self.state, uptime_ns, event)
            if isinstance(event, ClockSet):  # what is stored of the account is by the wall clock
                effects.append(self._save_flash())
            return [*self._done(effects), *self._reloaded(uptime_ns)]
        self._account(uptime_ns)
        self.state, effects = machine.step(self.state, uptime_ns, event)
        return [*self._done(effects, retry=True), *self._reloaded(uptime_ns), *self._relieved()]

    def step_all(self, uptime_ns: int, events: Sequence[Event]) -> list[Outward]:
        """Take in events, one after the other, and return what is to be done outside."""
        return [effect for event in events for effect in self.step(uptime_ns, event)]

    def _reloaded(self, uptime_ns: int) -> list[Outward]:
        """Give the machine the stored models where it asks for one."""
        if self.state.deployment.reload_due is None or self._broken:
            return []
        try:
            blobs = {**self.store.read().blobs, **self._batch.blobs}
        except StoreDamagedError as error:
            return self._renewed(str(error))
        self.state, effects = machine.step(self.state, uptime_ns, Reload(blobs))
        return self._done(effects)

    def close(self) -> list[Log]:
        """Store what is kept in memory, and close the store; return what is to be said where a full disk did not take
        it.
        """
        last = [
            *scores.save_unsent(self.state.outbox, self.state.context),
            *save_memory(self.state.monitor.pipeline, self.state.context, self.state.deployment.manifest),
            *save_at_stop(self.state.deployment),
        ]
        last.append(self._save_flash())
        self._batch.add(self._durable(last), self.state.context.uptime_ns)
        self._written()
        if self._is_stuck:
            self.store.make_room()
            self._written()
        self.store.close()
        return [Log("warning", self._batch.lost())] if self._is_stuck else []

    @staticmethod
    def _durable(effects: list[Effect]) -> list[Durable]:
        return [effect for effect in effects if isinstance(effect, Durable)]

    def _done(self, effects: list[Effect], *, retry: bool = False) -> list[Outward]:
        """Return what of a step is to be done outside now, what it rests on being stored."""
        uptime_ns = self.state.context.uptime_ns
        self._batch.add(self._durable(effects), uptime_ns)
        outward = [effect for effect in effects if not isinstance(effect, Durable)]
        resting = [effect for effect in outward if self._batch.rests(effect)]
        if not self._is_due(uptime_ns, bool(resting), retry):
            self._held += [effect for effect in resting if effect not in self._held]
            return [effect for effect in outward if effect not in resting]
        held = [effect for effect in self._held if self._batch.rests(effect)]  # the rest was given up meanwhile
        published = self._written()
        if self._is_stuck:
            self._held = [*held, *(effect for effect in resting if effect not in held)]
            return [*(effect for effect in outward if effect not in resting), *published]
        self._held = []
        return [*held, *(effect for effect in outward if effect not in held), *published]

    def _is_due(self, uptime_ns: int, is_resting: bool, retry: bool) -> bool:
        if not self._batch.effects:
            return False
        if self._is_stuck:
            return retry
        is_spent = self._flash.written_bytes >= self._limits.flash_bytes_per_day
        patience_s = max(self._limits.group_commit_s, SPENT_COMMIT_S if is_spent else 0.0)
        return self._batch.is_urgent or is_resting or self._batch.waited_s(uptime_ns) >= patience_s

    def _written(self) -> list[Outward]:
        """Store what was gathered, or remain stuck with it, and return what the machine says where that failed."""
        if self._broken:
            return self._renewed(self._broken)
        try:
            self.store.commit(self._batch.effects)
        except StoreFullError as error:
            return self._stuck(error)
        except StoreDamagedError as error:
            return self._renewed(str(error))
        self._batch.stored()
        self._stick(False)
        return self._in_need("the disk is full: the store lives on its reserve") if self.store.is_tight else []

    def _stuck(self, error: StoreFullError) -> list[Outward]:
        self._stick(True)
        return self._in_need(f"{error}; all is kept in memory until it can be")

    def _note_store(self, **known: Any) -> None:
        """Let the machine know how the store is."""
        context = self.state.context
        self.state = replace(self.state, context=replace(context, store=replace(context.store, **known)))

    def _stick(self, is_stuck: bool) -> None:
        self._is_stuck = is_stuck
        self._note_store(is_unstored=is_stuck)

    def _in_need(self, text: str) -> list[Outward]:
        if self.state.context.store.problem == FULL:
            return []
        self._regain_ns = (
            self.state.context.uptime_ns
        )  # or the alarm could end as it begins, and begin again under one id
        return self._report_store(StoreState(FULL, text))

    def _renewed(self, reason: str) -> list[Outward]:
        """Go on with a new file, which holds what the agent has in mind and what could be read of the old one."""
        if self.state.context.uptime_ns == self._renewed_ns:  # the new file, too: this disk keeps nothing
            raise StoreDamagedError(reason)
        stored, self._broken = to_store(self.state), reason
        try:
            self.store.renew(reason, stored)
        except StoreFullError as error:  # the old file cannot be written, and there is no room for another
            return self._stuck(error)
        self._renewed_ns, self._broken = self.state.context.uptime_ns, ""
        blobs = [effect for effect in self._batch.effects if isinstance(effect, Save)]
        self._batch = WriteBatch(stored.outbox)
        self._batch.add(blobs, self.state.context.uptime_ns)
        self._stick(False)
        return self._report_store(StoreState(DAMAGED, self.store.damage))

    def _report_store(self, event: StoreState) -> list[Outward]:
        """Tell the machine of the store."""
        self.state, effects = machine.step(self.state, self.state.context.uptime_ns, event)
        return self._done(effects)

    def _relieved(self) -> list[Outward]:
        """See, now and then, whether a disk that was full has room again."""
        uptime_ns = self.state.context.uptime_ns
        if self.state.context.store.problem != FULL or self._is_stuck or uptime_ns - self._regain_ns < REGAIN_S * NS:
            return []
        self._regain_ns = uptime_ns
        try:
            self.store.regain()
        except StoreDamagedError as error:
            return self._renewed(str(error))
        return [] if self.store.is_tight else self._report_store(StoreState(""))

    def _account(self, uptime_ns: int) -> None:
        """Add up what was written since the last time; the account itself is written as rarely as will do."""
        written = self.store.written_bytes or 0
        self._flash = self._flash.at(uptime_ns).plus(written - self._flash_counted)
        self._flash_counted = written
        self._note_store(flash=self._flash)
        grown = self._flash.written_bytes - self._flash_saved.written_bytes
        if (
            self._flash.started_ns != self._flash_saved.started_ns
            or grown >= self._limits.flash_bytes_per_day * SAVED_SHARE
        ):
            self._batch.add([self._save_flash()], uptime_ns)

    def _save_flash(self) -> Save:
        self._flash_saved = self._flash
        return Save(FLASH, self._flash.stored(self.state.context.anchor_ns))
