"""The tables of the federated SVDD study in Markdown: paper beside measured, best and worst configuration, targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.engine.markdown import deviation, spread, table
from fedgate.firmware_sim.studies.engine.pictures import beside
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Results
from fedgate.firmware_sim.studies.federated_svdd.options import CENTRAL, DISTANCE, ESVDD, FEDERATED, SVE, Options
from fedgate.firmware_sim.studies.federated_svdd.picture import COMPARISONS, draw
from fedgate.models.arrays import Floats

SHORT = {"ocsvm": "OC-SVM", "svdd": "SVDD", DISTANCE: "distance from the mean", SVE: "SVE", ESVDD: "ESVDD"}
COLUMNS = ("OC-SVM", "SVDD", "SVE (+)", "ESVDD (+)", "SVE (-)", "ESVDD (-)")
BEST_OF = {SVE: COLUMNS.index("SVE (+)"), ESVDD: COLUMNS.index("ESVDD (+)")}

PROTOCOLS = {
    "plasticity": "Trained and scored on all rows of each set, outliers included (the paper's section 5.1), so no"
    " form leaves rows out by their label; mean ± sample standard deviation (n - 1) over {values} values of the form,"
    " each with a seed of its own that deals the rows, draws the clients and makes the noise.",
    "generalisation": "Nested cross-validation (the paper's section 5.2): {folds} outer folds, stratified; for each the"
    " value out of {values} with the largest mean area on {folds} inner folds of the other rows; mean ± sample"
    " standard deviation (n - 1) over the outer folds. Columns are scaled by the rows that train.",
}
TUNED = (
    "(+) and (-) are the best and the worst configuration of clients, client fraction, split and anonymisation, chosen,"
    " as in the paper, by the very figure that is shown: an optimistic best and a pessimistic worst. Nothing else was"
    " tuned on what is reported. Where the clients that were drawn have too few rows to train, the area counts as 0.5."
)


class Summary(NamedTuple):
    """Areas of one cell."""

    mean: float
    deviation: float
    cell: Cell

    def __str__(self) -> str:
        return spread(self.mean, self.deviation)


def areas(figures: Figures) -> Floats:
    """Return the areas of a cell in the order of its values or folds."""
    return np.array([figures[f"auc.{index}"] for index in range(sum(key.startswith("auc.") for key in figures))])


def tables(options: Options, results: Results, prefix: Path) -> str:
    """Return the report of Table 1 or 2; the first has a picture beside it."""
    summaries = [
        Summary(float(areas(figures).mean()), deviation(areas(figures)), cell)
        for cell, figures in results
        if "tau" not in cell
    ]
    parts = [
        PROTOCOLS[options.table].format(values=options.values, folds=options.folds),
        _forms(options),
        f"{TUNED} Area under the ROC curve; γ = {options.gamma:g}, seed {options.seed}.",
        table(("set", "form", *COLUMNS, "distance from the mean"), _rows(options, summaries)),
        "## Targets",
        _target_table(options, summaries) if options.paper else "The experiment file gives no figures of the paper.",
        _beaten(options, summaries),
        "## Best and worst configurations",
        table(("set", "form", "method", "best", "worst"), _configurations(options, summaries)),
    ]
    if options.taus:
        parts += ["## How much hangs on τ", _tau_text(options), _tau_table(options, results)]
    if options.table == "plasticity":
        picture = beside(prefix, "differences")
        draw(options, results, picture)
        parts += [
            "## What changes the result (Figures 1 to 3 of the paper)",
            _picture_text(),
            f"![differences]({picture.name})",
        ]
    return "\n\n".join(parts)


def _forms(options: Options) -> str:
    names = {"c": "C, the cap on a multiplier", "nu": "ν, the share of rows outside"}
    rows = {"all": "all rows that may train", "normal": "those of them alone that are labelled normal"}
    first = next(iter(options.forms))
    lines = [
        f"- `{name}`: the values are {names[form.caps]}, uniform in [{form.low:g}, {form.high:g}]; trains on"
        f" {rows[form.train_on]}."
        for name, form in options.forms.items()
    ]
    return "\n".join(
        ["Forms:", "", *lines, "", f"`{first}` is the literal reading. OC-SVM takes the values as ν always."]
    )


def _of(summaries: list[Summary], name: str, form: str, method: str) -> list[Summary]:
    """Return the cells of one set, form and method from worst to best."""
    found = [
        each for each in summaries if (each.cell["set"], each.cell["form"], each.cell["method"]) == (name, form, method)
    ]
    return sorted(found, key=lambda each: each.mean)


def _rows(options: Options, summaries: list[Summary]) -> Iterable[Sequence[str]]:
    for name in options.sets:
        if name in options.paper:
            yield name, "printed in the paper", *(f"{value:.2f}" for value in options.paper[name]), ""
        for form in options.forms:
            central = {method: str(_of(summaries, name, form, method)[0]) for method in CENTRAL}
            by_rank = [str(_of(summaries, name, form, method)[rank]) for rank in (-1, 0) for method in FEDERATED]
            yield name, f"`{form}`", central["ocsvm"], central["svdd"], *by_rank, central[DISTANCE]


def _target_table(options: Options, summaries: list[Summary]) -> str:
    nearly = f"at or above paper - {options.within:g}"
    head = ("set", "method", "paper", "measured, literal", nearly, "other forms", "at or above paper")
    return table(head, _targets(options, summaries))


def _targets(options: Options, summaries: list[Summary]) -> Iterable[Sequence[str]]:
    literal, *others = options.forms
    for name, printed in options.paper.items():
        for method in FEDERATED:
            paper = printed[BEST_OF[method]]
            found = _of(summaries, name, literal, method)[-1].mean
            rest = {form: _of(summaries, name, form, method)[-1].mean for form in others}
            yield (
                name,
                SHORT[method],
                f"{paper:.2f}",
                f"{found:.3f}",
                _verdict(found >= paper - options.within),
                ", ".join(f"`{form}` {value:.3f}" for form, value in rest.items()),
                ", ".join(f"`{form}` {_verdict(value >= paper)}" for form, value in rest.items()),
            )


def _verdict(met: bool) -> str:
    return "yes" if met else "**no**"


def _beaten(options: Options, summaries: list[Summary]) -> str:
    """Say where a method without federation, or without a model, does better than the best federated configuration."""
    lines = []
    for name in options.sets:
        for form in options.forms:
            best = max(_of(summaries, name, form, method)[-1].mean for method in FEDERATED)
            better = [
                f"{SHORT[method]} {found:.3f}"
                for method in CENTRAL
                if (found := _of(summaries, name, form, method)[0].mean) > best
            ]
            if better:
                lines.append(f"- {name}, `{form}`: {', '.join(better)}; best federated {best:.3f}.")
    if not lines:
        return "No central method and no trivial one beats the best federated configuration of its form on any set."
    return "\n".join(["Better than the best federated configuration, on the same rows:", "", *lines])


def _configurations(options: Options, summaries: list[Summary]) -> Iterable[Sequence[str]]:
    for name in options.sets:
        for form in options.forms:
            for method in FEDERATED:
                found = _of(summaries, name, form, method)
                yield name, f"`{form}`", SHORT[method], _where(found[-1].cell), _where(found[0].cell)


def _where(cell: Cell) -> str:
    kept = "anonymised" if cell["anonymise"] else "plain"
    return f"K = {cell['clients']}, F = {cell['fraction']:g}, {cell['split']}, {kept}"


def _tau_text(options: Options) -> str:
    return (
        f"The paper fixes τ = {options.tau:g}. With a larger τ a stand-in stays farther from its vector. Support Vector"
        f" Election, literal reading, K = {max(options.clients)}, F = {max(options.fractions):g}, iid, anonymised. The"
        " table above uses the paper's τ; none of these is chosen from."
    )


def _tau_table(options: Options, results: Results) -> str:
    found = {(cell["set"], cell["tau"]): areas(figures) for cell, figures in results if "tau" in cell}
    rows = [
        (name, *(spread(float(found[name, tau].mean()), deviation(found[name, tau])) for tau in options.taus))
        for name in options.sets
    ]
    return table(("set", *(f"τ = {tau:g}" for tau in options.taus)), rows)


def _picture_text() -> str:
    lines = [f"- {each.title}: {each.meaning}" for each in COMPARISONS]
    return "\n".join(
        ["Differences of areas in the literal form, mean ± sample standard deviation over sets and values:", "", *lines]
    )
