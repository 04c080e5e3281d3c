"""`cloud-aggregator backup`: one file from which a site can be put back, made while the aggregator runs."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgate.config.runtime import cli, store_lock
from fedgate.config.settings.base import Table
from fedgate.models.time_units import NS

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.backup.archive import Facts, Manifest
    from fedgate.config.settings.settings import AggregatorSettings

NAME = "cloud-aggregator"
MIB = 1024 * 1024
PAGES = 256  # that one step copies
WORD_S = 2.0  # after which long work says how far it is
SPARE_BYTES = 64 * MIB  # of the disk that are left to the service
PASSPHRASE_MIN = 12
OTHERS = 0o007
IDENTITY_PARTS = (
    *("ca.pem", "ca.key", "server.pem", "server.key", "cloud.pem", "cloud.key"),
    *("revoked.crl", "mosquitto.acl", "outlived.json", "root.pub", "keys.json"),
)
BESIDE_SETTINGS = ("mosquitto.conf", "gateway.toml")
SETTINGS = "aggregator.toml"
TABLES = ("broker", "webhook")  # whose files belong to it: certificates, passwords
SECRET_ENDS = (".key", "key_file", "password_file", "secret_file")
TEXT = """Write one file from which this site can be put back: the store as it is at one moment, settings, certificates,
the list of those revoked; the keys too where the file is sealed with a passphrase. The aggregator may run meanwhile and
is not held up. The file is written beside its name and renamed when it is whole: an older one stays until then."""
EPILOG = """examples:
  cloud-aggregator backup /mnt/usb/site.fedgate -c aggregator.toml --encrypt
      asks for a passphrase; with the keys, so all that a new machine needs
  cloud-aggregator backup /mnt/usb/site.fedgate -c aggregator.toml --passphrase-file /etc/fedgate-passphrase
      the same for a timer; keep the passphrase elsewhere too: without it the file is worth nothing
  cloud-aggregator backup /mnt/usb/site.tar -c aggregator.toml
      not sealed and without any key: keep release.key and ca.key apart. A tar archive

'cloud-aggregator restore' puts it back; docs/reference/operations.md, How to restore. Exit code 0 where it is
written, 1 where it could not be (a disk, another backup at work), 2 where what was given is not good.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("backup", help="write one file from which the site can be put back", description=TEXT)
    command.epilog, command.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    command.add_argument("file", type=Path, metavar="FILE", help="where to; a backup that is there is replaced")
    command.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help=SETTINGS)
    add_passphrase(command, "--encrypt", "seal it with a passphrase that is asked for")
    command.add_argument("--without-keys", action="store_true", help="leave the keys out of a file that is sealed, too")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(act=_backup)


def add_passphrase(command: argparse.ArgumentParser, ask: str, text: str) -> None:
    """Add the two ways in which a passphrase is given; none is on the command line, where everybody can read it."""
    one = command.add_mutually_exclusive_group()
    one.add_argument(ask, action="store_true", dest="asks", help=text)
    one.add_argument("--passphrase-file", type=Path, metavar="FILE", help="whose first line is the passphrase")


def passphrase_of(arguments: argparse.Namespace, *, is_new: bool) -> str | None:
    """Return the passphrase that a file holds or a person types, None where none is given; raises `ValueError`."""
    if arguments.passphrase_file is not None:
        path: Path = arguments.passphrase_file
        if path.stat().st_mode & OTHERS:
            raise ValueError(f"{path}: everybody can read the passphrase; chmod 600 {path}")
        found = path.read_text(encoding="utf-8").partition("\n")[0].removesuffix("\r")
    elif arguments.asks:
        try:
            found = getpass.getpass("passphrase: ")
            if is_new and getpass.getpass("once more: ") != found:
                raise ValueError("passphrase: the two are not the same")
        except EOFError:
            raise ValueError("passphrase: nobody is here to type it; give --passphrase-file FILE") from None
    else:
        return None
    if len(found) < PASSPHRASE_MIN:
        raise ValueError(f"passphrase: expected at least {PASSPHRASE_MIN} characters, got {len(found)}")
    return found


def places(config: Path, settings: AggregatorSettings) -> dict[str, Path]:
    """Return where each part of a backup belongs, the store last; a name stands for a place and not for a path."""
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
    return {**found, "aggregator.db": settings.aggregator.store}


def is_secret(name: str) -> bool:
    """Tell whether a part is worth a passphrase."""
    return name.endswith(SECRET_ENDS)


def note_of(store: Path) -> Path:
    """Return the file that says when the last backup of a store was made."""
    return store.with_name(f"{store.name}.backup.json")


def read_note(store: Path) -> tuple[int, str, bool] | None:
    """Return when the last backup of a store was made, where it was written and whether it has the keys; None where
    nobody knows.
    """
    try:
        held = json.loads(note_of(store).read_bytes())
        return int(held["made_ns"]), str(held["file"]), bool(held["has_keys"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_note(store: Path, made_ns: int, file: Path, *, has_keys: bool) -> None:
    """Remember a backup, for `cloud-aggregator doctor`."""
    from fedgate.cloud_aggregator.backup.archive import own_as_folder
    from fedgate.config.identity import pki

    body = {"made_ns": made_ns, "file": str(file), "has_keys": has_keys}
    pki.write(note_of(store), json.dumps(body).encode(), pki.PRIVATE_MODE)
    own_as_folder(note_of(store))


class Progress:
    """Says how far long work is, on standard error."""

    def __init__(self, what: str, total_bytes: int) -> None:
        self._what, self._total, self._done = what, total_bytes, 0
        self._reported_s = time.monotonic()

    def advance(self, size_bytes: int) -> None:
        """So many bytes more are done."""
        self._done += size_bytes
        if time.monotonic() - self._reported_s >= WORD_S:
            self._reported_s = time.monotonic()
            share = min(self._done / max(self._total, 1), 1.0)
            sys.stderr.write(f"{NAME}: {self._what}: {share:.0%} of {self._total / MIB:.0f} MiB\n")


def _backup(arguments: argparse.Namespace) -> int:
    from fedgate.config.settings.settings import AggregatorSettings, load

    settings = load(arguments.config, AggregatorSettings)
    passphrase = passphrase_of(arguments, is_new=True)
    _check_target(arguments.file, places(arguments.config, settings))
    try:
        manifest = make(arguments.config, settings, arguments.file, passphrase, with_keys=not arguments.without_keys)
    except (sqlite3.Error, OSError) as error:
        return cli.again(NAME, error)
    _show(arguments, manifest)
    return 0


def _check_target(file: Path, sources: dict[str, Path]) -> None:
    from fedgate.cloud_aggregator.backup import archive

    if file.is_dir():
        raise ValueError(f"{file}: it is a folder; expected the name of a file, such as {file / 'site.fedgate'}")
    if not file.parent.is_dir():
        raise ValueError(f"{file}: there is no folder {file.parent}; make it, or mount what should be there")
    if file.resolve() in {path.resolve() for path in sources.values()} or (
        file.exists() and not archive.is_backup(file)
    ):
        raise ValueError(f"{file}: it is there and no backup; nothing is overwritten but an older backup")


def make(
    config: Path, settings: AggregatorSettings, file: Path, passphrase: str | None, *, with_keys: bool = True
) -> Manifest:
    """Write a backup and return its manifest; keys go into it where it is sealed alone.

    Raises `OSError` and `sqlite3.Error` where it cannot be written, and leaves no part of a file then.
    """
    from fedgate.cloud_aggregator.backup import archive

    store, has_keys = settings.aggregator.store, with_keys and passphrase is not None
    if not store.exists():
        raise OSError(f"{store}: there is no store yet; the aggregator has not run with these settings")
    with _copied(store) as copy:
        made_ns = time.time_ns()
        found = {name: path for name, path in places(config, settings).items() if has_keys or not is_secret(name)}
        files = {name: path for name, path in found.items() if path.exists()} | {archive.STORE: copy}
        # Small ones may be replaced while this runs, so what is digested is what is written.
        contents = {name: copy if path == copy else path.read_bytes() for name, path in files.items()}
        for name, body in contents.items():
            if isinstance(body, bytes) and len(body) > archive.SMALL_BYTES_MAX:
                raise OSError(f"{files[name]}: {len(body)} bytes; at most {archive.SMALL_BYTES_MAX} go into a backup")
        size = copy.stat().st_size
        digested, written = Progress("digesting", size), Progress("writing", size)
        parts = tuple(
            archive.part_of(name, contents[name], path.stat().st_mode & 0o777, digested.advance)
            for name, path in files.items()
        )
        with closing(sqlite3.connect(copy)) as db:
            facts, schema = facts_of(db), int(db.execute("PRAGMA user_version").fetchone()[0])
        folder, site = str(config.parent.resolve()), settings.aggregator.site
        manifest = archive.Manifest(
            site=site,
            made_ns=made_ns,
            folder=folder,
            has_keys=has_keys,
            schema_version=schema,
            facts=facts,
            parts=parts,
        )
        archive.write(file, manifest, contents, passphrase, written.advance)
    write_note(store, made_ns, file.resolve(), has_keys=has_keys)
    return manifest


@contextmanager
def _copied(store: Path) -> Iterator[Path]:
    """Copy a store that may be in use into a file beside it, as it is at one moment, and remove that at the end.

    The copy is no copy of the file: what SQLite has committed may stand in the log beside it alone.
    """
    copy = store.with_name(f".{store.name}.copy")
    lock = store_lock.hold(copy, "backup")
    try:
        _forget(copy)  # of a backup that was killed
        held_bytes = sum(path.stat().st_size for path in (store, store.with_name(f"{store.name}-wal")) if path.exists())
        disk = os.statvfs(store.parent)
        if disk.f_bavail * disk.f_frsize < held_bytes + SPARE_BYTES:
            raise OSError(f"{store.parent}: a copy of {held_bytes / MIB:.0f} MiB has no room here; make room")
        os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        copy_store(store, copy)
        yield copy
    finally:
        _forget(copy)
        store_lock.release(lock)


def _forget(copy: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        copy.with_name(copy.name + suffix).unlink(missing_ok=True)


def copy_store(store: Path, copy: Path) -> None:
    """Copy a store with SQLite's backup of a running database, in steps, and check the copy; raises `sqlite3.Error`.

    One reading transaction spans the steps, so whatever is written meanwhile neither changes the copy nor begins it
    anew; in WAL mode a reader holds up no writer.
    """
    progress: list[Progress] = []
    page_bytes = 0

    def report(_status: int, remaining: int, total: int) -> None:
        if not progress:
            progress.append(Progress("copying", total * page_bytes))
        progress[0].advance(min(PAGES, total - remaining) * page_bytes)

    with (
        closing(sqlite3.connect(f"{store.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as source,
        closing(sqlite3.connect(copy, isolation_level=None)) as target,
    ):
        source.execute("BEGIN")
        page_bytes = int(source.execute("PRAGMA page_size").fetchone()[0])
        source.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # from here on it is the store of this moment
        source.backup(target, pages=PAGES, progress=report)
        check(target, store)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, which is whole by itself


def check(db: sqlite3.Connection, store: Path) -> None:
    """Raise `sqlite3.DatabaseError` where SQLite finds a database damaged."""
    try:
        found = [str(line[0]) for line in db.execute("PRAGMA integrity_check(3)")]
    except sqlite3.OperationalError:  # of the disk, not of the file
        raise
    except sqlite3.DatabaseError as error:
        found = [str(error)]
    if found != ["ok"]:
        raise sqlite3.DatabaseError(f"{store}: it is damaged ({'; '.join(found)}); an older backup is the better one")


def facts_of(db: sqlite3.Connection) -> Facts:
    """Return what a store holds."""
    from fedgate.cloud_aggregator.backup.archive import Facts
    from fedgate.cloud_aggregator.rounds.rounds import training_place

    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}

    def count(what: str, table: str, where: str = "") -> int:
        if table not in tables:  # of an older store
            return 0
        return int(db.execute(f"SELECT {what} FROM {table} {where}").fetchone()[0] or 0)  # noqa: S608 - ours, all three

    training = db.execute("SELECT body FROM training").fetchone() if "training" in tables else None
    return Facts(
        models=count("count(*)", "models"),
        model_version=count("max(version)", "models"),
        alarms=count("count(*)", "alarms"),
        gateways=count("count(*)", "gateways"),
        enrolled=count("count(DISTINCT gateway)", "certificates", "WHERE reason = ''"),
        revoked=count("count(*)", "certificates", "WHERE reason <> ''"),
        rounds=count("count(*)", "rounds"),
        training=training_place(training[0])[1].get("training", 0) if training else 0,
    )


def describe_facts(facts: Facts) -> str:
    """Return the facts of a store as one line."""
    return (
        f"{facts.models} models, the newest {facts.model_version}; {facts.alarms} alarms; {facts.gateways} gateways, "
        f"{facts.enrolled} names enrolled, {facts.revoked} certificates over; {facts.rounds} rounds"
    )


def time_of(t_ns: int) -> str:
    """Return a moment as it is shown."""
    return datetime.fromtimestamp(t_ns // NS, UTC).isoformat(timespec="seconds")


def _show(arguments: argparse.Namespace, manifest: Manifest) -> None:
    file: Path = arguments.file
    size = file.stat().st_size
    if arguments.json:
        report = {
            "file": str(file),
            "size_bytes": size,
            "made": time_of(manifest.made_ns),
            "has_keys": manifest.has_keys,
        }
        print(
            json.dumps(
                {**report, "parts": [part.name for part in manifest.parts], **manifest.facts.model_dump()}, indent=2
            )
        )
        return
    keys = "sealed, with the keys" if manifest.has_keys else "WITHOUT release.key and ca.key: keep those apart"
    print(f"{file}: {size / MIB:.1f} MiB of {time_of(manifest.made_ns)}, {keys}\n{describe_facts(manifest.facts)}")
