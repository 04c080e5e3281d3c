"""How each method of the study of smart buildings learns from windows, and tells a class or a value.

    majority    no model: the more frequent class
    mean, persistence, day before       no model: the gateway's own mean, the last value, that a day before y or,
                                        where a gap is, as many days before as it takes
    lags        ridge regression on all values of the window, of a class on ±1 with both classes weighing alike
    esn         an echo state network in closed form (algorithm `incfed`), run along the streams
    recurrent   LSTM, GRU or one linear layer on windows (algorithm `recurrent-fedavg`)

Lags and echo state networks need one exchange and are exact: whoever holds the rows, the readout is that of all rows in
one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedgate.config.protocol.wire import encode
from fedgate.config.settings import settings
from fedgate.firmware_sim.engine.cells import nested
from fedgate.firmware_sim.engine.spec import overlaid
from fedgate.firmware_sim.evaluate.training import Fit, train_fleet
from fedgate.firmware_sim.studies.datasets.series.building import (
    KETI_STEP_S,
    DataSet,
    LeftOut,
    Stream,
    Windows,
    cut_windows,
)
from fedgate.firmware_sim.studies.datasets.series.files import SECONDS_PER_DAY
from fedgate.models.arrays import FEATURES, LABELS, MISSING, NEW_SERIES, Arrays, Floats
from fedgate.models.detectors.esn import esn, ridge_readout
from fedgate.models.detectors.recurrent import recurrent
from fedgate.models.federated import build

PLAIN: Mapping[str, Any] = MappingProxyType({"normalisation": "none", "unit": "feature"})  # streams have own units
POOL = "pool"
DAY_STEPS = SECONDS_PER_DAY // KETI_STEP_S  # of forecasts
Count = Annotated[int, Field(ge=1)]
Predict = Callable[[Windows], Floats]  # y (n,), or of a class what is above 0 where it is 1


class Task(settings.Table):
    """What is told from what: the class of the last of `window` steps, or the value `horizon` later.

    :param change: whether methods tell a value as its change over the last one.
    :param every: of the windows that train one in so many does.
    :param sized: settings of the recurrent networks here, below those of a method; not of the paper's form, nor of
        linear ones, which have no size.
    """

    data: DataSet
    folder: str
    window: Count
    horizon: Annotated[int, Field(ge=0)] = 0
    change: bool = True
    every: Count = 1
    sized: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_class(self) -> bool:
        """Whether a class is predicted."""
        return self.horizon == 0


class Method(settings.Table):
    """One row of a table.

    :param data: `federated`, `central`: one gateway that holds all rows, or `local`: every gateway for itself.
    :param columns: channels that `lags` sees; all where not given.
    :param settings: `network.hidden` being that of a table in a table.
    :param tried: settings to choose among on the inner folds, with the number of rounds where there are several.
    :param then: settings on top of what was chosen without them.
    :param rounds: most rounds; all of them where nothing is chosen.
    :param fraction: of the gateways that take part in a round, others each time or, without `redraw`, the same; all of
        them where settings are chosen.
    :param only_seen: it has nothing for a gateway that did not train.
    """

    model: Literal["majority", "mean", "persistence", "day before", "lags", "esn", "recurrent"]
    data: Literal["federated", "central", "local"] = "federated"
    columns: tuple[int, ...] = ()
    settings: dict[str, Any] = Field(default_factory=dict)
    tried: dict[str, list[Any]] = Field(default_factory=dict)
    then: dict[str, Any] = Field(default_factory=dict)
    rounds: Count = 1
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    redraw: bool = True
    only_seen: bool = False


class Case(settings.Table):
    """What is measured: a method on a task, `left_out` being the room of `three rooms` that is reported."""

    task: Task
    left_out: LeftOut = ""
    method: Method
    seed: int = 0


class Choice(NamedTuple):
    """Settings and rounds, and what they were worth on the inner folds where they were chosen."""

    settings: dict[str, Any]
    rounds: int
    worth: float = float("nan")


class Training(NamedTuple):
    """What trains: the windows that end in `parts` of the streams that are seen."""

    streams: tuple[Stream, ...]
    parts: tuple[int, ...]

    def windows(self, task: Task) -> list[Windows]:
        """Return the windows of every stream that has some."""
        seen = (stream for stream in self.streams if stream.seen)
        cut = (cut_windows(stream, self.parts, task.window, task.every) for stream in seen)
        return [each for each in cut if len(each.at)]


class Fitted(NamedTuple):
    """What was learnt, and after each round; bytes that a gateway sent in all, and the numbers of a model."""

    predict: Predict
    after: tuple[Predict, ...] = ()
    bytes_up: float = 0.0
    numbers: int = 0


def fit(case: Case, training: Training, choice: Choice) -> Fitted:
    """Return what a method learns with what was chosen."""
    if case.method.data == "local":
        return _fit_each_alone(case, training, choice)
    return FITS[case.method.model](case, training, choice)


def _fit_majority(case: Case, training: Training, choice: Choice) -> Fitted:
    del choice
    share = np.concatenate([each.y for each in training.windows(case.task)]).mean()
    return Fitted(lambda each: np.full(len(each.at), 1.0 if share > 0.5 else -1.0))


def _predict_day_before(each: Windows, horizon: int) -> Floats:
    """Return the value (n,) at the same time of the last day on which it is known; before there is any, the first."""
    time = np.cumsum(each.stream.missing + 1)  # (m,) in steps; the first has none before it, as `NEW_SERIES` says
    wanted = time[each.at] + horizon - DAY_STEPS
    while (astray := (wanted >= 0) & ~np.isin(wanted, time)).any():
        wanted = np.where(astray, wanted - DAY_STEPS, wanted)
    return np.asarray(each.stream.z[np.searchsorted(time, np.maximum(wanted, 0)), 0])


def _fit_each_alone(case: Case, training: Training, choice: Choice) -> Fitted:
    """Return one fit for each gateway; of those that did not train, or saw one class alone, there is none."""
    found: dict[str, Fitted] = {}
    central = case.model_copy(update={"method": case.method.model_copy(update={"data": "central"})})
    for stream in training.streams:
        alone = training._replace(streams=(stream,))
        mine = alone.windows(case.task)
        if mine and not (case.task.is_class and len(np.unique(mine[0].y)) < 2):
            found[stream.gateway] = fit(central, alone, choice)
    numbers = max(each.numbers for each in found.values())
    return Fitted(lambda each: found[each.stream.gateway].predict(each), numbers=numbers)


def _fit_lags(case: Case, training: Training, choice: Choice) -> Fitted:
    task, columns = case.task, list(case.method.columns) or slice(None)

    def regressors(each: Windows) -> Floats:
        seen = each.rows(task.window).reshape(len(each.at), -1, task.window)[:, columns]
        return np.column_stack([seen.reshape(len(seen), -1), np.ones(len(seen))])

    windows = training.windows(task)
    share = np.concatenate([each.y for each in windows]).mean()
    lessons = (
        (regressors(each), 2.0 * each.y - 1.0, np.where(each.y > 0.0, 0.5 / share, 0.5 / (1.0 - share)))
        if task.is_class
        else (regressors(each), each.y - _last(task, each), np.ones(len(each.at)))
        for each in windows
    )
    weights, sent = solve_ridge(lessons, float(choice.settings["ridge"]))
    bytes_up = sent if case.method.data == "federated" else 0.0
    return Fitted(lambda each: _last(task, each) + regressors(each) @ weights, (), bytes_up, weights.size)


def solve_ridge(lessons: Iterable[tuple[Floats, Floats, Floats | None]], ridge: float) -> tuple[Floats, float]:
    """Return the weights (M,) of a ridge from the sums of all gateways, and the mean bytes of such sums.

    Of each gateway there are regressors (n, M), what they are to say (n,), and weights (n,) of the rows, `ridge` is in
    mean eigenvalues. Where a gateway's share of the classes gives the weights, that is a sum as well.
    """
    total, sizes = Arrays(), []
    for regressors, says, weights in lessons:
        part = ridge_readout.sums(regressors, says[:, None], weights)
        sizes.append(len(encode(part)))
        total = {key: total[key] + array if total else array for key, array in part.items()}
    return ridge_readout.solve(total, ridge).weights[0], float(np.mean(sizes))


def _last(task: Task, each: Windows) -> Floats:
    """Return what a change is added to (n,): the last value; to a class, or a value as it is, nothing."""
    adds = task.change and not task.is_class
    return np.asarray(each.stream.z[each.at, 0]) if adds else np.zeros(len(each.at))


def _fit_network(case: Case, training: Training, choice: Choice) -> Fitted:
    task, kind = case.task, {"network": {"task": "classify"}, "class_weight": "balanced"}
    data = {stream.gateway: _series(task, stream, training.parts) for stream in training.streams if stream.seen}
    data = {name: each for name, each in data.items() if len(each[FEATURES])}
    width = next(iter(data.values()))[FEATURES].shape[1]
    if not task.is_class:
        kind = {"network": {"task": "reconstruct", "targets": (width - 1,)}}
    algorithm = build("incfed", width, overlaid(nested(choice.settings), {**kind, **PLAIN}))
    found = train_fleet(algorithm, data, seed=case.seed)

    def predict(each: Windows) -> Floats:
        z = each.stream.z
        heard = z if task.is_class else np.column_stack([z, np.zeros(len(z))])
        said = esn.outputs(found.shared, heard, each.stream.missing)[each.at]
        return np.asarray(said[:, 1] - said[:, 0] if task.is_class else _last(task, each) + said[:, 0])

    return Fitted(predict, (), _mean_sent(found), int(found.shared["readout"].size))


def _series(task: Task, stream: Stream, parts: tuple[int, ...]) -> Arrays:
    """Return the steps of a stream in `parts` as a series for a network that runs along it.

    Classes are labels; a value to come, or its change over the last one, is one column more, which the network is to
    tell from the others. Steps without it are left out at the end of a series only, so that nothing is bridged.
    """
    known = np.isin(stream.part, parts) & np.isfinite(stream.y)
    broken = known & ~np.concatenate([[False], known[:-1]])
    missing = np.where(broken, NEW_SERIES, stream.missing)[known]
    if task.is_class:
        return {FEATURES: stream.z[known], LABELS: stream.y[known].astype(np.int64), MISSING: missing}
    target = stream.y - stream.z[:, 0] if task.change else stream.y
    return {FEATURES: np.column_stack([stream.z, target])[known], MISSING: missing}


def _mean_sent(found: Fit) -> float:
    return float(np.mean(list(found.sent_bytes.values())))


def _fit_recurrent(case: Case, training: Training, choice: Choice) -> Fitted:
    task, method = case.task, case.method
    data = {each.stream.gateway: _labelled(task, each) for each in training.windows(task)}
    if method.data == "central":
        data = {POOL: {key: np.concatenate([each[key] for each in data.values()]) for key in next(iter(data.values()))}}
    network: dict[str, Any] = {"task": "classify", "class_weights": True}
    if not task.is_class:
        network = {"task": "predict", "horizon": task.horizon, "targets": (0,)}
        # Where a change is told that is the network's to say: the paper's form tells the value.
        network |= {} if task.change else {"change": False}
    network["steps"] = task.window + task.horizon
    chosen = overlaid(nested(choice.settings), {"network": network, **PLAIN})
    algorithm = build("recurrent-fedavg", next(iter(data.values()))[FEATURES].shape[1], chosen)
    found = train_fleet(
        algorithm,
        data,
        seed=case.seed,
        rounds=choice.rounds,
        fraction=method.fraction,
        redraw=method.redraw,
        keeps_rounds=True,
    )

    def predict(shared: Arrays, each: Windows) -> Floats:
        own = found.own.get(each.stream.gateway, {})
        said = recurrent.outputs({**shared, **own}, each.rows(task.window, task.horizon))
        return np.asarray(said[:, 1] - said[:, 0] if task.is_class else said[:, 0])

    bytes_up = 0.0 if method.data == "central" else _mean_sent(found)
    numbers = sum(found.shared[name].size for name in recurrent.trained_names(found.shared))
    after = tuple(partial(predict, shared) for shared in found.after_round)
    return Fitted(after[-1], after, bytes_up, numbers)


def _labelled(task: Task, each: Windows) -> Arrays:
    """Return windows as the data of a gateway; where a value is told a row holds it, as task `predict` takes it."""
    data = {FEATURES: each.rows(task.window, task.horizon)}
    return {**data, LABELS: each.y.astype(np.int64)} if task.is_class else data


FITS: Mapping[str, Callable[[Case, Training, Choice], Fitted]] = MappingProxyType(
    {
        "majority": _fit_majority,
        "mean": lambda *_: Fitted(lambda each: np.zeros(len(each.at))),  # in units of its own
        "persistence": lambda *_: Fitted(lambda each: np.asarray(each.stream.z[each.at, 0])),
        "day before": lambda case, *_: Fitted(lambda each: _predict_day_before(each, case.task.horizon)),
        "lags": _fit_lags,
        "esn": _fit_network,
        "recurrent": _fit_recurrent,
    }
)
