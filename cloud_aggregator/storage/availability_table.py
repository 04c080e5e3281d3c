"""Who was there when, in the store: of each gateway, and of the service itself, the newest changes."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, delete, func, insert, select, update

from fedgate.cloud_aggregator.context import SET_NS
from fedgate.cloud_aggregator.events import PresenceState, RecordDenied, RecordPresence
from fedgate.cloud_aggregator.storage.tables import AVAILABILITY, DENIED

KEPT = 5_000  # rows of one gateway: of one that comes and goes without end a month
FORMER_KEPT = 50_000  # of all together that are gone
BETWEEN = 100  # of one gateway, after which its rows are looked through
COLUMNS = tuple(column for column in AVAILABILITY.c if column.name != "number")


class PresenceRow(NamedTuple):
    """A row as `RecordPresence` has it, which takes longer to make."""

    gateway: str
    t_ns: int
    state: PresenceState
    until_ns: int
    changes: int
    online_ns: int
    watched_ns: int
    longest_ns: int


class AvailabilityRows:
    """Keeps the rows of gateways within their bound."""

    def __init__(self) -> None:
        self._stored = Counter[str]()  # rows of a gateway, by this process

    def apply(self, db: Connection, effect: RecordPresence | RecordDenied) -> None:
        """Store a change, or who is denied, within the transaction that is open."""
        if isinstance(effect, RecordDenied):
            db.execute(delete(DENIED))
            if effect.gateways:
                db.execute(insert(DENIED), [{"gateway": name} for name in sorted(effect.gateways)])
            return
        self._put(db, effect)
        if effect.state == "gone":  # by nothing else rows of those who are gone become more
            _prune_former(db)

    def _put(self, db: Connection, effect: RecordPresence) -> None:
        if effect.changes > 1:
            last = select(func.max(AVAILABILITY.c.number)).where(AVAILABILITY.c.gateway == effect.gateway)
            db.execute(
                update(AVAILABILITY).where(AVAILABILITY.c.number == last.scalar_subquery()).values(**vars(effect))
            )
            return
        db.execute(insert(AVAILABILITY).values(**vars(effect)))
        if self._stored[effect.gateway] % BETWEEN == 0:  # at once too: a service may end before it has stored many
            _prune(db, effect.gateway)
        self._stored[effect.gateway] += 1


def _prune(db: Connection, gateway: str) -> None:
    of_gateway = select(AVAILABILITY.c.number).where(AVAILABILITY.c.gateway == gateway)
    newest_to_go = db.execute(of_gateway.order_by(AVAILABILITY.c.number.desc()).offset(KEPT).limit(1)).scalar()
    if newest_to_go is not None:
        old = (AVAILABILITY.c.gateway == gateway) & (AVAILABILITY.c.number <= newest_to_go)
        db.execute(delete(AVAILABILITY).where(old))


def _prune_former(db: Connection) -> None:
    last = select(func.max(AVAILABILITY.c.number)).group_by(AVAILABILITY.c.gateway)
    names = select(AVAILABILITY.c.gateway).where(AVAILABILITY.c.number.in_(last), AVAILABILITY.c.state == "gone")
    of_former = AVAILABILITY.c.gateway.in_(names)
    newest_first = select(AVAILABILITY.c.number).where(of_former).order_by(AVAILABILITY.c.number.desc())
    newest_to_go = db.execute(newest_first.offset(FORMER_KEPT).limit(1)).scalar()
    if newest_to_go is not None:
        db.execute(delete(AVAILABILITY).where(of_former, AVAILABILITY.c.number <= newest_to_go))


def choose_present() -> Select[Any]:
    """Return the statement that reads of whom the last row that is dated does not say that it is gone."""
    last = select(func.max(AVAILABILITY.c.number)).where(_is_dated()).group_by(AVAILABILITY.c.gateway)
    return select(AVAILABILITY.c.gateway).where(AVAILABILITY.c.number.in_(last), AVAILABILITY.c.state != "gone")


def _is_dated() -> ColumnElement[bool]:
    """What was dated by a clock that was not set was repeated once that was set."""
    return AVAILABILITY.c.t_ns >= SET_NS


def choose(from_ns: int, until_ns: int, most: int) -> Select[Any]:
    """Return the statement that reads the newest rows of a time, so many at most, the last first, and of each name the
    last row before it, of those that are dated.
    """
    is_dated = _is_dated()
    before = select(func.max(AVAILABILITY.c.number)).where(is_dated, AVAILABILITY.c.until_ns < from_ns)
    is_of_it: ColumnElement[bool] = (AVAILABILITY.c.until_ns >= from_ns) & (AVAILABILITY.c.t_ns < until_ns)
    is_of_it |= AVAILABILITY.c.number.in_(before.group_by(AVAILABILITY.c.gateway))
    return select(*COLUMNS).where(is_dated, is_of_it).order_by(AVAILABILITY.c.number.desc()).limit(most)
