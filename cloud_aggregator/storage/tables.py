"""The tables of the aggregator's store, and what an older store lacks of them."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    Update,
    bindparam,
    insert,
    update,
)

META = MetaData()
KEY = "key_"  # before the name of a column of the key, in a statement
TRAINING = Table("training", META, Column("id", Integer, primary_key=True), Column("body", LargeBinary, nullable=False))
ROUNDS = Table(
    "rounds",
    META,
    Column("id", Integer, primary_key=True),
    Column("run", String, nullable=False),
    Column("round_index", Integer, nullable=False),
    Column("algorithm", String, nullable=False),
    Column("gateways", String, nullable=False),
    Column("refused", Integer, nullable=False),
    Column("closed_ns", BigInteger, nullable=False),
    Column("bytes_received", BigInteger),
    Column("empty", String),
    Column("phase", Integer),
    Column("late", String),
)
MODELS = Table(
    "models",
    META,
    Column("version", Integer, primary_key=True),
    Column("digest", String, nullable=False),
    Column("manifest", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("canary_ns", BigInteger),  # when it was given to some, ...
    Column("released_ns", BigInteger),  # ... when to all, ...
    Column("stopped_ns", BigInteger),  # ... and when its release was stopped; unknown of models before 0.6
)
ALARMS = Table(
    "alarms",
    META,
    Column("id", String, primary_key=True),
    Column("gateway", String, primary_key=True),
    Column("cause", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("severity", String, nullable=False),
    Column("text", String, nullable=False),
    Column("onset_ns", BigInteger, nullable=False),
    Column("raised_ns", BigInteger),
    Column("cleared_ns", BigInteger),
    Column("score", Float),
    Column("level", Float),
    Column("model_version", Integer, nullable=False),
    Column("model_digest", String, nullable=False),
    Column("clock", String, nullable=False),
    Column("boot_id", String, nullable=False),
    Column("received_ns", BigInteger, nullable=False),
    Column("common", String),  # of a fleet alarm: the cause that most of its gateways have measured ...
    Column("gateways", String),  # ... and which they are
    Column("rule", String),  # that raised it, and ...
    Column("feature", String),  # ... what it is about
    Column("begun_ns", BigInteger),  # the onset as far as it can be believed
    Column("ended", String),  # how, where its gateway did not tell the end
    Column("sequence", BigInteger),  # see `Alarm`, and ...
    Column("store_id", String),  # ... of which store, and ...
    Column("weather", String),  # ... what its gateway measured beside it: ...
    Column("power", String),  # ... all unknown of alarms before 0.6
)
GATEWAYS = Table(
    "gateways",
    META,
    Column("gateway", String, primary_key=True),
    Column("online", Boolean, nullable=False),
    Column("status", String, nullable=False),
    Column("seen_ns", BigInteger, nullable=False),
    Column("sessions", String),  # see `access.device_sessions`
)
# That the service works, and how it stands with the broker; one row, see `presence`.
SERVICE = Table(
    "service",
    META,
    Column("id", Integer, primary_key=True),
    Column("began_ns", BigInteger, nullable=False),
    Column("beat_ns", BigInteger, nullable=False),
    Column("is_connected", Boolean, nullable=False),
    Column("link_ns", BigInteger, nullable=False),
)
# Updates that came after their round, and those counted in an open round whose sum grows with them, as they arrived.
HELD = Table(
    "held",
    META,
    Column("number", Integer, primary_key=True),
    Column("gateway", String, nullable=False),
    Column("run", String, nullable=False),
    Column("round_index", Integer, nullable=False),
    Column("digest", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
# What gateways had to give up, and scores of times in which nobody heard them; the newest of each gateway.
LOSSES = Table(
    "losses",
    META,
    Column("number", Integer, primary_key=True),
    Column("gateway", String, nullable=False),
    Column("id", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("items", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("first_ns", BigInteger, nullable=False),
    Column("last_ns", BigInteger, nullable=False),
    Column("why", String, nullable=False),
    Column("received_ns", BigInteger, nullable=False),
    UniqueConstraint("gateway", "id", "kind"),
)
SCORES = Table(
    "scores",
    META,
    Column("number", Integer, primary_key=True),
    Column("gateway", String, nullable=False),
    Column("item", String, nullable=False),
    Column("t_ns", BigInteger, nullable=False),
    Column("windows", Integer, nullable=False),
    Column("body", String, nullable=False),
    Column("received_ns", BigInteger, nullable=False),
    UniqueConstraint("gateway", "item"),
)
# Changes of alarms that the webhook has not taken yet, in their order.
POSTS = Table(
    "posts",
    META,
    Column("number", Integer, primary_key=True),
    Column("id", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("gateway", String),  # whose they are; unknown of changes before 0.6
)
# What Home Assistant was told of; brokers keep it until it is taken back.
DISCOVERED = Table("discovered", META, Column("topic", String, primary_key=True))
COUNTS = Table("counts", META, Column("name", String, primary_key=True), Column("value", BigInteger, nullable=False))
# What the operator's commands ask of the running service, and what became of it.
ORDERS = Table(
    "orders",
    META,
    Column("number", Integer, primary_key=True),
    Column("kind", String, nullable=False),
    Column("body", String, nullable=False),
    Column("answer", String),
    Column("problem", String),
)

# Who was let in, and the tokens by which that happens; see `registry`.
CERTIFICATES = Table(
    "certificates",
    META,
    Column("serial", String, primary_key=True),
    Column("gateway", String, nullable=False),
    Column("key", String, nullable=False),
    Column("issued_ns", BigInteger, nullable=False),
    Column("not_after_ns", BigInteger, nullable=False),
    Column("reason", String, nullable=False),
    Column("ended_ns", BigInteger, nullable=False),
    Column("authority", String),  # unknown before 0.6
)
PASSES = Table(
    "passes",
    META,
    Column("digest", String, primary_key=True),
    Column("gateway", String, nullable=False),
    Column("expires_ns", BigInteger, nullable=False),
    Column("replaces", Boolean, nullable=False),
    Column("key", String, nullable=False),
)

SCHEMA_VERSION = 6


def put(db: Connection, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
    """Store a row, or change the one with this primary key, within the transaction that is open."""
    changed = db.execute(_update(table), {**values, **{f"{KEY}{name}": held for name, held in key.items()}})
    if changed.rowcount == 0:
        db.execute(insert(table), key | values)


@cache
def _update(table: Table) -> Update:
    """Return the statement that changes the row with a given key: made once, for making it costs more than it does."""
    return update(table).where(*(column == bindparam(f"{KEY}{column.name}") for column in table.primary_key))
