"""The files of a site beside its store: which of them a backup has, and where each belongs."""

from __future__ import annotations

from pathlib import Path

from fedgate.config.settings.base import Table
from fedgate.config.settings.settings import AggregatorSettings

SETTINGS = "aggregator.toml"
BESIDE_SETTINGS = ("mosquitto.conf", "gateway.toml")
IDENTITY_PARTS = (
    *("ca.pem", "ca.key", "server.pem", "server.key", "cloud.pem", "cloud.key"),
    *("revoked.crl", "mosquitto.acl", "outlived.json", "root.pub", "keys.json"),
)
TABLES = ("broker", "webhook")  # whose files belong to it: certificates, passwords
SECRET_ENDS = (".key", "key_file", "password_file", "secret_file", "url_file")


def map_places(config: Path, settings: AggregatorSettings) -> dict[str, Path]:
    """Return where each file belongs; a name stands for a place and not for a path."""
    key = settings.aggregator.release_key
    found = {SETTINGS: config, "release.key": key, "release.pub": key.with_suffix(".pub")}
    found |= {name: config.parent / name for name in BESIDE_SETTINGS}
    if settings.identity is not None:
        found |= {name: settings.identity.folder / name for name in IDENTITY_PARTS}
    known = {path.resolve() for path in found.values()}
    for table in TABLES:
        held: Table | None = getattr(settings, table)
        for name in () if held is None else type(held).model_fields:
            path = getattr(held, name)
            if isinstance(path, Path) and path.resolve() not in known:
                found[f"{table}.{name}"] = path
    for channel in settings.notify:
        if channel.url_file is not None and channel.url_file.resolve() not in known:
            found[f"notify.{channel.name}.url_file"] = channel.url_file
    return found


def is_secret(name: str) -> bool:
    """Tell whether a part is worth a passphrase."""
    return name.endswith(SECRET_ENDS)
