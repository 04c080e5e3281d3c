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
from typing import Any, NamedTuple

import numpy as np

from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.studies.building_tables.options import Method
from fedgate.firmware_sim.studies.building_tables.streams import (
    Task,
    Windows,
    inputs,
    labelled,
    rows,
    series,
    training,
)
from fedgate.firmware_sim.studies.stress.methods import nested
from fedgate.models.arrays import FEATURES, Arrays, Floats
from fedgate.models.detectors.esn import esn, ridge_readout
from fedgate.models.detectors.recurrent import recurrent
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Algorithm, Server
from fedgate.models.federated.protocol.run import run

POOL = "pool"
Tell = Callable[[Windows], Floats]  # y (n,), or of a class what is above 0 where it is 1


class Fitted(NamedTuple):
    """What was learnt, and after each round; bytes that a gateway sent in all, and the numbers of a model."""

    tell: Tell
    after: tuple[Tell, ...] = ()
    bytes_up: float = 0.0
    numbers: int = 0


def fit(
    task: Task, method: Method, settings: Mapping[str, Any], parts: Iterable[int], seed: int, rounds: int
) -> Fitted:
    """Return what a method learns from the windows of `parts`."""
    train = training(task, parts)
    if method.model == "majority":
        return Fitted(_majority(train))
    if method.model == "mean":
        return Fitted(lambda each: np.zeros(len(each.at)))  # in units of its own
    if method.model == "persistence":
        return Fitted(lambda each: each.stream.z[each.at, 0])
    if method.model == "day before":
        return Fitted(lambda each: _a_day_before(task, each))
    if method.data == "local":
        return _each_alone(task, method, settings, parts, seed, rounds)
    if method.model == "lags":
        return _lags(task, method, settings, train)
    if method.model == "esn":
        return _network(task, settings, parts, seed)
    return _recurrent(task, method, settings, train, seed, rounds)


def _a_day_before(task: Task, each: Windows) -> Floats:
    """Return the value (n,) at the same time of the last day on which it is known; before there is any, the first."""
    time = np.cumsum(each.stream.missing + 1)  # (m,) in steps; the first has none before it, as `NEW_SERIES` says
    wanted = time[each.at] + task.horizon - task.per_day
    found = np.searchsorted(time, wanted, side="right") - 1
    while (astray := (found >= 0) & (time[found] != wanted)).any():
        wanted = np.where(astray, wanted - task.per_day, wanted)
        found = np.searchsorted(time, wanted, side="right") - 1
    return np.asarray(each.stream.z[np.maximum(found, 0), 0])


def _majority(train: list[Windows]) -> Tell:
    share = np.concatenate([each.y for each in train]).mean()
    return lambda each: np.full(len(each.at), 1.0 if share > 0.5 else -1.0)


def _each_alone(
    task: Task, method: Method, settings: Mapping[str, Any], parts: Iterable[int], seed: int, rounds: int
) -> Fitted:
    """Return one fit for each gateway; of those that did not train, or saw one class alone, there is none."""
    found: dict[str, Fitted] = {}
    for stream in task.streams:
        alone = task._replace(streams=(stream,))
        mine = training(alone, parts)
        if mine and not (task.classify and len(np.unique(mine[0].y)) < 2):
            central = method.model_copy(update={"data": "central"})
            found[stream.gateway] = fit(alone, central, settings, parts, seed, rounds)
    numbers = max(each.numbers for each in found.values())
    return Fitted(lambda each: found[each.stream.gateway].tell(each), numbers=numbers)


def _lags(task: Task, method: Method, settings: Mapping[str, Any], train: list[Windows]) -> Fitted:
    columns = list(method.columns) or list(range(task.channels))

    def regressors(each: Windows) -> Floats:
        seen = inputs(task, each).reshape(len(each.at), task.channels, task.window)[:, columns]
        return np.column_stack([seen.reshape(len(seen), -1), np.ones(len(seen))])

    total, sizes = Arrays(), []
    for each, (says, weights) in zip(train, _lessons(task, train), strict=True):
        part = ridge_readout.sums(regressors(each), says[:, None], weights)
        sizes.append(len(encode(part)))
        total = {key: total[key] + array if total else array for key, array in part.items()}
    found = ridge_readout.solve(total, float(settings["ridge"])).weights
    bytes_up = float(np.mean(sizes)) if method.data == "federated" else 0.0
    return Fitted(lambda each: _last(task, each) + (regressors(each) @ found.T)[:, 0], (), bytes_up, found.size)


def _lessons(task: Task, train: list[Windows]) -> list[tuple[Floats, Floats]]:
    """Return what a ridge is to say of each gateway's windows, and their weights; the share of the classes is a sum."""
    if not task.classify:
        return [(each.y - _last(task, each), np.ones(len(each.at))) for each in train]
    share = np.concatenate([each.y for each in train]).mean()
    return [(2.0 * each.y - 1.0, np.where(each.y > 0.0, 0.5 / share, 0.5 / (1.0 - share))) for each in train]


def _last(task: Task, each: Windows) -> Floats:
    """Return what a change is added to (n,): the last value; to a class, or a value as it is, nothing."""
    adds = task.change and not task.classify
    return np.asarray(each.stream.z[each.at, 0]) if adds else np.zeros(len(each.at))


def _network(task: Task, settings: Mapping[str, Any], parts: Iterable[int], seed: int) -> Fitted:
    kind = {"network.task": "classify"} if task.classify else {"network.task": "reconstruct"}
    hidden = {} if task.classify else {"network.targets": (task.channels,)}
    weight = {"class_weight": "balanced"} if task.classify else {}
    chosen = nested({**settings, **kind, **hidden, **weight, "normalisation": "none", "unit": "feature"})
    wanted = list(parts)
    data = {stream.gateway: series(task, stream, wanted) for stream in task.streams if stream.seen}
    data = {name: each for name, each in data.items() if len(each[FEATURES])}
    width = next(iter(data.values()))[FEATURES].shape[1]
    sent: dict[str, int] = dict.fromkeys(data, 0)
    shared = run(build("incfed", width, chosen), data, seed=seed, on_update=_weighing(sent)).server.global_state

    def tell(each: Windows) -> Floats:
        z = each.stream.z
        heard = z if task.classify else np.column_stack([z, np.zeros(len(z))])
        said = esn.outputs(shared, heard, each.stream.missing)[each.at]
        return np.asarray(said[:, 1] - said[:, 0] if task.classify else _last(task, each) + said[:, 0])

    return Fitted(tell, (), float(np.mean(list(sent.values()))), int(shared["readout"].size))


def _weighing(sent: dict[str, int]) -> Callable[[str, Arrays], None]:
    def weigh(name: str, update: Arrays) -> None:
        sent[name] += len(encode(update)) if update else 0

    return weigh


def _recurrent(
    task: Task, method: Method, settings: Mapping[str, Any], train: list[Windows], seed: int, rounds: int
) -> Fitted:
    data = {each.stream.gateway: labelled(task, each) for each in train}
    if method.data == "central":
        data = {POOL: {key: np.concatenate([each[key] for each in data.values()]) for key in next(iter(data.values()))}}
    kind: dict[str, Any] = {"network.steps": task.window + task.horizon}
    if task.classify:
        kind |= {"network.task": "classify", "network.class_weights": True}
    else:
        kind |= {"network.task": "predict", "network.horizon": task.horizon, "network.targets": (0,)}
        kind |= {} if task.change else {"network.change": False}
    width = next(iter(data.values()))[FEATURES].shape[1]
    algorithm = build(
        "recurrent-fedavg", width, nested({**settings, **kind, "normalisation": "none", "unit": "feature"})
    )
    made: list[Arrays] = []
    sent: dict[str, int] = dict.fromkeys(data, 0)
    outcome = run(
        recorded(algorithm, made),
        data,
        seed=seed,
        rounds=rounds,
        fraction=method.fraction,
        redraw=method.redraw,
        on_update=_weighing(sent),
    )

    def telling(shared: Arrays) -> Tell:
        def tell(each: Windows) -> Floats:
            params = {**shared, **outcome.local_states.get(each.stream.gateway, {})}
            said = recurrent.outputs(params, rows(task, each))
            return np.asarray(said[:, 1] - said[:, 0] if task.classify else said[:, 0])

        return tell

    bytes_up = 0.0 if method.data == "central" else float(np.mean(list(sent.values())))
    shared = outcome.server.global_state
    numbers = sum(shared[name].size for name in recurrent.trained_names(shared))
    return Fitted(telling(shared), tuple(telling(each) for each in made), bytes_up, numbers)


def recorded(algorithm: Algorithm, made: list[Arrays]) -> Algorithm:
    """Return the same algorithm that adds to `made` what goes down after each exchange."""

    def watching(advance: Callable[[Server, Arrays], Server]) -> Callable[[Server, Arrays], Server]:
        def watched(server: Server, total: Arrays) -> Server:
            advanced = advance(server, total)
            made.append(advanced.global_state)
            return advanced

        return watched

    return algorithm._replace(phases=tuple(each._replace(advance=watching(each.advance)) for each in algorithm.phases))
