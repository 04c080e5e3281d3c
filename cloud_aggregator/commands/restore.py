"""`cloud-aggregator restore`: puts a site back from a backup, and says what has to be known of that."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedgate.cloud_aggregator.backup.archive import Facts, is_sealed, open_backup
from fedgate.cloud_aggregator.backup.scratch import scratch_file
from fedgate.cloud_aggregator.commands import backup
from fedgate.config.runtime import cli
from fedgate.config.settings.settings import SiteSettings, load

TEXT = """Put a site back from a file of 'cloud-aggregator backup'. Everything is checked before anything is changed:
passphrase, digests, SQLite's own check, versions, the site, its keys. Of the files, aggregator.toml too, only those
are written that are not there; a store that is there is refused, and with --replace set aside. What must not happen
twice is set anew: tokens, orders, rounds. Where it is cut off, give it again."""
EXAMPLES = """examples:
  cloud-aggregator restore /mnt/usb/site.fedgate -c /var/lib/fedgate/site/aggregator.toml
      onto a new disk: folder, settings, keys, store; asks for the passphrase
  cloud-aggregator restore /mnt/usb/site.fedgate -c site/aggregator.toml --passphrase-file passphrase --replace
      over a store that is damaged: it is set aside, and whom it knows to be revoked stays so
  cloud-aggregator restore /mnt/usb/site.fedgate -c site/aggregator.toml --check
      is the file whole and the passphrase right? Nothing is changed

Stop the aggregator before. Exit code 0 where it is done, 1 where a running aggregator or the disk is in the way, 2
where the file, the passphrase or the place is not good; nothing is changed then.
"""


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "put the site back from a backup"
    command = commands.add("restore", _restore, text, description=TEXT, examples=EXAMPLES)
    command.add_argument("file", type=Path, metavar="FILE", help="what 'cloud-aggregator backup' wrote")
    command.add_argument("--passphrase-file", type=Path, metavar="FILE", help="whose first line is the passphrase")
    command.add_argument("--replace", action="store_true", help="set a store that is there aside")
    command.add_argument("--check", action="store_true", help="check the file alone; nothing is changed")


def _restore(arguments: argparse.Namespace) -> int:

    if arguments.passphrase_file is not None and not is_sealed(arguments.file):
        raise ValueError(
            f"{arguments.file}: it is not sealed, so anybody can have written it; leave the passphrase out"
        )
    arguments.asks = arguments.passphrase_file is None and is_sealed(arguments.file)
    try:
        _refuse_beside(arguments)
        report = _put_back(arguments, backup.read_passphrase(arguments, is_new=False))
    except OSError as error:
        return cli.report_retry(backup.NAME, error)
    cli.show(arguments, report, _format(report))
    return 0


def _refuse_beside(arguments: argparse.Namespace) -> None:
    """Raise early what would be raised late, after much reading."""
    from fedgate.cloud_aggregator.backup.restoring import take

    if arguments.check or not arguments.config.exists():
        return
    place = load(arguments.config, SiteSettings).aggregator.store
    if not isinstance(place, Path) or place.parent.is_dir():
        with take(place, is_replacing=arguments.replace):
            pass


def _put_back(arguments: argparse.Namespace, passphrase: str | None) -> dict[str, Any]:
    """Check all of a backup and put it in place; return what there is to say of it."""
    from fedgate.cloud_aggregator.backup.restoring import Restoring

    restoring = Restoring(arguments.file, arguments.config)
    with scratch_file(arguments.config.parent) as staged:
        with open_backup(arguments.file, passphrase) as (manifest, parts):
            progress = backup.Progress("reading", arguments.file.stat().st_size)
            for part, content in parts:
                restoring.take(part.name, part.mode, content, staged, progress.advance)
        settings = restoring.check(manifest, staged)
        report: dict[str, Any] = {"file": str(arguments.file), "made": cli.format_time(manifest.made_ns)}
        report |= manifest.facts.model_dump() | {"has_keys": manifest.has_keys, "is_changed": not arguments.check}
        if not arguments.check:
            report |= restoring.put(manifest, settings, staged, is_replacing=arguments.replace)
        return report


def _format(report: dict[str, Any]) -> str:
    from fedgate.cloud_aggregator.backup.facts import describe_facts

    facts = describe_facts(Facts(**{name: report[name] for name in Facts.model_fields}))
    lines = [f"{report['file']}: of {report['made']}; {facts}"]
    if not report["is_changed"]:
        return f"{lines[0]}\nit is whole{'' if report['has_keys'] else ', and without keys'}; nothing was changed"
    lines.append(f"put back: {report['store']}, {len(report['written'])} files")
    lines += [f"set aside: {report['set_aside']}"] if report["set_aside"] else []
    lines += [f"kept as it is, and not as in the backup: {one}" for one in report["kept"]]
    lines += [f"set anew: {one}" for one in report["set_anew"]]
    lines += [f"lost: {one}" for one in report["lost"]]
    lines += [f"MISSING: {one}; put it back from its own backup before the start" for one in report["missing"]]
    return "\n".join(lines)
