"""Where the aggregator's store is: a file of SQLite, or a database of a PostgreSQL server, by its URL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from pydantic import GetPydanticSchema, WrapValidator

from fedgate.config.settings.base import FilePath

SCHEME = "postgresql+psycopg"
EXPECTED = f"expected the path of a file, or {SCHEME}://USER@HOST/DATABASE"
SECRETS = ("password", "sslpassword")


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
        secrets = [one for name in SECRETS for one in parse_qs(parts.query).get(name, ())]
        is_good = parts.scheme == SCHEME and len(parts.path) > 1 and (parts.port or 1) > 0 and "#" not in value
    except ValueError:  # brackets, a port that is no number
        raise ValueError(f"{EXPECTED}; what is given cannot be read as a URL") from None
    if secrets or ":" in user:  # whatever stands between them: a password may hold a slash or a number sign
        raise ValueError(
            "a password has no place in the settings; put it into ~/.pgpass of the user whom the aggregator runs as, "
            f"or into PGPASSWORD, and give {SCHEME}://USER@HOST/DATABASE"
        )
    if not is_good:
        raise ValueError(EXPECTED if has_user else f"{EXPECTED}, got {value!r}")
    return DatabaseUrl(value)


StorePlace = Annotated[
    Path | DatabaseUrl,
    GetPydanticSchema(lambda _, schema: schema(Annotated[FilePath, WrapValidator(_read_place)])),
]
