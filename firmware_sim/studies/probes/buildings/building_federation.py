"""What federation costs and brings in a building: sensors, rounds and bytes to a loss, against sending the samples.

A sensor is one channel of one room. All train the same small network (`recurrent-fedavg`) to tell what a sensor will
show some steps later, and after each round the model is judged on the later days of every sensor of the building, also
of those that did not train. A row is a window: its values, the time of day and of which kind the sensor is, since what
is likely next differs by kind. Each sensor is in units of the head of its recording, on which it trains. Where a fleet
is to be larger than the building has sensors, each head is cut in time, and the parts count as sensors of their own.
Bytes are those of the messages as they are encoded, without MQTT's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedgate.config.protocol.wire import encode
from fedgate.config.settings import settings
from fedgate.firmware_sim.engine.spec import Figures, overlaid
from fedgate.firmware_sim.evaluate.training import train_fleet
from fedgate.firmware_sim.studies.datasets.series.files import SECONDS_PER_DAY, Whole
from fedgate.firmware_sim.studies.datasets.series.keti import CHANNELS, Room, load_rooms
from fedgate.firmware_sim.studies.probes.buildings.building_models import Count, solve_ridge
from fedgate.models.arrays import FEATURES, Arrays, Floats, generator
from fedgate.models.detectors.recurrent import recurrent
from fedgate.models.federated import build
from fedgate.models.federated.wrappers.error_feedback import Compression
from fedgate.models.federated.wrappers.privacy_ledger import EPSILON

STEP_S, LEAST_STEPS, POSSIBLE_C = 300, 288, (5.0, 45.0)
KINDS = ("CO2", "humidity", "light", "temperature")  # motion is no number that could be foretold
INPUTS = 3 + len(KINDS)  # value, sine and cosine of the time of day, kind
CLIP = 6.0  # of a sensor's own deviations
LEAST_DEVIATION = 1e-6  # of a sensor that never moved
RIDGE = 0.01  # in mean eigenvalues, as IncFed's default
FLOAT_BYTES = 4
HEARD, HORIZON = 12, 6  # steps heard, and steps from the last of them to the one told
STEPS = HEARD + HORIZON
EVERY, TRAINS = 3, 0.75  # steps from row to row, and the share of a recording that trains
REACHED = (0.98, 0.95, 0.9)  # losses, as shares of the last value's, of which is told what it took to reach them


class Method(settings.Table):
    """`federated` and `central` train the network, the latter on the rows of all; `ridge`, on what the network hears
    too, is solved from federated sums, and `last value` knows nothing. Settings are those of the algorithm.
    """

    model: Literal["federated", "central", "ridge", "last value"] = "federated"
    settings: dict[str, Any] = Field(default_factory=dict)


class Case(settings.Table):
    """What is measured; over `draws` of fleet and network losses are averaged."""

    folder: str
    sensors: Annotated[int, Field(ge=2)]
    rounds: Count
    draws: Count = 1
    method: Method


class Sensor(NamedTuple):
    """Rows (n, INPUTS * STEPS) that train and such of later, and of how many samples the former were made."""

    name: str
    train: Floats
    later: Floats
    samples: int


class Trained(NamedTuple):
    """Losses after each round, and bytes of one gateway: up and down in a round, and once before the first."""

    losses: list[float]
    up: float = 0.0
    down: float = 0.0
    once: float = 0.0
    parameters: int = 0
    epsilon: float = 0.0


def reads(case: Case, data: Path) -> list[Path]:
    """Return the folder of the rooms."""
    return [data / case.folder]


def measure(case: Case, data: Path) -> Figures:
    """Return the mean loss after every round with its deviation over draws, bytes of one gateway in a round, and what
    the whole fleet sent and received until a loss was reached. What the method has none of is left out.
    """
    sensors = load_sensors(data / case.folder)
    later = np.concatenate([sensor.later for sensor in sensors])
    last_value = float(np.square(_lesson(later)[1]).mean())
    is_drawn = case.method.model in ("federated", "central")
    drawn = [_train(case, sensors, later, seed) for seed in range(case.draws if is_drawn else 1)]
    up, down, once = (float(np.mean(values)) for values in list(zip(*drawn, strict=True))[1:4])
    losses = np.array([each.losses for each in drawn])  # (draws, rounds)
    means = losses.mean(axis=0)
    deviations = losses.std(axis=0, ddof=1) if len(losses) > 1 else np.full(len(means), math.nan)
    mega = case.sensors * (once + (1 + np.arange(len(means))) * (up + down)) / 1e6  # (rounds,)
    found = {f"loss.{index}": loss for index, loss in enumerate(means.tolist(), start=1)}
    found |= {f"deviation.{index}": each for index, each in enumerate(deviations.tolist(), start=1)}
    for share in REACHED:
        reached = np.flatnonzero(means <= share * last_value)
        if len(reached):
            found |= {f"rounds_to.{share:g}": float(reached[0] + 1), f"mega_to.{share:g}": float(mega[reached[0]])}
    found |= {"loss": float(means[-1]), "deviation": float(deviations[-1]), "rmse": math.sqrt(means[-1])}
    sizes = {"up": up, "down": down, "mega": float(mega[-1]), "parameters": float(drawn[0].parameters)}
    sizes |= {"epsilon": float(np.mean([each.epsilon for each in drawn]))}
    number = _number_bytes(case.method.settings)
    found |= {"number": number, "number_both": number + FLOAT_BYTES}
    return {**found, **{name: size for name, size in sizes.items() if size}}


def _number_bytes(given: Mapping[str, Any]) -> float:
    """Return the bytes that a number takes on its way up, without headers; which of them are sent takes a bit each."""
    compression = Compression.model_validate(given.get("compression", {}))
    return compression.share * np.dtype(compression.number).itemsize + 0.125 * (compression.share < 1.0)


def _train(case: Case, sensors: tuple[Sensor, ...], later: Floats, seed: int) -> Trained:
    rows = fleet(sensors, case.sensors, seed)
    if case.method.model == "last value":
        return Trained([float(np.square(_lesson(later)[1]).mean())])
    if case.method.model == "ridge":
        return _solve_ridge(rows, later)
    if case.method.model == "federated":
        return _train_network(case, case.method.settings, rows, later, seed)
    alone = {"all": {FEATURES: np.concatenate([each[FEATURES] for each in rows.values()])}}
    given = {name: value for name, value in case.method.settings.items() if name != "server_optimiser"}
    samples = float(np.mean([sensor.samples for sensor in sensors]))
    found = _train_network(case, given, alone, later, seed)  # a momentum of the cloud is for the mean of many
    return found._replace(up=0.0, down=0.0, once=FLOAT_BYTES * samples)


def _train_network(case: Case, given: Mapping[str, Any], rows: dict[str, Arrays], later: Floats, seed: int) -> Trained:
    network = {"horizon": HORIZON, "steps": STEPS, "targets": (0,)}
    own = {"network": network, "normalisation": "none", "unit": "feature"}
    algorithm = build("recurrent-fedavg", INPUTS * STEPS, overlaid(dict(given), own))
    secrets = {name: f"{seed}/{name}".encode() for name in rows}
    fit = train_fleet(algorithm, rows, seed=seed, rounds=case.rounds, secrets=secrets, keeps_rounds=True)
    return Trained(
        [float(recurrent.squares(model, later).mean()) for model in fit.after_round],
        up=sum(fit.sent_bytes.values()) / (len(rows) * case.rounds),
        down=(fit.received_bytes - len(encode(fit.shared))) / case.rounds,  # the last is nobody's yet
        parameters=sum(fit.shared[name].size for name in recurrent.trained_names(fit.shared)),
        epsilon=max((float(own[EPSILON]) for own in fit.own.values() if EPSILON in own), default=0.0),
    )


def _solve_ridge(rows: dict[str, Arrays], later: Floats) -> Trained:
    """Return the loss of a ridge that tells the change over the last value heard, from the sums of all sensors."""
    weights, sent = solve_ridge(((*_lesson(each[FEATURES]), None) for each in rows.values()), RIDGE)
    regressors, wanted = _lesson(later)
    loss = float(np.square(wanted - regressors @ weights).mean())
    return Trained([loss], up=sent, down=float(len(encode({"weights": weights[None]}))))


def _lesson(rows: Floats) -> tuple[Floats, Floats]:
    """Return regressors, for each kind of sensor its own, and how far the value goes from the last one heard (n,)."""
    cube = rows.reshape(len(rows), INPUTS, STEPS)
    last = cube[:, :, HEARD - 1]
    seen = np.column_stack([cube[:, 0, :HEARD], last[:, 1:3], np.ones(len(rows))])  # (n, heard + 3)
    of_kind = last[:, 3:, None] * seen[:, None, :]
    return of_kind.reshape(len(rows), of_kind[0].size), cube[:, 0, -1] - last[:, 0]


@lru_cache(maxsize=2)
def load_sensors(folder: Path) -> tuple[Sensor, ...]:
    """Return the sensors of a building; raises `StudyError` where there are none."""
    rooms = load_rooms(folder, STEP_S, POSSIBLE_C, LEAST_STEPS)
    return tuple(sensor for room in rooms for sensor in _sensors(room))


def _sensors(room: Room) -> Iterator[Sensor]:
    last = int(TRAINS * (room.steps[-1] + 1))
    head = room.steps < last
    angle = 2.0 * np.pi * (room.first_s + room.steps * STEP_S) / SECONDS_PER_DAY
    for index, kind in enumerate(KINDS):
        series = room.x[:, CHANNELS.index(kind)]
        center, deviation = float(series[head].mean()), float(series[head].std())
        if deviation < LEAST_DEVIATION:
            continue
        z = np.zeros((len(series), INPUTS))
        z[:, 0] = np.clip((series - center) / deviation, -CLIP, CLIP)
        z[:, 1], z[:, 2], z[:, 3 + index] = np.sin(angle), np.cos(angle), 1.0
        train, later = (cut_rows(z[part], room.steps[part]) for part in (head, ~head))
        yield Sensor(f"{room.name}/{kind}", train, later, int(room.samples[head].sum()))


def cut_rows(z: Floats, steps: Whole) -> Floats:
    """Return rows (n, C * STEPS) of values (m, C), one channel after the other, only such without a missing step."""
    starts = np.arange(0, len(z) - STEPS + 1, EVERY)
    whole = starts[steps[starts + STEPS - 1] - steps[starts] == STEPS - 1]
    rows = z[whole[:, None] + np.arange(STEPS)].transpose(0, 2, 1)
    return np.asarray(rows.reshape(len(whole), z.shape[1] * STEPS))


def fleet(sensors: tuple[Sensor, ...], count: int, seed: int) -> dict[str, Arrays]:
    """Return the training data of so many sensors by name, a random choice; of more than there are, parts in time."""
    parts = -(-count // len(sensors))
    cut = {
        f"{sensor.name}/{part}" if parts > 1 else sensor.name: {FEATURES: rows}
        for sensor in sensors
        for part, rows in enumerate(np.array_split(sensor.train, parts))
    }
    names = sorted(cut)
    chosen = generator(seed, 0, "fleet").permutation(len(names))[:count]
    return {names[index]: cut[names[index]] for index in sorted(chosen)}
