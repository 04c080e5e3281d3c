"""`cloud-aggregator gateways`: who belongs to the site, who gets in, who is put out."""

from __future__ import annotations

import argparse
import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedgate.cloud_aggregator.access import admission
from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.access.registry import NAMELESS, Registry
from fedgate.cloud_aggregator.commands.store import open_store, order, place_order
from fedgate.cloud_aggregator.pki import site_keys
from fedgate.cloud_aggregator.pki.quarantine import list_denied_names
from fedgate.config.identity.pki import SECRET_BYTES, Token, check_gateway
from fedgate.config.runtime import cli
from fedgate.config.settings.settings import SiteSettings, load

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.storage.store import Store

EXAMPLES = """examples:
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
HOURS, HOURS_MAX = 24.0, 24.0 * 365
COLUMNS = ("gateway", "state", "until", "seen")


def add(commands: cli.Commands) -> None:
    """Add the command."""
    parts = commands.add_group("gateways", "who belongs to the site, who gets in, who is put out", examples=EXAMPLES)
    parts.add("list", _list, "show who is enrolled, until when, and who was shut out")
    token = parts.add("token", _make_token, "print a token that admits one device under a name, once")
    revoke = parts.add("revoke", _revoke, "shut a gateway out at once")
    remove = parts.add("remove", _remove, "forget a gateway that is gone for good")
    for part in (token, revoke, remove):
        part.add_argument("gateway", metavar="ID")
    token.add_argument("--hours", type=float, default=HOURS, help=f"until it expires (default: {HOURS:g})")
    token.add_argument("--replace", action="store_true", help="for a device that takes the place of another")


def _list(arguments: argparse.Namespace) -> None:

    settings = load(arguments.config, SiteSettings)
    with open_store(settings.aggregator.store) as store:
        registry, seen = (
            store.read_registry(),
            {row["gateway"]: row["seen_ns"] or None for row in store.read_rows("gateways")},
        )
    rows = list(_list_rows(registry, list_denied_names(settings.identity, registry), seen))
    tokens = sorted(one.gateway for one in registry.passes.values() if not one.key and one.expires_ns > time.time_ns())
    waiting = f"\ntokens not used yet: {', '.join(tokens)}" if tokens else ""
    cli.show(arguments, {"gateways": rows, "tokens": tokens}, cli.format_rows(COLUMNS, rows) + waiting)


def _list_rows(registry: Registry, denied: frozenset[str], seen: dict[str, int | None]) -> Iterator[dict[str, Any]]:
    """Yield who is enrolled or was shut out, then who has only spoken."""

    def row(gateway: str, state: str, until_ns: int | None = None) -> dict[str, Any]:
        times = {"until": cli.format_time(until_ns), "seen": cli.format_time(seen.get(gateway))}
        return {"gateway": gateway, "state": state, **times}

    for gateway in sorted(registry.names):
        held = registry.list_certificates(gateway)
        last = next((one for one in reversed(held) if not one.reason), held[-1])
        state = last.reason or ("enrolled, denied until the broker is restarted" if gateway in denied else "enrolled")
        if state != "removed":
            yield row(gateway, state, last.not_after_ns)
    for gateway in sorted(seen.keys() - registry.names):
        yield row(gateway, "not enrolled")
    for one in sorted(
        registry.list_certificates(NAMELESS), key=lambda one: one.serial
    ):  # of a store that is older than revoked.crl
        yield row(NAMELESS, f"revoked, serial {one.serial}")


def _make_token(arguments: argparse.Namespace) -> None:

    settings = load(arguments.config, SiteSettings)
    check_gateway(arguments.gateway)
    if not 0 < arguments.hours <= HOURS_MAX:
        raise ValueError(f"--hours: expected more than 0 and at most {HOURS_MAX:g}, got {arguments.hours:g}")
    if settings.identity is None or settings.enrolment is None:
        raise ValueError(
            f"{arguments.config}: a token needs [identity] and [enrolment]; 'cloud-aggregator init' makes both"
        )
    root = site_keys.root_digest(settings.identity.folder)
    token = Token(arguments.gateway, settings.enrolment.address, root, secrets.token_urlsafe(SECRET_BYTES))
    body = {"gateway": token.gateway, "digest": token.digest, "hours": arguments.hours, "replaces": arguments.replace}

    def check(store: Store) -> None:
        admission.check_token(store.read_registry(), arguments.gateway, replaces=arguments.replace)

    answer = place_order(arguments, "token", body, check)
    text = f"{answer.text}; on it:\n\n  gateway-agent enrol -c gateway.toml --token {token.format()}\n"
    cli.show(arguments, {"token": token.format(), "text": answer.text}, text)


def _revoke(arguments: argparse.Namespace) -> None:
    if load(arguments.config, SiteSettings).identity is None:
        raise ValueError(
            f"{arguments.config}: only who is enrolled can be revoked, which needs [identity]; here the broker's own "
            "configuration shuts a gateway out"
        )

    def check(store: Store) -> None:
        admission.check_enrolled(store.read_registry(), arguments.gateway)

    order(arguments, "revoke", {"gateway": arguments.gateway}, check)


def _remove(arguments: argparse.Namespace) -> None:
    is_site = load(arguments.config, SiteSettings).identity is not None

    def check(store: Store) -> None:
        access = Access(store.read_statuses(), registry=store.read_registry() if is_site else None)
        admission.check_known(access, store.read_alarms().book, arguments.gateway)

    order(arguments, "remove", {"gateway": arguments.gateway}, check)
