"""What robust means and judges are worth: a linear model that some of its gateways lie about.

A cell is one set, dealt to gateways alike or unlike, under one lie of so many of them and one seed; every answer to it
is measured there, and beside them what an honest gateway reaches alone. Answers see the same updates as in service.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedgate.config.settings import settings
from fedgate.firmware_sim.evaluate.splits import partition
from fedgate.firmware_sim.metrics import roc_auc
from fedgate.firmware_sim.studies.attacks.hostile import LIAR, Lie, lying
from fedgate.firmware_sim.studies.attacks.report import ALONE, report
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Study, StudyOptions
from fedgate.firmware_sim.studies.robust_svm.data import shuffled, table
from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated import build
from fedgate.models.federated.defences.wrapper import Defence, with_update_filter
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError

LINEAR: dict[str, Any] = {"loss": "logistic", "components": 0, "normalisation": "none", "unit": "feature"}
NOBODY: Cell = {"lie": "none", "liars": 0}


class Answer(settings.Table):
    """What meets a lie: an algorithm with settings of its own, and a judge where there is one."""

    algorithm: str = "fedavg"
    settings: dict[str, Any] = Field(default_factory=dict)
    defence: Defence | None = None


class Options(StudyOptions):
    """The keys of the experiment file.

    :param liars: how many of the gateways lie.
    :param trusted: rows set aside for the judge that has trusted tables; nobody trains on them, whatever the answer.
    """

    sets: list[str]
    sharings: list[Literal["iid", "biased"]]
    gateways: Annotated[int, Field(ge=3)] = 10
    lies: list[Lie]
    liars: list[Annotated[int, Field(ge=1)]]
    seeds: Annotated[int, Field(ge=1)]
    rounds: Annotated[int, Field(ge=1)] = 20
    trusted: Annotated[int, Field(ge=4)] = 40
    answers: dict[str, Answer]
    note: str = ""


def cells(options: Options) -> list[Cell]:
    """Return every cell; without liars there is one for each set, sharing and seed."""
    lied = [{"lie": lie, "liars": count} for lie, count in product(options.lies, options.liars)]
    axes = product(options.sets, options.sharings, [NOBODY, *lied], range(options.seeds))
    return [{"set": name, "sharing": sharing, **attack, "seed": seed} for name, sharing, attack, seed in axes]


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return area under the curve and accuracy of each answer on the rows held out, and of honest gateways alone."""
    seed = int(cell["seed"])
    split = shuffled(table(data, cell["set"]), generator(options.seed, seed, f"attacks/{cell['set']}"))
    deviation = split.x.std(axis=0)
    scale = np.where(deviation > 0.0, deviation, 1.0)
    x, test_x = ((rows - split.x.mean(axis=0)) / scale for rows in (split.x, split.test_x))
    trusted = {FEATURES: x[: options.trusted], LABELS: split.y[: options.trusted]}
    x, y = x[options.trusted :], split.y[options.trusted :]
    owners = partition(x, options.gateways, cell["sharing"], options.seed + seed)
    fleet = {f"g{k}": {FEATURES: x[owners == k], LABELS: y[owners == k]} for k in range(options.gateways)}
    order = generator(options.seed, seed, "liars").permutation(options.gateways)
    liars = {f"g{k}" for k in order[: int(cell["liars"])]}
    marked = {name: {**rows, LIAR: np.ones(1)} if name in liars else rows for name, rows in fleet.items()}
    found = Figures()
    for name, answer in options.answers.items():
        model = trained(options, answer, cell, marked, trusted)
        found |= _figures(name, model, test_x, split.test_y)
    alone = [_alone(options, rows) for name, rows in fleet.items() if name not in liars]
    each = [_figures(ALONE, model, test_x, split.test_y) for model in alone]
    return found | {key: float(np.mean([figures[key] for figures in each])) for key in each[0]}


def trained(options: Options, answer: Answer, cell: Cell, fleet: dict[str, Arrays], trusted: Arrays) -> Arrays:
    """Return the model of one answer to what the cell's liars send."""
    count = trusted[FEATURES].shape[1]
    algorithm = build(answer.algorithm, count, {**LINEAR, "rounds": options.rounds, **answer.settings})
    if answer.defence is not None:
        tables = (trusted,) if answer.defence.kind == "trusted" else ()
        algorithm = with_update_filter(algorithm, answer.defence, tables)
    if cell["lie"] != NOBODY["lie"]:
        algorithm = lying(algorithm, cell["lie"], honest=[rows for rows in fleet.values() if LIAR not in rows])
    return run(algorithm, fleet, seed=int(cell["seed"]), on_refusal=_left_out).server.global_state


def _left_out(name: str, error: UpdateError) -> None:
    del name, error


def _alone(options: Options, rows: Arrays) -> Arrays:
    count = rows[FEATURES].shape[1]
    return run(build("fedavg", count, {**LINEAR, "rounds": options.rounds}), {"alone": rows}).server.global_state


def _figures(name: str, model: Arrays, x: Floats, y: Any) -> Figures:
    scores = DETECTORS["linear"].score(model, x)
    return {f"{name}|auc": roc_auc(y, scores), f"{name}|accuracy": float(((scores > 0.0) == (y == 1)).mean())}


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return the options that a cell depends on."""
    del cell
    names = ("seed", "gateways", "rounds", "trusted")
    answers = {name: answer.model_dump() for name, answer in options.answers.items()}
    return {**{name: getattr(options, name) for name in names}, "answers": answers}


STUDY = Study(Options, cells, measure, report, identity)
