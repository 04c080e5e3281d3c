"""`cloud-aggregator`: run the aggregator, look at rounds, models, alarms and gateways, check its settings."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgate.cloud_aggregator.commands import (
    backup,
    certificate,
    doctor,
    gateways,
    init,
    keys,
    losses,
    orders,
    restore,
    status,
)
from fedgate.cloud_aggregator.commands import release as release_command
from fedgate.config.runtime import cli
from fedgate.config.settings.checks import check_budget
from fedgate.config.settings.settings import AggregatorSettings, load
from fedgate.config.transport import mqtt

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.storage.store import Store

NAME = "cloud-aggregator"
DESCRIPTION = (
    "Run federated rounds over MQTT, release signed ONNX models, keep the registry of models, alarms, gateways."
)
EPILOG = """examples:
  cloud-aggregator init FOLDER                 make keys, certificates, the broker's configuration, commented settings
  cloud-aggregator doctor -c aggregator.toml   what works here and what does not: machine, store, training, broker
  cloud-aggregator check -c aggregator.toml    is the file right? names file, line, key, value, what was expected
  cloud-aggregator run -c aggregator.toml      run until SIGTERM or Ctrl-C
  cloud-aggregator status -c aggregator.toml   does it run, gateways, the training at hand; also: models, alarms, rounds
  cloud-aggregator backup FILE -c aggregator.toml   one file to put the site back from; restore FILE does that
  cloud-aggregator release -c aggregator.toml  how the release of a model stands; --canary, --go-on, --pause, --stop
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point of the command."""
    parser = cli.parser(NAME, DESCRIPTION, EPILOG)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    init.add(commands)
    gateways.add(commands)
    certificate.add(commands)
    doctor.add(commands)
    keys.add(commands)
    losses.add(commands)
    orders.add(commands)
    release_command.add(commands)
    backup.add(commands)
    restore.add(commands)
    status.add(commands)
    for name, act, text in (
        ("run", _run, "run the aggregator"),
        ("check", _check, "check the settings and the release key"),
        ("models", _models, "list the released models"),
        ("alarms", _alarms, "list the alarms, newest last"),
        ("rounds", _rounds, "list the closed rounds"),
        ("train-discriminator", _train_discriminator, "train what [defence] kind = 'network' judges by"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="aggregator.toml")
        command.set_defaults(act=act)
        if name == "train-discriminator":
            _discriminator_options(command)
        if name == "run":
            command.add_argument("-q", "--quiet", action="store_true", help="log warnings only")
        else:
            command.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    try:
        return cli.run(NAME, arguments.act, arguments)
    except ModuleNotFoundError as error:
        return cli.missing(NAME, error)


def _discriminator_options(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Train the network of [defence] kind = 'network' on the tables that defence.trusted names: as they are, and "
        "with noise. It is good for this algorithm, its settings and seed, and for no other training."
    )
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file that defence.network names")
    command.add_argument("--noise", type=float, default=1.0, help="in deviations of each feature (default: 1)")


def _run(arguments: argparse.Namespace) -> int:
    from fedgate.cloud_aggregator.runtime.app import Aggregator
    from fedgate.cloud_aggregator.storage.store import StoreError
    from fedgate.config.runtime.supervisor import Supervisor

    cli.log_to_stderr(verbose=not arguments.quiet)
    Supervisor().starting()
    settings = load(arguments.config, AggregatorSettings)
    try:
        aggregator = Aggregator(settings)
    except StoreError as error:
        return cli.again(NAME, error)
    cli.on_terminate(aggregator.stop)
    return cli.serve(NAME, aggregator.run)


def _check(arguments: argparse.Namespace) -> int:
    from fedgate.cloud_aggregator.pki import site_keys
    from fedgate.cloud_aggregator.runtime import defence, webhook_client

    settings = load(arguments.config, AggregatorSettings)
    site_keys.release_key(settings.aggregator, settings.identity.folder if settings.identity else None)
    mqtt.check(settings.broker)
    if settings.webhook is not None:
        webhook_client.check(settings.webhook)
    defence.algorithm_of(settings, defence.read(settings))
    check_budget(settings.algorithm, settings.rounds, settings.features)
    text = f"{arguments.config}: good; {settings.algorithm.name} for site {settings.aggregator.site}"
    _show(arguments, {"ok": True, "file": str(arguments.config)}, text)
    return 0


def _train_discriminator(arguments: argparse.Namespace) -> int:
    from fedgate.cloud_aggregator.runtime import defence

    settings = load(arguments.config, AggregatorSettings)
    material = defence.Material(defence.read_tables(settings))
    body, meta = defence.train(settings, material, arguments.noise)
    arguments.out.write_bytes(body)
    accuracy = f"tells updates of clean tables from noisy ones, {meta['accuracy']:.1%} of those held out"
    text = f"{arguments.out}: {accuracy}"
    _show(arguments, {**meta, "file": str(arguments.out), "size_bytes": len(body)}, text)
    return 0


def _open(arguments: argparse.Namespace) -> closing[Store]:
    from fedgate.cloud_aggregator.storage.store import Store

    return closing(Store(load(arguments.config, AggregatorSettings).aggregator.store, create=False))


def _rows(arguments: argparse.Namespace, table: str, *columns: str) -> list[dict[str, Any]]:
    with _open(arguments) as store:
        return store.rows(table, *columns)


def _models(arguments: argparse.Namespace) -> int:
    from fedgate.cloud_aggregator.storage.models_table import state_of

    times = ("canary_ns", "released_ns", "stopped_ns")
    with _open(arguments) as store:
        rows, release = store.rows("models", "version", "manifest", *times), store.models.rollout()
    models = []
    for row in rows:
        manifest = json.loads(row["manifest"])
        models.append(
            {"version": row["version"], "state": state_of(row, release, rows[-1]["version"])}
            | {"made": cli.moment(manifest["created_ns"])}
            | {name.removesuffix("_ns"): cli.moment(row[name]) for name in times}
            | {"digest": manifest["model"]["digest"], "size_bytes": manifest["model"]["size_bytes"]}
            | {name: manifest[name] for name in ("algorithm", "detector", "run", "round_index", "gateways")}
        )
    columns = ("version", "state", "made", "canary", "released", "stopped", "algorithm", "detector", "gateways")
    _show(arguments, models, cli.cells((*columns, "size_bytes", "digest"), models))
    return 0


def _alarms(arguments: argparse.Namespace) -> int:
    alarms = _rows(arguments, "alarms")
    for row in alarms:
        row |= {name.removesuffix("_ns"): cli.moment(row[name]) for name in ("onset_ns", "raised_ns", "cleared_ns")}
    alarms.sort(key=lambda row: (row["onset_ns"], row["gateway"]))
    columns = (
        *("gateway", "cause", "rule", "severity", "onset", "raised", "cleared", "ended", "score", "level"),
        *("model_version", "clock", "common", "gateways"),
    )
    _show(arguments, alarms, cli.cells(columns, alarms))
    return 0


def _rounds(arguments: argparse.Namespace) -> int:
    rounds = [row | {"closed": cli.moment(row["closed_ns"])} for row in _rows(arguments, "rounds")]
    columns = ("run", "round_index", "phase", "algorithm", "closed", "gateways", "empty", "late")
    last = ("refused", "bytes_received")
    _show(arguments, rounds, cli.cells((*columns, *last), rounds))
    return 0


def _show(arguments: argparse.Namespace, value: Any, text: str) -> None:
    print(json.dumps(value, indent=2) if arguments.json else text)


if __name__ == "__main__":
    sys.exit(main())
