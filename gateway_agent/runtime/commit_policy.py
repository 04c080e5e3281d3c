"""When the agent stores what is to be stored, and how it goes on where the disk does not take it.

Every commit wears the flash, so what may wait a little is gathered. It stays in order and goes to the disk with the
first thing that may not wait, in the same transaction. So the disk always holds a state that the gateway has been in,
and a power cut takes back the last moments at most. A change that another overtakes while it waits is never written at
all: telemetry whose receipt comes in time costs nothing.

Where the disk is full everything waits, in memory, until it is not, and so does what rests on it; for the same reason
as above it stays small. A damaged file makes way for a new one. The machine hears of all that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fedgate.config.runtime.sqlite import StoreDamagedError, StoreFullError
from fedgate.config.settings.settings import StoreTable
from fedgate.gateway_agent import machine
from fedgate.gateway_agent.events import (
    ALARM_PRIORITY,
    CLASSES,
    TELEMETRY_PRIORITY,
    ClockSet,
    Dequeue,
    Durable,
    Effect,
    Enqueue,
    Event,
    Keep,
    Outward,
    Publish,
    Reload,
    Save,
    StoreState,
    Tick,
)
from fedgate.gateway_agent.outbox.outbox import SEQUENCE, is_tombstone
from fedgate.gateway_agent.pipeline.memory import MEMORY
from fedgate.gateway_agent.pipeline.spectra import SPECTRA
from fedgate.gateway_agent.samples.samples import SAMPLES
from fedgate.gateway_agent.state import FLASH, LINK, Host, State, Stored, to_store
from fedgate.gateway_agent.storage.store import Store
from fedgate.gateway_agent.training.training import COUNTED
from fedgate.gateway_agent.write_budget import restore_day
from fedgate.models.time_units import NS

SPENT_COMMIT_S = 3_600.0  # what may wait waits so long where the budget of the day is spent
REGAIN_S = 60.0
SAVED_SHARE = 0.01  # of the budget of a day, which a power cut may forget
# Blobs; that an update was counted comes again with its next receipt.
MAY_WAIT = frozenset({COUNTED, MEMORY, SPECTRA, SAMPLES, FLASH, SEQUENCE, LINK})


def may_wait(effect: Durable) -> bool:
    """Tell whether losing an effect in a power cut, with all behind it, does no more harm than the documents say."""
    match effect:
        case Enqueue(name=name, item=item):
            return item.priority == TELEMETRY_PRIORITY or is_tombstone(name)
        case Save(key=key):
            return key in MAY_WAIT
        case _:
            return True  # a window of the baseline; the end of an item, which otherwise is sent and acknowledged again


class WriteBatch:
    """The effects that are not on the disk yet, `stored` being the outbox that is."""

    def __init__(self, stored: Iterable[str]) -> None:
        self._stored = set(stored)  # names
        self._windows: list[Keep] = []
        self._blobs: dict[str, Save] = {}
        self._items: dict[str, Enqueue | Dequeue] = {}
        self._since_ns: int | None = None
        self.is_urgent = False

    def add(self, effects: Iterable[Durable], uptime_ns: int) -> None:
        """Take in the effects of a step."""
        for effect in effects:
            match effect:
                case Keep():
                    self._windows.append(effect)
                case Save(key=key):
                    self._blobs[key] = effect
                case Enqueue(name=name) | Dequeue(name=name):
                    self._items.pop(name, None)  # it goes to the end
                    if isinstance(effect, Enqueue) or name in self._stored:
                        self._items[name] = effect
            self.is_urgent |= not may_wait(effect)
        if not (self._windows or self._blobs or self._items):
            self._since_ns = None
        elif self._since_ns is None:
            self._since_ns = uptime_ns

    def compute_wait_s(self, uptime_ns: int) -> float:
        """Return for how long the oldest of the effects has waited, 0 where there is none."""
        return 0.0 if self._since_ns is None else (uptime_ns - self._since_ns) / 1e9

    @property
    def effects(self) -> list[Durable]:
        """All that waits, in an order that does what the effects did in theirs."""
        return [*self._windows, *self._blobs.values(), *self._items.values()]

    @property
    def blobs(self) -> dict[str, bytes]:
        """The blobs that wait."""
        return {key: effect.body for key, effect in self._blobs.items()}

    def describe_lost(self) -> str:
        """Say what ends with the agent, for no disk took it."""
        items = [one.item for one in self._items.values() if isinstance(one, Enqueue)]
        kinds = Counter(CLASSES[item.priority] for item in items)
        alarms = [item.payloads[0].decode(errors="replace") for item in items if item.priority == ALARM_PRIORITY]
        counted = ", ".join(f"{count} of class {kind}" for kind, count in sorted(kinds.items())) or "no message"
        listed = f"; alarms: {' '.join(alarms)}" if alarms else ""
        return f"the disk is full to the end; lost with this agent: {counted}, {len(self._windows)} windows{listed}"

    def is_unstored(self, effect: Outward) -> bool:
        """Tell whether a message says what is not stored yet. Telemetry may be published and then lost."""
        if not isinstance(effect, Publish):
            return False
        return any(
            isinstance(item, Enqueue)
            and item.item.topic == effect.topic
            and effect.payload in item.item.payloads
            and item.item.priority != TELEMETRY_PRIORITY
            for item in self._items.values()
        )

    def clear(self) -> None:
        """All of it is on the disk."""
        for name, effect in self._items.items():
            if isinstance(effect, Enqueue):
                self._stored.add(name)
            else:
                self._stored.discard(name)
        self._windows, self._blobs, self._items = [], {}, {}
        self._since_ns, self.is_urgent = None, False


class CommitPolicy:
    """What waits to be stored, and what is known of the store.

    `is_stuck` is True while the disk takes nothing; `held` is what rests on what it does not take.
    """

    def __init__(self, limits: StoreTable, store: Store, stored: Stored, host: Host) -> None:
        self._store, self._limits = store, limits
        self.batch = WriteBatch(stored.outbox)
        self.held: list[Outward] = []
        self.is_stuck = False
        self._broken = ""  # what is wrong with the file, while there is no room for a new one
        self._regain_ns = host.uptime_ns
        self._renewed_ns: int | None = None
        self.flash = restore_day(stored.blobs.get(FLASH), host.uptime_ns, host.anchor_ns)
        self._flash_saved, self._flash_counted = self.flash, 0

    def step(self, state: State, uptime_ns: int, event: Event) -> machine.Result:
        """Let the machine take a step, which at a tick knows what was written to the flash."""
        if isinstance(event, Tick):
            state = self._account(state, uptime_ns)
        return machine.step(state, uptime_ns, event)

    def commit(
        self, state: State, effects: Sequence[Effect], events: Sequence[Event]
    ) -> tuple[State, list[Outward], list[Event]]:
        """Return what of a step may be done outside now, what it rests on being stored, and what the machine is to
        hear.
        """
        uptime_ns, is_tick = state.context.uptime_ns, any(isinstance(event, Tick) for event in events)
        if any(isinstance(event, ClockSet) for event in events):  # what is stored of the account is by the wall clock
            effects = [*effects, self.save_flash(state)]
        self.batch.add((effect for effect in effects if isinstance(effect, Durable)), uptime_ns)
        outward = [effect for effect in effects if not isinstance(effect, Durable)]
        resting = [effect for effect in outward if self.batch.is_unstored(effect)]
        if is_due := self._is_due(uptime_ns, bool(resting), is_tick):
            self.held = [
                effect for effect in self.held if self.batch.is_unstored(effect)
            ]  # the rest was given up meanwhile
        news = self.write(state) if is_due else []
        if is_due and not self.is_stuck:
            outward = [*self.held, *(effect for effect in outward if effect not in self.held)]
            self.held = []
        else:
            self.held += [effect for effect in resting if effect not in self.held]
            outward = [effect for effect in outward if effect not in resting]
        news = news or self._act_or_renew(state, lambda: self._look(state, events))
        return self.note(state), outward, news

    def _is_due(self, uptime_ns: int, is_resting: bool, is_tick: bool) -> bool:
        if not self.batch.effects:
            return False
        if self.is_stuck:
            return is_tick
        is_spent = self.flash.written_bytes >= self._limits.flash_bytes_per_day
        patience_s = max(self._limits.group_commit_s, SPENT_COMMIT_S if is_spent else 0.0)
        return self.batch.is_urgent or is_resting or self.batch.compute_wait_s(uptime_ns) >= patience_s

    def write(self, state: State) -> list[Event]:
        """Store what was gathered, or remain stuck with it; return what the machine is to hear of that."""
        return self._act_or_renew(state, lambda: self._write(state))

    def _write(self, state: State) -> list[Event]:
        if self._broken:
            raise StoreDamagedError(self._broken)
        try:
            self._store.commit(self.batch.effects)
        except StoreFullError as error:
            return self._note_stuck(state, error)
        self.batch.clear()
        self.is_stuck = False
        text = "the disk is full: the store lives on its reserve"
        return self._note_full(state, text) if self._store.is_tight else []

    def _look(self, state: State, events: Sequence[Event]) -> list[Event]:
        """Return the stored models, where an event made the machine ask for one; at a tick, now and then, whether a
        disk that was full has space again.
        """
        is_new = any(not isinstance(event, Reload) for event in events)
        if state.deployment.reload_due is not None and not self._broken and is_new:
            return [Reload({**self._store.read().blobs, **self.batch.blobs})]
        uptime_ns = state.context.uptime_ns
        is_full = state.context.store.problem == machine.FULL and not self.is_stuck
        is_tick = any(isinstance(event, Tick) for event in events)
        if not (is_full and is_tick and uptime_ns - self._regain_ns >= REGAIN_S * NS):
            return []
        self._regain_ns = uptime_ns
        self._store.regain()
        return [] if self._store.is_tight else [StoreState("")]

    def _act_or_renew(self, state: State, act: Callable[[], list[Event]]) -> list[Event]:
        """Act on the store; where its file turns out to be damaged go on with a new one, which holds what the agent has
        in mind and what could be read of the old one.
        """
        try:
            return act()
        except StoreDamagedError as error:
            self._broken = str(error)
        uptime_ns, stored = state.context.uptime_ns, to_store(state)
        if uptime_ns == self._renewed_ns:  # the new file, too: this disk keeps nothing
            raise StoreDamagedError(self._broken)
        try:
            self._store.renew(self._broken, stored)
        except StoreFullError as error:  # the old file cannot be written, and there is no room for another
            return self._note_stuck(state, error)
        self._renewed_ns, self._broken, self.is_stuck = uptime_ns, "", False
        blobs = [effect for effect in self.batch.effects if isinstance(effect, Save)]
        self.batch = WriteBatch(stored.outbox)
        self.batch.add(blobs, uptime_ns)
        return [StoreState(machine.DAMAGED, self._store.damage)]

    def _note_stuck(self, state: State, error: StoreFullError) -> list[Event]:
        self.is_stuck = True
        return self._note_full(state, f"{error}; all is kept in memory until it can be")

    def _note_full(self, state: State, text: str) -> list[Event]:
        if state.context.store.problem == machine.FULL:
            return []
        # Or the alarm could end as it begins, and begin again under one id.
        self._regain_ns = state.context.uptime_ns
        return [StoreState(machine.FULL, text)]

    def note(self, state: State) -> State:
        """Let the machine know how the store is."""
        store = replace(state.context.store, written_bytes=self.flash.written_bytes, is_unstored=self.is_stuck)
        return replace(state, context=replace(state.context, store=store))

    def _account(self, state: State, uptime_ns: int) -> State:
        """Add up what was written since the last time; the account itself is written as rarely as will do."""
        written = self._store.written_bytes or 0
        self.flash = self.flash.move_to(uptime_ns).add(written - self._flash_counted)
        self._flash_counted = written
        grown = self.flash.written_bytes - self._flash_saved.written_bytes
        is_new = self.flash.started_ns != self._flash_saved.started_ns
        if is_new or grown >= self._limits.flash_bytes_per_day * SAVED_SHARE:
            self.batch.add([self.save_flash(state)], uptime_ns)
        return self.note(state)

    def count_written(self, size_bytes: int) -> None:
        """Count what was written to the flash beside the store."""
        self.flash = self.flash.add(size_bytes)

    def save_flash(self, state: State) -> Save:
        """Return the effect that stores the account."""
        self._flash_saved = self.flash
        return Save(FLASH, self.flash.dump(state.context.anchor_ns))
