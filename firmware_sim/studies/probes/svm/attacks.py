"""What robust means and judges are worth: a linear model that some of its gateways lie about.

A cell is one answer to one lie of so many gateways, on one draw of a table. Every answer sees the same updates as in
service, from the same liars.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedgate.config.settings import settings
from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.evaluate.splits import partition
from fedgate.firmware_sim.metrics import roc_auc
from fedgate.firmware_sim.studies.datasets.tabular import FOLDER, read_rows, split_groups
from fedgate.firmware_sim.studies.probes.svm.hostile import LIAR, Lie, lying
from fedgate.models.arrays import FEATURES, LABELS, Arrays, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated import build
from fedgate.models.federated.defences.wrapper import Defence, with_update_filter
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError

LINEAR: dict[str, Any] = {"loss": "logistic", "components": 0, "normalisation": "none", "unit": "feature"}


class Answer(settings.Table):
    """What meets a lie: an algorithm with settings of its own, and a judge where there is one; or, `alone`, the mean
    over honest gateways that each train by themselves.
    """

    algorithm: str = "fedavg"
    settings: dict[str, Any] = Field(default_factory=dict)
    defence: Defence | None = None
    alone: bool = False


class Case(settings.Table):
    """What is measured.

    :param liars: how many of the gateways lie.
    :param trusted: rows set aside for the judge that has trusted tables; nobody trains on them, whatever the answer.
    :param draw: draws the rows to score, who owns which, and who lies.
    """

    table: str
    sharing: Literal["iid", "biased"]
    gateways: Annotated[int, Field(ge=3)] = 10
    lie: Lie | Literal["none"]
    liars: Annotated[int, Field(ge=0)]
    rounds: Annotated[int, Field(ge=1)] = 20
    trusted: Annotated[int, Field(ge=4)] = 40
    method: Answer
    draw: int
    seed: int = 0


def reads(case: Case, data: Path) -> list[Path]:
    """Return the file of the table."""
    return [data / FOLDER / f"{case.table}.csv"]


def measure(case: Case, data: Path) -> Figures:
    """Return area under the curve and accuracy on the rows held out."""
    split = split_groups(read_rows(data, case.table), generator(case.seed, case.draw, f"attacks/{case.table}"))
    deviation = split.x.std(axis=0)
    scale = np.where(deviation > 0.0, deviation, 1.0)
    x, test_x = ((rows - split.x.mean(axis=0)) / scale for rows in (split.x, split.test_x))
    trusted = {FEATURES: x[: case.trusted], LABELS: split.y[: case.trusted]}
    x, y = x[case.trusted :], split.y[case.trusted :]
    owners = partition(x, case.gateways, case.sharing, case.seed + case.draw)
    fleet = [{FEATURES: x[owners == k], LABELS: y[owners == k]} for k in range(case.gateways)]
    liars = generator(case.seed, case.draw, "liars").permutation(case.gateways)[: case.liars].tolist()
    honest = [rows for k, rows in enumerate(fleet) if k not in liars]
    if case.method.alone:
        models = [_train(case, {"alone": rows}, trusted, honest=[], seed=0) for rows in honest]
    else:
        marked = {f"g{k}": {**rows, LIAR: np.ones(1)} if k in liars else rows for k, rows in enumerate(fleet)}
        models = [_train(case, marked, trusted, honest, case.draw)]
    scores = [DETECTORS["linear"].score(model, test_x) for model in models]
    accuracies = [((each > 0.0) == (split.test_y == 1)).mean() for each in scores]
    return {
        "auc": float(np.mean([roc_auc(split.test_y, each) for each in scores])),
        "accuracy": float(np.mean(accuracies)),
    }


def _train(case: Case, fleet: dict[str, Arrays], trusted: Arrays, honest: list[Arrays], seed: int) -> Arrays:
    """Return the model of the answer to what liars send, who may know the rows of the honest gateways."""
    answer = case.method
    count = trusted[FEATURES].shape[1]
    algorithm = build(answer.algorithm, count, {**LINEAR, "rounds": case.rounds, **answer.settings})
    if answer.defence is not None:
        tables = (trusted,) if answer.defence.kind == "trusted" else ()
        algorithm = with_update_filter(algorithm, answer.defence, tables)
    if case.lie != "none" and honest:
        algorithm = lying(algorithm, case.lie, honest=honest)
    return run(algorithm, fleet, seed=seed, on_refusal=_leave_out).server.global_state


def _leave_out(name: str, error: UpdateError) -> None:
    del name, error
