"""All tables of a store from one database into another, of whichever kinds."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, LargeBinary, Table, func, insert, select

from fedgate.cloud_aggregator.storage.tables import META

ROWS = 500  # that are held in memory at a time; of a table with bodies one

Advance = Callable[[int], None]  # is told how many rows more are done


def count_rows(db: Connection) -> int:
    """Return how many rows all tables have."""
    return sum(db.execute(select(func.count()).select_from(table)).scalar_one() for table in META.sorted_tables)


def copy_tables(source: Connection, target: Connection, advance: Advance) -> None:
    """Copy all rows into tables that are there and empty, within the transactions that are open."""
    for table in META.sorted_tables:
        size = 1 if _has_bodies(table) else ROWS
        rows = source.execution_options(yield_per=size).execute(select(table).order_by(*table.primary_key))
        for some in rows.partitions():
            target.execute(insert(table), [row._asdict() for row in some])
            advance(len(some))


def _has_bodies(table: Table) -> bool:
    return any(isinstance(column.type, LargeBinary) for column in table.c)
