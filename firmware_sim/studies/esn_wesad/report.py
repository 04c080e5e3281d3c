"""The report of Table B.3: printed beside measured, what travels, baselines, targets, and accuracy over bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgate.firmware_sim.studies.engine.markdown import deviation, spread, table
from fedgate.firmware_sim.studies.engine.pictures import beside
from fedgate.firmware_sim.studies.engine.study import Figures, Results
from fedgate.firmware_sim.studies.esn_wesad.baselines import BASELINES, LOGISTIC, OF_A_NETWORK
from fedgate.firmware_sim.studies.esn_wesad.options import CHOSEN, CLASSES, Options, Target
from fedgate.firmware_sim.studies.esn_wesad.picture import WITHIN, Curve, draw
from fedgate.firmware_sim.studies.esn_wesad.sketches import SKETCHES

NORMALISED = {"recording": "whole recording", "commissioning": "first rows"}
INTRODUCTION = (
    "Every figure is of subjects that took no part in the training: {held_out} of {subjects} at a time, in turn, so"
    " that each is scored once; accuracy over all their rows, mean ± sample standard deviation over {seeds} reservoirs,"
    " each with a draw of who is there (a baseline without a reservoir has none). Rows follow one another in time, and"
    " the protocol's order is nearly the same for all, so part of what a method with a memory knows may be the order."
    " Differences between reservoirs are as large as those between most methods: below 0.02 means nothing. A gateway"
    " knows its units from its whole recording, as a laboratory does, or from its first {rows} rows, which is what a"
    " gateway in the field has; classes are not looked at for that."
)


class Measured:
    """The results, to be looked up by a part of their cells."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def of(self, **place: Any) -> list[Figures]:
        """Return the figures of all cells with these coordinates, one for each seed; a coordinate of None is absent."""
        return [
            figures
            for cell, figures in self.results
            if all(cell.get(key) == value for key, value in place.items()) and ("size" in place or "size" not in cell)
        ]

    def text(self, name: str, **place: Any) -> str:
        values = [figures[name] for figures in self.of(**place) if name in figures]
        return spread(float(np.mean(values)), deviation(values)) if values else ""

    def mean(self, name: str, **place: Any) -> float:
        values = [figures[name] for figures in self.of(**place) if name in figures]
        return float(np.mean(values)) if values else float("nan")


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return the report; draws accuracy over bytes into `<prefix>-bytes.png`."""
    measured, first = Measured(results), next(iter(options.networks))
    most = max(options.shares)
    parts = [
        INTRODUCTION.format(
            held_out=options.held_out,
            subjects=len(options.subjects),
            seeds=options.seeds,
            rows=options.commissioning_rows,
        ),
        options.note,
        f"## Who is there\n\nNetwork `{first}`, units of the whole recording. `paper` in a name: the paper's ridge of"
        " 1e-6 as it is; else the default, relative to the mean eigenvalue. The first rows are the paper's figures.",
        table(("method", *(f"{share:.0%} there" for share in options.shares)), _by_share(options, measured, first)),
        f"## What travels\n\nAll gateways there. Bytes that one gateway sends over all exchanges, encoded; what it"
        " receives before it can score beside the model itself; and the upload as a share of the square of"
        f" {_square(options):,} bytes that the paper counts for IncFed.",
        table(
            ("method", "sends", "of the square", "receives", "macro F1", "condition"),
            _bytes(options, measured, first, most),
        ),
        "## Baselines and normalisation\n\nAll training subjects there. Accuracy, macro F1 and the standard deviation"
        " of the accuracy between subjects.",
        table(
            ("method", "network", "units from", "accuracy", "macro F1", "between subjects"), _beside(options, measured)
        ),
        _choices(options, measured),
        "## Targets",
        table(("method", "network", "units from", "wanted", "measured", "met"), _targets(options, measured)),
    ]
    if options.sizes:
        parts += _over_bytes(options, measured, first, prefix)
    return "\n\n".join(part for part in parts if part)


def _place(network: str, share: float, normalisation: str = "recording") -> dict[str, Any]:
    return {"network": network, "share": share, "normalisation": normalisation}


def _by_share(options: Options, measured: Measured, first: str) -> Iterable[Sequence[str]]:
    printed = {options.methods[name].column: name.partition(",")[0] for name in options.grid}
    for column, name in printed.items():
        if column is not None and options.paper:
            yield (
                f"{name}, printed",
                *(f"{options.paper[f'{share:g}' if share < 1 else '1.0'][column]:.3f}" for share in options.shares),
            )
    for name in options.grid:
        yield name, *(measured.text("accuracy", method=name, **_place(first, share)) for share in options.shares)


def _square(options: Options) -> int:
    network = next(iter(options.networks))
    size = options.network(network).units + 1  # the paper's readout sees states and a constant
    return 8 * (size * size + CLASSES * size)


def _bytes(options: Options, measured: Measured, first: str, share: float) -> Iterable[Sequence[str]]:
    for name in options.grid:
        place = {"method": name, **_place(first, share)}
        sent, received = (measured.mean(key, **place) for key in ("bytes_up", "bytes_down"))
        condition = f"{measured.mean('condition', **place):.1e}"
        yield (
            name,
            f"{sent:,.0f}",
            f"{sent / _square(options):.1%}",
            f"{received:,.0f}",
            measured.text("macro_f1", **place),
            condition,
        )


def _beside(options: Options, measured: Measured) -> Iterator[Sequence[str]]:
    for mode, words in NORMALISED.items():
        places: list[tuple[str, str, dict[str, Any]]] = [
            (name, "", {"normalisation": mode}) for name in BASELINES if name not in OF_A_NETWORK
        ]
        for network in options.shown:
            names = [*OF_A_NETWORK, *options.beside]
            places += [(name, network, _place(network, 1.0, mode)) for name in names]
        places.append((CHOSEN, "", {"normalisation": mode}))
        for name, network, place in places:
            figures = ("accuracy", "macro_f1", "subject_deviation")
            found = [measured.text(key, method=name, **place) for key in figures]
            yield name, network, words, *found[:2], found[2].partition(" ")[0]


def _choices(options: Options, measured: Measured) -> str:
    """Say what inner folds chose."""
    lines = []
    for mode, words in NORMALISED.items():
        found: dict[str, int] = {}
        for figures in measured.of(method=CHOSEN, normalisation=mode):
            for key, value in figures.items():
                if key.startswith("candidate."):
                    ridge = options.ridges[int(figures[key.replace("candidate", "ridge")])]
                    name = f"`{options.candidates[int(value)]}` with {ridge:g}"
                    found[name] = found.get(name, 0) + 1
        counts = ", ".join(f"{name} {count} times" for name, count in sorted(found.items(), key=lambda each: -each[1]))
        lines.append(f"- units from {words}: {counts}")
    return "\n".join(["Network and ridge that the inner folds chose, over all folds and reservoirs:", "", *lines])


def _targets(options: Options, measured: Measured) -> Iterable[Sequence[str]]:
    for target in options.targets:
        place: dict[str, Any] = {"method": target.method, "normalisation": target.normalisation}
        place |= {"network": target.network, "share": 1.0} if target.network else {}
        found = measured.mean("accuracy", **place)
        wanted, said, is_met = [], [f"{found:.3f}"], True
        if target.accuracy is not None:
            wanted.append(f"accuracy at least {target.accuracy:g}")
            is_met &= found >= target.accuracy
        if target.within is not None and target.beside is not None:
            other = measured.mean("accuracy", **{**place, "method": target.beside})
            wanted.append(f"at most {target.within:g} below {target.beside}")
            said.append(f"{target.beside} {other:.3f}")
            is_met &= found >= other - target.within
        if target.upload_share is not None:
            share = measured.mean("bytes_up", **place) / _square(options)
            wanted.append(f"at most {target.upload_share:.0%} of the square's bytes")
            said.append(f"{share:.1%}")
            is_met &= share <= target.upload_share
        yield _row(target, wanted, said, is_met)


def _row(target: Target, wanted: list[str], said: list[str], is_met: bool) -> Sequence[str]:
    units, met = NORMALISED[target.normalisation], "yes" if is_met else "**no**"
    return target.method, target.network, units, "; ".join(wanted), "; ".join(said), met


def _over_bytes(options: Options, measured: Measured, first: str, prefix: Path) -> list[str]:
    """Return the part on what can be had for how many bytes, and draw it."""
    curves = list(_curves(options, measured, first))
    figures = ("bytes_up", "bytes_down", "accuracy", "error")
    whole = Curve("IncFed", *([measured.mean(each, method="IncFed", **_place(first, 1.0))] for each in figures))
    logistic = measured.mean("accuracy", method=LOGISTIC, normalisation="recording")
    goal, picture = whole.accuracies[0], beside(prefix, "bytes")
    draw(curves, whole, logistic, picture)
    rows = [
        (
            curve.name,
            str(size),
            f"{up:,.0f}",
            f"{down:,.0f}",
            f"{accuracy:.3f}",
            f"{error:.3f}",
        )
        for curve in curves
        for size, up, down, accuracy, error in zip(
            options.sizes, curve.sent, curve.received, curve.accuracies, curve.errors, strict=True
        )
    ]
    return [
        "## Accuracy over bytes\n\nAll gateways there, units of the whole recording, ridges as by default. `k` is the"
        " number of units, coordinates or eigenvectors. Error is the squared distance of the outputs from the class,"
        f" which moves less by chance than accuracy. The last {len(SKETCHES)} are no setting of an algorithm: they are"
        " measured on the sums, and what they would send is counted without the header of a message.",
        f"![accuracy over bytes]({picture.name})",
        table(("method", "k", "sends", "receives", "accuracy", "error"), rows),
        _cheapest(options, curves, goal),
    ]


def _curves(options: Options, measured: Measured, first: str) -> Iterator[Curve]:
    for name in options.sized:
        places = [{"method": name, "size": size, **_place(first, 1.0)} for size in options.sizes]
        figures = ("bytes_up", "bytes_down", "accuracy", "error")
        title = "smaller network (IncFed)" if options.methods[name].algorithm == "incfed" else name
        yield Curve(title, *([measured.mean(key, **place) for place in places] for key in figures))
    for name in SKETCHES:
        keys = [f"{name}.{size}" for size in options.sizes]
        figures = ("bytes_up", "bytes_down", "accuracy", "error")
        yield Curve(name, *([measured.mean(f"{key}.{each}", method="sketches") for key in keys] for each in figures))


def _cheapest(options: Options, curves: list[Curve], goal: float) -> str:
    """Say how many bytes each way needs to come near IncFed, and stay there with more: sent, and in all."""
    found: list[tuple[float, float, str, int]] = []
    never = []
    for curve in curves:
        enough = [accuracy >= goal - WITHIN for accuracy in curve.accuracies]
        first = next((index for index in range(len(enough)) if all(enough[index:])), None)
        if first is None:
            never.append(curve.name)
        else:
            sent = curve.sent[first]
            found.append((sent, sent + curve.received[first], curve.name, options.sizes[first]))
    rows = [(name, str(size), f"{sent:,.0f}", f"{both:,.0f}") for sent, both, name, size in sorted(found)]
    lines = [
        f"Fewest bytes within {WITHIN:g} of IncFed ({goal:.3f}), at that k and all larger ones that were measured:"
    ]
    lines += ["", table(("method", "k", "sent", "sent and received"), rows)]
    if found:
        least_sent, least_in_all = min(found)[2], min(found, key=lambda each: each[1])[2]
        lines += ["", f"Fewest bytes sent: {least_sent}. Fewest bytes sent and received: {least_in_all}."]
    if never:
        lines += ["", f"At none of these sizes: {', '.join(never)}."]
    return "\n".join(lines)
