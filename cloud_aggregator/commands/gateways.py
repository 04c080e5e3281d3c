"""`cloud-aggregator gateways`: who belongs to the site, who gets in, who is put out."""

from __future__ import annotations

import argparse
import json
import secrets
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgate.cloud_aggregator.access.registry import NAMELESS
from fedgate.cloud_aggregator.commands.order_client import ordered, placed
from fedgate.config.runtime import cli
from fedgate.config.settings.settings import SiteSettings, load

EPILOG = """examples:
  cloud-aggregator gateways list -c aggregator.toml
  cloud-aggregator gateways token gateway-7 -c aggregator.toml
      print a token that admits one device under this name, once, within 24 hours
  cloud-aggregator gateways token gateway-7 --replace -c aggregator.toml
      the same for a device that takes the place of one that was enrolled; that one is shut out when it comes
  cloud-aggregator gateways revoke gateway-7 -c aggregator.toml
      shut one out at once: stolen, or not to be trusted any more; its alarms stand until it is removed
  cloud-aggregator gateways remove gateway-7 -c aggregator.toml
      forget one that is gone for good: nobody waits for it, its alarms are ended
"""
NS = 1_000_000_000
HOURS, HOURS_MAX = 24.0, 24.0 * 365
COLUMNS = ("gateway", "state", "until", "seen")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    text = "who belongs to the site, who gets in, who is put out"
    command = commands.add_parser("gateways", help=text, description=text, epilog=EPILOG)
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    parts = command.add_subparsers(dest="part", required=True, metavar="WHAT")
    for name, act, text in (
        ("list", _list, "show who is enrolled, until when, and who was shut out"),
        ("token", _token, "print a token that admits one device under a name, once"),
        ("revoke", _revoke, "shut a gateway out at once"),
        ("remove", _remove, "forget a gateway that is gone for good"),
    ):
        part = parts.add_parser(name, help=text, description=text)
        part.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="aggregator.toml")
        part.add_argument("--json", action="store_true", help="print JSON")
        part.set_defaults(act=act)
        if name != "list":
            part.add_argument("gateway", metavar="ID")
        if name == "token":
            part.add_argument("--hours", type=float, default=HOURS, help=f"until it expires (default: {HOURS:g})")
            part.add_argument("--replace", action="store_true", help="for a device that takes the place of another")


def _list(arguments: argparse.Namespace) -> int:
    from fedgate.cloud_aggregator.pki.quarantine import denied_names
    from fedgate.cloud_aggregator.storage.store import Store

    settings = load(arguments.config, SiteSettings)
    with closing(Store(settings.aggregator.store, create=False)) as store:
        registry, seen = store.registry(), {row["gateway"]: row["seen_ns"] for row in store.rows("gateways")}
    rows, denied = [], denied_names(settings.identity, registry)
    for gateway in sorted(registry.names):
        held = registry.of(gateway)
        last = next((one for one in reversed(held) if not one.reason), held[-1])
        state = last.reason or ("enrolled, denied until the broker is restarted" if gateway in denied else "enrolled")
        if state == "removed":
            continue
        rows.append(
            {
                "gateway": gateway,
                "state": state,
                "until": _time(last.not_after_ns),
                "seen": _time(seen.get(gateway) or None),
            }
        )
    strangers = sorted(seen.keys() - registry.names)
    rows += [
        {"gateway": one, "state": "not enrolled", "until": "-", "seen": _time(seen[one] or None)} for one in strangers
    ]
    nameless = sorted(one.serial for one in registry.of(NAMELESS))  # of a store that is older than revoked.crl
    rows += [{"gateway": NAMELESS, "state": f"revoked, serial {one}", "until": "-", "seen": "-"} for one in nameless]
    waiting = sorted(one.gateway for one in registry.passes.values() if not one.key and one.expires_ns > time.time_ns())
    if arguments.json:
        print(json.dumps({"gateways": rows, "tokens": waiting}, indent=2))
    else:
        print(cli.table(COLUMNS, ([row[name] for name in COLUMNS] for row in rows)))
        if waiting:
            print(f"tokens not used yet: {', '.join(waiting)}")
    return 0


def _token(arguments: argparse.Namespace) -> int:
    from fedgate.cloud_aggregator.pki import site_keys
    from fedgate.config.identity import signing
    from fedgate.config.identity.pki import SECRET_BYTES, Token, check_gateway

    settings = load(arguments.config, SiteSettings)
    check_gateway(arguments.gateway)
    if not 0 < arguments.hours <= HOURS_MAX:
        raise ValueError(f"--hours: expected more than 0 and at most {HOURS_MAX:g}, got {arguments.hours:g}")
    if settings.identity is None or settings.enrolment is None:
        raise ValueError(
            f"{arguments.config}: a token needs [identity] and [enrolment]; 'cloud-aggregator init' makes both"
        )
    folder = settings.identity.folder
    if site_keys.stated(folder) is None:
        raise ValueError(f"{folder}: this site has no root key; 'cloud-aggregator init' with its folder makes one")
    root = signing.public_digest((folder / site_keys.ROOT_PUB).read_bytes())
    secret = secrets.token_urlsafe(SECRET_BYTES)
    token = Token(arguments.gateway, settings.enrolment.address, root, secret)
    body = {"gateway": token.gateway, "digest": token.digest, "hours": arguments.hours, "replaces": arguments.replace}
    answer = placed(arguments.config, "token", body)
    if answer.problem:
        return answer.shown(arguments)
    if arguments.json:
        print(json.dumps({"token": token.text(), "text": answer.text}, indent=2))
    else:
        print(f"{answer.text}; on it:\n\n  gateway-agent enrol -c gateway.toml --token {token.text()}\n")
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    return ordered(arguments, "revoke", {"gateway": arguments.gateway})


def _remove(arguments: argparse.Namespace) -> int:
    return ordered(arguments, "remove", {"gateway": arguments.gateway})


def _time(t_ns: int | None) -> str:
    return "-" if t_ns is None else datetime.fromtimestamp(t_ns // NS, UTC).isoformat(timespec="seconds")
