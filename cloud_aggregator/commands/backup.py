"""`cloud-aggregator backup`: one file from which a site can be put back, made while the aggregator runs."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from fedgate.cloud_aggregator.backup import archive
from fedgate.cloud_aggregator.backup.scratch import scratch_file
from fedgate.cloud_aggregator.backup.site_files import is_secret, map_places
from fedgate.config.runtime import cli
from fedgate.config.settings.settings import AggregatorSettings, load

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.storage.database import Database

NAME = "cloud-aggregator"
MIB = 1024 * 1024
WORD_S = 2.0  # after which long work says how far it is
SPARE_BYTES = 64 * MIB  # of the disk that are left to the service
PASSPHRASE_MIN = 12
OTHERS = 0o007
TEXT = """Write one file from which this site can be put back: the store as it is at one moment, settings, certificates,
the list of those revoked; the keys too where the file is sealed with a passphrase. The aggregator may run meanwhile and
is not held up. The file is written beside its name and renamed when it is whole: an older one stays until then."""
EXAMPLES = """examples:
  cloud-aggregator backup /mnt/usb/site.fedgate -c aggregator.toml --encrypt
      asks for a passphrase; with the keys, so all that a new machine needs
  cloud-aggregator backup /mnt/usb/site.fedgate -c aggregator.toml --passphrase-file /etc/fedgate-passphrase
      the same for a timer; keep the passphrase elsewhere too: without it the file is worth nothing
  cloud-aggregator backup /mnt/usb/site.tar -c aggregator.toml
      not sealed and without any key: keep release.key and ca.key apart. A tar archive

'cloud-aggregator restore' puts it back; docs/reference/operations.md, How to restore. Exit code 0 where it is
written, 1 where it could not be (a disk, another backup at work), 2 where what was given is not good.
"""


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "write one file from which the site can be put back"
    command = commands.add("backup", _run, text, description=TEXT, examples=EXAMPLES)
    command.add_argument("file", type=Path, metavar="FILE", help="where to; a backup that is there is replaced")
    one = command.add_mutually_exclusive_group()  # none is on the command line, where everybody can read it
    one.add_argument("--encrypt", action="store_true", dest="asks", help="seal it with a passphrase that is asked for")
    one.add_argument("--passphrase-file", type=Path, metavar="FILE", help="whose first line is the passphrase")
    command.add_argument("--without-keys", action="store_true", help="leave the keys out of a file that is sealed, too")


def read_passphrase(arguments: argparse.Namespace, *, is_new: bool) -> str | None:
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


class Progress:
    """Says how far long work is, on standard error."""

    def __init__(self, what: str, total: int, unit: str = "MiB") -> None:
        self._what, self._total, self._done = what, total, 0
        self._shown = f"{total / MIB:.0f} MiB" if unit == "MiB" else f"{total} {unit}"
        self._reported_s = time.monotonic()

    def advance(self, count: int) -> None:
        """So many bytes, or whatever the unit is, more are done."""
        self._done += count
        if time.monotonic() - self._reported_s >= WORD_S:
            self._reported_s = time.monotonic()
            share = min(self._done / max(self._total, 1), 1.0)
            sys.stderr.write(f"{NAME}: {self._what}: {share:.0%} of {self._shown}\n")


def _run(arguments: argparse.Namespace) -> int:

    settings = load(arguments.config, AggregatorSettings)
    passphrase = read_passphrase(arguments, is_new=True)
    _check_target(arguments.file, arguments.config, settings)
    try:
        manifest = make(arguments.config, settings, arguments.file, passphrase, with_keys=not arguments.without_keys)
    except OSError as error:
        return cli.report_retry(NAME, error)
    _show(arguments, manifest)
    return 0


def _check_target(file: Path, config: Path, settings: AggregatorSettings) -> None:

    if file.is_dir():
        raise ValueError(f"{file}: it is a folder; expected the name of a file, such as {file / 'site.fedgate'}")
    if not file.parent.is_dir():
        raise ValueError(f"{file}: there is no folder {file.parent}; make it, or mount what should be there")
    if file.resolve() in {path.resolve() for path in map_places(config, settings).values()} or (
        file.exists() and not archive.is_backup(file)
    ):
        raise ValueError(f"{file}: it is there and no backup; nothing is overwritten but an older backup")


def make(
    config: Path, settings: AggregatorSettings, file: Path, passphrase: str | None, *, with_keys: bool = True
) -> archive.Manifest:
    """Write a backup and return its manifest; keys go into it where it is sealed alone.

    Raises `OSError` where it cannot be written, and leaves no part of a file then.
    """
    from fedgate.cloud_aggregator.storage.store import BackupNote, Store
    from fedgate.cloud_aggregator.storage.tables import SCHEMA_VERSION

    has_keys, place = with_keys and passphrase is not None, settings.aggregator.store
    folder = place.parent if isinstance(place, Path) else config.parent
    with closing(Store(place, create=False)) as store, scratch_file(folder) as copy:
        made_ns, facts = copy_store(store.database, copy)
        found = {name: path for name, path in map_places(config, settings).items() if has_keys or not is_secret(name)}
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
        manifest = archive.Manifest(
            site=settings.aggregator.site,
            made_ns=made_ns,
            folder=str(config.parent.resolve()),
            has_keys=has_keys,
            schema_version=SCHEMA_VERSION,
            facts=facts,
            parts=parts,
        )
        archive.write(file, manifest, contents, passphrase, written.advance)
        store.note_backup(BackupNote(made_ns, str(file.resolve()), has_keys))
    return manifest


def copy_store(database: Database, copy: Path) -> tuple[int, archive.Facts]:
    """Copy a store that may be in use, as it is at one moment, into a new file; return that moment and what it holds.

    All is read in one transaction, so whatever is written meanwhile neither changes the copy nor waits for it.
    """
    from fedgate.cloud_aggregator.backup.facts import read_facts
    from fedgate.cloud_aggregator.storage import copying, sqlite

    held_bytes, disk = database.size_bytes(), os.statvfs(copy.parent)
    if disk.f_bavail * disk.f_frsize < held_bytes + SPARE_BYTES:
        raise OSError(f"{copy.parent}: a copy of {held_bytes / MIB:.0f} MiB has no room here; make room")
    with database.open_snapshot() as db:
        facts, made_ns = read_facts(db), time.time_ns()
        sqlite.make_copy(db, copy, Progress("copying", copying.count_rows(db), "rows").advance)
    return made_ns, facts


def _show(arguments: argparse.Namespace, manifest: archive.Manifest) -> None:
    from fedgate.cloud_aggregator.backup.facts import describe_facts

    size, made = arguments.file.stat().st_size, cli.format_time(manifest.made_ns)
    report = {"file": str(arguments.file), "size_bytes": size, "made": made, "has_keys": manifest.has_keys}
    report |= {"parts": [part.name for part in manifest.parts], **manifest.facts.model_dump()}
    keys = "sealed, with the keys" if manifest.has_keys else "WITHOUT release.key and ca.key: keep those apart"
    text = f"{arguments.file}: {size / MIB:.1f} MiB of {made}, {keys}\n{describe_facts(manifest.facts)}"
    cli.show(arguments, report, text)
