"""Who was there when, as rows of the store: one for each change of a gateway, and of the service itself.

Times are of the aggregator's clock alone: a gateway whose clock is wrong, or that lies, changes no past. A gateway is
what its last status said, also one that the broker had kept; an offline one counts from when the broker noticed.
Nobody knows how gateways are while the service has no broker, so the changes of the service stand beside theirs.

Who comes and goes without end makes `ROWS_PER_HOUR` rows in an hour. What changes beyond that is folded into the last
of them: it then says for how long the state was which between `t_ns` and `until_ns`, and no more when.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedgate.cloud_aggregator.context import SET_NS, Context
from fedgate.cloud_aggregator.events import PresenceState, RecordPresence
from fedgate.cloud_aggregator.limits import HourlyCount, count_one_more
from fedgate.config.protocol.messages import Status
from fedgate.models.time_units import HOUR_NS

ROWS_PER_HOUR = 6
ONLINE = frozenset({"online", "watching", "connected"})


@dataclass(frozen=True)
class Changes:
    """The last row of a gateway or of the service, and how many changes there were in this hour."""

    row: RecordPresence
    tally: HourlyCount

    @property
    def is_dated(self) -> bool:
        """Tell whether the clock was set, to whatever time."""
        return self.row.t_ns >= SET_NS


def find_state(status: Status) -> PresenceState:
    """Return how a gateway is by its status."""
    if status.state == "offline":
        return "offline"
    return "watching" if status.watching else "online"


def note_change(
    known: Changes | None, context: Context, gateway: str, state: PresenceState, t_ns: int | None = None
) -> Changes:
    """Return the last row after one more change, at `t_ns` of Unix time, or now."""
    at_ns = context.now_ns if t_ns is None else t_ns
    tally = count_one_more(known.tally if known else None, context.uptime_ns)
    if known is None or tally.count <= ROWS_PER_HOUR or not _is_soon(known.row, at_ns):
        return Changes(RecordPresence(gateway, state, at_ns, at_ns), tally)
    return Changes(_fold(known.row, state, at_ns), tally)


def _is_soon(row: RecordPresence, at_ns: int) -> bool:
    """Tell whether a moment is behind a row and within an hour of it; else the clock was set in between."""
    return row.until_ns <= at_ns <= row.t_ns + HOUR_NS


def _fold(row: RecordPresence, state: PresenceState, at_ns: int) -> RecordPresence:
    """Return a row with one more change in it."""
    lasted_ns = at_ns - row.until_ns
    is_online, is_watching, is_away = row.state in ONLINE, row.state == "watching", row.state == "offline"
    return replace(
        row,
        state=state,
        until_ns=at_ns,
        changes=row.changes + 1,
        online_ns=row.online_ns + lasted_ns * is_online,
        watched_ns=row.watched_ns + lasted_ns * is_watching,
        longest_ns=max(row.longest_ns, lasted_ns * is_away),
    )


def repeat_misdated(known: Changes, context: Context) -> Changes | None:
    """Return a row that says, as of now, the same as one that was dated by a clock that was wrong: in the future, or
    before it was ever set; None where its time can be right.
    """
    if known.is_dated and known.row.t_ns <= known.row.until_ns <= context.now_ns:
        return None
    return Changes(RecordPresence(known.row.gateway, known.row.state, context.now_ns, context.now_ns), known.tally)
