"""Where the aggregator's store is: a file of SQLite, or a database of a PostgreSQL server, by its URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from pydantic import GetPydanticSchema, WrapValidator

from fedgate.config.settings.base import FilePath

SCHEME = "postgresql+psycopg"
EXPECTED = f"expected the path of a file, or {SCHEME}://USER@HOST/DATABASE"
SECRETS = ("password", "sslpassword")
# Of libpq's options those that a store may need. The others are ours to set, or change what a connection is.
OPTIONS = frozenset(
    {
        *("host", "hostaddr", "service", "passfile", "options", "target_session_attrs", "load_balance_hosts"),
        *("sslmode", "sslnegotiation", "sslcert", "sslkey", "sslcertmode", "sslrootcert", "sslcrl", "sslcrldir"),
        *("sslsni", "ssl_min_protocol_version", "ssl_max_protocol_version", "channel_binding", "require_auth"),
        *("requirepeer", "gssencmode", "gssdelegation", "gsslib", "krbsrvname"),
    }
)
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


class DatabaseUrl(str):
    """The URL of a PostgreSQL database. It holds no password, so it may be shown: libpq finds that in ~/.pgpass, or in
    PGPASSWORD.
    """

    __slots__ = ()


def _read_place(value: Any, as_path: Any) -> Path | DatabaseUrl:
    """Return a text with `://` as a URL, else what `as_path` makes of it; no error shows a password."""
    if not isinstance(value, str) or "://" not in value:
        if value == "":
            raise ValueError(f"{EXPECTED}, got nothing")
        path: Path = as_path(value)
        return path
    user, has_user, _ = value.partition("://")[2].rpartition("@")
    try:
        parts = urlsplit(value)
        options = parse_qs(parts.query, keep_blank_values=True)
        is_good = parts.scheme == SCHEME and (parts.port or 1) > 0 and "#" not in value
    except ValueError:  # brackets, a port that is no number
        raise ValueError(f"{EXPECTED}; what is given cannot be read as a URL") from None
    # Whatever stands between them: a password may hold a slash or a number sign.
    if ":" in user or any(name in options for name in SECRETS):
        raise ValueError(
            "a password has no place in the settings; put it into ~/.pgpass of the user whom the aggregator runs as, "
            f"or into PGPASSWORD, and give {SCHEME}://USER@HOST/DATABASE"
        )
    if hint := _explain(parts, options):
        raise ValueError(f"{EXPECTED}; {hint}")
    if not is_good:
        raise ValueError(EXPECTED if has_user else f"{EXPECTED}, got {value!r}")
    return DatabaseUrl(value)


def _explain(parts: SplitResult, options: Mapping[str, list[str]]) -> str:
    """Return what is wrong with a URL of PostgreSQL that is nearly right; empty where nothing is known to be."""
    if parts.scheme in ("postgres", "postgresql"):
        return f"write {SCHEME}:// for {parts.scheme}://, which names no driver"
    if parts.scheme != SCHEME:
        return ""
    if len(parts.path) < 2:
        return "the name of the database is missing behind the host"
    if unknown := sorted(options.keys() - OPTIONS):
        return f"option {unknown[0]!r} given, known are {', '.join(sorted(OPTIONS))}"
    if strange := sorted({*options.get("sslmode", ())} - {*SSL_MODES}):
        return f"sslmode {strange[0]!r} given, known are {', '.join(SSL_MODES)}"
    return ""


StorePlace = Annotated[
    Path | DatabaseUrl,
    GetPydanticSchema(lambda _, schema: schema(Annotated[FilePath, WrapValidator(_read_place)])),
]
