"""The report of the gradient-trained readout: Tables 6.4 and 6.5 beside measured, bad gateways, the printed form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedgate.firmware_sim.studies.engine.markdown import deviation, spread, table
from fedgate.firmware_sim.studies.engine.pictures import beside
from fedgate.firmware_sim.studies.engine.study import Figures, Results
from fedgate.firmware_sim.studies.esn_readout.options import Options, Reservoirs, Target
from fedgate.firmware_sim.studies.esn_readout.pictures import draw_curves
from fedgate.firmware_sim.studies.esn_readout.summary import Place, Summary, summarised
from fedgate.models.arrays import Floats

NUMBERS: dict[str, Reservoirs] = {"6.4": "same", "6.5": "different"}
NOTHING = "-"


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return the report; the picture is `<prefix>-rounds.png`."""
    found = summarised(results)
    picture = beside(prefix, "rounds")
    draw_curves(options, found, picture)
    parts = [_protocol(options), "## Beside", BESIDE_TEXT, _beside_table(found)]
    for number, reservoirs in NUMBERS.items():
        parts += [f"## Table {number}: {reservoirs} reservoirs", *_paper_table(options, found, reservoirs)]
    parts += ["## From round to round", CURVE_TEXT, f"![rounds]({picture.name})"]
    parts += ["## What the penalty of FedCurv does", _penalty_text(options, found), _literal_text(found.literal)]
    parts += [
        "## Bad gateways",
        _bad_text(options),
        *_bad_tables(options, found),
        "## Targets",
        _targets(options, found),
    ]
    return "\n\n".join(part for part in parts if part)


def _protocol(options: Options) -> str:
    return (
        f"WESAD, stress against the rest, {len(options.scored) + len(options.chosen_on)} subjects, the means of 14"
        " channels every 2.5 s, each subject in units of its own"
        f" {'whole recording' if options.normalisation == 'recording' else 'first rows'} (no label is looked at). Per"
        f" seed two of {', '.join(options.scored)} are scored, two of the others are trusted, the rest are gateways, of"
        f" which {options.take_part} take part in each of {options.rounds} rounds; {options.tables.seeds} seeds in"
        f" Tables 6.4 and 6.5, {options.bad.seeds} for bad gateways, each with a reservoir and a split of its own."
        " Figures are mean ± sample standard deviation (n - 1) over seeds, all rows of the scored subjects together."
        f" {options.note}\n\n"
        "The paper scores one subject. Its F1 is micro-F1, which of two classes is the accuracy: so accuracy stands"
        " beside it. 0.8693 stands in eight of its 32 cells, for different algorithms, rates and reservoirs: most"
        " likely the constant answer. Balanced accuracy, 0.5 for every constant answer, tells more."
    )


BESIDE_TEXT = "The same gateways without an attack; `local only` is the mean over the gateways' own models."
CURVE_TEXT = (
    "Balanced accuracy after every round, mean over seeds, nobody bad; the grey line is the constant answer. The rate"
    " of the server grows from left to right."
)


def _beside_table(found: Summary) -> str:
    rows = [
        [method, *(_spread(figures[name]) for name in ("accuracy", "f1", "balanced"))]
        for method, figures in found.beside.items()
    ]
    return table(("method", "accuracy = micro-F1", "F1 of stress", "balanced accuracy"), rows)


def _spread(values: Iterable[float]) -> str:
    known = np.array([value for value in values if not np.isnan(value)])
    return spread(float(known.mean()), deviation(known)) if known.size else NOTHING


def _mean(values: Floats) -> str:
    return NOTHING if np.isnan(values).all() else f"{np.nanmean(values):.2f}"


def _paper_table(options: Options, found: Summary, reservoirs: Reservoirs) -> Iterator[str]:
    clean, *attacks = options.tables.attacks
    yield "Nobody bad. `moves` is the standard deviation over the last 30 rounds."
    yield _clean_table(options, found, reservoirs, clean)
    for attack in attacks:
        yield (
            f"Half of the gateways with `{attack}`. Balanced accuracy for each answer, and in brackets the share of"
            " updates told right; paper and accuracy are of the thesis's discriminator (`+Disc`)."
        )
        yield _attack_table(options, found, reservoirs, attack)


def _rows_of(options: Options, left_out: Sequence[str] = ()) -> list[tuple[str, float]]:
    methods = [method for method in options.tables.methods if method not in left_out]
    return [(method, rate) for method in methods for rate in options.tables.rates]


def _clean_table(options: Options, found: Summary, reservoirs: Reservoirs, attack: str) -> str:
    names = ("accuracy", "f1", "balanced", "balanced.late")
    rows = []
    for method, rate in _rows_of(options):
        place = Place("tables", reservoirs, method, attack, options.tables.answers[0])
        figures = [_spread(found.of(place, rate, name)) for name in names]
        moves = f"{np.mean(found.of(place, rate, 'unsteady')):.3f}"
        rows.append([_row_name(method, rate), _printed(options, reservoirs, method, rate), *figures, moves])
    return table(
        (
            "",
            "paper",
            "accuracy = micro-F1",
            "F1 of stress",
            "balanced accuracy",
            "mean of the last 10 rounds",
            "moves",
        ),
        rows,
    )


def _attack_table(options: Options, found: Summary, reservoirs: Reservoirs, attack: str) -> str:
    undefended, *answers = options.tables.answers
    network = next((answer for answer in answers if "paper" in answer), undefended)
    rows = []
    for method, rate in _rows_of(options, options.tables.only_without_attack):
        places = {answer: Place("tables", reservoirs, method, attack, answer) for answer in options.tables.answers}
        balanced = {answer: _spread(found.of(place, rate, "balanced")) for answer, place in places.items()}
        told = {answer: _mean(found.of(place, rate, "told_right")) for answer, place in places.items()}
        rows.append(
            [
                _row_name(method, rate),
                _printed(options, reservoirs, method, rate, "+Disc"),
                _spread(found.of(places[network], rate, "accuracy")),
                balanced[undefended],
                *(f"{balanced[answer]} ({told[answer]})" for answer in answers),
            ]
        )
    return table(("", "paper, +Disc", "accuracy, +Disc", undefended, *answers), rows)


def _row_name(method: str, rate: float) -> str:
    name, _, rest = method.partition(",")
    return f"{name}-{_rate(rate)}{',' * bool(rest)}{rest}"


def _rate(rate: float) -> str:
    return f"{rate:.1f}" if rate == 1.0 else f"{rate:g}"


def _printed(options: Options, reservoirs: Reservoirs, method: str, rate: float, end: str = "") -> str:
    """Return what the paper prints; it has nothing for a network that is not its own."""
    printed = options.paper.get(reservoirs, {})
    value = printed.get(f"{method.partition(',')[0]}-{_rate(rate)}{end}")
    return NOTHING if value is None or options.methods[method].network else f"{value:.4f}"


def _penalty_text(options: Options, found: Summary) -> str:
    """Return how FedCurv differs from FedAvg, seed by seed, without an attack."""
    first, *others = options.tables.methods
    clean, undefended = options.tables.attacks[0], options.tables.answers[0]
    rows = []
    for method in (name for name in others if options.methods[name].algorithm == "esn-fedcurv"):
        for reservoirs in options.tables.reservoirs:
            for rate in options.tables.rates:
                of = {
                    name: found.of(Place("tables", reservoirs, name, clean, undefended), rate, "balanced")
                    for name in (first, method)
                }
                moves = {
                    name: found.of(Place("tables", reservoirs, name, clean, undefended), rate, "unsteady")
                    for name in (first, method)
                }
                steadier = float(np.mean(moves[first] - moves[method]))
                rows.append([_row_name(method, rate), reservoirs, _spread(of[method] - of[first]), f"{steadier:.3f}"])
    text = (
        f"Balanced accuracy less that of {first}, seed by seed, and how much less it moves over the last 30 rounds"
        " (above zero: steadier). Differences within one deviation say nothing."
    )
    return "\n\n".join([text, table(("", "reservoirs", "difference", "steadier by"), rows)])


def _literal_text(figures: Figures) -> str:
    sums = [figures[f"sum.{index}"] for index in range(1, 1 + sum(name.startswith("sum.") for name in figures))]
    told = {0.0: "not one bit of the readout differs from FedAvg"}
    softmax, tape = (
        told.get(figures[f"{fault}.bits_differ"], f"{figures[f'{fault}.bits_differ']:g} weights differ from FedAvg")
        for fault in ("softmax", "tape")
    )
    return (
        "As printed it is FedAvg, by either of two faults alone. With the softmax of one output (Listing 3.6) the"
        f" Fisher information is zero: after all rounds {softmax}. With the right Fisher information and the penalty"
        f" outside of the tape (Listing 3.4): {tape}. Algorithm 2, in which a gateway returns u - D of the u that it"
        " received, runs away: the largest number of the server's u after rounds 1, 2, 3 ... is"
        f" {', '.join(f'{value:.2g}' for value in sums)}. `listed` is the listing with both faults mended, FedCurv the"
        " algorithm of Shoham et al. with the exact diagonal."
    )


def _bad_text(options: Options) -> str:
    lines = {
        "none": "the weighted mean",
        "median": "the median of each coordinate in place of the mean (no sum: not with secure aggregation)",
        "honest": "only the honest gateways, which nobody knows in the field",
    }
    found = []
    for name in options.bad.answers:
        answer = options.answers[name]
        text = lines.get(answer.means)
        if answer.defence is not None:
            text = {
                "trusted": "each update alone is scored on the two trusted subjects"
                f" (at most {answer.defence.factor:g} times the loss of the best round so far)"
                + "; these two are then summed as well"
                * answer.defence.teach,
                "statistic": f"size and direction within {answer.defence.width:g} deviations of the usual; no data",
                "network": "the thesis's discriminator, trained on the trusted subjects"
                + (", on another reservoir" if answer.other_reservoir else ", on the same reservoir")
                + ("; the rejected count with no change" if answer.rejected_count else "; the rejected are refused"),
            }[answer.defence.kind]
        found.append(f"- `{name}`: {text}.")
    return "\n".join(
        [f"Half of the gateways, {' and '.join(f'`{name}`' for name in options.bad.methods)}. Answers:", "", *found]
    )


def _bad_tables(options: Options, found: Summary) -> Iterator[str]:
    for method in options.bad.methods:
        for rate in options.bad.rates:
            for name, what in (
                ("balanced", "balanced accuracy"),
                ("told_right", "share of updates told right"),
                ("honest_counted", "share of honest updates that counted"),
            ):
                rows = []
                for attack in options.bad.attacks:
                    cells = [
                        found.of(Place("bad", "same", method, attack, answer), rate, name)
                        for answer in options.bad.answers
                    ]
                    rows.append(
                        [attack, *(_spread(values) if name == "balanced" else _mean(values) for values in cells)]
                    )
                yield f"{method}, rate {rate:g}: {what}."
                yield table(("attack", *options.bad.answers), rows)


def _targets(options: Options, found: Summary) -> str:
    rows = [
        row
        for method in options.bad.methods
        for target in options.targets
        for row in _target_rows(options, found, target, method)
    ]
    head = ("attack", "method, rate", "wanted", "answer", "measured", "met")
    return table(head, rows) if rows else "The experiment file gives none."


def _target_rows(options: Options, found: Summary, target: Target, method: str) -> Iterator[list[str]]:
    """Yield what each defence reaches; where it is compared with no defence, the difference seed by seed."""
    undefended, *answers = options.bad.answers

    def balanced(answer: str) -> Floats:
        return found.of(Place("bad", "same", method, target.attack, answer), target.rate, "balanced")

    for answer in answers:
        values = balanced(answer)
        if options.answers[answer].defence is None or not values.size:
            continue
        wanted, least = f"{target.least or 0.0:.2f} or more", target.least
        if target.within is not None:
            values, least = values - balanced(undefended), -target.within
            wanted = f"at most {target.within:g} below `{undefended}`"
        met = least is None or float(values.mean()) >= least
        place = (target.attack, f"{method}, {target.rate:g}", wanted, f"`{answer}`")
        yield [*place, _spread(values), "yes" if met else "**no**"]
