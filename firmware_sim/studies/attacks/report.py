"""The report of the study of lies: what each answer reaches under each, and what it costs where nobody lies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedgate.firmware_sim.studies.engine.markdown import deviation, spread, table
from fedgate.firmware_sim.studies.engine.study import Cell, Results

ALONE = "alone"
MEASURES = {"auc": "area under the ROC curve", "accuracy": "accuracy"}
SHARINGS = {"iid": "Gateways alike", "biased": "Gateways unlike"}
Attack = tuple[str, int]


def report(options: Any, results: Results, prefix: Path) -> str:
    """Return the report; it has no pictures."""
    del prefix
    return "\n\n".join(
        [_protocol(options), *_tables(options, results), "## What a defence costs", _costs(options, results)]
    )


def _protocol(options: Any) -> str:
    return (
        f"{options.gateways} gateways average a linear model with the logistic loss for {options.rounds} rounds, on"
        f" {', '.join(options.sets)}; {options.seeds} seeds each draw 30 % of the rows to score, the liars, and"
        f" {options.trusted} rows that are set aside for `trusted`, whatever the answer. Columns are in deviations of"
        " the rows that train. *Alike*: rows dealt at random; *unlike*: each gateway has one KMeans cluster, so that"
        " some have seen one class only. Liars know nothing of one another or of the answer, but for those who collude:"
        " they know the rows of honest gateways, and all send the mean of what these ask for, moved back along itself"
        " as far as an honest gateway usually lies from it. Who *claims the most* turns its change round at its usual"
        " length and says that it is of the most rows a gateway may have. *Alone*: the mean of honest gateways that"
        f" train by themselves. Figures are means over sets and seeds. {options.note}"
    ).strip()


def _tables(options: Any, results: Results) -> Iterator[str]:
    for sharing in options.sharings:
        yield f"## {SHARINGS[sharing]}"
        for measure, meaning in MEASURES.items():
            yield f"Mean {meaning}, lies in rows:"
            yield _table(options, results, sharing, measure)


def _table(options: Any, results: Results, sharing: str, measure: str) -> str:
    attacks: list[Attack] = [("none", 0), *((lie, count) for count in options.liars for lie in options.lies)]
    names = [*options.answers, ALONE]
    rows = []
    for lie, count in attacks:
        values = [_values(results, sharing, (lie, count), f"{name}|{measure}") for name in names]
        rows.append([f"{count} x {lie}" if count else "nobody lies", *(f"{np.mean(each):.3f}" for each in values)])
    return table(("liars", *names), rows)


def _values(results: Results, sharing: str, attack: Attack, key: str, of: str | None = None) -> list[float]:
    return [figures[key] for cell, figures in results if _is(cell, sharing, attack) and of in (None, cell["set"])]


def _is(cell: Cell, sharing: str, attack: Attack) -> bool:
    return (cell["sharing"], cell["lie"], cell["liars"]) == (sharing, *attack)


def _costs(options: Any, results: Results) -> str:
    """Say by set what each answer loses against the mean where nobody lies, seed by seed."""
    mean, *others = options.answers
    rows = []
    for name in others:
        row = [name]
        for sharing in options.sharings:
            for of in options.sets:
                found, usual = (_values(results, sharing, ("none", 0), f"{who}|accuracy", of) for who in (name, mean))
                differences = np.subtract(found, usual)
                row.append(spread(float(differences.mean()), deviation(differences)))
        rows.append(row)
    head = [f"{of}, {'alike' if sharing == 'iid' else 'unlike'}" for sharing in options.sharings for of in options.sets]
    text = f"Accuracy less that of the {mean} where nobody lies, the same seeds on both sides (mean ± deviation):"
    return f"{text}\n\n{table(('answer', *head), rows)}"
