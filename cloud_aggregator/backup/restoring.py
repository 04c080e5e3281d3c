"""A backup put back: read whole, checked against itself, this version and its place, and made good to go on with."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from fedgate.cloud_aggregator.backup.archive import PIECE_BYTES, STORE, Advance, Manifest
from fedgate.cloud_aggregator.backup.facts import count_alarms_since, read_facts
from fedgate.cloud_aggregator.backup.restored_store import Stored, renew
from fedgate.cloud_aggregator.backup.site_files import SETTINGS, is_secret, map_places
from fedgate.cloud_aggregator.enrolment import Certificate
from fedgate.cloud_aggregator.pki import site_keys
from fedgate.cloud_aggregator.pki.authority import CA_KEY, CLOUD_CERTIFICATE, SERVER, Authority
from fedgate.cloud_aggregator.storage import registry_table
from fedgate.cloud_aggregator.storage.database import Database
from fedgate.cloud_aggregator.storage.sqlite import SqliteDatabase, locate_staged
from fedgate.cloud_aggregator.storage.store import BackupNote, Store, choose_database
from fedgate.cloud_aggregator.storage.tables import SCHEMA_VERSION
from fedgate.config.identity import pki
from fedgate.config.runtime import cli
from fedgate.config.runtime.files import own_as_folder
from fedgate.config.settings.database import DatabaseUrl
from fedgate.config.settings.settings import AggregatorSettings, load

READABLE = 0o004


@contextmanager
def take(place: Path | DatabaseUrl, *, is_replacing: bool) -> Iterator[Database]:
    """Take a store, which nobody else has then; raises `ValueError` where one is there that is not to be replaced."""
    database = choose_database(place)
    if database.exists() and not is_replacing:
        raise ValueError(
            f"{database.name}: a store, or its log, is here already; give --replace to set it aside, or name another"
        )
    database.hold("aggregator")
    try:
        yield database
    finally:
        database.release()


class Restoring:
    """A backup that is being put back: what was read of it, and where it belongs."""

    def __init__(self, file: Path, config: Path) -> None:
        self._file, self._config = file.resolve(), config
        self._small: dict[str, tuple[int, bytes]] = {}

    def take(self, name: str, mode: int, content: BinaryIO, staged: Path, advance: Advance) -> None:
        """Read a part of the backup to its end."""
        if name != STORE:
            self._small[name] = (mode, content.read())
            return
        with staged.open("wb") as file:
            while piece := content.read(PIECE_BYTES):
                file.write(piece)
                advance(len(piece))
            file.flush()
            os.fsync(file.fileno())

    def check(self, manifest: Manifest, staged: Path) -> AggregatorSettings:
        """Return the settings of the place; raises `ValueError` where what was read does not fit it, or this version,
        or itself.
        """
        if manifest.schema_version != SCHEMA_VERSION:
            raise ValueError(
                f"the backup is of fedgate {manifest.version} (schema {manifest.schema_version}), this one knows "
                f"{SCHEMA_VERSION}; take that version, or an update"
            )
        if not staged.stat().st_size or SETTINGS not in self._small:
            raise ValueError("the backup has no store or no settings; take another backup")
        database = SqliteDatabase(staged)
        try:
            with database.open_snapshot() as db:
                schema = database.read_schema_version(db)
        except OSError as error:
            raise ValueError(f"the store in the backup: {error}") from None
        if schema != manifest.schema_version:
            raise ValueError(
                f"the store in the backup has schema {schema}, its manifest says {manifest.schema_version}"
            )
        settings = self._read_settings()
        if settings.aggregator.site != manifest.site:
            raise ValueError(
                f"{self._config}: it is of site {settings.aggregator.site!r}, the backup of {manifest.site!r}; name "
                "another folder"
            )
        self._check_place(settings.aggregator.store)
        self._check_keys(map_places(self._config, settings))
        return settings

    def _check_place(self, place: Path | DatabaseUrl) -> None:
        """Raise `ValueError` where the backup alone names a database that has a store: it may be in use."""
        if isinstance(place, DatabaseUrl) and not self._config.exists() and choose_database(place).exists():
            raise ValueError(
                f"{self._config}: the settings in the backup keep the store in {place}, where one is. Put an "
                "aggregator.toml there first, with the store that this one is for: docs/reference/operations.md, "
                "How to restore"
            )

    def _check_keys(self, places: dict[str, Path]) -> None:
        """Raise `ValueError` where the site would go by keys that neither this folder nor the backup has: it could not
        start. A file that is in neither is missing, which is said at the end.
        """
        names = (site_keys.STATEMENT, site_keys.ROOT_PUB, site_keys.RELEASE, CA_KEY)
        here = {name: places[name].read_bytes() for name in names if name in places and places[name].exists()}
        held = {name: self._small[name][1] for name in names if name in self._small} | here
        if not {site_keys.STATEMENT, site_keys.ROOT_PUB} <= held.keys():
            return
        where = {name: "here" if name in here else "in the backup" for name in held}
        try:
            number, lacking = site_keys.find_lacking(*(held.get(name, b"") for name in names))
        except ValueError as error:
            raise ValueError(f"{site_keys.STATEMENT} ({where[site_keys.STATEMENT]}): {error}") from None
        wrong = [f"{name} ({where[name]})" for name in lacking if name in held]
        if wrong:
            raise ValueError(
                f"{' and '.join(wrong)}: not the keys of {site_keys.STATEMENT} ({where[site_keys.STATEMENT]}, number "
                f"{number}), so the site would not start, and no file that is here is replaced. Give a newer backup, "
                f"or put what is missing here from its own copy; or move {', '.join(here)} away, to go by the keys of "
                "the backup: docs/reference/operations.md, An aggregator with older keys than its gateways"
            )

    def _read_settings(self) -> AggregatorSettings:
        """Return the settings that are here, or those of the backup, which are read from beside their place."""
        if self._config.exists():
            return load(self._config, AggregatorSettings)
        beside = self._config.with_name(f".{self._config.name}.read")
        try:
            pki.write(beside, self._small[SETTINGS][1], pki.PRIVATE_MODE)
            return load(beside, AggregatorSettings)
        finally:
            beside.unlink(missing_ok=True)

    def put(
        self, manifest: Manifest, settings: AggregatorSettings, staged: Path, *, is_replacing: bool
    ) -> dict[str, Any]:
        """Put everything in its place, the store last; return what was done and what is to be known."""
        place = settings.aggregator.store
        if isinstance(place, Path):
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        with take(place, is_replacing=is_replacing) as database:  # nobody else has it, and nobody gets it meanwhile
            known, lost = _read_known(place, manifest)
            lines = self._prepare_store(staged, manifest, known)
            files = map_places(self._config, settings)
            written, kept = self._write_small(manifest, files)
            lines += _follow_statement(settings)
            aside = database.put(staged)
        missing = [str(path) for name, path in files.items() if is_secret(name) and not path.exists()]
        return {"store": database.name, "written": written, "kept": kept, "set_aside": aside, "missing": missing} | {
            "set_anew": lines,
            "lost": [*_describe_loss(manifest), *lost],
        }

    def _prepare_store(self, staged: Path, manifest: Manifest, known: list[Certificate]) -> list[str]:
        """Make the store that was read good to go on with; return what that means."""
        with closing(Store(staged)) as store:
            orders = tuple(
                (int(row["number"]), row["kind"], row["body"])
                for row in store.read_rows("orders")
                if row["answer"] is None
            )
            held = Stored(store.read_training(), store.models.read_rollout(), store.read_registry(), orders)
            renewal = renew(held, cli.format_time(manifest.made_ns), manifest.made_ns, time.time_ns(), known)
            store.commit(renewal.effects)
            store.note_backup(BackupNote(manifest.made_ns, str(self._file), manifest.has_keys))
        return renewal.lines

    def _write_small(self, manifest: Manifest, places: dict[str, Path]) -> tuple[list[str], list[str]]:
        """Write the files that are not here; return these, and those that are here and say something else."""
        written, kept = [], []
        old, new = manifest.folder, str(self._config.parent.resolve())
        for name, (mode, body) in self._small.items():
            path = places.get(name)
            if path is None:  # settings that are here name no such file
                continue
            wanted = body.replace(old.encode(), new.encode()) if name == "mosquitto.conf" else body  # names its folder
            if path.exists():
                kept += [] if path.read_bytes() == wanted else [str(path)]
                continue
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            is_public = mode & READABLE and not is_secret(name)
            pki.write(path, wanted, pki.PUBLIC_MODE if is_public else pki.PRIVATE_MODE)
            own_as_folder(path)
            written.append(str(path))
        return written, kept


def _read_known(place: Path | DatabaseUrl, manifest: Manifest) -> tuple[list[Certificate], list[str]]:
    """Return the certificates of a store that is to be replaced, and what else it knows and the backup does not, as far
    as it can be read.
    """
    if was_cut := isinstance(place, Path) and locate_staged(place).exists():
        place = locate_staged(place)  # it has taken over what the one before knew
    database = choose_database(place)
    if not database.exists():
        return [], []
    try:
        with database.open_snapshot() as db:
            facts, since = read_facts(db), count_alarms_since(db, manifest.made_ns)
            known = list(registry_table.read(db).certificates.values())
    except (OSError, ValueError) as error:
        return [], [f"the store that was here cannot be read ({error}), so nothing of it is known"]
    if was_cut:
        return known, [f"a restore was cut off here; the store before that, where one was, is {place}.before-*"]
    enrolled = sorted({one.gateway for one in known if one.issued_ns > manifest.made_ns and not one.reason})
    lost = [
        f"by the store that was here: {max(facts.model_version - manifest.facts.model_version, 0)} versions, "
        f"{since} alarms"
    ]
    if enrolled:
        lost.append(
            f"enrolled or renewed since, so give a token with --replace where it stays away: {', '.join(enrolled)}"
        )
    return known, lost


def _follow_statement(settings: AggregatorSettings) -> list[str]:
    """Have the certificates follow the keys that the site goes by: those that are here may be newer than the backup.
    Where a file that this takes is missing, nothing is changed.
    """
    if settings.identity is None:
        return []
    release_file, folder = settings.aggregator.release_key, settings.identity.folder
    names = (CA_KEY, site_keys.ROOT_PUB, site_keys.STATEMENT, SERVER, CLOUD_CERTIFICATE)
    needed = [folder / name for name in names]
    if not all(path.exists() for path in (release_file, *needed)):
        return []
    with pki.lock_folder(folder):
        keys = site_keys.read_statement(folder)
        site_keys.settle(folder, release_file, keys)
        authority = Authority(folder)
        if authority.has_own():
            return []
        authority.write_own(keys.site, authority.list_hosts(), datetime.now(UTC))
        return [f"server.pem and cloud.pem are of the authority of {site_keys.STATEMENT} (number {keys.number})"]


def _describe_loss(manifest: Manifest) -> list[str]:
    """Return what is gone of the time since a backup, as far as that is known without another store."""
    return [
        f"what came in since {cli.format_time(manifest.made_ns)} is not here",
        "alarms that stand come again where the broker kept its messages; those that began and ended since do not",
        "models released since stay in force at their gateways; their entries are gone",
        "who was revoked since is let in again, unless revoked.crl was kept: look at 'gateways list' and revoke again",
        "who was enrolled since is a stranger: give a token with --replace",
    ]
