"""What the reports of the robust SVM's studies compute: means, peaks, paired differences, who is above whom.

Two ways of comparing stand side by side. A target is judged by the paired difference over repetitions and its standard
error. A statement of the paper is held against the peaks, where "above" and "below" mean by more than `NEARLY`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.engine.markdown import deviation, spread, table
from fedgate.firmware_sim.studies.engine.study import Figures, Results
from fedgate.firmware_sim.studies.robust_svm.methods import (
    CENTRAL,
    CHOSEN,
    EITHER,
    LINEAR,
    METHODS,
    OURS,
    VALIDATED,
    best_key,
)

NEARLY = 0.01  # of statements in words: what differs by no more is called equal
PEAK = "peak"
BASELINES = (LINEAR, CENTRAL)

Means = dict[str, float]


class Summary(NamedTuple):
    """Figures of all repetitions by key: mean, sample standard deviation, and each of them."""

    means: Means
    deviations: Means
    figures: Sequence[Figures]

    def cell(self, key: str) -> str:
        return spread(self.means[key], self.deviations[key]) if key in self.means else "-"


class Paired(NamedTuple):
    """Differences of two methods on the same rows: mean, sample standard deviation, standard error of the mean."""

    mean: float
    deviation: float
    error: float

    @property
    def reading(self) -> str:
        if not abs(self.mean) > self.error:  # nor where there is no error to compare with
            return "not told apart"
        return "above" if self.mean > 0 else "below"


def summary_of(figures: Sequence[Figures]) -> Summary:
    """Return the summary of repetitions; an undefined figure counts as zero."""
    values = {key: np.nan_to_num([each[key] for each in figures]) for key in figures[0]}
    means = {key: float(each.mean()) for key, each in values.items()}
    return Summary(means, {key: deviation(each) for key, each in values.items()}, figures)


def grouped(results: Results, name: str) -> dict[str, Summary]:
    """Return summaries by the value of one coordinate, in the order of the cells."""
    groups: dict[str, list[Figures]] = {}
    for cell, figures in results:
        groups.setdefault(str(cell[name]), []).append(figures)
    return {value: summary_of(figures) for value, figures in groups.items()}


def settings_tried(means: Means) -> str:
    """Return how many settings of each method were tried: a peak is the higher, the more there were."""
    keys = [key.partition("|") for key in means]
    counts = {m: sum(method == m and setting != CHOSEN for method, _, setting in keys) for m in METHODS}
    counts[EITHER] = sum(counts[method] for method in OURS)
    return "Settings tried: " + ", ".join(f"{method} {count}" for method, count in counts.items() if count) + "."


def peaks_of(means: Means, methods: Iterable[str]) -> dict[str, str]:
    """Return for each method the key of the setting with the best mean."""
    return {method: best_key(means, (method,)) for method in methods}


def paired(figures: Sequence[Figures], first: str, second: str) -> Paired:
    """Return how far the figure of one key lies above that of another on the same rows."""
    differences = np.array([np.nan_to_num(each[first]) - np.nan_to_num(each[second]) for each in figures])
    sd = deviation(differences)
    return Paired(float(differences.mean()), sd, sd / float(np.sqrt(len(differences))))


def rivals(summary: Summary, reading: str) -> tuple[str, str]:
    """Return the keys of ours and of the best baseline in a reading.

    At the peak ours is what has the best mean; chosen, what the inner split prefers. The baseline has the best mean.
    """
    means = summary.means
    keys = peaks_of(means, VALIDATED) if reading == PEAK else {m: f"{m}|{CHOSEN}" for m in VALIDATED}
    ours = best_key(means, OURS) if reading == PEAK else f"{EITHER}|{CHOSEN}"
    return ours, max((keys[method] for method in BASELINES), key=lambda key: means[key])


PAIRED_TEXT = (
    f"Ours is at the peak the one of {', '.join(OURS)} with the better mean on the scored rows; chosen, for every"
    " repetition the one that its inner split preferred. The baseline is always the one with the better mean on the"
    " scored rows. Difference: ours - baseline on the same rows, mean ± sample standard deviation over repetitions. A"
    " mean within its standard error is read as not told apart; repetitions on one table share rows, so there the"
    " true error is larger."
)


def paired_table(summaries: Mapping[str, Summary], head: str) -> str:
    """Return a table with the paired difference of ours to the best baseline in both readings."""
    rows = []
    for name, summary in summaries.items():
        for reading in (PEAK, CHOSEN):
            keys = rivals(summary, reading)
            found = paired(summary.figures, *keys)
            named = [f"{key.partition('|')[0]} {summary.means[key]:.3f}" for key in keys]
            error = "-" if np.isnan(found.error) else f"{found.error:.3f}"
            rows.append([name, reading, *named, spread(found.mean, found.deviation), error, found.reading])
    return table([head, "reading", "ours", "best baseline", "difference", "standard error", "ours is"], rows)


def peak_differences(summaries: Mapping[str, Summary], first: str, *others: str) -> dict[str, float]:
    """Return by name how far the peak of a method lies above the best peak of others."""
    found = {}
    for name, summary in summaries.items():
        keys = peaks_of(summary.means, (first, *others))
        found[name] = summary.means[keys[first]] - max(summary.means[keys[other]] for other in others)
    return found


def standing(differences: Mapping[str, float]) -> str:
    """Return on which sets a difference is above, equal and below, by the one margin of all statements."""
    above = {name: value for name, value in differences.items() if value > NEARLY}
    below = {name: value for name, value in differences.items() if value < -NEARLY}
    equal = {name: value for name, value in differences.items() if abs(value) <= NEARLY}
    return ", ".join(
        f"{word} on {len(part)} of {len(differences)}" + f" ({listed(part)})" * bool(part)
        for word, part in (("above", above), ("equal", equal), ("below", below))
    )


def listed(differences: Mapping[str, float]) -> str:
    return "; ".join(f"{name} {value:+.3f}" for name, value in differences.items())
