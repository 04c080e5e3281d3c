"""How the figures of the bridges study came about, in the words that stand above its tables."""

from __future__ import annotations

from fedgate.firmware_sim.studies.bridges.methods import DISTANCE
from fedgate.firmware_sim.studies.bridges.options import Options
from fedgate.firmware_sim.studies.bridges.rows import chooses, listed
from fedgate.firmware_sim.studies.engine.study import Results

CALIBRATED = (
    "Scores of a gateway are put in units of the spread of healthy training windows that were held out from a model of"
    " the rest; the fleet's score is the mean over gateways."
)
UNCERTAIN = (
    "± is the standard error of an AUC after Hanley and McNeil (1982). It takes windows for independent; those of one"
    " recording follow each other in time and are not, so it is a lower bound, and at an AUC of 1 it says nothing."
)
TOLD_APART = (
    "The error of a difference is the root of the sum of both squares; that both methods score the same windows is left"
    " out of account. What rests on less than that error (held against a target: than that of the AUC alone) reads"
    " `not told apart`; one such error is passed by chance about once in three times."
)
ALIKE = (
    "Where settings leave every gateway without anything to send, or a solver does not converge, all windows score"
    " alike (AUC 0.5)."
)


def introduction(options: Options, results: Results) -> str:
    """Return what a reader must know before the tables, or before the curves of a sweep."""
    parts = [f"Data: {options.data_set}. {_split(options)} {_counted(results)}"]
    parts += [_choice(options), f"Seed {options.seed}.", CALIBRATED, _level(options)]
    if options.sweep:
        parts += ["F has damage as positive; a gateway that is always in alarm stands beside it.", UNCERTAIN, ALIKE]
        return " ".join([*parts, options.note]).rstrip()
    parts += [
        "F is given both ways round, damage as positive and healthy as positive; false alarms an hour are those at the"
        " level that finds 90 % of the damaged windows.",
        UNCERTAIN,
        TOLD_APART,
        ALIKE,
    ]
    if any(method.algorithm == DISTANCE for method in options.methods.values()):
        parts.append("`distance` from the mean is the trivial baseline.")
    if any(method.data == "pooled" for method in options.methods.values()):
        parts.append(
            "Pooled methods with normalisation `none` bring the pool to the pooled mean and deviation, with `own` every"
            " gateway's rows to their own first; raw features they are never given."
        )
    if options.paper:
        parts.append("The paper's recordings are confidential: its figures are of other bridges.")
    return " ".join([*parts, options.note]).rstrip()


def _split(options: Options) -> str:
    if len(options.train_setups) + len(options.test_setups) > 2:
        return (
            f"Healthy windows of setups {listed(options.train_setups)} train, all windows of setups"
            f" {listed(options.test_setups)} are scored."
        )
    return "The first 60 % of the healthy recording train; the rest and all damaged recordings are scored."


def _counted(results: Results) -> str:
    """Say how many windows are scored; other lengths of a window give other numbers."""
    found = dict.fromkeys((int(each["healthy"]), int(each["damaged"])) for _, each in results)
    counts = " or, cut otherwise, ".join(f"{healthy} healthy and {damaged} damaged" for healthy, damaged in found)
    return f"These are {counts} windows, which do not overlap."


def _choice(options: Options) -> str:
    if options.sweep:
        return "Nothing is tuned: settings stand in the experiment file, and what it does not name is at its default."
    if not chooses(options):
        return (
            "Nothing is tuned: one choice of windows and settings for each method, and what it does not name is at its"
            " default."
        )
    return (
        "Windows and settings of each method are chosen by the fleet's AUC with one training setup left out in turn"
        " (column `choice`; `tried` is among how many, windows times settings), which takes damaged windows of that"
        f" setup; no gateway has such. Settings that the table of what was chosen does not name, ν among them, are at"
        f" their defaults. Setups {listed(options.test_setups)} choose nothing."
    )


def _level(options: Options) -> str:
    if chooses(options):
        return "The alarm level is that with the best mean of both F-scores on the same splits."
    return "Alarms are raised at three spreads."
