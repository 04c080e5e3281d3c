"""Who was there in a month, by the changes that the store keeps: how long online, offline, and for how long nobody
knows.

A gateway's state holds from one change to the next. Nobody knows it while the service has no broker, or does not run.
Where the clock of the aggregator was set back, what was said last of a time counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedgate.cloud_aggregator.events import PresenceState
from fedgate.cloud_aggregator.storage.availability_table import PresenceRow
from fedgate.cloud_aggregator.web.pages.month import Month
from fedgate.cloud_aggregator.web.pages.page import Context
from fedgate.config.web.charts import Facts
from fedgate.models.time_units import NS

ROWS_SEARCHED = 200_000  # the newest


class Piece(NamedTuple):
    """A time in which a state held; of one in which several changes are folded, the shares of it."""

    from_ns: int
    to_ns: int
    state: PresenceState
    changes: int = 0
    online: float = 0.0
    watched: float = 0.0
    longest_ns: int = 0

    @property
    def is_folded(self) -> bool:
        """Tell whether it holds several changes."""
        return self.changes > 0


@dataclass
class Times:
    """How long a gateway was how, in ns; all of time within a month in which it belonged to the site."""

    first_ns: int  # since when anything is known of it
    total: int = 0
    online: float = 0.0
    watched: float = 0.0
    offline: float = 0.0
    outages: int = 0
    longest: int = 0
    longest_from_ns: int | None = None

    def add(self, piece: Piece, from_ns: int, to_ns: int) -> None:
        """Count a part of a piece in which the service had a broker."""
        lasted = to_ns - from_ns
        if piece.is_folded:
            self.online += piece.online * lasted
            self.watched += piece.watched * lasted
            self.offline += (1.0 - piece.online) * lasted
            self._note_outage(from_ns, min(piece.longest_ns, lasted))
        elif piece.state == "offline":
            self.offline += lasted
            self._note_outage(from_ns, lasted)
        else:
            self.online += lasted
            self.watched += lasted * (piece.state == "watching")

    def _note_outage(self, from_ns: int, lasted: int) -> None:
        if lasted > self.longest:
            self.longest, self.longest_from_ns = lasted, from_ns


def read_availability(context: Context, month: Month, service: Facts, unlinked: Mapping[str, float]) -> Facts:
    """Return of the site and of each gateway how long it was how; `service` is how the service is now, `unlinked` for
    how many seconds gateways judged windows that came later.
    """
    rows = context.store.months.read_presence(month.from_ns, month.until_ns, ROWS_SEARCHED)
    end_ns = month.until_ns if service["is_live"] else min(month.until_ns, service["as_of_ns"] or month.until_ns)
    by_name = defaultdict[str, list[PresenceRow]](list)
    for row in rows:
        by_name[row.gateway].append(row)
    known = list(list_known(cut(by_name.pop("", []), month.until_ns), month, end_ns))
    found = {name: measure(cut(own, month.until_ns), known, month) for name, own in by_name.items()}
    gateways = [describe(name, one, unlinked.get(name, 0.0)) for name, one in sorted(found.items()) if one.total > 0]
    known_ns = sum(to_ns - from_ns for from_ns, to_ns in known)
    return {
        "known_s": known_ns / NS,
        "unknown_s": (month.until_ns - month.from_ns - known_ns) / NS,
        "is_cut": len(rows) == ROWS_SEARCHED,
        "site": sum_up(gateways),
        "gateways": gateways,
        "gateway_count": len(gateways),
    }


def cut(rows: Iterable[PresenceRow], until_ns: int) -> list[Piece]:
    """Return the times between changes, one after another, up to `until_ns`."""
    pieces = list[Piece]()
    for row in rows:
        from_ns, to_ns = row.t_ns, row.until_ns
        while pieces and pieces[-1].from_ns >= from_ns:
            pieces.pop()
        if pieces:
            pieces[-1] = pieces[-1]._replace(to_ns=min(pieces[-1].to_ns, from_ns))
        if to_ns > from_ns:
            shares = (row.online_ns / (to_ns - from_ns), row.watched_ns / (to_ns - from_ns))
            pieces.append(Piece(from_ns, to_ns, row.state, row.changes, *shares, row.longest_ns))
        pieces.append(Piece(to_ns, until_ns, row.state))
    return pieces


def list_known(pieces: Iterable[Piece], month: Month, end_ns: int) -> Iterator[tuple[int, int]]:
    """Yield the times of a month in which the service had a broker, as far as it has said so. Of one in which several
    changes are folded nobody knows which parts: it counts as unknown.
    """
    for piece in pieces:
        from_ns, to_ns = max(piece.from_ns, month.from_ns), min(piece.to_ns, month.until_ns, end_ns)
        if piece.state == "connected" and not piece.is_folded and from_ns < to_ns:
            yield from_ns, to_ns


def measure(pieces: Sequence[Piece], known: Sequence[tuple[int, int]], month: Month) -> Times:
    """Return how long a gateway was how within the times of a month in which that was known."""
    times, place = Times(pieces[0].from_ns if pieces else month.until_ns), 0
    was_offline = False
    for piece in pieces:
        from_ns, to_ns = max(piece.from_ns, month.from_ns), min(piece.to_ns, month.until_ns)
        if from_ns >= to_ns:
            was_offline = piece.state == "offline"
            continue
        if piece.state == "gone" and not piece.is_folded:
            continue
        times.total += to_ns - from_ns
        times.outages += (piece.changes + 1) // 2 if piece.is_folded else piece.state == "offline" and not was_offline
        was_offline = piece.state == "offline"
        while place < len(known) and known[place][1] <= from_ns:
            place += 1
        end = place
        while end < len(known) and known[end][0] < to_ns:
            times.add(piece, max(from_ns, known[end][0]), min(to_ns, known[end][1]))
            end += 1
    return times


def describe(name: str, times: Times, unlinked_s: float) -> Facts:
    """Return the times of a gateway in seconds, with their shares of the time in which it belonged to the site."""
    total_s, unknown = times.total / NS, times.total - times.online - times.offline
    return {
        "gateway": name,
        "known_from_ns": times.first_ns,
        "total_s": total_s,
        "online_s": times.online / NS,
        "offline_s": times.offline / NS,
        "unknown_s": max(unknown, 0.0) / NS,
        "watched_s": min(times.watched / NS + unlinked_s, total_s),
        "outages": times.outages,
        "longest_outage_s": times.longest / NS,
        "longest_outage_ns": times.longest_from_ns,
    }


def sum_up(gateways: Iterable[Facts]) -> Facts | None:
    """Return the times of all gateways together; None without any."""
    found = list(gateways)
    if not found:
        return None
    names = ("total_s", "online_s", "offline_s", "unknown_s", "watched_s", "outages")
    worst = max(found, key=lambda one: (one["longest_outage_s"], one["gateway"]))
    longest = {name: worst[name] for name in ("longest_outage_s", "longest_outage_ns", "gateway")}
    return {name: sum(one[name] for one in found) for name in names} | longest
