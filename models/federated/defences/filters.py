"""Ways to judge one update before it is summed, each from that update and what the rounds before it left.

    trusted     the model that the update alone would make, on labelled rows that the cloud trusts
    statistic   the size and direction of the change, beside those of the rounds before; needs no data
    network     a trained network that tells changes of clean gateways from those of noisy ones (`discriminator`)
    norm        its length, beside the median of those of the rounds before (`norm_filter`)

A filter raises `UpdateError` or returns notes: numbers that add up over the updates of a round, so that their order
does not matter and no update is kept. What the notes of a round add up to becomes its memory for the next one (ours).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import FEATURES, LABELS, MISSING, Array, Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated.defences.discriminator import check_context, judged_clean, taken_away
from fedgate.models.federated.defences.single_update import change_of, model_of
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Server, normalise
from fedgate.models.federated.protocol.schema import UpdateError

CHANCE = 0.5  # of `ranking_and_border` for a score that says nothing
LEAST_LOSS = 0.02  # below it a model makes hardly any mistake, and a share of nothing would refuse everybody

COUNT, LOSS, LIMIT, TABLES = "count", "loss", "limit", "tables"
SIZE, SIZE_SQUARE, ALIKE, ALIKE_SQUARE, DIRECTION = "size", "size_square", "alike", "alike_square", "direction"
FEWEST = 5  # updates before sizes and directions have a usual range
FORGET = 0.9  # what a round of the past counts beside the next one
LEAST_SPREAD = 0.1  # of the logarithm of a size and of a cosine: gateways alike to less are alike


Score = Callable[[Arrays, Array], Floats]


def _never(_memory: Arrays) -> bool:
    return False


def _any_context(_global_state: Arrays) -> None:
    """Start on whatever is shared."""


def _no_memory(_memory: Arrays, _total: Arrays) -> Arrays:
    return {}


class UpdateFilter(NamedTuple):
    """`notes` refuses an update or says what to add up; `remembered` makes memory of it; `check` refuses to start.

    A round that began while it `measures` moves nothing.
    """

    notes: Callable[[Phase, Server, Arrays, Arrays], Arrays]  # phase, server, memory, admitted update
    remembered: Callable[[Arrays, Arrays], Arrays] = _no_memory  # memory, sum of the notes
    check: Callable[[Arrays], None] = _any_context  # shared
    measures: Callable[[Arrays], bool] = _never  # memory


class Table(NamedTuple):
    """A trusted gateway: features (n, F) of each of its series, which of all rows count, having a label and being past
    what a network washes out, which of these are anomalies, and its own tensors.
    """

    series: list[Array]
    known: Array
    anomalous: Array
    local_state: Arrays

    def scores(self, score: Score, model: Arrays) -> Floats:
        """Return the scores of the rows that count, each series from its own beginning."""
        return np.concatenate([score({**model, **self.local_state}, rows) for rows in self.series])[self.known]


def trusted_filter(
    algorithm: Algorithm, tables: Sequence[Arrays], factor: float, score: Score | None = None
) -> UpdateFilter:
    """Return a filter by loss: refused is what makes, with what was counted before, a model that is worse than chance
    on the trusted tables, or worse than `factor` times the mean of what was admitted in the best round so far.

    The limit never rises: one round in which only bad gateways were better than chance must not open the door again. A
    gateway that pulls a good model back little by little is admitted, until the model is so much the worse for it.

    Raises `ValueError` for no table, or one without both normal rows and anomalies.
    """
    if not tables:
        raise ValueError("defence 'trusted' needs at least 1 trusted table, got none")
    for index, table in enumerate(tables):
        _table(algorithm, index, table, washout=0)  # says at once what no network could learn from
    scores, digest = score or DETECTORS[algorithm.detector].score, _digest(tables)

    def rows_of(global_state: Arrays) -> list[Table]:
        washout = ceil(float(global_state.get("washout", 0)) / float(global_state.get("steps", 1)))
        return [_table(algorithm, index, table, washout) for index, table in enumerate(tables)]

    def check(global_state: Arrays) -> None:
        rows_of(global_state)

    def limit_of(memory: Arrays) -> float:
        is_of_these = np.array_equal(memory.get(TABLES, digest), digest)  # other tables have other losses
        return float(memory.get(LIMIT, CHANCE)) if is_of_these else CHANCE

    def notes(phase: Phase, server: Server, memory: Arrays, update: Arrays) -> Arrays:
        model, limit = model_of(algorithm, phase, server, update), limit_of(memory)
        losses = [
            ranking_and_border(each.scores(scores, model), each.anomalous) for each in rows_of(server.global_state)
        ]
        loss = float(np.mean(losses))
        if not loss <= limit:
            raise UpdateError(f"expected a loss up to {limit:.3g} on the trusted tables (chance: 0.5), got {loss:.3g}")
        return {LOSS: np.array(loss), COUNT: np.array(1.0)}

    def remembered(memory: Arrays, total: Arrays) -> Arrays:
        mean = float(total[LOSS] / total[COUNT])
        return {LIMIT: np.array(min(limit_of(memory), factor * max(mean, LEAST_LOSS))), TABLES: digest}

    return UpdateFilter(notes, remembered, check)


def _digest(tables: Sequence[Arrays]) -> Array:
    """Return by what these tables are told from others, (32,) uint8."""
    found = hashlib.sha256()
    for array in (table[name] for table in tables for name in sorted(table)):
        found.update(np.ascontiguousarray(array).tobytes())
    return np.frombuffer(found.digest(), dtype=np.uint8)


def _table(algorithm: Algorithm, index: int, data: Arrays, washout: int) -> Table:
    labels = data.get(LABELS, np.zeros(0, dtype=np.int64))
    place = np.arange(len(labels))
    begins = np.flatnonzero((data.get(MISSING, place) != 0) & (MISSING in data) | (place == 0))
    since = place - np.repeat(begins, np.diff([*begins, len(place)]))
    known = np.asarray((labels >= 0) & (since >= washout))  # others are part of the series and of no class
    if not {0, 1} <= set(np.minimum(labels[known], 1).tolist()):
        raise ValueError(
            f"trusted table {index}: expected labels of normal rows (0) and of anomalies (1 and up), each {washout} "
            "rows or more behind the beginning of a recording"
        )
    local_state, _ = normalise({}, data, "own" if "center" in algorithm.personal else "none")
    series = np.split(data[FEATURES], begins[1:]) if len(begins) > 1 else [data[FEATURES]]
    return Table(series, known, np.asarray(labels[known] > 0), local_state)


def ranking_and_border(scores: Array, anomalous: Array) -> float:
    """Return the mean of two shares of mistakes, 0.5 for a score that says nothing: of pairs in which the normal row
    has the higher score, and of rows on the wrong side of zero, either class counting half. Of scores (n,), and which
    of them (n,) are of anomalies.

    Neither depends on the unit of the score, so the scores of every detector have the same chance and the same best.
    The first sees a model that ranks rows the wrong way round, the second one whose border was moved.
    """
    normal, others = np.sort(scores[~anomalous]), scores[anomalous]
    below, up_to = np.searchsorted(normal, others, "left"), np.searchsorted(normal, others, "right")
    misranked = 1.0 - float((below + up_to).mean()) / (2.0 * len(normal))
    misplaced = (float((normal > 0.0).mean()) + float((others <= 0.0).mean())) / 2.0
    return (misranked + misplaced) / 2.0


def statistic_filter(width: float) -> UpdateFilter:
    """Return a filter by what is usual: refused is a change whose size (its logarithm), or whose cosine with the mean
    direction so far, lies more than `width` deviations from the mean of what was admitted.

    The first updates are all admitted. It sees a gateway that shouts or goes astray among many that do not. It does not
    see flipped labels, whose changes are as large as honest ones, where half of the gateways send them: neither half is
    the usual one, and moments that have seen both allow both.
    """

    def notes(phase: Phase, _server: Server, memory: Arrays, update: Arrays) -> Arrays:
        change = change_of(phase.schema, update)
        norm = float(np.linalg.norm(change))
        if norm == 0.0:
            return _noted(0.0, 0.0, 0.0, change)  # asks for nothing, and is no example of what is usual
        size, unit = float(np.log(norm)), np.asarray(change / norm)
        mean_norm = float(np.linalg.norm(memory[DIRECTION])) if memory else 0.0
        alike = float(unit @ memory[DIRECTION]) / mean_norm if mean_norm > 0.0 else 0.0
        if memory and float(memory[COUNT]) >= FEWEST:
            _check_within("logarithm of the size", size, *_measure(memory, SIZE, SIZE_SQUARE), width, both=True)
            _check_within(
                "cosine with the mean change", alike, *_measure(memory, ALIKE, ALIKE_SQUARE), width, both=False
            )
        return _noted(1.0, size, alike, unit)

    def remembered(memory: Arrays, total: Arrays) -> Arrays:
        if float(total[COUNT]) == 0.0:  # nobody asked for anything, and what is usual is what it was
            return memory
        return {name: np.asarray(FORGET * memory.get(name, 0.0) + array) for name, array in total.items()}

    return UpdateFilter(notes, remembered)


def _noted(count: float, size: float, alike: float, unit: Floats) -> Arrays:
    numbers = {COUNT: count, SIZE: size, SIZE_SQUARE: size**2, ALIKE: alike, ALIKE_SQUARE: alike**2}
    return {name: np.array(value) for name, value in numbers.items()} | {DIRECTION: unit}


def _measure(memory: Mapping[str, Array], name: str, square: str) -> tuple[float, float]:
    """Return mean and deviation of what was admitted."""
    mean = float(memory[name] / memory[COUNT])
    variance = float(memory[square] / memory[COUNT]) - mean**2
    return mean, max(float(np.sqrt(max(variance, 0.0))), LEAST_SPREAD)


def _check_within(what: str, found: float, mean: float, spread: float, width: float, *, both: bool) -> None:
    least, most = mean - width * spread, mean + width * spread
    if found < least or (both and found > most):
        raise UpdateError(f"{what}: expected {least:.3g}{f' to {most:.3g}' if both else ' or more'}, got {found:.3g}")


def network_filter(network: Arrays) -> UpdateFilter:
    """Return the thesis's filter: refused is a change that the network takes for one of noisy data."""

    def notes(phase: Phase, _server: Server, _memory: Arrays, update: Arrays) -> Arrays:
        change = taken_away(phase.schema, update)
        inputs = len(network["layer0.weights"])
        if change.size != inputs:
            raise UpdateError(f"expected {inputs} numbers, as the discriminator knows, got {change.size}")
        clean = float(judged_clean(network, change[None])[0])
        if not clean > 0.5:
            raise UpdateError(f"expected a change that the discriminator gives above 0.5 for clean, got {clean:.3g}")
        return {}

    return UpdateFilter(notes, check=partial(check_context, network))
