"""Tables 6.4 and 6.5 of the federated-esn paper: FedAvg and FedCurv on the readout, and defences against bad gateways.

A cell is one method under one attack with one answer and one seed, at every rate of the server. Beside them stand what
needs no gradient, no memory or no others, the constant answer, and the thesis's FedCurv as it is printed.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Study
from fedgate.firmware_sim.studies.esn_readout.beside import BESIDE, beside_figures
from fedgate.firmware_sim.studies.esn_readout.data import Roles, gateways_of, roles, rows_of
from fedgate.firmware_sim.studies.esn_readout.figures import curve_figures
from fedgate.firmware_sim.studies.esn_readout.literal import literal_figures
from fedgate.firmware_sim.studies.esn_readout.memory import Memory
from fedgate.firmware_sim.studies.esn_readout.methods import (
    Watch,
    algorithm_of,
    answered,
    reservoirs_of,
    with_own_reservoirs,
)
from fedgate.firmware_sim.studies.esn_readout.options import Bench, Options
from fedgate.firmware_sim.studies.esn_readout.report import report
from fedgate.models.arrays import FEATURES, LABELS, Arrays
from fedgate.models.federated.protocol.run import run

TABLES, BAD, ASIDE, LITERAL = "tables", "bad", "beside", "literal"


def cells(options: Options) -> list[Cell]:
    """Return every cell of both benches, what stands beside them, and the thesis's own form."""
    found = [*_bench(TABLES, options.tables), *_bench(BAD, options.bad)]
    seeds = range(max(options.tables.seeds, options.bad.seeds))
    found += [{"part": ASIDE, "method": method, "seed": seed} for method, seed in product(BESIDE, seeds)]
    return [*found, {"part": LITERAL, "seed": 0}]


def _bench(part: str, bench: Bench) -> list[Cell]:
    names = ("reservoirs", "method", "attack", "answer", "seed")
    axes = product(bench.reservoirs, bench.methods, bench.attacks, bench.answers, range(bench.seeds))
    found: list[Cell] = [{"part": part, **dict(zip(names, at, strict=True))} for at in axes]
    return [cell for cell in found if _is_measured(bench, cell)]


def _is_measured(bench: Bench, cell: Cell) -> bool:
    if cell["attack"] == bench.attacks[0]:
        return cell["answer"] in bench.without_attack
    return cell["method"] not in bench.only_without_attack


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return the figures of a cell on the subjects that are scored under its seed."""
    seed, part = int(cell["seed"]), cell["part"]
    who = roles(options, seed)
    if part == ASIDE:
        return beside_figures(options, data, who, cell["method"], seed)
    if part == LITERAL:
        return literal_figures(options, data, who, seed)
    bench = options.tables if part == TABLES else options.bad
    memory, found = Memory(), Figures()
    for rate in bench.rates:
        figures = trained(options, data, cell, who, memory, rate)
        found |= {f"{rate:g}|{name}": value for name, value in figures.items()}
    return found


def trained(options: Options, data: Path, cell: Cell, who: Roles, memory: Memory, rate: float) -> Figures:
    """Return the figures of one training."""
    seed, answer = int(cell["seed"]), options.answers[cell["answer"]]
    clients = gateways_of(options, data, who, options.attacks[cell["attack"]], seed)
    if answer.means == "honest":
        clients = {name: rows for name, rows in clients.items() if name not in who.bad}
    count = next(iter(clients.values()))[FEATURES].shape[1]
    method = options.methods[cell["method"]]
    plain = algorithm_of(options, memory, method, rate, count)
    trusted = [rows_of(options, data, name) for name in who.trusted]
    algorithm = answered(options, memory, plain, answer, trusted, seed)
    if cell["reservoirs"] == "different":
        algorithm = with_own_reservoirs(algorithm)
        own = reservoirs_of(options.network_of(method), [*clients], count, seed)
        clients = {name: {**rows, **own[name]} for name, rows in clients.items()}
    watch = Watch(algorithm)
    shared = run(
        watch.algorithm,
        clients,
        seed=seed,
        fraction=min(options.take_part / len(who.gateways), 1.0),
        on_update=watch.on_update,
        on_refusal=watch.on_refusal,
    ).server.global_state
    readouts = watch.readouts(options.rounds, np.zeros_like(shared["readout"]))
    scored = [rows_of(options, data, name) for name in who.scored]
    figures = curve_figures(
        _scores(memory, shared, readouts, scored), np.concatenate([each[LABELS] for each in scored])
    )
    bad = () if options.attacks[cell["attack"]].kind == "none" else who.bad
    return figures | _verdicts(watch.verdicts, bad)


def _scores(memory: Memory, shared: Arrays, readouts: Any, scored: list[Arrays]) -> Any:
    """Return the score (n, rounds) of every row scored, after every round."""
    return np.concatenate([memory.states(shared, rows[FEATURES]) @ readouts.T for rows in scored])


def _verdicts(verdicts: list[tuple[str, bool]], bad: list[str] | tuple[()]) -> Figures:
    """Return the share of updates told right, counted for honest ones and refused for bad ones, and of each kind."""
    honest = [counted for name, counted in verdicts if name not in bad]
    others = [not counted for name, counted in verdicts if name in bad]
    nothing = float("nan")
    return {
        "told_right": float(np.mean(honest + others)) if verdicts else nothing,
        "honest_counted": float(np.mean(honest)) if honest else nothing,
        "bad_refused": float(np.mean(others)) if others else nothing,
    }


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return the options that the measurement of a cell depends on."""
    names = ("folder", "scored", "chosen_on", "normalisation", "commissioning_rows", "rounds", "take_part", "bad_share")
    found: dict[str, Any] = {
        name: getattr(options, name) for name in (*names, "network", "training", "seed", "noise", "noise_rounds")
    }
    if cell["part"] in (TABLES, BAD):
        bench = options.tables if cell["part"] == TABLES else options.bad
        found |= {
            "rates": bench.rates,
            "method": options.methods[cell["method"]].model_dump(),
            "attack": options.attacks[cell["attack"]].model_dump(),
            "answer": options.answers[cell["answer"]].model_dump(),
        }
    return found


STUDY = Study(Options, cells, measure, report, identity)
