"""Levels of a site (ours): what scores look like on all gateways, for one that has no baseline of its own yet.

One exchange more ends every round: each gateway scores the windows that it keeps for its own level, with the model of
the round and its own tensors, and sends a histogram of the scores (`fedgate.models.alarms.site_thresholds`); where a
profile is asked for, the sums of its features by hour, day and context as well (`fedgate.models.alarms.profile`). Both
are sums, so they may travel masked. They go out with the model in its signed manifest. A gateway calibrates itself as
soon as it can: levels of its own keep the promised rate, those of the site only as far as the gateways are alike.

A model with a memory sees the rows one after the other, without regard to gaps in the baseline.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field as Setting

from fedgate.models.alarms.profile import cell_count, cells, sums
from fedgate.models.alarms.profile_spec import ProfileSpec
from fedgate.models.alarms.site_thresholds import BINS, sketch
from fedgate.models.arrays import CALIBRATION, END_NS, FEATURES, Array, Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Phase,
    Server,
    Trained,
    normalise,
)
from fedgate.models.federated.protocol.composition import check_composition, having
from fedgate.models.federated.protocol.namespace import hidden, prefixed, split
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import Field, UpdateError
from fedgate.models.options import Listed, Options

SITE = "site."  # before the names of what a survey leaves in `global_state`
SCORES = "scores"
MOST_VALUES = 6_000  # of a site's profile: it travels in one message, the manifest
FARTHEST = 1e6  # deviations of a feature that a survey takes; beyond it a sensor is broken


class Survey(Options):
    """What is asked of every gateway when a round has made a model.

    :param profile: as [alarm.contextual] of every gateway: the cells by which features are summed too.
    :param columns: which features are the context of the profile, in the order of its bins.
    """

    profile: ProfileSpec | None = None
    columns: Listed[tuple[Annotated[int, Setting(ge=0)], ...]] = ()


def site_of(global_state: Arrays) -> Arrays:
    """Return what the last survey left: `scores` (B,), and of a profile `count` (C,), `sum` and `square` (C, F)."""
    return split(global_state, SITE)[1]


def with_site_thresholds(algorithm: Algorithm, survey: Survey, feature_count: int) -> Algorithm:
    """Return the algorithm with a survey at the end of every round.

    Raises `ValueError` for a profile of more values than a manifest holds.
    """
    count = 0 if survey.profile is None else cell_count(survey.profile)
    wanted = 0 if survey.profile is None else len(survey.profile.bins)
    if len(survey.columns) != wanted or any(column >= feature_count for column in survey.columns):
        raise ValueError(
            f"survey.columns {survey.columns} given, expected {wanted}, one below {feature_count} for each context"
        )
    if count * (2 * feature_count + 1) > MOST_VALUES:
        raise ValueError(
            f"survey.profile: {count} cells of {feature_count} features given, expected at most {MOST_VALUES} sums; "
            "take longer blocks of hours, fewer context bins or fewer features"
        )
    check_composition(algorithm, "survey")
    last = len(algorithm.phases)

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        update = {SCORES: sketch(_scores(algorithm, global_state, local_state, data))}
        return local_state, update | (
            _profile(survey.profile, survey.columns, local_state, data) if survey.profile else {}
        )

    def advance(server: Server, total: Arrays) -> Server:
        model, thresholds = split(server.global_state, SITE)[0], prefixed(SITE, total)
        return server._replace(global_state={**model, **thresholds}, phase=algorithm.setup)

    def check(_server: Server, update: Arrays) -> None:
        for name, fewest in ((SCORES, 1), *([("count", 0)] if count else [])):  # a clock may never have been set
            if not fewest <= (rows := float(update[name].sum())) <= MAX_SAMPLES:
                raise UpdateError(f"{name}: expected {fewest} to {MAX_SAMPLES} rows in all, got {rows:g}")

    *others, model = (hidden(phase, SITE) for phase in algorithm.phases)
    phases = (*others, _before(last, model), Phase(learn, SUM, advance, _schema(count, feature_count), check))
    return having(algorithm, "survey", phases=phases)


def _schema(count: int, feature_count: int) -> dict[str, Field]:
    scores = Field((BINS,), "sum", least=0.0, largest=MAX_SAMPLES)
    sums = Field((count, feature_count), "sum", largest=MAX_SAMPLES * FARTHEST**2)
    profile = {"count": scores._replace(shape=(count,)), "sum": sums, "square": sums}
    return {SCORES: scores, **(profile if count else {})}


def _scores(algorithm: Algorithm, global_state: Arrays, local_state: Arrays, data: Arrays) -> Floats:
    """Return the scores (m,) of the rows that this gateway keeps for its own level."""
    if CALIBRATION not in data:
        raise ValueError(f"a survey needs the rows {CALIBRATION!r} in the data and found none; they train no model")
    personal = {name: local_state[name] for name in algorithm.personal if name in local_state}
    rows = np.concatenate([data[FEATURES], data[CALIBRATION]])  # a memory must not begin with those that count
    scores = DETECTORS[algorithm.detector].score({**split(global_state, SITE)[0], **personal}, rows)
    return np.asarray(scores[len(data[FEATURES]) :])


def _profile(spec: ProfileSpec, columns: tuple[int, ...], local_state: Arrays, data: Arrays) -> Arrays:
    """Return the sums of the features of a gateway's training rows by cell, in its own units."""
    if END_NS not in data:
        raise ValueError(f"a survey with a profile needs {END_NS!r}, the time of each row, in the data and found none")
    _, z = normalise(local_state, data, "own")
    inside: Array = np.clip(z, -FARTHEST, FARTHEST)
    return sums(spec, cells(spec, data[END_NS], data[FEATURES][:, list(columns)]), inside)


def _before(survey: int, phase: Phase) -> Phase:
    """Return the phase that makes the model, after which comes the survey."""

    def advance(server: Server, total: Arrays) -> Server:
        return phase.advance(server, total)._replace(phase=survey)

    return phase._replace(advance=advance)
