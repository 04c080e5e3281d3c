"""Sensor streams: is the residual of an echo state network, trained together, worth more than what is simpler?

A cell is a data set, a method and, of a network, a reservoir. It chooses settings on the development half of the data
(other files, rooms, setups than those reported) and then measures on the reported half once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Study
from fedgate.firmware_sim.studies.esn_streams.alarms import areas, fleet, watch, worth
from fedgate.firmware_sim.studies.esn_streams.data import Wrong, load
from fedgate.firmware_sim.studies.esn_streams.methods import scorers
from fedgate.firmware_sim.studies.esn_streams.options import Method, Options, StreamSet, combinations
from fedgate.firmware_sim.studies.esn_streams.report import report
from fedgate.firmware_sim.studies.esn_streams.rows import Judged, Streams, judged, smoothed

Windows = dict[str, list[Judged]]


def cells(options: Options) -> list[Cell]:
    """Return data set x method x reservoir; what draws none has one cell."""
    found: list[Cell] = []
    for name, each in options.sets.items():
        for method in each.methods:
            seeds = each.seeds if options.methods[method].model == "esn" else 1
            found += [{"set": name, "method": method, "seed": seed} for seed in range(seeds)]
    return found


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return what a method is worth on the reported half with the settings that did best on the development half.

    Raises `StudyError` where the data cannot be read.
    """
    chosen_set, method = options.sets[cell["set"]], options.methods[cell["method"]]
    folder, tried = data / chosen_set.folder, combinations(method, chosen_set)
    seed = options.seed + int(cell["seed"])
    best, choice = 0, float("nan")
    if chosen_set.choose != "nothing":
        wrong = Wrong(chosen_set.channels, chosen_set.choice_faults, options.seed)
        half = load(chosen_set.data, folder, "development", wrong, chosen_set.columns)
        scores = _choice(method, tried, half, chosen_set, seed)
        best = max(range(len(tried)), key=lambda index: scores[index])
        choice = scores[best]
    wrong = Wrong(chosen_set.channels, chosen_set.faults, options.seed + 1)
    half = load(chosen_set.data, folder, "reported", wrong, chosen_set.columns)
    windows, bytes_up = _windows(method, tried[best], half, chosen_set, seed)
    windows = _even(windows, tried[best]["smooth"])
    told = {"choose": choice, "setting": float(best), "bytes_up": bytes_up, "gateways": float(len(windows))}
    return {**areas(windows), **_alarms(half, windows, chosen_set), **(fleet(windows) if half.fleet else {}), **told}


def _alarms(half: Streams, windows: Windows, chosen_set: StreamSet) -> Figures:
    return worth(half, [watch(half, each, chosen_set.false_alarms_per_day) for each in windows.values()])


def _even(windows: Windows, count: int) -> Windows:
    return {name: [smoothed(part, count) for part in each] for name, each in windows.items()}


def _choice(
    method: Method, tried: list[dict[str, Any]], half: Streams, chosen_set: StreamSet, seed: int
) -> list[float]:
    """Return the figure of the development half that chooses for everything tried; smoothing costs no training."""
    scores, before, windows = [], None, Windows()
    for chosen in tried:
        trained = {key: value for key, value in chosen.items() if key != "smooth"}
        if trained != before:
            windows, _ = _windows(method, chosen, half, chosen_set, seed)
            before = trained
        even = _even(windows, chosen["smooth"])
        by_area = chosen_set.choose == "auc"
        scores.append(areas(even)["auc"] if by_area else _alarms(half, even, chosen_set)["recall"])
    return scores


def _windows(
    method: Method, chosen: dict[str, Any], half: Streams, chosen_set: StreamSet, seed: int
) -> tuple[Windows, float]:
    """Return the judged windows of every gateway, and mean bytes that a gateway sends."""
    found, bytes_up = scorers(method, chosen, half, chosen_set.targets, seed)
    windows = {
        gateway.name: [judged(half, part, found[gateway.name](part.x, part.missing)) for part in gateway.stretches]
        for gateway in half.gateways
    }
    return windows, bytes_up


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return what of the options a measurement depends on, beside its cell."""
    chosen_set = options.sets[cell["set"]].model_dump(mode="json", exclude={"methods", "seeds", "note"})
    return {"set": chosen_set, "method": options.methods[cell["method"]].model_dump(mode="json"), "seed": options.seed}


STUDY = Study(Options, cells, measure, report, identity)
