"""`cloud-aggregator metrics`: what the store knows of the site, for Prometheus: printed once, or served."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fedgate.config.runtime import cli, logs
from fedgate.config.settings.settings import AggregatorSettings, SettingsError, load
from fedgate.config.settings.web import read_address

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.metrics.families import Metric
    from fedgate.cloud_aggregator.runtime.metrics_server import MetricsServer

TEXT = """Print the metrics of the site and all of its gateways in the format of Prometheus, or serve them over HTTP.

They are read from the store, which is opened for reading alone: the aggregator need not run, and is not disturbed."""
EXAMPLES = """examples:
  cloud-aggregator metrics -c aggregator.toml
      once, such as for the textfile collector of node_exporter
  cloud-aggregator metrics --listen -c aggregator.toml
      serve /metrics where [metrics] listen says, until SIGTERM or Ctrl-C
  cloud-aggregator metrics --listen 127.0.0.1:9464 -c aggregator.toml
"""


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "print metrics for Prometheus, or serve them"
    command = commands.add("metrics", _run, text, description=TEXT, examples=EXAMPLES, shows_facts=False)
    where = "serve /metrics there; without an address where [metrics] listen says"
    command.add_argument("--listen", nargs="?", const="", metavar="ADDRESS:PORT", help=where)
    logs.add_options(command)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.listen is None:
        from fedgate.cloud_aggregator.runtime.metrics_server import encode

        sys.stdout.write(encode(_read(load(arguments.config, AggregatorSettings)))[0].decode())
        return 0
    from fedgate.cloud_aggregator.storage.store import StoreError

    return cli.start_and_serve("cloud-aggregator metrics", arguments, lambda: _listen(arguments), StoreError)


def _listen(arguments: argparse.Namespace) -> MetricsServer:
    from fedgate.cloud_aggregator.runtime.metrics_server import MetricsServer

    settings = load(arguments.config, AggregatorSettings)
    address = _choose_address(arguments.listen, settings, arguments.config)
    try:
        return MetricsServer(address, lambda: _read(settings))
    except OSError as error:
        raise ValueError(f"{address[0]}:{address[1]}: {error.strerror}; name another address of this machine") from None


def _choose_address(given: str, settings: AggregatorSettings, config: Path) -> tuple[str, int]:
    if given:
        return read_address(given)
    if settings.metrics.listen is None:
        raise SettingsError(
            f'{config}: nowhere to listen: expected [metrics] listen = "127.0.0.1:9464", or --listen ADDRESS:PORT'
        )
    return read_address(settings.metrics.listen)


def _read(settings: AggregatorSettings) -> Iterable[Metric]:
    from fedgate.cloud_aggregator.metrics.families import collect
    from fedgate.cloud_aggregator.runtime.site_facts import read_facts

    return collect(read_facts(settings, time.time_ns()))
