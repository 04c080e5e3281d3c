"""`firmware-sim`: replay a recording, look into one, run the demo, evaluate an algorithm."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from fedgate.config.runtime import cli

NAME = "firmware-sim"
DESCRIPTION = "Replay recorded sensor streams through the same code as in the field, and compare federated algorithms."
EPILOG = """examples:
  firmware-sim demo                                       the whole system on a real bridge recording, with a report
  firmware-sim info munich_bridge/ref_load_01             channels, rate, units, length, states
  firmware-sim replay recording.csv --gateway gateway-1   a sensor node that plays it to a gateway, over MQTT
  firmware-sim features healthy.csv later.csv -c gateway.toml --damaged 600:1200 --plot features.png
  firmware-sim backtest healthy.csv later.csv -c gateway.toml   scores, level and alarms, as picture, page and CSV
  firmware-sim stories --output out/stories --seed 1     eight alarms to practise on, and their causes apart from them
  firmware-sim evaluate --data table.csv --algorithm fedavg --algorithm federated-subspace
  firmware-sim evaluate --data pumps.csv --groups pump    each pump is a gateway with rows of its own
  firmware-sim label fault.csv -c gateway.toml --label 1 --out faults.csv   windows of known condition, to learn from
  firmware-sim world --seed 7                             a seeded world of broken networks, power, disks and clocks
  firmware-sim demo-building                              five rooms, each with a fault, alarms and profiles
  firmware-sim check comparison.toml                      is the file right? names file, key, value
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point of the command."""
    words = sys.argv[1:] if argv is None else argv
    asked = next((word for word in words if not word.startswith("-")), "")
    parser = cli.make_parser(NAME, DESCRIPTION, EPILOG)
    commands = cli.add_commands(parser)
    for name, (text, add_arguments) in COMMANDS.items():
        shown = [line for line in EPILOG.splitlines() if line.startswith(f"  {NAME} {name} ")]
        command = commands.add_bare(name, text, examples="\n".join(["example:", *shown]))
        if name == asked:  # what the others take is not looked up: it would be most of the time that --help needs
            add_arguments(command)
    arguments = parser.parse_args(words)
    from fedgate.firmware_sim.recordings.errors import RecordingError

    return cli.run(NAME, arguments, RecordingError)


class _WithoutLabels:
    """Our algorithms that need no labels, and all of other packages, which are not loaded to be listed; looked up when
    they are asked for: a sensor node starts sooner without.
    """

    def __iter__(self) -> Iterator[str]:
        from fedgate.models.federated import ALGORITHMS, build

        return (name for name in sorted(ALGORITHMS) if name not in ALGORITHMS.ours or not build(name, 2, {}).labels)


def _demo_arguments(demo: argparse.ArgumentParser) -> None:
    from fedgate.firmware_sim.demo.scenarios import STORIES
    from fedgate.firmware_sim.replay import command

    demo.description = (
        "Run broker, aggregator, gateways and sensor nodes as processes on a real recording, and report how it went."
    )
    demo.add_argument("--scenario", choices=sorted(STORIES), default="munich", help="which story (default: munich)")
    demo.add_argument("--out", type=Path, metavar="FOLDER", help="where the report goes (default: out/demo-SCENARIO)")
    demo.add_argument("--speed", type=command.positive, help="times real time (default: the scenario's own)")
    demo.add_argument(
        "--algorithm",
        choices=_WithoutLabels(),
        default="support-vector-election",
        metavar="NAME",
        help="one that needs no labels: %(choices)s (default: %(default)s)",
    )
    demo.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="its settings: masking.fewest=3")
    demo.add_argument("--broker", choices=("auto", "mosquitto", "embedded"), default="auto", help="default: auto")
    demo.add_argument("--keep", action="store_true", help="let all of it run on after the report, until Ctrl-C")
    demo.set_defaults(act=_demo)


def _building_arguments(demo: argparse.ArgumentParser) -> None:
    from fedgate.firmware_sim.demo import building

    demo.description = (
        "Five rooms watched by five gateways as processes: real recordings, a fault in each, alarms and profiles."
    )
    building.add_arguments(demo)
    demo.set_defaults(act=building.main)


def _info_arguments(info: argparse.ArgumentParser) -> None:
    from fedgate.firmware_sim.recordings import reading

    info.description = "Show channels, rate, units, length, gaps, states."
    info.add_argument("--json", action="store_true", help="print JSON")
    reading.add_arguments(info)
    info.set_defaults(act=_info)


def _replay_arguments(replay: argparse.ArgumentParser) -> None:
    from fedgate.firmware_sim.replay import command

    command.add_arguments(replay)


def _label_arguments(label: argparse.ArgumentParser) -> None:
    from fedgate.firmware_sim.recordings import reading

    label.description = (
        "Append the windows of a recording, each with its label, to the table that training.labelled names. No window"
        " spans a gap in time; how many were lost to gaps is said."
    )
    label.add_argument("--config", "-c", type=Path, required=True, metavar="FILE", help="gateway.toml: its [features]")
    label.add_argument("--label", type=int, required=True, metavar="N", help="0 normal, 1 and above a kind of fault")
    label.add_argument("--out", type=Path, required=True, metavar="CSV", help="the table; made where it is absent")
    label.add_argument("--channels", metavar="NAME,NAME", help="which play the roles of features.channels, in order")
    reading.add_part(label)
    label.add_argument("--json", action="store_true", help="print JSON")
    reading.add_arguments(label)
    label.set_defaults(act=_label)


def _backtest_arguments(command: argparse.ArgumentParser) -> None:
    from fedgate.firmware_sim.backtest import command as backtest_command

    backtest_command.add_arguments(command)


def _features_arguments(command: argparse.ArgumentParser) -> None:
    from fedgate.firmware_sim.backtest import features_command

    features_command.add_arguments(command)


def _evaluate_arguments(command: argparse.ArgumentParser) -> None:
    from fedgate.firmware_sim.evaluate.command import add_arguments

    command.description = "Train and test federated algorithms on a table or on recordings, beside their baselines."
    add_arguments(command)


def _check_arguments(check: argparse.ArgumentParser) -> None:
    check.description = (
        "Check the file of a comparison, or the evaluation.toml of a folder of recordings; nothing is run."
    )
    check.add_argument("file", type=Path, help="TOML of a comparison, evaluation.toml, or the folder that holds one")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(act=_check)


def _stories_arguments(stories: argparse.ArgumentParser) -> None:
    from fedgate.firmware_sim.backtest import stories_command

    stories_command.add_arguments(stories)


def _world_arguments(world: argparse.ArgumentParser) -> None:
    from fedgate.firmware_sim.world import command as world_command

    world_command.add_arguments(world)


def _demo(arguments: argparse.Namespace) -> None:
    from fedgate.firmware_sim.broker import BrokerError
    from fedgate.firmware_sim.demo import demo, report, stage
    from fedgate.firmware_sim.demo.outcome import evaluate
    from fedgate.firmware_sim.demo.scenarios import STORIES
    from fedgate.firmware_sim.evaluate.options import settings_of

    story = replace(STORIES[arguments.scenario]().end_now(), settings=settings_of(arguments.set))
    folder = arguments.out or Path("out") / f"demo-{arguments.scenario}"
    started_s = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started_s:5.1f} s] {text}", flush=True)

    say(story.scenario.title)
    setup = demo.Setup(folder, arguments.broker, arguments.speed or story.speed)
    try:
        with demo.run(story, setup, arguments.algorithm, say) as played:
            table = report.table([evaluate(trace, story.scenario) for trace in played.traces])
            print(f"\n{table}\n\nreport: {played.paths.html}, {played.paths.png}, {played.paths.json}")
            print(played.performed.page.describe(is_kept=arguments.keep), flush=True)
            if arguments.keep:
                played.performed.stay()
    except (stage.DemoError, BrokerError) as error:
        raise cli.NotDoneError(f"demo failed: {error}") from None


def _info(arguments: argparse.Namespace) -> None:
    from fedgate.firmware_sim.recordings import describe, reading, render

    description = describe(reading.recording_of(arguments))
    cli.show(arguments, description, render(description))


def _label(arguments: argparse.Namespace) -> None:
    from fedgate.firmware_sim.evaluate.labelling import append, measures_of
    from fedgate.firmware_sim.recordings import reading

    if arguments.label < 0:
        raise ValueError(f"--label: expected 0 for normal, 1 and above for a kind of fault, got {arguments.label}")
    spec, streams = measures_of(arguments.config)
    part = reading.part_of(reading.recording_of(arguments), arguments)
    channels = arguments.channels.split(",") if arguments.channels else []
    done = append(arguments.out, str(arguments.recording), part, channels, spec, streams, arguments.label)
    facts = {"file": str(arguments.out), "windows": len(done.x), "label": arguments.label}
    facts |= {"windows_lost_to_gaps": done.lost, "windows_not_measurable": done.not_measurable}
    note = f", {done.lost} lost to gaps" if done.lost else ""
    note += f", {done.not_measurable} left out without a measurable value" if done.not_measurable else ""
    cli.show(arguments, facts, f"{arguments.out}: {len(done.x)} windows with label {arguments.label} appended{note}")


def _check(arguments: argparse.Namespace) -> None:
    from fedgate.config.settings.settings import load
    from fedgate.firmware_sim.engine.cells import cells_of, check_data, count_cells, load_probe
    from fedgate.firmware_sim.evaluate import options
    from fedgate.firmware_sim.evaluate.folders import FOLDER_FILE, FolderSettings, load_folder

    file: Path = arguments.file / FOLDER_FILE if arguments.file.is_dir() else arguments.file
    if file.name == FOLDER_FILE:
        kind = f"folder of {len(load(file, FolderSettings).gateways)} gateways; {load_folder(file.parent).read_as}"
    else:
        parser = argparse.ArgumentParser()
        options.add_arguments(parser)
        _, spec, data = options.study_of(parser.parse_args([str(file)]))
        probe = load_probe(spec.probe)
        cells = cells_of(spec, probe, data)
        check_data(probe, cells, data)
        kind = f"study of {count_cells(cells)} cells: {spec.title}"
    cli.show(arguments, {"ok": True, "file": str(file), "what": kind}, f"{file}: good; {kind}")


COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "demo": ("the whole system on a real bridge recording", _demo_arguments),
    "demo-building": ("the whole system on five rooms", _building_arguments),
    "info": ("what is in a recording", _info_arguments),
    "replay": ("play a recording to a gateway", _replay_arguments),
    "label": ("make a table of labelled windows for gateways", _label_arguments),
    "features": ("which features tell healthy from damaged", _features_arguments),
    "backtest": ("what a gateway would have said of recordings", _backtest_arguments),
    "stories": ("eight alarms with known causes, to practise on", _stories_arguments),
    "evaluate": ("compare federated algorithms on data", _evaluate_arguments),
    "check": ("check the file of a comparison or a folder's evaluation.toml", _check_arguments),
    "world": ("break network, power, disks and clocks, and check what was promised", _world_arguments),
}


if __name__ == "__main__":
    sys.exit(main())
