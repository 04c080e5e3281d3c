"""`cloud-aggregator`: run the aggregator, look at rounds, models, alarms and gateways, check its settings."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloud_aggregator import (
    certificate_command,
    doctor_command,
    gateways_command,
    init_command,
    losses_command,
    orders_command,
    release_command,
    set_back,
)
from config import cli, mqtt, signing
from config.algorithm import check_budget
from config.messages import Status
from config.settings import AggregatorSettings, load

if TYPE_CHECKING:
    from cloud_aggregator.store import Store

NAME = "cloud-aggregator"
DESCRIPTION = (
    "Run federated rounds over MQTT, release signed ONNX models, keep the registry of models, alarms, gateways."
)
EPILOG = """examples:
  cloud-aggregator init FOLDER                 make keys, certificates, the broker's configuration, commented settings
  cloud-aggregator doctor -c aggregator.toml   what works here and what does not: machine, store, training, broker
  cloud-aggregator check -c aggregator.toml    is the file right? names file, line, key, value, what was expected
  cloud-aggregator run -c aggregator.toml      run until SIGTERM or Ctrl-C
  cloud-aggregator status -c aggregator.toml   gateways and the training at hand; also: models, alarms, rounds
  cloud-aggregator release -c aggregator.toml  how the release of a model stands; --canary, --go-on, --pause, --stop
"""
NS = 1_000_000_000
GATEWAY_COLUMNS = (
    *("gateway", "state", "baseline_windows", "baseline_needed", "can_train", "windows", "windows_lost", "dropped"),
    *("model_version", "settling", "alarms_active", "privacy_epsilon", "identity"),
    *("refusal", "training_remarks", "seen"),
)


def main(argv: list[str] | None = None) -> int:
    """Entry point of the command."""
    parser = cli.parser(NAME, DESCRIPTION, EPILOG)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    init_command.add(commands)
    gateways_command.add(commands)
    certificate_command.add(commands)
    doctor_command.add(commands)
    losses_command.add(commands)
    orders_command.add(commands)
    release_command.add(commands)
    for name, act, text in (
        ("run", _run, "run the aggregator"),
        ("check", _check, "check the settings and the release key"),
        ("status", _status, "show the gateways and the training at hand"),
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
        return cli.missing(NAME, error, "aggregator")


def _discriminator_options(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Train the network of [defence] kind = 'network' on the tables that defence.trusted names: as they are, and "
        "with noise. It is good for this algorithm, its settings and seed, and for no other training."
    )
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file that defence.network names")
    command.add_argument("--noise", type=float, default=1.0, help="in deviations of each feature (default: 1)")


def _run(arguments: argparse.Namespace) -> int:
    from cloud_aggregator.shell import Aggregator
    from cloud_aggregator.store import StoreError

    cli.log_to_stderr(verbose=not arguments.quiet)
    settings = load(arguments.config, AggregatorSettings)
    try:
        aggregator = Aggregator(settings)
    except StoreError as error:
        return cli.again(NAME, error)
    cli.on_terminate(aggregator.stop)
    return cli.serve(NAME, aggregator.run)


def _check(arguments: argparse.Namespace) -> int:
    from cloud_aggregator import defence, poster

    settings = load(arguments.config, AggregatorSettings)
    signing.load_private(settings.aggregator.release_key)
    mqtt.check(settings.broker)
    if settings.webhook is not None:
        poster.check(settings.webhook)
    defence.algorithm_of(settings, defence.read(settings))
    check_budget(settings.algorithm, settings.rounds, settings.features)
    text = f"{arguments.config}: good; {settings.algorithm.name} for site {settings.aggregator.site}"
    _show(arguments, {"ok": True, "file": str(arguments.config)}, text)
    return 0


def _train_discriminator(arguments: argparse.Namespace) -> int:
    from cloud_aggregator import defence

    settings = load(arguments.config, AggregatorSettings)
    material = defence.Material(defence.read_tables(settings))
    body, said = defence.trained(settings, material, arguments.noise)
    arguments.out.write_bytes(body)
    told_apart = f"tells updates of clean tables from noisy ones, {said['accuracy']:.1%} of those held out"
    text = f"{arguments.out}: {told_apart}"
    _show(arguments, {**said, "file": str(arguments.out), "size_bytes": len(body)}, text)
    return 0


def _open(arguments: argparse.Namespace) -> closing[Store]:
    from cloud_aggregator.store import Store

    return closing(Store(load(arguments.config, AggregatorSettings).aggregator.store, create=False))


def _rows(arguments: argparse.Namespace, table: str, *columns: str) -> list[dict[str, Any]]:
    with _open(arguments) as store:
        return store.rows(table, *columns)


def _status(arguments: argparse.Namespace) -> int:
    with _open(arguments) as store:
        rows, latest, closed = store.rows("gateways"), store.latest_model(), len(store.rows("rounds", "id"))
        stored, told = store.training(), store.outward()
    gateways = [_gateway(row) for row in rows]
    version = latest[0].version if latest else 0
    training = _training(stored, load(arguments.config, AggregatorSettings)) if stored else None
    known = {row["gateway"]: Status.model_validate_json(row["status"]) for row in rows}
    older = set_back.told(known, training["run"], training["round_index"]) if training else ""
    fleet = told.fleet.alarm.model_dump(mode="json") if told.fleet.alarm and told.fleet.active else None
    queue = told.queue
    webhook = {"waiting": len(queue.waiting), "dropped": queue.dropped, "refused": queue.refused}
    summary: dict[str, Any] = {"rounds_closed": closed, "model_version": version, "training": training}
    summary |= {"gateways": gateways, "fleet": fleet, "webhook": webhook, "alarms_refused": told.alarms_refused}
    summary |= {"store_is_older": older}
    text = f"{closed} rounds closed, model version {version}\n"
    text += f"WARNING: {older}\n" if older else ""
    if training:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in training["figures"].items())
        place = f"round {training['round_index']}, phase {training['phase']}, answers {training['answers']}"
        text += f"training {training['run']}: {place}{'; ' if figures else ''}{figures}\n"
    if fleet:
        text += f"fleet alarm since {_time(fleet['onset_ns'])}: {fleet['text']}\n"
    if any(webhook.values()):
        given_up = f"{webhook['dropped']} were given up, {webhook['refused']} refused"
        text += f"webhook: {webhook['waiting']} changes wait, {given_up}\n"
    if told.alarms_refused:
        text += f"alarms: {told.alarms_refused} messages refused; the log says of whom and why\n"
    _show(arguments, summary, text + _text(GATEWAY_COLUMNS, gateways))
    return 0


def _gateway(row: dict[str, Any]) -> dict[str, Any]:
    trouble = json.loads(row["lives"] or "{}").get("trouble") or ""
    said = {"gateway": row["gateway"], "seen": _time(row["seen_ns"]), **json.loads(row["status"])}
    return {**said, "identity": trouble.removeprefix("identity-")}


def _training(stored: bytes, settings: AggregatorSettings) -> dict[str, Any]:
    """Return where a stored training is, and every single number that its algorithm tells or keeps, by name; but for
    those that the settings already say.
    """
    from cloud_aggregator.state import training_place
    from models.arrays import generator
    from models.features import feature_names
    from models.federated import build

    arrays, meta = training_place(stored)
    choice = settings.algorithm
    begun = build(choice.name, len(feature_names(settings.features)), choice.settings)
    constant = begun.start(generator(choice.seed, 0, "cloud")).shared
    numbers = {name: array for name, array in arrays.items() if array.shape == ()}
    figures = {name: float(array) for name, array in numbers.items() if name not in constant or array != constant[name]}
    return {name: meta[name] for name in ("run", "round_index", "phase")} | {
        "answers": len(meta["counted"]),
        "figures": figures,
    }


def _models(arguments: argparse.Namespace) -> int:
    models = []
    for row in _rows(arguments, "models", "version", "manifest"):
        manifest = json.loads(row["manifest"])
        models.append(
            {
                "version": row["version"],
                "released": _time(manifest["created_ns"]),
                "digest": manifest["model"]["digest"],
            }
            | {"size_bytes": manifest["model"]["size_bytes"]}
            | {name: manifest[name] for name in ("algorithm", "detector", "run", "round_index", "gateways")}
        )
    _show(
        arguments,
        models,
        _text(("version", "released", "algorithm", "detector", "gateways", "size_bytes", "digest"), models),
    )
    return 0


def _alarms(arguments: argparse.Namespace) -> int:
    alarms = _rows(arguments, "alarms")
    for row in alarms:
        row |= {name.removesuffix("_ns"): _time(row[name]) for name in ("onset_ns", "raised_ns", "cleared_ns")}
    alarms.sort(key=lambda row: (row["onset_ns"], row["gateway"]))
    columns = (
        *("gateway", "cause", "rule", "severity", "onset", "raised", "cleared", "ended", "score", "level"),
        *("model_version", "clock", "common", "gateways"),
    )
    _show(arguments, alarms, _text(columns, alarms))
    return 0


def _rounds(arguments: argparse.Namespace) -> int:
    rounds = [row | {"closed": _time(row["closed_ns"])} for row in _rows(arguments, "rounds")]
    columns = ("run", "round_index", "phase", "algorithm", "closed", "gateways", "empty", "late")
    last = ("refused", "bytes_received")
    _show(arguments, rounds, _text((*columns, *last), rounds))
    return 0


def _show(arguments: argparse.Namespace, value: Any, text: str) -> None:
    print(json.dumps(value, indent=2) if arguments.json else text)


def _text(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> str:
    return cli.table(columns, ([_cell(row.get(name)) for name in columns] for row in rows))


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, dict):  # counts by kind
        return str(sum(value.values()))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _time(t_ns: int | None) -> str:
    return "" if t_ns is None else datetime.fromtimestamp(t_ns / NS, UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
