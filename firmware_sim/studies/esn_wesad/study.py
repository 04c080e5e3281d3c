"""Table B.3 of A. Di Mauro, "Federated Echo State Networks for Stress Prediction in the Automotive Use Case" (Pisa
2022): IncFed, Partial IncFed and Random while a quarter to all of the clients are there, on features of WESAD.

Beside the printed settings stand the ridge that mends the masked sums, two ways to choose units once for all, baselines
without memory, without federation and without a look, and what each method costs in bytes.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Study
from fedgate.firmware_sim.studies.esn_wesad.baselines import BASELINES, OF_A_NETWORK, baseline
from fedgate.firmware_sim.studies.esn_wesad.choice import chosen
from fedgate.firmware_sim.studies.esn_wesad.methods import federated
from fedgate.firmware_sim.studies.esn_wesad.options import CHOSEN, Options
from fedgate.firmware_sim.studies.esn_wesad.report import report
from fedgate.firmware_sim.studies.esn_wesad.sketches import sketches

SKETCHES = "sketches"
NORMALISATIONS = ("recording", "commissioning")


def cells(options: Options) -> list[Cell]:
    """Return every method for every share, network and number of units asked for, each with every seed."""
    first = next(iter(options.networks))
    places: list[Cell] = [
        {"method": method, "network": first, "normalisation": "recording", "share": share}
        for method, share in product(options.grid, options.shares)
    ]
    beside = product(options.beside, options.shown, NORMALISATIONS)
    places += [{"method": method, "network": net, "normalisation": mode, "share": 1.0} for method, net, mode in beside]
    places += [
        {"method": method, "network": first, "normalisation": "recording", "share": 1.0, "size": size}
        for method, size in product(options.sized, options.sizes)
    ]
    places += [
        {"method": method, "network": net, "normalisation": mode, "share": 1.0}
        for method, net, mode in product(OF_A_NETWORK, options.shown, NORMALISATIONS)
    ]
    places += [{"method": CHOSEN, "normalisation": mode} for mode in NORMALISATIONS]
    places += [{"method": SKETCHES}] * bool(options.sizes)
    once = [{"method": method, "normalisation": mode} for method, mode in product(BASELINES, NORMALISATIONS)]
    found = [{**place, "seed": options.seed + seed} for place, seed in product(places, range(options.seeds))]
    found += [place for place in once if place["method"] not in OF_A_NETWORK]
    return [place for index, place in enumerate(found) if place not in found[:index]]


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return the figures of one cell; raises `DataError` where a subject cannot be read."""
    method, seed = cell["method"], cell.get("seed", options.seed)
    if method == SKETCHES:
        return sketches(options, data, seed)
    if method == CHOSEN:
        return chosen(options, data, cell["normalisation"], seed)
    if method in BASELINES:
        return baseline(options, data, cell["normalisation"], method, cell.get("network", ""), seed)
    wanted = options.methods[method]
    return federated(
        options,
        data,
        cell["normalisation"],
        algorithm=wanted.algorithm,
        settings=_settings(options, cell),
        share=cell["share"],
        seed=seed,
        by_cohort=wanted.by_cohort and "size" not in cell,
        has_paper_ridge=wanted.has_paper_ridge,
    )


def _settings(options: Options, cell: Cell) -> dict[str, Any]:
    """Return the settings of a method; a size is that of the network where nothing chooses among its units."""
    method, network = options.methods[cell["method"]], options.network(cell["network"])
    if "size" not in cell:
        return {**method.settings, "network": network.model_dump()}
    if method.algorithm == "incfed":
        return {**method.settings, "network": network.model_copy(update={"units": cell["size"]}).model_dump()}
    return {**method.settings, "network": network.model_dump(), "neurons": cell["size"]}


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return the options that the measurement of a cell depends on, beside its place."""
    found: dict[str, Any] = {
        "folder": options.folder,
        "subjects": options.subjects,
        "held_out": options.held_out,
        "commissioning_rows": options.commissioning_rows,
    }
    method, networks = cell["method"], options.networks
    if method == SKETCHES:
        return found | {"sizes": options.sizes, "network": next(iter(networks.values()))}
    if method == CHOSEN:
        named = {name: networks[name] for name in options.candidates}
        return found | {"candidates": list(named.items()), "ridges": options.ridges}
    found |= {"network": networks[cell["network"]]} if "network" in cell else {}
    return found | ({"as": options.methods[method].model_dump()} if method in options.methods else {})


STUDY = Study(Options, cells, measure, report, identity)
