"""`cloud-aggregator release`: release a model to a few gateways first, and go on, pause or stop by what they report."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from fedgate.cloud_aggregator.commands.store import open_store, order
from fedgate.cloud_aggregator.releases.releases import Releases, restore
from fedgate.config.protocol.messages import LARGEST
from fedgate.config.runtime import cli
from fedgate.config.settings.settings import AggregatorSettings, load
from fedgate.models.time_units import HOUR_S

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.storage.store import Store

TEXT = """Show how the release of the newest model stands, or change it.

A release to canaries goes on to all gateways, or stops, by itself: by what the canaries tell of it, as [release] of the
settings says. After a stop the canaries are given back what all have."""
EXAMPLES = """examples:
  cloud-aggregator release -c aggregator.toml                      how it stands, canary by canary
  cloud-aggregator release -c aggregator.toml --canary 10%         the model that waits to a tenth of the gateways first
  cloud-aggregator release -c aggregator.toml --gateways a,b       to these first
  cloud-aggregator release -c aggregator.toml --all --version 7    an older model, once more, to all
  cloud-aggregator release -c aggregator.toml --go-on              to all gateways, without waiting any longer
  cloud-aggregator release -c aggregator.toml --pause              no decision by itself, until --go-on or --stop
  cloud-aggregator release -c aggregator.toml --stop               give the canaries back what all have
"""
COLUMNS = ("gateway", "state", "model_version", "watched_h", "alarms", "rejected")


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "show a staged release, begin one, go on, pause or stop"
    command = commands.add("release", _release, text, description=TEXT, examples=EXAMPLES)
    act = command.add_mutually_exclusive_group()
    act.add_argument(
        "--canary", type=share_of, metavar="SHARE", help="release to this share of the gateways first: 10%%, 0.1"
    )
    act.add_argument("--gateways", metavar="A,B", help="release to these gateways first")
    act.add_argument("--all", action="store_true", dest="to_all", help="release to all gateways at once")
    for name, text in (
        ("go-on", "give the canaries' model to all gateways"),
        ("pause", "decide nothing by itself"),
        ("stop", "give the canaries back what all have"),
    ):
        act.add_argument(f"--{name}", action="store_const", const=name, dest="decision", help=text)
    command.add_argument(
        "--version", type=int, metavar="N", dest="number", help="of a stored model, to release once more"
    )


def share_of(text: str) -> float:
    """Return a share given as 10% or 0.1; raises `argparse.ArgumentTypeError`."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} given; expected a share above 0 and up to 1, such as 10% or 0.1")
    return value


def _release(arguments: argparse.Namespace) -> None:
    if arguments.decision:
        if arguments.number is not None:
            raise ValueError(f"--version belongs to a new release, not to --{arguments.decision}")
        order(arguments, arguments.decision, {}, partial(_check_decision, arguments.decision))
        return
    names = [name for name in (arguments.gateways or "").split(",") if name]
    if arguments.canary is None and not names and not arguments.to_all:
        if arguments.number is not None or arguments.gateways is not None:
            raise ValueError("say to whom: --canary 10%, --gateways a,b or --all")
        _show(arguments)
        return
    share = 1.0 if arguments.to_all else arguments.canary or 0.0
    which = {} if arguments.number is None else {"version": arguments.number}
    body = {"gateways": names, "share": share, "to_all": arguments.to_all, **which}
    order(arguments, "release", body, partial(_check_release, arguments.number))


def _check_decision(kind: str, store: Store) -> None:
    from fedgate.cloud_aggregator.releases import deploy

    deploy.check_decision(_read_releases(store).rollout, kind)


def _check_release(version: int | None, store: Store) -> None:
    from fedgate.cloud_aggregator.releases import deploy

    stored = store.models.read_version(version) if version is not None and 0 < version <= LARGEST else None
    deploy.find_model(_read_releases(store), version, stored)


def _read_releases(store: Store) -> Releases:

    return restore(store.models.read_rollout(), store.models.read_version, store.models.read_latest())


def _show(arguments: argparse.Namespace) -> None:
    from fedgate.cloud_aggregator.releases import rollout

    settings = load(arguments.config, AggregatorSettings)
    with open_store(settings.aggregator.store) as store:
        stored, gateways = _read_releases(store), store.read_statuses()
    summary = rollout.summarise(stored, gateways, settings.release, settings.features.hop_s)
    for one in summary["canaries"]:
        one["watched_h"] = round(one.pop("watched_s") / HOUR_S, 2)
    cli.show(arguments, summary, _format(summary))


def _format(summary: dict[str, Any]) -> str:
    version, waiting = summary["version_of_all"], summary["waiting"]
    lines = [f"all gateways: {f'model {version}' if version else 'no model yet'}; [release] mode = {summary['mode']!r}"]
    if summary["stage"] != "none":
        lines.append(
            f"release of model {summary['version']}: {summary['stage']}"
            + (f"; {summary['why']}" if summary["why"] else "")
        )
    if summary["recall"]:
        lines.append(f"the canaries were given back what all have, as model {summary['recall']}")
    if waiting:
        lines.append(f"model {waiting} waits to be released")
    if summary["canaries"]:
        lines.append(cli.format_rows(COLUMNS, summary["canaries"]))
    return "\n".join(lines)
