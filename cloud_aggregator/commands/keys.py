"""`cloud-aggregator keys`: which keys a site goes by, and others in their place without a hand on any gateway."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.commands.store import OrderAnswer, open_store, place_order
from fedgate.cloud_aggregator.pki import site_keys
from fedgate.cloud_aggregator.pki.authority import Authority
from fedgate.cloud_aggregator.pki.site_keys import KeyChange
from fedgate.config.identity import pki, signing
from fedgate.config.protocol.messages import MEMBERS_MAX, Keys
from fedgate.config.runtime import cli
from fedgate.config.settings.identity import Identity
from fedgate.config.settings.settings import SiteSettings, load

TEXT = """Which keys a site goes by, and others in their place.

Gateways believe what the root key signed: a statement that names the release key, which signs models and invitations,
and the authority, which signs certificates. A new statement reaches every gateway over the broker; one that was off
fetches it when it is back. No gateway is touched or restarted, and the service goes on."""
EXAMPLES = """examples:
  cloud-aggregator keys show -c aggregator.toml
      the keys in force, and who has no certificate of the newest authority yet
  cloud-aggregator keys rotate --release --root-key /media/usb/bridge-root.key -c aggregator.toml
      another release key; what is announced is signed anew
  cloud-aggregator keys rotate --authority --root-key /media/usb/bridge-root.key -c aggregator.toml
      another authority beside the one before; gateways have themselves certified by it
  cloud-aggregator keys finish --root-key /media/usb/bridge-root.key -c aggregator.toml
      then: drop the authority before
  cloud-aggregator keys members -c aggregator.toml > members.txt
      the key of every gateway; compare them with what 'gateway-agent enrol' printed on each
  cloud-aggregator keys members --set members.txt --root-key /media/usb/bridge-root.key -c aggregator.toml
      gateways answer a masked round only among those that the file lists
"""
COLUMNS = ("what", "value")
MEMBER = re.compile(r"[0-9a-f]{32}")
MEMBERS = """Who may take part in masked sums.

With --set the root key names the members of the site by their keys, and gateways answer a masked round only among
these, whoever certifies others. Without it the key of each gateway is printed, as the file for --set has them: a key of
32 digits at the beginning of each line; what follows it, and lines that begin with #, say nothing."""


NEW_AUTHORITY = (
    "\ngateways have themselves certified by the new authority; 'cloud-aggregator keys show' tells who has yet to, and "
    "'cloud-aggregator keys finish' then drops the one before. People and machines that look on need new certificates: "
    "'cloud-aggregator certificate'"
)


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "show the keys of the site, or put others in their place"
    parts = commands.add_group("keys", text, description=TEXT, examples=EXAMPLES)
    parts.add("show", _show, "show the keys in force, and who has yet to have a certificate of the newest authority")
    text = "put another release key, another authority, or both in place of those in force"
    rotate = parts.add("rotate", _rotate, text)
    finish = parts.add("finish", _finish, "drop the authority before the newest")
    text = "print the keys of the gateways, or have the root key say who takes part in masked sums"
    members = parts.add("members", _run_members, text, description=MEMBERS)
    where = "the private root key (default: where 'init' wrote it)"
    for part in (rotate, finish, members):
        part.add_argument("--root-key", type=Path, default=None, metavar="PATH", help=where)
    rotate.add_argument("--release", action="store_true", help="the key that signs models and invitations")
    rotate.add_argument("--authority", action="store_true", help="the key that signs certificates")
    some = "also where some lack a certificate of the newest: they are shut out until they have fetched one"
    finish.add_argument("--anyway", action="store_true", help=some)
    either = members.add_mutually_exclusive_group()
    either.add_argument("--set", type=Path, default=None, metavar="FILE", help="these and nobody else")
    either.add_argument("--unset", action="store_true", help="any gateway that the aggregator has let in")


def _site(arguments: argparse.Namespace) -> tuple[SiteSettings, Identity]:
    settings = load(arguments.config, SiteSettings)
    if settings.identity is None:
        raise ValueError(f"{arguments.config}: keys of a site need [identity]; 'cloud-aggregator init' makes it")
    return settings, settings.identity


def _read_registry(settings: SiteSettings) -> Registry:
    """Return who was let in: nobody by a service that never ran."""
    from fedgate.cloud_aggregator.storage.store import choose_database

    if not choose_database(settings.aggregator.store).exists():
        return Registry()
    with open_store(settings.aggregator.store) as store:
        return store.read_registry()


def _list_lacking(settings: SiteSettings, folder: Path) -> list[str]:
    """Return who has no certificate of the newest authority."""
    return _read_registry(settings).list_lacking(Authority(folder).fingerprint, time.time_ns())


def _show(arguments: argparse.Namespace) -> None:

    settings, spec = _site(arguments)
    keys = site_keys.read_statement(spec.folder)
    held = [pki.read_certificate(one.encode()) for one in keys.authorities]
    authorities = [
        {"fingerprint": pki.fingerprint(one), "until": f"{one.not_valid_after_utc:%Y-%m-%d}"} for one in held
    ]
    lacking = _list_lacking(settings, spec.folder) if len(held) > 1 else []
    facts = {
        "site": keys.site,
        "statement": keys.number,
        "since": cli.format_time(keys.created_ns),
        "root_key": site_keys.root_digest(spec.folder),
        "release_key": signing.digest_public_key(keys.release_key.encode()),
        "members": len(keys.members),
    }
    rows = [*facts.items(), *(("authority", f"{one['fingerprint']} until {one['until']}") for one in authorities)]
    if len(held) > 1:
        rows.append(("to be certified", ", ".join(lacking) or "nobody: 'keys finish' may drop the one before"))
    cli.show(arguments, {**facts, "authorities": authorities, "lacking": lacking}, cli.table(COLUMNS, rows))


def _rotate(arguments: argparse.Namespace) -> None:
    if not (arguments.release or arguments.authority):
        raise ValueError("keys rotate: give --release, --authority or both")

    def rotate(change: KeyChange) -> Keys:
        return change.rotate(release=arguments.release, authority=arguments.authority)

    _change(arguments, rotate, NEW_AUTHORITY if arguments.authority else "")


def _finish(arguments: argparse.Namespace) -> None:
    settings, spec = _site(arguments)
    lacking = _list_lacking(settings, spec.folder)
    if lacking and not arguments.anyway:
        problem = (
            f"{', '.join(lacking)}: no certificate of the newest authority yet. Wait for those that run, and 'gateways "
            "remove' those that are gone; with --anyway they are shut out until they have fetched one by themselves, "
            "and who looks on until he gets a new one"
        )
        raise cli.NotDoneError(problem, OrderAnswer(None, False, problem)._asdict())
    _change(arguments, lambda change: change.drop_before())


def _run_members(arguments: argparse.Namespace) -> None:
    if arguments.set is None and not arguments.unset:
        _show_members(arguments)
        return
    members = [] if arguments.unset else _read_members(arguments.set)
    left_out = _list_left_out(_read_registry(_site(arguments)[0]).members, members)
    _change(arguments, lambda change: change.pin(members), left_out)


def _show_members(arguments: argparse.Namespace) -> None:

    settings, spec = _site(arguments)
    keys, gateways = site_keys.read_statement(spec.folder), _read_registry(settings).members
    members = keys.members
    listed = f"the {len(members)} members of statement {keys.number}" if members else "nobody: any gateway may"
    names = [*members, *sorted(gateways.keys() - {*members}, key=lambda key: gateways[key])]
    rows = [{"key": key, "gateway": gateways.get(key, ""), "member": key in members} for key in names]
    lines = [
        f"{row['key']} {row['gateway'] or 'nobody has this key now'}{' (a member)' if row['member'] else ''}"
        for row in rows
    ]
    text = "\n".join([f"# who takes part in masked sums: {listed}", *lines])
    cli.show(arguments, {"pinned": bool(members), "members": rows}, text)


def _list_left_out(gateways: dict[str, str], members: Sequence[str]) -> str:
    """Say which enrolled gateways take part in no masked sum any more, and which members are not enrolled."""
    if not members:
        return ""
    without = sorted(name for key, name in gateways.items() if key not in members)
    left = f"\n{len(gateways) - len(without)} of the {len(gateways)} enrolled gateways are members"
    left += f"; no longer in masked sums: {', '.join(without)}" if without else ""
    strange = [key for key in members if key not in gateways]
    return left + (
        f"; of {len(strange)} members nobody is enrolled with their key, {strange[0]} ..." if strange else ""
    )


def _read_members(path: Path) -> list[str]:
    """Return the keys in a file; raises `ValueError` for a line without one, and for too few or too many."""

    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    found = {words[0]: number for number, words in enumerate(lines, 1) if words and not words[0].startswith("#")}
    for key, number in found.items():
        if not MEMBER.fullmatch(key):
            raise ValueError(f"{path}: line {number}: expected a key of 32 hexadecimal digits first, got {key[:64]!r}")
    if not 1 <= len(found) <= MEMBERS_MAX:
        raise ValueError(
            f"{path}: expected 1 to {MEMBERS_MAX} keys, got {len(found)}; --unset lets any gateway take part"
        )
    return list(found)


def _change(arguments: argparse.Namespace, change: Callable[[KeyChange], Keys], left: str = "") -> None:
    """Change the keys with the root key, have the service go by the new statement, and say what is left to do.

    A service that never ran has no store for an order and needs none: it reads the statement when it starts. Raises
    `ValueError` where the service could not read what this user would write.
    """
    from fedgate.cloud_aggregator.storage.store import choose_database

    settings, spec = _site(arguments)
    owner = spec.folder.stat().st_uid
    if owner != os.geteuid():
        raise ValueError(f"{spec.folder}: its files are of user {owner}; give this command as that user")
    path = arguments.root_key or spec.root_key
    if path is None or not path.exists():
        given = "it is named nowhere" if path is None else f"there is none at {path}"
        raise ValueError(f"--root-key: expected the private root key, which 'init' wrote; {given}")
    root = signing.load_private(path)
    keys = change(KeyChange(spec.folder, settings.aggregator.release_key, root, datetime.now(UTC)))
    if choose_database(settings.aggregator.store).exists():
        answer = place_order(arguments, "keys", {"number": keys.number})
    else:
        text = f"statement {keys.number} is in the site's folder; the service goes by it when it starts"
        answer = OrderAnswer(None, False, text)
    cli.show(arguments, answer._asdict(), f"{answer.text}{left}\ntake {path} off this machine again")
