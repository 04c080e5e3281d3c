"""The tables of the aggregator's store."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    Update,
    bindparam,
    insert,
    literal_column,
    update,
)
from sqlalchemy.schema import SchemaItem
from sqlalchemy.sql.functions import GenericFunction

# One order everywhere, whatever language the server was set up in: by the characters' numbers.
TEXT = String().with_variant(String(collation="C"), "postgresql")
NUMBER = BigInteger().with_variant(Integer, "sqlite")  # of a row, which only as an Integer is SQLite's own

META = MetaData()
KEY = "key_"  # before the name of a column of the key, in a statement


def _make_batches(name: str, *own: SchemaItem) -> Table:
    """Return a table of what gateways gathered, each batch under the name of its message, with what is its own."""
    return Table(
        name,
        META,
        Column("number", NUMBER, primary_key=True),
        Column("gateway", TEXT, nullable=False),
        Column("item", TEXT, nullable=False),
        Column("t_ns", BigInteger, nullable=False),
        *own,
        Column("body", TEXT, nullable=False),
        Column("received_ns", BigInteger, nullable=False),
        UniqueConstraint("gateway", "item"),
    )


# See `training_table`.
TRAINING = Table(
    "training",
    META,
    Column("id", NUMBER, primary_key=True, autoincrement=False),
    Column("meta", TEXT, nullable=False),
)
TRAINING_ARRAYS = Table(
    "training_arrays",
    META,
    Column("name", TEXT, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
ROUNDS = Table(
    "rounds",
    META,
    Column("id", NUMBER, primary_key=True, autoincrement=False),
    Column("run", TEXT, nullable=False),
    Column("round_index", BigInteger, nullable=False),
    Column("algorithm", TEXT, nullable=False),
    Column("gateways", TEXT, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("closed_ns", BigInteger, nullable=False),
    Column("bytes_received", BigInteger),
    Column("empty", TEXT),
    Column("phase", BigInteger),
    Column("late", TEXT),
    Column("update_bytes", BigInteger),
    Column("uncompressed_bytes", BigInteger),
    Column("refusals", TEXT),  # of the first updates that were refused [gateway, why], as JSON
    Column("figures", TEXT),  # see `rounds.figures`, as JSON
)
MODELS = Table(
    "models",
    META,
    Column("version", NUMBER, primary_key=True, autoincrement=False),
    Column("digest", TEXT, nullable=False),
    Column("manifest", TEXT, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("canary_ns", BigInteger),  # when it was given to some, ...
    Column("released_ns", BigInteger),  # ... when to all, ...
    Column("stopped_ns", BigInteger),  # ... and when its release was stopped
)
ALARMS = Table(
    "alarms",
    META,
    Column("id", TEXT, primary_key=True),
    Column("gateway", TEXT, primary_key=True),
    Column("cause", TEXT, nullable=False),
    Column("kind", TEXT, nullable=False),
    Column("severity", TEXT, nullable=False),
    Column("text", TEXT, nullable=False),
    Column("onset_ns", BigInteger, nullable=False),
    Column("raised_ns", BigInteger),
    Column("cleared_ns", BigInteger),
    Column("score", Float),
    Column("level", Float),
    Column("model_version", BigInteger, nullable=False),
    Column("model_digest", TEXT, nullable=False),
    Column("clock", TEXT, nullable=False),
    Column("boot_id", TEXT, nullable=False),
    Column("received_ns", BigInteger, nullable=False),
    Column("common", TEXT),  # of a fleet alarm: the cause that most of its gateways have measured ...
    Column("gateways", TEXT),  # ... and which they are
    Column("rule", TEXT),  # that raised it, and ...
    Column("feature", TEXT),  # ... what it is about
    Column("begun_ns", BigInteger),  # the onset as far as it can be believed
    Column("ended", TEXT),  # how, where its gateway did not tell the end
    Column("sequence", BigInteger),  # see `Alarm`, and ...
    Column("store_id", TEXT),  # ... of which store, and ...
    Column("weather", TEXT),  # ... what its gateway measured beside it: ...
    Column("power", TEXT),  # ... and of its supply
)
SHARES = 127  # that alarms are counted in, see `alarm_summaries`; a prime number: whole seconds are in all of them
SHARE = ALARMS.c.received_ns % literal_column(str(SHARES))  # no index is found by a value that is bound
Index("alarms_marks", SHARE, ALARMS.c.received_ns, ALARMS.c.raised_ns, ALARMS.c.cleared_ns)
# What was done about alarms, causes and maintenance windows, only ever added to; see `alarms.workflow`.
ALARM_EVENTS = Table(
    "alarm_events",
    META,
    Column("number", NUMBER, primary_key=True),
    Column("gateway", TEXT, nullable=False),
    Column("alarm", TEXT, nullable=False),
    Column("cause", TEXT, nullable=False),
    Column("t_ns", BigInteger, nullable=False),
    Column("who", TEXT, nullable=False),
    Column("kind", TEXT, nullable=False),
    Column("body", TEXT, nullable=False),
    Index("alarm_events_of", "gateway", "alarm"),  # by which an action is judged
)
GATEWAYS = Table(
    "gateways",
    META,
    Column("gateway", TEXT, primary_key=True),
    Column("online", Boolean, nullable=False),
    Column("status", TEXT, nullable=False),
    Column("seen_ns", BigInteger, nullable=False),
    Column("sessions", TEXT),  # see `access.device_sessions`
)
# That the service works, and how it stands with the broker; one row, see `presence`.
SERVICE = Table(
    "service",
    META,
    Column("id", NUMBER, primary_key=True, autoincrement=False),
    Column("began_ns", BigInteger, nullable=False),
    Column("beat_ns", BigInteger, nullable=False),
    Column("is_connected", Boolean, nullable=False),
    Column("link_ns", BigInteger, nullable=False),
)
# Who was there when: a row for each change of a gateway, and under an empty name of the service itself; the newest of
# each, see `availability`.
AVAILABILITY = Table(
    "availability",
    META,
    Column("number", NUMBER, primary_key=True),
    Column("gateway", TEXT, nullable=False),
    Column("t_ns", BigInteger, nullable=False),
    Column("state", TEXT, nullable=False),
    Column("until_ns", BigInteger, nullable=False),
    Column("changes", BigInteger, nullable=False),
    Column("online_ns", BigInteger, nullable=False),
    Column("watched_ns", BigInteger, nullable=False),
    Column("longest_ns", BigInteger, nullable=False),
    Index("availability_of", "gateway", "number"),
)
# Names that are good and that the broker denies until it is restarted, see `pki.quarantine`.
DENIED = Table("denied", META, Column("gateway", TEXT, primary_key=True))
# Updates that came after their round, and those counted in an open round whose sum grows with them, as they arrived.
HELD = Table(
    "held",
    META,
    Column("number", NUMBER, primary_key=True),
    Column("gateway", TEXT, nullable=False),
    Column("run", TEXT, nullable=False),
    Column("round_index", BigInteger, nullable=False),
    Column("digest", TEXT, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
# What gateways had to give up, and scores of times in which nobody received them; the newest of each gateway.
LOSSES = Table(
    "losses",
    META,
    Column("number", NUMBER, primary_key=True),
    Column("gateway", TEXT, nullable=False),
    Column("id", TEXT, nullable=False),
    Column("kind", TEXT, nullable=False),
    Column("items", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("first_ns", BigInteger, nullable=False),
    Column("last_ns", BigInteger, nullable=False),
    Column("why", TEXT, nullable=False),
    Column("received_ns", BigInteger, nullable=False),
    UniqueConstraint("gateway", "id", "kind"),
)
SCORES = _make_batches("scores", Column("windows", BigInteger, nullable=False))
# What chosen features were within hours; the newest of each gateway.
SUMMARIES = _make_batches("summaries", Index("summaries_of", "gateway", "t_ns"))
# What alarms rest on, as their gateways sent it; the newest of each gateway.
EVIDENCE = Table(
    "evidence",
    META,
    Column("number", NUMBER, primary_key=True),
    Column("gateway", TEXT, nullable=False),
    Column("alarm", TEXT, nullable=False),
    Column("cause", TEXT, nullable=False),
    Column("t_ns", BigInteger, nullable=False),
    Column("received_ns", BigInteger, nullable=False),
    Column("body", TEXT, nullable=False),
    UniqueConstraint("gateway", "alarm"),
)
# Raw samples around alarms, that operators asked for; the newest of each gateway and of all.
SAMPLES = Table(
    "samples",
    META,
    Column("number", NUMBER, primary_key=True),
    Column("gateway", TEXT, nullable=False),
    Column("alarm", TEXT, nullable=False),
    Column("requested_ns", BigInteger, nullable=False),
    Column("received_ns", BigInteger),  # of the samples, or of the news that there are none
    Column("problem", TEXT, nullable=False),  # why there are none
    Column("digest", TEXT),
    Column("size_bytes", BigInteger),
    Column("body", LargeBinary),
    UniqueConstraint("gateway", "alarm"),
)
# Changes of alarms that their receivers have not taken yet, in their order.
POSTS = Table(
    "posts",
    META,
    Column("number", NUMBER, primary_key=True),
    Column("id", TEXT, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("gateway", TEXT),  # whose they are
    Column("channel", TEXT, nullable=False),  # to whom they go, see `Post`
)
# What Home Assistant was notified of; brokers keep it until it is taken back.
DISCOVERED = Table(
    "discovered",
    META,
    Column("number", NUMBER, primary_key=True),
    Column("topic", TEXT, nullable=False, unique=True),
)
# The last backup that was made of this store, or that it comes from; one row.
BACKUP = Table(
    "backup",
    META,
    Column("id", NUMBER, primary_key=True, autoincrement=False),
    Column("made_ns", BigInteger, nullable=False),
    Column("file", TEXT, nullable=False),
    Column("has_keys", Boolean, nullable=False),
)
COUNTS = Table("counts", META, Column("name", TEXT, primary_key=True), Column("value", BigInteger, nullable=False))
# What the operator's commands ask of the running service, and what became of it.
ORDERS = Table(
    "orders",
    META,
    Column("number", NUMBER, primary_key=True),
    Column("kind", TEXT, nullable=False),
    Column("body", TEXT, nullable=False),
    Column("answer", TEXT),
    Column("problem", TEXT),
)

# Who was let in, and the tokens by which that happens; see `registry`.
CERTIFICATES = Table(
    "certificates",
    META,
    Column("serial", TEXT, primary_key=True),
    Column("gateway", TEXT, nullable=False),
    Column("key", TEXT, nullable=False),
    Column("issued_ns", BigInteger, nullable=False),
    Column("not_after_ns", BigInteger, nullable=False),
    Column("reason", TEXT, nullable=False),
    Column("ended_ns", BigInteger, nullable=False),
    Column("authority", TEXT, nullable=False),
)
PASSES = Table(
    "passes",
    META,
    Column("digest", TEXT, primary_key=True),
    Column("gateway", TEXT, nullable=False),
    Column("expires_ns", BigInteger, nullable=False),
    Column("replaces", Boolean, nullable=False),
    Column("key", TEXT, nullable=False),
)

SCHEMA_VERSION = 12


class OctetLength(GenericFunction[int]):
    """How many bytes a text takes: `func.octet_length(column)`."""

    name = "octet_length"
    type = BigInteger()
    inherit_cache = True


def put(db: Connection, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
    """Store a row, or change the one with this primary key, within the transaction that is open."""
    changed = db.execute(_update(table), {**values, **{f"{KEY}{name}": held for name, held in key.items()}})
    if changed.rowcount == 0:
        db.execute(insert(table), key | values)


@cache
def _update(table: Table) -> Update:
    """Return the statement that changes the row with a given key: made once, for making it costs more than it does."""
    return update(table).where(*(column == bindparam(f"{KEY}{column.name}") for column in table.primary_key))
