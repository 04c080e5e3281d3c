"""Bodies on their way in, in chunks of any order: what pauses is asked for, what was damaged begins anew.

Both ends receive so, with a patience and a budget of their own: of all bodies together no more than the budget is taken
at once, however many come. Who comes while others fill it is parked: known, without a byte of it, and asked for its
chunks as soon as there is space. Who comes after it may begin before it, as long as all these leave it its space: so
they delay it by nothing, and it keeps nobody out who is small enough. Each must fit the budget alone, which its owner
checks. None of this is durable: after a restart chunks that come begin a
transfer, or an announcement does, and what lacks of it is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fedgate.config.protocol.backoff import WAIT_S_MAX, wait_ns
from fedgate.config.protocol.messages import MessageError, Transfer
from fedgate.config.protocol.transfer import Assembly, ChunkHeader
from fedgate.models.time_units import NS


class Patience(NamedTuple):
    """How many seconds a receiver waits for something new of a body."""

    first_s: float  # then it asks for what lacks; it waits twice as long after each question, ...
    longest_s: float = WAIT_S_MAX  # ... up to this
    lost_s: float = math.inf  # then it gives the body up; who sends it will begin anew when it can
    turn_s: float = math.inf  # from the first chunk on, where another waits for space


@dataclass(frozen=True)
class Incoming:
    """A body on its way in, since when, and how it goes on."""

    assembly: Assembly
    started_ns: int
    received_ns: int  # something new of it
    asked_ns: int = 0
    asks: int = 0
    is_parked: bool = False


@dataclass(frozen=True)
class Receiver:
    """The bodies on their way in, each under a key of its owner's choice, in the order of their beginning."""

    patience: Patience
    incoming: dict[str, Incoming] = field(default_factory=dict)
    damaged: int = 0  # bodies that were not what they should be

    def expect(self, key: str, transfer: Transfer, uptime_ns: int, budget_bytes: int) -> Receiver:
        """Return the receiver that waits for a body, in place of another under its key."""
        known = self.incoming.get(key)
        if known is not None and known.assembly.transfer == transfer:
            return self
        others = self.without(key)
        # Who changes what he sends is as old as he was: otherwise he could keep others out without end.
        started_ns = uptime_ns if known is None or known.is_parked else known.started_ns
        is_parked = not others.has_space(transfer, budget_bytes)
        return others.having(key, Incoming(Assembly(transfer), started_ns, uptime_ns, is_parked=is_parked))

    @property
    def is_waited_for(self) -> bool:
        """True while a body is parked."""
        return any(one.is_parked for one in self.incoming.values())

    def has_space(self, transfer: Transfer, budget_bytes: int) -> bool:
        """Tell whether one more body may come; what is announced counts, so that what has started can end, and beside
        what came later the first that is parked, so that it has space as soon as what came before it has ended.
        """
        coming = later = waiting = 0
        for one in self.incoming.values():
            size_bytes = one.assembly.transfer.size_bytes
            if one.is_parked:
                waiting = waiting or size_bytes
            else:
                coming += size_bytes
                later += size_bytes if waiting else 0
        return transfer.size_bytes + max(coming, later + waiting) <= budget_bytes

    def add(self, key: str, header: ChunkHeader, piece: bytes, uptime_ns: int) -> tuple[Receiver, bytes | None]:
        """Return the receiver with one more chunk of a body that it expects, and the body where it is whole."""
        known = self.incoming[key]
        if known.is_parked:
            return self, None
        try:
            assembly = known.assembly.add(header, piece)
            if assembly.is_whole:
                return self.without(key), assembly.join()
        except MessageError:  # damaged on the way, this piece or one before it: begin again, and count it
            fresh = replace(known, assembly=Assembly(known.assembly.transfer))
            return replace(self.having(key, fresh), damaged=self.damaged + 1), None
        if assembly is known.assembly:  # the same again is no sign that it goes on
            return self, None
        return self.having(key, replace(known, assembly=assembly, received_ns=uptime_ns)), None

    def ask(self, uptime_ns: int, budget_bytes: int, who: str = "") -> tuple[Receiver, dict[str, Assembly]]:
        """Return what is to be asked for now, by key, also of what was parked and has space, first come first; what
        does not go on, or keeps others out for too long, is forgotten. `who` asks, so that not all ask at once.
        """
        receiver, started = self._without_lost(uptime_ns)._begin_parked(uptime_ns, budget_bytes)
        asked = dict[str, Assembly]()
        for key, one in receiver.incoming.items():
            if key in started or (not one.is_parked and self._is_due(one, uptime_ns, who)):
                asked[key] = one.assembly
                receiver = receiver.having(key, replace(one, asked_ns=uptime_ns, asks=one.asks + 1))
        return receiver, asked

    def _begin_parked(self, uptime_ns: int, budget_bytes: int) -> tuple[Receiver, list[str]]:
        """Return the receiver with what was parked and has space started, first come first, and the keys of these."""
        receiver, started = self, list[str]()
        for key, one in self.incoming.items():
            if one.is_parked and receiver._ahead_of(key).has_space(one.assembly.transfer, budget_bytes):
                receiver = receiver.having(key, Incoming(one.assembly, uptime_ns, uptime_ns))
                started.append(key)
        return receiver, started

    def _ahead_of(self, key: str) -> Receiver:
        """Return the receiver without this parked body and those parked behind it."""
        place = list(self.incoming).index(key)
        ahead = {
            name: one for index, (name, one) in enumerate(self.incoming.items()) if index < place or not one.is_parked
        }
        return replace(self, incoming=ahead)

    def _is_due(self, one: Incoming, uptime_ns: int, who: str) -> bool:
        first_s, longest_s = self.patience.first_s, self.patience.longest_s
        pause_ns = wait_ns(first_s, one.asks + 1, who, one.assembly.transfer.digest, longest_s=longest_s)
        return uptime_ns - max(one.received_ns, one.asked_ns) >= pause_ns

    def _without_lost(self, uptime_ns: int) -> Receiver:
        oldest_ns = uptime_ns - self.patience.turn_s * NS if self.is_waited_for else -math.inf
        lost_ns = uptime_ns - self.patience.lost_s * NS
        kept = {
            key: one
            for key, one in self.incoming.items()
            if one.is_parked or (one.received_ns >= lost_ns and one.started_ns >= oldest_ns)
        }
        return replace(self, incoming=kept)

    def restart(self, uptime_ns: int) -> Receiver:
        """Return the receiver with a fresh patience: after an outage nobody should wait out the longest pause."""
        fresh = {key: replace(one, received_ns=uptime_ns, asks=0) for key, one in self.incoming.items()}
        return replace(self, incoming=fresh)

    def having(self, key: str, one: Incoming) -> Receiver:
        """Return the receiver with a body under a key; a new one comes last."""
        return replace(self, incoming={**self.incoming, key: one})

    def without(self, key: str) -> Receiver:
        """Return the receiver without what is on its way under a key."""
        return replace(self, incoming={name: one for name, one in self.incoming.items() if name != key})
