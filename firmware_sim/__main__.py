"""`firmware-sim`: replay a recording, look into one, run the demo, evaluate an algorithm."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from config import cli
from config.messages import first_problem
from firmware_sim import reading, replay_command, world_command
from firmware_sim.recordings import RecordingError

NAME = "firmware-sim"
DESCRIPTION = "Replay recorded sensor streams through the same code as in the field, and compare federated algorithms."
EPILOG = """examples:
  firmware-sim demo                                       the whole system on a real bridge recording, with a report
  firmware-sim info munich_bridge/ref_load_01             channels, rate, units, length, states
  firmware-sim replay recording.csv --gateway gateway-1   a sensor node that plays it to a gateway, over MQTT
  firmware-sim evaluate --algorithm fedavg --data table.csv --clients 5
  firmware-sim label fault.csv -c gateway.toml --label 1 --out faults.csv   windows of known condition, to learn from
  firmware-sim world --seed 7                             a seeded world of broken networks, power, disks and clocks
  firmware-sim check experiment.toml                      is the file right? names file, line, key, value
"""
MANY_FEATURES = 5_040  # what nearly every number of steps divides; how many there are only the data knows


def main(argv: list[str] | None = None) -> int:
    """Entry point of the command."""
    parser = cli.parser(NAME, DESCRIPTION, EPILOG)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_add_demo, _add_demo_building, _add_info, replay_command.add, _add_label, _add_evaluate, _add_check):
        add(commands)
    world_command.add(commands)
    arguments = parser.parse_args(argv)
    try:
        return cli.run(NAME, arguments.act, arguments, RecordingError)
    except ModuleNotFoundError as error:
        return cli.missing(NAME, error, "sim")


class _WithoutLabels:
    """The algorithms that need no labels, looked up when they are asked for: a sensor node starts sooner without."""

    def __iter__(self) -> Iterator[str]:
        from models.federated import ALGORITHMS, build

        return (name for name in sorted(ALGORITHMS) if not build(name, 2, {}).labels)


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from firmware_sim.scenarios import STORIES

    text = "Run broker, aggregator, gateways and sensor nodes as processes on a real recording, and report how it went."
    demo = commands.add_parser("demo", help="the whole system on a real bridge recording", description=text)
    demo.add_argument("--scenario", choices=sorted(STORIES), default="munich", help="which story (default: munich)")
    demo.add_argument("--out", type=Path, metavar="FOLDER", help="where the report goes (default: out/demo-SCENARIO)")
    demo.add_argument("--speed", type=replay_command.positive, help="times real time (default: the scenario's own)")
    demo.add_argument(
        "--algorithm",
        choices=_WithoutLabels(),
        default="support-vector-election",
        metavar="NAME",
        help="one that needs no labels: %(choices)s (default: %(default)s)",
    )
    demo.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="its settings: masking={}")
    demo.add_argument("--broker", choices=("auto", "mosquitto", "embedded"), default="auto", help="default: auto")
    demo.set_defaults(act=_demo)


def _add_demo_building(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from firmware_sim import building

    text = "Five rooms watched by five gateways as processes: real recordings, a fault in each, alarms and profiles."
    demo = commands.add_parser("demo-building", help="the whole system on five rooms", description=text)
    building.add_arguments(demo)
    demo.set_defaults(act=building.main)


def _add_info(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    info = commands.add_parser(
        "info", help="what is in a recording", description="Show channels, rate, units, length, states."
    )
    info.add_argument("--json", action="store_true", help="print JSON")
    reading.add_arguments(info)
    info.set_defaults(act=_info)


def _add_label(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Append the windows of a recording, each with its label, to the table that training.labelled names."
    label = commands.add_parser("label", help="make a table of labelled windows for gateways", description=text)
    label.add_argument("--config", "-c", type=Path, required=True, metavar="FILE", help="gateway.toml: its [features]")
    label.add_argument("--label", type=int, required=True, metavar="N", help="0 normal, 1 and above a kind of fault")
    label.add_argument("--out", type=Path, required=True, metavar="CSV", help="the table; made where it is absent")
    label.add_argument("--channels", metavar="NAME,NAME", help="which play the roles of features.channels, in order")
    label.add_argument("--start", type=float, default=0.0, metavar="S", help="from this second (default: 0)")
    label.add_argument("--end", type=float, metavar="S", help="to this second (default: the end)")
    label.add_argument("--json", action="store_true", help="print JSON")
    reading.add_arguments(label)
    label.set_defaults(act=_label)


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from firmware_sim.experiment import add_arguments

    text = "Train and test a federated algorithm on a table or on recordings, beside its baselines."
    command = commands.add_parser("evaluate", help="compare federated algorithms on data", description=text)
    add_arguments(command)
    command.set_defaults(act=_evaluate)


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Check an experiment file, or the evaluation.toml of a folder of recordings, without running it."
    check = commands.add_parser(
        "check", help="check an experiment file or a folder's evaluation.toml", description=text
    )
    check.add_argument("file", type=Path, help="experiment file, evaluation.toml, or the folder that holds one")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(act=_check)


def _evaluate(arguments: argparse.Namespace) -> int:
    from firmware_sim import evaluate  # and every study and matplotlib with it

    return evaluate.main(arguments)


def _demo(arguments: argparse.Namespace) -> int:
    from firmware_sim import demo, report, stage
    from firmware_sim.broker import BrokerError
    from firmware_sim.experiment import settings_of
    from firmware_sim.outcome import evaluate
    from firmware_sim.scenarios import STORIES

    story = replace(STORIES[arguments.scenario](), settings=settings_of(arguments.set))
    folder = arguments.out or Path("out") / f"demo-{arguments.scenario}"
    started_s = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started_s:5.1f} s] {text}", flush=True)

    say(story.scenario.title)
    try:
        kind = None if arguments.broker == "auto" else arguments.broker
        played = demo.run(story, folder, kind, arguments.speed or story.speed, arguments.algorithm, say)
    except (stage.DemoError, BrokerError) as error:
        cli.complain(NAME, f"demo failed: {error}")
        return cli.SERVICE_ERROR
    table = report.table([evaluate(trace, story.scenario) for trace in played.traces])
    print(f"\n{table}\n\nreport: {played.paths.html}, {played.paths.png}, {played.paths.json}")
    return 0


def _info(arguments: argparse.Namespace) -> int:
    from firmware_sim.recordings import describe, render

    description = describe(reading.recording_of(arguments))
    print(json.dumps(description, indent=2) if arguments.json else render(description))
    return 0


def _label(arguments: argparse.Namespace) -> int:
    from firmware_sim.labelling import append, features_of

    if arguments.label < 0:
        raise ValueError(f"--label: expected 0 for normal, 1 and above for a kind of fault, got {arguments.label}")
    spec = features_of(arguments.config)
    recording = reading.recording_of(arguments)
    end_s = recording.length_s if arguments.end is None else min(arguments.end, recording.length_s)
    channels = arguments.channels.split(",") if arguments.channels else []
    part = recording.cut(arguments.start, end_s)
    place = str(arguments.recording)
    count, lost = append(arguments.out, place, part, channels, spec, arguments.label)
    if arguments.json:
        print(json.dumps({"file": str(arguments.out), "windows": count, "left_out": lost, "label": arguments.label}))
    else:
        note = f", {lost} left out for missing samples" if lost else ""
        print(f"{arguments.out}: {count} windows with label {arguments.label} appended{note}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from config.settings import load
    from firmware_sim.experiment import Experiment, nested
    from firmware_sim.folders import FOLDER_FILE, FolderSettings, load_folder
    from firmware_sim.studies import STUDIES
    from firmware_sim.studies.study import load_options, study_of
    from models.federated import build

    file: Path = arguments.file / FOLDER_FILE if arguments.file.is_dir() else arguments.file
    if file.name == FOLDER_FILE:
        kind = f"folder of {len(load(file, FolderSettings).gateways)} gateways; {load_folder(file.parent).read_as}"
    elif (name := study_of(file)) in STUDIES:
        options = load_options(file, STUDIES[name], "full")
        kind = f"study of {len(STUDIES[name].cells(options))} cells: {options.title}"
    else:
        experiment = load(file, Experiment)
        if experiment.data is None or not experiment.data.exists():
            raise ValueError(f"{file}: data: expected an existing table or folder, got {experiment.data}")
        try:
            build(experiment.algorithm, MANY_FEATURES, nested(experiment.settings))
        except ValidationError as error:
            raise ValueError(f"{file}: set.{first_problem(error)}") from None
        kind = f"experiment with {experiment.algorithm} on {experiment.data.name}"
    print(json.dumps({"ok": True, "file": str(file), "what": kind}) if arguments.json else f"{file}: good; {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
