"""`firmware-sim backtest`: what a configured gateway would have said of recordings, as picture, page and table."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedgate.config.settings.training import AlgorithmChoice
from fedgate.firmware_sim.backtest import inputs

DESCRIPTION = (
    "Show what a gateway of these settings would have said of recordings: the first windows are its baseline, a model "
    "of it is trained and calibrated as on the gateway, and what follows is scored. Several recordings are played one "
    "behind the other."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    command.description = DESCRIPTION
    inputs.add_arguments(command)
    text = "windows of the baseline, which train and calibrate (default: baseline.windows of the settings)"
    command.add_argument("--baseline", type=int, metavar="N", help=text)
    which = command.add_mutually_exclusive_group()
    which.add_argument("--algorithm", metavar="NAME", help=f"what is trained (default: {AlgorithmChoice().name})")
    which.add_argument("--aggregator-config", type=Path, metavar="FILE", help="aggregator.toml, for its [algorithm]")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the algorithm")
    text = "where picture, page and tables go (default: out/backtest)"
    command.add_argument("--out", type=Path, default=Path("out/backtest"), metavar="FOLDER", help=text)
    command.add_argument("--json", action="store_true", help="print the figures as JSON")
    command.set_defaults(act=main)


def main(arguments: argparse.Namespace) -> None:
    """Run a backtest and write its page.

    Raises:
        EvaluationError, SettingsError, RecordingError, ValueError: one line that says what cannot be used.
    """
    from fedgate.firmware_sim.backtest.run import run  # what it loads takes extras, which --help must not need

    run(arguments)
