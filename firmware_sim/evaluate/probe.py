"""What one method is worth on a user's table or recordings: the probe of `firmware-sim evaluate`.

A figure alone says little, so beside every federated algorithm stand each client alone, one client that holds all data,
the distance from the mean, which needs no model at all, and the answer that everything is an anomaly.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from fedgate.config.protocol.messages import find_first_problem
from fedgate.config.settings import settings
from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.engine.cells import as_coordinate, list_values, resolve
from fedgate.firmware_sim.engine.spec import Figures, Section, Spec
from fedgate.firmware_sim.evaluate.datasets import EvaluationError, Table, load_table
from fedgate.firmware_sim.evaluate.folders import FOLDER_FILE, Folder, FolderSettings, load_folder
from fedgate.firmware_sim.evaluate.methods import DISTANCE, FOREST, Method, score_by_forest
from fedgate.firmware_sim.evaluate.splits import Plan, Split, by_group, check_table, split_folder, split_table
from fedgate.firmware_sim.evaluate.training import (
    NOTHING,
    Fit,
    NothingSentError,
    TooFewClientsError,
    TrainingError,
    check_privacy_budget,
    commission,
    tensors_fed,
    train_fleet,
)
from fedgate.firmware_sim.recordings import ReadOptions
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.models import onnx_policy
from fedgate.models.arrays import FEATURES, LABELS, Array, Arrays, Floats, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.protocol.algorithm import NORMALISATION, Algorithm, normalise
from fedgate.models.units import in_own_units, median_spread, scales

Score = Callable[[Arrays, Array], Floats]  # (what a client keeps for itself, features (n, F)) -> (n,)

ALWAYS = "always"  # everything is an anomaly
BASELINES = (DISTANCE, FOREST, ALWAYS)  # those that are no algorithm
RUN = "run"  # the axis of runs, each with a seed of its own
FOR_FLEETS = ("privacy", "compression", "masking")  # settings that mean nothing where all rows lie in one place
SEEDS = 2**31
BATCH_ROWS = 64
TIMED_BATCHES = 30
# Scores are computed this many rows at a time, so that memory does not grow with the table.
BLOCK_ROWS = 4_096
# A graph computes in float32; a larger difference from the float64 score means another model, or badly scaled features.
EXPORT_TOLERANCE = 1e-3
# Where no model sets a border, one row of twenty in training counts as outside.
BORDER_QUANTILE = 0.95
# Where a ROC curve is read: at these, and at those that thresholds have, of which there may be more than are drawn.
FALSE_ALARMS, THRESHOLDS = np.linspace(0.0, 1.0, 21), 180
POINTS = 150  # of scores over time, each the highest of its part
CLIENTS_DRAWN = 6


class ExportError(EvaluationError):
    """The exported graph is refused, or does not score as the model does: no gateway would see what was measured."""


class OptionError(EvaluationError):
    """An option that cannot be used; the message names it and what was expected."""


class EvaluatedMethod(Method):
    """An algorithm or one of the baselines, one of which takes everything for an anomaly."""

    @classmethod
    def others(cls) -> Mapping[str, Callable[..., Any]]:
        return {ALWAYS: lambda: None}


class Case(settings.Table):
    """What is measured.

    :param data: a table, or a folder of recordings with evaluation.toml, as seen from the folder of data.
    :param label_column: of a table, where it is not called `label`.
    :param groups: the column of a table that names the gateway of each row: nothing is dealt at random.
    :param clients, split: how rows of a table are dealt; a folder names its gateways.
    :param train_on: all rows by default with protocol whole or where labels are used, else the normal ones.
    :param seed: of all randomness; `run` is one of several that differ in all that is drawn.
    """

    data: str
    label_column: str | None = None
    groups: Annotated[str, Field(min_length=1)] | None = None
    read: ReadOptions = ReadOptions()
    clients: Annotated[int, Field(ge=1, le=10_000)] = 5
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    split: Literal["iid", "biased"] = "iid"
    protocol: Literal["heldout", "whole"] = "heldout"
    train_on: Literal["normal", "all"] | None = None
    method: EvaluatedMethod
    seed: Annotated[int, Field(ge=0)] = 0
    run: Annotated[int, Field(ge=0)] = 0


class Trained(NamedTuple):
    """What scores, what each client keeps for it, and what the training was like."""

    score: Score
    own: Mapping[str, Arrays]
    costs: Figures


def sections(spec: Spec) -> list[Section]:
    """Return what a report shows of an evaluation where its file says nothing of it."""
    costs = ("kB up", "kB down") if _is_any_federated(spec) else ()
    axes = dict.fromkeys(name.rpartition(".")[2] for product in spec.cells for name in product)
    others = [name for name in axes if name not in ("method", RUN)]
    heads = {name: shown for name, shown in COLUMNS.items() if name not in axes and (costs or name not in COSTS)}
    shown: list[dict[str, Any]] = [
        {"title": "What each method is worth", "text": WORTH, "rows": [*others, "method"], "figures": heads},
        {
            "title": "ROC curves",
            "kind": "lines",
            "rows": ["false_alarms"],
            "columns": [*others, "method"],
            "panels": others[:1],
            "figures": {"share of anomalies found": "roc.{false_alarms}"},
            "labels": {"false_alarms": "share of normal rows in alarm"},
            "otherwise": NOBODY,
        },
        _scores_over_time(spec, others),
        {
            "title": "Bytes",
            "kind": "bars",
            "where": {"method.data": "federated"},
            "rows": ["method"],
            "columns": others,
            "panels": "figure",
            "figures": {name: COLUMNS[name] for name in costs},
        },
    ]
    return [Section.model_validate(each) for each in shown if each["figures"]]


def _scores_over_time(spec: Spec, axes: Iterable[str]) -> dict[str, Any]:
    """Return the section of scores over time, of the first run at the first value of each of these axes."""
    first = {name: _first(spec, name) for name in axes}
    which = ", ".join(["The first run", *(f"{name} = {value}" for name, value in first.items())])
    return {
        "title": "Scores over time",
        "text": f"{which}; of no more than {CLIENTS_DRAWN} clients. Shaded where anomalies are. Zero is the"
        " model's border, one the spread of normal scores.",
        "kind": "lines",
        "where": {
            "method.data": "federated",
            "method.algorithm": [*ALGORITHMS, DISTANCE, FOREST],
            RUN: 0,
            **first,
        },
        "rows": ["place"],
        "columns": ["method"],
        "each": "client",
        "panels": "method",
        "stacked": True,
        "shaded": "anomaly.{client}.{place}",
        "level": {"border": 0.0},
        "figures": {"score": "score.{client}.{place}"},
        "labels": {"place": "time, in parts of what was scored"},
        "otherwise": NOBODY,
    }


def _is_any_federated(spec: Spec) -> bool:
    """Return whether any method trains on all clients: else nothing travels and nothing is exported."""
    axes = [list_values(spec, "method", product["method"]) for product in spec.cells if "method" in product]
    methods = [resolve(spec, "method", name) for axis in axes for name in axis]
    return any(
        given.get("data", "federated") == "federated" and given.get("algorithm") not in BASELINES for given in methods
    )


COLUMNS: dict[str, dict[str, Any]] = {
    "AUC": {"of": "auc", "spread": "sd"},
    "F1": {"of": "f1", "spread": "sd"},
    "kB up": {"of": "bytes_up", "scale": 1e-3, "digits": 1},
    "kB down": {"of": "bytes_down", "scale": 1e-3, "digits": 1},
    "rounds": {"of": "rounds", "digits": 0},
    "parameters": {"of": "parameters", "digits": 0},
    "fit s": {"of": "fit_s", "digits": 2},
    "score µs": {"of": "score_us", "digits": 1},
    "clients": {"of": "clients", "digits": 0},
    "judged": {"of": "judged", "digits": 0},
    "could not train": {"of": "untrained", "digits": 0},
}

COSTS = ("kB up", "kB down", "rounds", "parameters", "fit s", "score µs")  # of a federated training

WORTH = """Mean and sample standard deviation over runs, each the mean over the clients whose scored rows are of both \
classes (`judged`). AUC is the area under the ROC curve; F1 is at the model's own border. Bytes are those of a \
client over all rounds, as they travel; `parameters` are the numbers in the shared model; `score µs` is the time \
of a row in the exported model, 64 at a time. `local`: each client alone; `pooled`: one client with all data; \
`distance`: from the mean, in deviations."""

NOBODY = "Nothing to show: no client has scored rows of both classes."


def _first(spec: Spec, axis: str) -> Any:
    """Return the first coordinate of an axis, which is named by its last part."""
    products = (each for product in spec.cells for each in product.items())
    name, given = next((name, given) for name, given in products if name.rpartition(".")[2] == axis)
    return as_coordinate(list_values(spec, name, given)[0])


def reads(case: Case, data: Path) -> list[Path]:
    """Return the table, or the folder and the recordings outside of it that evaluation.toml names."""
    path = data / case.data
    if not path.is_dir():
        return [path]
    plan = settings.load(path / FOLDER_FILE, FolderSettings)
    named = ((path / name).resolve() for name in (*plan.healthy, *plan.damaged))
    return [path, *(each for each in named if not each.is_relative_to(path.resolve()))]


def measure(case: Case, data: Path) -> Figures:
    """Return what a method is worth on rows that did not train, and what it costs.

    Raises:
        EvaluationError: the data or the settings cannot be used, or no client could train.
        RecordingError: the data cannot be read.
    """
    rows = load(case, data)
    algorithm = None if case.method.algorithm in BASELINES else build_algorithm(case, rows)
    plan = check(case, rows, algorithm)
    seed = int(generator(case.seed, case.run, "repeat").integers(SEEDS))
    split = split_table(rows, plan, seed) if isinstance(rows, Table) else split_folder(rows, plan)
    trained = _train_plain(case, split, seed) if algorithm is None else _train(case, algorithm, split, seed)
    scores = {client: trained.own[client] for client in split.judged if client in trained.own}
    found = _scored(trained.score, scores, split)
    counts = {
        "clients": len(split.train),
        "judged": len(split.judged),
        "untrained": len(split.train) - len(trained.own),
    }
    extremes = {"rows_min": min(split.row_counts), "rows_max": max(split.row_counts)}
    figures = {**_worth(found), **trained.costs, **{key: float(value) for key, value in (counts | extremes).items()}}
    drawn = list(found)[: 1 if split.one_scale else CLIENTS_DRAWN]
    is_drawn = case.run == 0 and case.method.algorithm != ALWAYS
    return figures | (_over_time({client: found[client] for client in drawn}) if is_drawn else {})


def check(case: Case, rows: Table | Folder, algorithm: Algorithm | None) -> Plan:
    """Return how rows are split; raises `EvaluationError` where they cannot be, before anything is trained."""
    plan = _plan(case, uses_labels=algorithm is not None and algorithm.labels)
    if isinstance(rows, Table):
        check_table(rows, plan)
    return plan


def load(case: Case, data: Path) -> Table | Folder:
    """Return the rows of a table, dealt by group where one is named, or of a folder of recordings."""
    path = data / case.data
    if path.is_dir():
        for option in sorted({"clients", "split", "read", "groups", "label_column"} & case.model_fields_set):
            raise OptionError(
                f"{option} belongs to tables; evaluation.toml in the folder {case.data} says this: leave it out"
            )
        return _load_folder(path, max(each.stat().st_mtime_ns for each in (path, *path.iterdir())))
    if case.groups is not None:
        for option in sorted({"clients", "split"} & case.model_fields_set):
            raise OptionError(f"{option} deals rows to clients; groups says whose they are: leave one of both out")
    label = {} if case.label_column is None else {"label": case.label_column}
    options = ReadOptions.model_validate({**case.read.model_dump(exclude_unset=True), **label})
    return _load_table(path, options.model_dump_json(exclude_unset=True), case.groups, _changed_ns(path))


def _changed_ns(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


@lru_cache(maxsize=2)
def _load_folder(path: Path, _changed_ns: int) -> Folder:
    return load_folder(path)


@lru_cache(maxsize=2)
def _load_table(path: Path, options_json: str, groups: str | None, _changed_ns: int) -> Table | Folder:
    table = load_table(path, ReadOptions.model_validate_json(options_json), groups)
    return table if groups is None else by_group(table)


def build_algorithm(case: Case, rows: Table | Folder) -> Algorithm:
    """Return the algorithm of a case for these rows; raises `OptionError`."""
    chosen = settings_of(case.method, rows)
    if case.method.data != "federated":
        chosen = {key: value for key, value in chosen.items() if key not in FOR_FLEETS}
    return build_chosen(case.method.algorithm, feature_count(rows), chosen)


def feature_count(rows: Table | Folder) -> int:
    """Return how many features rows have."""
    first = rows.rows if isinstance(rows, Table) else next(iter(rows.gateways.values())).rows
    return int(first.x.shape[1])


def build_chosen(name: str, feature_count: int, chosen: Mapping[str, Any]) -> Algorithm:
    """Return the algorithm of this name with settings of a user; raises `OptionError`."""
    if chosen.get("survey") is not None:
        raise OptionError("survey: expected none, a survey gives levels to gateways of a live site; leave it out")
    for key, value in chosen.items():
        if isinstance(value, float) and not math.isfinite(value):  # TOML has inf and nan, JSON has neither
            raise OptionError(f"{key}: expected a finite number, got {value}")
    try:
        algorithm = build(name, feature_count, dict(chosen))
    except ValidationError as error:
        raise OptionError(expectation(find_first_problem(error))) from None
    except ValueError as error:
        raise OptionError(str(error)) from None
    if algorithm.detector not in DETECTORS:
        raise OptionError(f"{name} needs the detector {algorithm.detector!r}, which is not installed here")
    check_privacy_budget(chosen)
    return algorithm


def expectation(problem: str) -> str:
    """Return pydantic's words for a problem in the words of this project."""
    return problem.replace("Input should be ", "expected ")


def settings_of(method: Method, rows: Table | Folder) -> dict[str, Any]:
    """Columns of a table share one scale already, gateways of a folder and groups each have their own."""
    factory = ALGORITHMS.get(method.algorithm)
    if factory is None or "normalisation" not in inspect.signature(factory).parameters:
        return dict(method.settings)
    as_they_are = {"normalisation": "none", "unit": "feature"}
    return {**(as_they_are if isinstance(rows, Table) else {"normalisation": "own"}), **method.settings}


def _plan(case: Case, *, uses_labels: bool) -> Plan:
    train_on = case.train_on
    if train_on is None:
        train_on = "all" if uses_labels or case.protocol == "whole" else "normal"
    if uses_labels and train_on == "normal":
        raise OptionError(f"train_on: {case.method.algorithm} learns from labels here, so it needs both classes: all")
    return Plan(case.protocol, train_on, uses_labels, case.clients, case.split)


def _train(case: Case, algorithm: Algorithm, split: Split, seed: int) -> Trained:
    score = DETECTORS[algorithm.detector].score
    if case.method.data == "local":
        return Trained(score, _alone(algorithm, split, seed), {})
    if case.method.data == "pooled":
        with suppress(NothingSentError, TooFewClientsError):  # a robust mean asks for three clients
            return Trained(score, _pooled(algorithm, split, seed), {})
        return Trained(score, {}, {})
    try:
        fit = train_fleet(algorithm, split.train, seed=seed, fraction=case.fraction)
    except NothingSentError:
        counts = f"clients have {min(split.row_counts)} to {max(split.row_counts)} rows to train on"
        remedy = "use fewer clients or more data; of many rows see that they differ, and leave out a gamma that is set"
        if algorithm.detector == "esn":
            remedy += ", or a shorter memory: the first 5 / leak rows of a series teach nothing (network.washout)"
        raise TrainingError(f"no client could train; {counts}: {remedy}") from None
    own = _commissioned(algorithm, fit, split, seed)
    graph = DETECTORS[algorithm.detector].graph(fit.shared, algorithm.personal)
    costs = {
        "bytes_up": float(np.mean(list(fit.sent_bytes.values()))),
        "bytes_down": float(fit.received_bytes),
        "rounds": float(algorithm.rounds),
        "parameters": float(sum(tensor.size for tensor in fit.shared.values())),
        "fit_s": fit.fit_s,
        "score_us": _score_us(algorithm, graph, own, split),
    }
    return Trained(_verified(algorithm, fit.shared, graph), own, costs)


def _train_plain(case: Case, split: Split, seed: int) -> Trained:
    """Return one of the baselines that are no algorithm of ours."""
    if case.method.algorithm == ALWAYS:
        return Trained(lambda _, x: np.ones(len(x)), dict.fromkeys(split.train, NOTHING), {})
    if case.method.algorithm == DISTANCE:
        return Trained(_distance, _references(split), {})
    return Trained(lambda own, x: score_by_forest(own[FEATURES], x, seed), split.train, {})


def _alone(algorithm: Algorithm, split: Split, seed: int) -> dict[str, Arrays]:
    """Return what each client that could train alone scores with."""
    alone: dict[str, Arrays] = {}
    for client, data in split.train.items():
        with suppress(NothingSentError, TooFewClientsError):
            fit = train_fleet(algorithm, {client: data}, seed=seed)
            alone[client] = {**fit.shared, **fit.own[client]}
    return alone


def _commissioned(algorithm: Algorithm, fit: Fit, split: Split, seed: int) -> dict[str, Arrays]:
    """Return what each client scores with besides the shared model, without the clients that cannot score: those whose
    rows are too few even for units. One that was never drawn scores too.
    """
    train = split.train.items()
    own = {client: fit.own[client] or commission(algorithm, fit.shared, data, seed) for client, data in train}
    needed = set(NORMALISATION) & set(algorithm.personal)
    return {client: kept for client, kept in own.items() if needed <= kept.keys()}


def _verified(algorithm: Algorithm, shared: Arrays, graph: bytes) -> Score:
    """Return the model's score, which raises `ExportError` where the gateway's scorer would say something else, as this
    does where gateways would refuse the graph.
    """
    try:
        onnx_policy.check(graph)
    except onnx_policy.ModelRefusedError as error:
        raise ExportError(f"every gateway refuses the exported graph: {error}") from None

    def score(own: Arrays, x: Array) -> Floats:
        scores = DETECTORS[algorithm.detector].score({**shared, **own}, x)
        served = Scorer(graph, tensors_fed(algorithm.personal, own))(x)
        if not np.allclose(served, scores, rtol=EXPORT_TOLERANCE, atol=EXPORT_TOLERANCE):
            worst = float(np.abs(served - scores).max())
            cause = "features of very different size lose digits in float32: scale them, or set normalisation=own"
            raise ExportError(f"the exported graph scores up to {worst:.3g} away from the model; {cause}")
        return scores

    return score


def _score_us(algorithm: Algorithm, graph: bytes, own: Mapping[str, Arrays], split: Split) -> float:
    """Return the median time per row that a gateway takes to score full batches."""
    client, kept = next(iter(own.items()))
    scorer = Scorer(graph, tensors_fed(algorithm.personal, kept))
    x = split.test[client].x
    batch = np.resize(x, (BATCH_ROWS, x.shape[1])).astype(np.float32)
    times_ns = []
    for _ in range(TIMED_BATCHES):
        started_ns = time.perf_counter_ns()
        scorer(batch)
        times_ns.append(time.perf_counter_ns() - started_ns)
    return float(np.median(times_ns)) / 1e3 / BATCH_ROWS


def _pooled(algorithm: Algorithm, split: Split, seed: int) -> dict[str, Arrays]:
    """Return the model of one client that holds all data, with what each client scores with beside it.

    Rows of clients that measure in units of their own are brought to those units before they are joined, and each
    client goes on scoring in its own: what is compared is federation, not the mixing of kilonewtons with microstrains.
    """
    if not set(NORMALISATION) & set(algorithm.personal):
        fit = train_fleet(algorithm, {"pooled": _joined(split.train)}, seed=seed)
        model = {**fit.shared, **fit.own["pooled"]}
        return dict.fromkeys(split.train, model)
    train = {client: data for client, data in split.train.items() if len(data[FEATURES])}
    pairs = {client: normalise({}, data, "own") for client, data in train.items()}
    joined = _joined({client: {**train[client], FEATURES: z} for client, (_, z) in pairs.items()})
    fit = train_fleet(algorithm, {"pooled": joined}, seed=seed)
    model = {**fit.shared, **fit.own["pooled"]}  # with the units of the pool, in whose place a client has its own
    return {client: {**model, **own} for client, (own, _) in pairs.items()}


def _joined(train: Mapping[str, Arrays]) -> Arrays:
    parts = list(train.values())
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _references(split: Split) -> dict[str, Arrays]:
    """Return centre, scale and border of the training data by client; of all together where units are the same."""
    if split.one_scale:
        return dict.fromkeys(split.train, _reference(_joined(split.train)))
    return {client: _reference(data) for client, data in split.train.items()}


def _reference(data: Arrays) -> Arrays:
    x = data[FEATURES][data[LABELS] == 0] if LABELS in data else data[FEATURES]
    center = x.mean(axis=0)
    units = {"center": center, "scale": scales(center, x.std(axis=0)), "border": np.zeros(())}
    return {**units, "border": np.quantile(_distance(units, x), BORDER_QUANTILE)}


def _distance(units: Arrays, x: Array) -> Floats:
    """Return the Euclidean distance (n,) of x (n, F) from the centre in deviations, above the border of training."""
    return np.asarray(np.linalg.norm(in_own_units(units, x), axis=1) - units["border"])


def _scored(score: Score, own: Mapping[str, Arrays], split: Split) -> dict[str, tuple[NDArray[np.int64], Floats]]:
    """Return classes (m,) and scores (m,) of each client that is judged; equal work is done once."""
    known: dict[tuple[int, int], Floats] = {}
    found = {}
    for client, kept in own.items():
        rows = split.test[client]
        key = id(kept), id(rows)
        if key not in known:
            blocks = [rows.x[start : start + BLOCK_ROWS] for start in range(0, len(rows.y), BLOCK_ROWS)]
            known[key] = np.concatenate([score(kept, block) for block in blocks])
        found[client] = rows.y, known[key]
    return found


def _worth(found: Mapping[str, tuple[NDArray[np.int64], Floats]]) -> Figures:
    """Return area, F1 and ROC curve, each the mean over clients; nan where nobody is judged."""
    from sklearn.metrics import roc_curve

    if not found:
        return {"auc": math.nan, "f1": math.nan}
    at = _read_at(int((y == 0).sum()) for y, _ in found.values())
    curves = []
    for y, scores in found.values():
        false, true, _ = roc_curve(y, scores)
        curves.append(np.interp(at, false, true))
    heights = zip(at.tolist(), np.mean(curves, axis=0).tolist(), strict=True)
    return {
        "auc": float(np.mean([metrics.roc_auc(y, scores) for y, scores in found.values()])),
        "f1": float(np.mean([metrics.f1(y, scores > 0) for y, scores in found.values()])),
        **{f"roc.{false_alarms:g}": height for false_alarms, height in heights},
    }


def _read_at(normal_counts: Iterable[int]) -> Floats:
    """Return the shares of false alarms that curves are read at: those that thresholds over so many normal rows of each
    client have, thinned to `THRESHOLDS`, and `FALSE_ALARMS`. They are the same for every method, so that runs average.
    """
    every = np.unique(np.concatenate([np.arange(count + 1) / count for count in {*normal_counts}]))
    thinned = every[np.unique(np.linspace(0, len(every) - 1, THRESHOLDS).round().astype(int))]
    return np.unique([*FALSE_ALARMS, *thinned])


def _over_time(found: Mapping[str, tuple[NDArray[np.int64], Floats]]) -> Figures:
    """Return the highest score and whether there is an anomaly in each part of what a client was scored on."""
    figures: Figures = {}
    for client, (y, scores) in found.items():
        normal = scores[y == 0]
        spread = float(median_spread(normal, float(np.median(normal))))
        parts = np.array_split(np.arange(len(y)), min(POINTS, len(y)))
        for place, rows in enumerate(parts):
            figures[f"score.{client}.{place}"] = float(scores[rows].max()) / (spread or 1.0)
            figures[f"anomaly.{client}.{place}"] = float(y[rows].max())
    return figures
