"""`cloud-aggregator`: run the aggregator, look at rounds, models, alarms and gateways, check its settings."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from fedgate.config.runtime import cli, logs
from fedgate.config.settings.checks import check_budget
from fedgate.config.settings.settings import AggregatorSettings, load

NAME = "cloud-aggregator"
DESCRIPTION = (
    "Run federated rounds over MQTT, release signed ONNX models, keep the registry of models, alarms, gateways."
)
EPILOG = """examples:
  cloud-aggregator init FOLDER                 make keys, certificates, the broker's configuration, commented settings
  cloud-aggregator doctor -c aggregator.toml   what works here and what does not: machine, store, training, broker
  cloud-aggregator check -c aggregator.toml    is the file right? names file, line, key, value, what was expected
  cloud-aggregator run -c aggregator.toml      run until SIGTERM or Ctrl-C
  cloud-aggregator status -c aggregator.toml   does it run, gateways, the training at hand; also: models, rounds
  cloud-aggregator alarms -c aggregator.toml   which alarms there are and how far they are; ack, shelve, label, rates
  cloud-aggregator samples -c aggregator.toml  the raw samples around alarms: fetch, list, export; off by default
  cloud-aggregator metrics -c aggregator.toml  print metrics for Prometheus; --listen: serve them
  cloud-aggregator backup FILE -c aggregator.toml   one file to put the site back from; restore FILE does that
  cloud-aggregator notify test -c aggregator.toml   send a message to the channels of [[notify]]
  cloud-aggregator release -c aggregator.toml  how the release of a model stands; --canary, --go-on, --pause, --stop
"""
TRAIN = "train what [defence] kind = 'network' judges by"
TRAINED = (
    "Train the network of [defence] kind = 'network' on the tables that defence.trusted names: as they are, and with "
    "noise. It is good for this algorithm, its settings and seed, and for no other training."
)
TRAINS = """example:
  cloud-aggregator train-discriminator -c aggregator.toml --out network.arrays
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point of the command."""
    words = sys.argv[1:] if argv is None else argv
    return cli.run(NAME, build_parser(is_page=words[:1] == ["web"]).parse_args(argv))


def build_parser(*, is_page: bool = False) -> argparse.ArgumentParser:
    """Return the parser of all commands; that of the page's process knows no other, and imports nothing of them."""
    from fedgate.cloud_aggregator.commands import web

    parser = cli.make_parser(NAME, DESCRIPTION, EPILOG)
    commands = cli.add_commands(parser, "aggregator.toml")
    if is_page:
        web.add(commands)
    else:
        _add_commands(commands)
    return parser


def _add_commands(commands: cli.Commands) -> None:
    from fedgate.cloud_aggregator.commands import (
        backup,
        certificate,
        doctor,
        gateways,
        init,
        keys,
        lists,
        metrics,
        restore,
        status,
        users,
        web,
    )
    from fedgate.cloud_aggregator.commands import release as release_command
    from fedgate.cloud_aggregator.commands.alarms import alarms, maintenance, notify, samples

    for module in (init, gateways, certificate, doctor, keys, release_command, status):
        module.add(commands)
    for module in (alarms, samples, maintenance, lists, notify, metrics, backup, restore, users, web):
        module.add(commands)
    run = commands.add("run", _run, "run the aggregator", shows_facts=False)
    logs.add_options(run)
    commands.add("check", _check, "check the settings and the release key")
    train = commands.add("train-discriminator", _train_discriminator, TRAIN, description=TRAINED, examples=TRAINS)
    train.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file that defence.network names")
    train.add_argument("--noise", type=float, default=1.0, help="in deviations of each feature (default: 1)")


def _run(arguments: argparse.Namespace) -> int:
    from threadpoolctl import threadpool_limits

    from fedgate.cloud_aggregator.runtime.app import Aggregator
    from fedgate.cloud_aggregator.storage.store import StoreError

    def start() -> Aggregator:
        aggregator = Aggregator(load(arguments.config, AggregatorSettings))
        # An update is a few products of one vector: threads of BLAS spend twice their time on waiting for one another.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of scipy, which is loaded when it is needed
        threadpool_limits(1, user_api="blas")
        return aggregator

    return cli.start_and_serve(NAME, arguments, start, StoreError)


def _check(arguments: argparse.Namespace) -> None:
    from fedgate.cloud_aggregator.pki import site_keys
    from fedgate.cloud_aggregator.rounds.compression import describe_updates, settle_compression
    from fedgate.cloud_aggregator.runtime import defence, notify_client, webhook_client
    from fedgate.config.transport import mqtt

    settings = load(arguments.config, AggregatorSettings)
    site_keys.release_key(settings.aggregator, settings.identity.folder if settings.identity else None)
    mqtt.check(settings.broker)
    if settings.webhook is not None:
        webhook_client.check(settings.webhook)
    notify_client.check(settings.notify)
    defence.build_algorithm(settings, defence.read(settings))
    check_budget(settings.algorithm, settings.rounds, settings.features)
    updates = describe_updates(settle_compression(settings))
    what = f"{settings.algorithm.name} for site {settings.aggregator.site}; {updates}"
    text = f"{arguments.config}: good; {what}"
    cli.show(arguments, {"ok": True, "file": str(arguments.config), "updates": updates}, text)


def _train_discriminator(arguments: argparse.Namespace) -> None:
    from fedgate.cloud_aggregator.runtime import defence

    settings = load(arguments.config, AggregatorSettings)
    material = defence.Material(defence.read_tables(settings))
    body, meta = defence.train(settings, material, arguments.noise)
    arguments.out.write_bytes(body)
    text = f"tells updates of clean tables from noisy ones, {meta['accuracy']:.1%} of those held out"
    facts = {**meta, "file": str(arguments.out), "size_bytes": len(body)}
    cli.show(arguments, facts, f"{arguments.out}: {text}")


if __name__ == "__main__":
    sys.exit(main())
