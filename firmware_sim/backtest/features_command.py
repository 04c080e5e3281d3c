"""`firmware-sim features`: which features of a gateway tell healthy from damaged in recordings."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedgate.config.runtime import cli
from fedgate.firmware_sim.backtest import inputs
from fedgate.firmware_sim.metrics import as_json

DESCRIPTION = (
    "Measure recordings as a gateway of these settings would, and show each feature healthy against damaged. A "
    "frequency that moves inside a band, which the band's energy does not show, is named."
)
COLUMNS = ("feature", "healthy", "spread", "damaged", "spreads", "AUC", "error")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    command.description = DESCRIPTION
    inputs.add_arguments(command)
    command.add_argument("--plot", type=Path, metavar="PNG", help="draw spectra and features into this file")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(act=main)


def main(arguments: argparse.Namespace) -> None:
    """Compare features; raises `DataError`, `SettingsError`, `RecordingError` or `ValueError`."""
    from fedgate.config.settings.settings import GatewaySettings, load
    from fedgate.firmware_sim.backtest.features import Comparison, compare, find_shifts, measure

    if arguments.plot is not None and arguments.plot.suffix.lower() != ".png":
        raise ValueError(f"--plot: {arguments.plot} given; expected a name that ends in .png")
    settings = load(arguments.config, GatewaySettings)
    spec = settings.features
    recording, is_known, _, _ = inputs.read_inputs(arguments, spec)
    measured = measure(settings, recording)
    compared, shifts = compare(spec, measured), find_shifts(spec, measured)
    if arguments.plot is not None:
        from fedgate.firmware_sim.backtest.features_picture import draw
        from fedgate.firmware_sim.pictures import write

        title = f"{settings.gateway.id} on {', '.join(path.name for path in arguments.recordings)}"
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
        write(draw(spec, measured, compared, title), arguments.plot)

    def moved(one: Comparison) -> float:
        return (one.damaged - one.healthy) / one.spread if one.spread else float("nan")

    rows = [
        (
            one.feature,
            *(_number(value) for value in (one.healthy, one.spread, one.damaged, moved(one), one.auc, one.auc_error)),
        )
        for one in compared
    ]
    known = f"{(~measured.is_damaged).sum()} healthy and {measured.is_damaged.sum()} damaged windows"
    counts = f"{known}; {measured.left_out} left out, with missing samples or a faulty channel"
    notes = [
        f"{one.channel}: the energy between {one.low_hz:g} and {one.high_hz:g} Hz does not tell, the frequency in it "
        f"does: from {one.healthy_hz:.3g} to {one.damaged_hz:.3g} Hz (AUC {one.auc:.2f}); give bands.edges_hz an edge "
        "between"
        for one in shifts
    ]
    notes += [] if is_known else ["nothing says that the structure was damaged: all of it counts as healthy"]
    notes += [] if arguments.plot is None else [f"picture: {arguments.plot}"]
    facts = {
        "windows_healthy": int((~measured.is_damaged).sum()),
        "windows_damaged": int(measured.is_damaged.sum()),
        "windows_left_out": measured.left_out,
        "features": [{name: as_json(value) for name, value in one._asdict().items()} for one in compared],
        "shifts": [one._asdict() for one in shifts],
    }
    cli.show(arguments, facts, "\n".join([cli.table(COLUMNS, rows), "", counts, *notes]))


def _number(value: float) -> str:
    return "-" if value != value else f"{value:.3g}"
