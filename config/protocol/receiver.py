"""Bodies on their way in, in chunks of any order: what pauses is asked for, what was damaged begins anew.

Both ends receive so, with a patience and a budget of their own: of all bodies together no more than the budget is taken
at once, however many come. Who comes while others fill it is parked: known, without a byte of it, and asked for its
chunks as soon as there is space. None of this is durable: after a restart chunks that come begin a transfer, or an
announcement does, and what lacks of it is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from fedgate.config.protocol.messages import MessageError, Transfer, Want
from fedgate.config.protocol.transfer import ASK_MAX, Assembly, ChunkHeader
from fedgate.config.runtime.backoff import NS, WAIT_S_MAX, wait_ns
from fedgate.models.records import replace


@dataclass(frozen=True)
class Incoming:
    """A body on its way in, since when, and when to ask for what is missing."""

    assembly: Assembly
    started_ns: int
    received_ns: int  # something new of it
    ask_at_ns: int
    pause_ns: int
    asks: int = 0
    is_parked: bool = False

    @property
    def size_bytes(self) -> int:
        """How many bytes of the budget it takes; what is announced counts, so that what has begun can end."""
        return 0 if self.is_parked else self.assembly.transfer.size_bytes

    @property
    def want(self) -> Want:
        """What is to be asked for: all of it, where nothing is here."""
        return Want(missing=self.assembly.missing[:ASK_MAX] if self.assembly.pieces else ())


class Patience(NamedTuple):
    """How many seconds a receiver waits for something new of a body."""

    first_s: float  # then it asks for what lacks; it waits twice as long after each question, ...
    longest_s: float = WAIT_S_MAX  # ... up to this
    lost_s: float = math.inf  # then it gives the body up; who sends it will begin anew when it can
    turn_s: float = math.inf  # from the first chunk on, where another waits for space

    def is_over(self, one: Incoming, now_ns: int, *, others_wait: bool) -> bool:
        """Tell whether a body does not go on, or keeps others out for too long."""
        is_lost = now_ns - one.received_ns > self.lost_s * NS
        return is_lost or (others_wait and now_ns - one.started_ns > self.turn_s * NS)


class Question(NamedTuple):
    """What is to be asked of whoever sends a body."""

    key: str
    digest: str
    want: Want


@dataclass(frozen=True)
class Receiver:
    """The bodies on their way in, each under a key of its owner's choice, in the order of their beginning."""

    patience: Patience
    incoming: dict[str, Incoming] = field(default_factory=dict)
    damaged: int = 0  # bodies that were not what they should be

    def expect(self, key: str, transfer: Transfer, now_ns: int, budget_bytes: float) -> Receiver:
        """Return the receiver that waits for a body, in place of another under its key."""
        known = self.incoming.get(key)
        if known is not None and known.assembly.transfer == transfer:
            return self
        others = self.without(key)
        # Who changes what he sends is as old as he was: otherwise he could keep others out without end.
        started_ns = now_ns if known is None or known.is_parked else known.started_ns
        pause_ns = round(self.patience.first_s * NS)
        is_parked = not others.has_space(transfer, budget_bytes)
        begun = Incoming(Assembly(transfer), started_ns, now_ns, now_ns + pause_ns, pause_ns, is_parked=is_parked)
        return others.having(key, begun)

    def has_space(self, transfer: Transfer, budget_bytes: float) -> bool:
        """Tell whether one more body may come."""
        return sum(one.size_bytes for one in self.incoming.values()) + transfer.size_bytes <= budget_bytes

    def add(self, key: str, header: ChunkHeader, piece: bytes, now_ns: int) -> tuple[Receiver, bytes | None]:
        """Return the receiver with one more chunk of a body that it expects, and the body where it is whole."""
        known = self.incoming[key]
        if known.is_parked:
            return self, None
        try:
            assembly = known.assembly.add(header, piece)
            if assembly.is_whole:
                return self.without(key), assembly.body()
        except MessageError:  # damaged on the way, this piece or one before it: begin again, and count it
            fresh = replace(known, assembly=Assembly(known.assembly.transfer))
            return replace(self.having(key, fresh), damaged=self.damaged + 1), None
        if assembly is known.assembly:  # the same again is no sign that it goes on
            return self, None
        known = replace(known, assembly=assembly, received_ns=now_ns, ask_at_ns=now_ns + known.pause_ns)
        return self.having(key, known), None

    def ask(self, now_ns: int, budget_bytes: float, who: str = "") -> tuple[Receiver, list[Question]]:
        """Return what is to be asked for now, also of what was parked and has space, first come first; what does not go
        on, or keeps others out for too long, is forgotten. `who` asks, so that not all ask at once.
        """
        receiver = self._without_lost(now_ns)._unparked(now_ns, budget_bytes)
        due = {key: one for key, one in receiver.incoming.items() if not one.is_parked and now_ns >= one.ask_at_ns}
        questions = [Question(key, one.assembly.transfer.digest, one.want) for key, one in due.items()]
        asked = {key: self._asked(one, now_ns, who) for key, one in due.items()}
        return replace(receiver, incoming={**receiver.incoming, **asked}), questions

    def _asked(self, one: Incoming, now_ns: int, who: str) -> Incoming:
        first_s, longest_s = self.patience.first_s, self.patience.longest_s
        pause_ns = wait_ns(first_s, one.asks + 2, who, one.assembly.transfer.digest, longest_s=longest_s)
        return replace(one, ask_at_ns=now_ns + pause_ns, pause_ns=pause_ns, asks=one.asks + 1)

    def _without_lost(self, now_ns: int) -> Receiver:
        others_wait = any(one.is_parked for one in self.incoming.values())
        kept = {
            key: one
            for key, one in self.incoming.items()
            if one.is_parked or not self.patience.is_over(one, now_ns, others_wait=others_wait)
        }
        return replace(self, incoming=kept)

    def _unparked(self, now_ns: int, budget_bytes: float) -> Receiver:
        receiver = self
        for key, one in self.incoming.items():
            if one.is_parked and receiver.has_space(one.assembly.transfer, budget_bytes):
                fresh = replace(one, is_parked=False, started_ns=now_ns, received_ns=now_ns, ask_at_ns=now_ns)
                receiver = receiver.having(key, fresh)
        return receiver

    def restart(self, now_ns: int) -> Receiver:
        """Return the receiver with a fresh patience: after an outage nobody should wait out the longest pause."""
        pause_ns = round(self.patience.first_s * NS)
        fresh = {
            key: replace(one, received_ns=now_ns, ask_at_ns=now_ns + pause_ns, pause_ns=pause_ns, asks=0)
            for key, one in self.incoming.items()
        }
        return replace(self, incoming=fresh)

    def having(self, key: str, one: Incoming) -> Receiver:
        """Return the receiver with a body under a key; a new one comes last."""
        return replace(self, incoming={**self.incoming, key: one})

    def without(self, key: str) -> Receiver:
        """Return the receiver without what is on its way under a key."""
        return replace(self, incoming={name: one for name, one in self.incoming.items() if name != key})
