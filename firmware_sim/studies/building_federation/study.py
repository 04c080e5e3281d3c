"""What federation costs and brings in a building: sensors, rounds and bytes to a loss, against sending the samples.

A cell is a fleet, a way to travel and a seed. All train the same small network to tell what a sensor will show in half
an hour, round by round, and after each round the model is judged on the later days of every sensor of the building,
also of those that did not train. Bytes are those of the messages as they are encoded, without MQTT's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.studies.building_federation.data import INPUTS, fleet, load
from fedgate.firmware_sim.studies.building_federation.options import Method, Options
from fedgate.firmware_sim.studies.building_federation.report import report
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Study
from fedgate.models.arrays import FEATURES, Array, Arrays, Floats
from fedgate.models.detectors.esn import ridge_readout
from fedgate.models.detectors.recurrent import recurrent
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Server
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.wrappers.privacy_ledger import EPSILON

RIDGE = 0.01  # in mean eigenvalues, as IncFed's default


def cells(options: Options) -> list[Cell]:
    """Return fleet x seed for the convergence, and method x seed for the costs; what draws nothing has one cell."""
    found: list[Cell] = []
    for seed in range(options.seeds):
        found += [{"method": options.plain, "sensors": count, "seed": seed} for count in options.counts]
        for name, method in options.methods.items():
            cell = {"method": name, "sensors": method.sensors or options.sensors, "seed": seed}
            if cell not in found and (seed == 0 or method.model in ("federated", "central")):
                found.append(cell)
    return found


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return the loss after every round, and what each gateway sent and received in a round.

    Raises `StudyError` where the data cannot be read.
    """
    sensors = load(data / options.folder, options.windows)
    method, seed = options.methods[cell["method"]], options.seed + int(cell["seed"])
    rows = fleet(sensors, int(cell["sensors"]), seed)
    later = np.concatenate([sensor.later for sensor in sensors])
    told = {
        "sensors": float(len(rows)),
        "raw_bytes": 4.0 * float(np.mean([sensor.samples for sensor in sensors])),
        "rows": float(np.mean([len(each[FEATURES]) for each in rows.values()])),
    }
    if method.model == "last value":
        return {**told, "loss.0": _square(_lesson(options, later)[1]), "up": 0.0, "down": 0.0}
    if method.model == "ridge":
        return {**told, **_ridge(options, rows, later)}
    if method.model == "central":
        rows = {"all": {FEATURES: np.concatenate([each[FEATURES] for each in rows.values()])}}
    return {**told, **_trained(options, method, rows, later, seed)}


def _square(residuals: Array) -> float:
    return float(np.square(residuals).mean())


def _trained(options: Options, method: Method, rows: dict[str, Arrays], later: Floats, seed: int) -> Figures:
    steps = options.heard + options.horizon
    settings: dict[str, Any] = {**options.algorithm, "normalisation": "none", "unit": "feature", **method.settings}
    settings["network"] = {**options.algorithm.get("network", {}), **method.settings.get("network", {})} | {
        "horizon": options.horizon,
        "steps": steps,
        "targets": (0,),
    }
    if method.model == "central":  # a momentum of the cloud is for the mean of many
        settings.pop("server_optimiser", None)
    algorithm = build("recurrent-fedavg", INPUTS * steps, settings)
    losses: list[float] = []
    received: list[int] = []
    seen = _watched(algorithm, lambda params: losses.append(float(recurrent.squares(params, later).mean())), received)
    sent: list[int] = []
    rounds = method.rounds or options.rounds
    secrets = {name: f"{seed}/{name}".encode() for name in rows}
    outcome = run(
        seen, rows, seed=seed, rounds=rounds, secrets=secrets, on_update=lambda _, update: sent.append(_size(update))
    )
    figures = {f"loss.{index}": loss for index, loss in enumerate(losses, start=1)}
    each = float(len(rows) * rounds)
    shared = {name: outcome.server.global_state[name] for name in recurrent.trained_names(outcome.server.global_state)}
    spent = [float(own[EPSILON]) for own in outcome.local_states.values() if EPSILON in own]
    return {
        **figures,
        "up": sum(sent) / each,
        "down": sum(received) / each,
        "parameters": float(sum(array.size for array in shared.values())),
        **({"epsilon": max(spent)} if spent else {}),
    }


def _size(arrays: Arrays) -> int:
    return len(encode(arrays)) if arrays else 0


def _watched(algorithm: Algorithm, told: Callable[[Arrays], None], received: list[int]) -> Algorithm:
    """Return the algorithm with a look at every model it makes, and at what every gateway receives."""
    last = algorithm.phases[-1]

    def advance(server: Server, total: Arrays) -> Server:
        advanced = last.advance(server, total)
        told(advanced.global_state)
        return advanced

    phases = [*algorithm.phases[:-1], last._replace(advance=advance)]
    return algorithm._replace(phases=tuple(_weighed(phase, received) for phase in phases))


def _weighed(phase: Phase, received: list[int]) -> Phase:
    sizes: dict[int, tuple[Arrays, int]] = {}  # all gateways receive the same; it is kept so that its id stays its own

    def learn(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        if id(shared) not in sizes:
            sizes.clear()
            sizes[id(shared)] = (shared, len(encode(shared)))
        received.append(sizes[id(shared)][1])
        return phase.train(shared, own, data, rng)

    return phase._replace(learn=learn)


def _ridge(options: Options, rows: dict[str, Arrays], later: Floats) -> Figures:
    """Return the loss of a ridge that tells the change over the last value heard, from the sums of all sensors."""
    total, sent = Arrays(), []
    for each in rows.values():
        part = ridge_readout.sums(*_lesson(options, each[FEATURES]))
        sent.append(len(encode(part)))
        total = {name: total[name] + array if total else array for name, array in part.items()}
    found = ridge_readout.solve(total, RIDGE)
    regressors, wanted = _lesson(options, later)
    loss = _square(wanted - regressors @ found.weights.T)
    return {"loss.1": loss, "up": float(np.mean(sent)), "down": float(len(encode({"weights": found.weights})))}


def _lesson(options: Options, rows: Floats) -> tuple[Floats, Floats]:
    """Return regressors, for each kind of sensor its own, and how far the value goes from the last one heard (n, 1)."""
    cube = rows.reshape(len(rows), INPUTS, options.heard + options.horizon)
    last = cube[:, :, options.heard - 1]
    seen = np.column_stack([cube[:, 0, : options.heard], last[:, 1:3], np.ones(len(rows))])  # (n, heard + 3)
    of_kind = last[:, 3:, None] * seen[:, None, :]
    return of_kind.reshape(len(rows), of_kind[0].size), cube[:, 0, -1:] - last[:, :1]


def identity(options: Options, cell: Cell) -> Any:
    """Return what of the options a measurement depends on."""
    method = options.methods[cell["method"]]
    shared = {"windows": options.windows, "algorithm": options.algorithm, "rounds": options.rounds}
    return [options.folder, options.seed, shared, method.model_dump(mode="json", exclude={"note", "sensors"})]


STUDY = Study(Options, cells, measure, report, identity)
