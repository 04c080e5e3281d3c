"""The membership test on the four sets: what an update and what the released model tell of the rows behind them.

Half of the rows of a set that may train do so, the other half are fresh. The update of each client is attacked by
distance to the nearest vector in it, the released model by that and by its own score: simple attacks, hence lower
bounds on what an attacker learns. Only here are the rows behind the vectors known: the same functions that a client
trains with are called again with the same random numbers.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from fedgate.firmware_sim.studies.engine.markdown import table as markdown
from fedgate.firmware_sim.studies.engine.membership import FALSE_CLAIMS, NOTHING_FOUND, Attack, attack, nearness, traced
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Results
from fedgate.firmware_sim.studies.engine.unit_range import to_unit_range
from fedgate.firmware_sim.studies.federated_svdd.options import (
    FEDERATED,
    SVE,
    Options,
    drawn_values,
    fitted_sphere,
    settings_of,
)
from fedgate.firmware_sim.studies.federated_svdd.report import SHORT
from fedgate.firmware_sim.studies.federated_svdd.trials import dealt, table
from fedgate.models.arrays import FEATURES, Array, Floats, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.support_vectors.ensemble_svdd import Mixture, described
from fedgate.models.federated.support_vectors.support_vector_election import Move, elected


def sent_and_originals(options: Options, cell: Cell, z: Array, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the vectors (S, F) that a client with rows z (n, F) sends in a cell, and the row behind each.

    What is not among the options has the defaults of the algorithms, which a test compares with what they send.
    """
    fit = partial(fitted_sphere, options, options.forms[cell["form"]], cell["value"])
    if cell["method"] == SVE:
        move = Move(options.sigma, options.tau, 0.1) if cell["anonymise"] else None
        return elected(z, rng, fit=fit, move=move, max_vectors=len(z))
    mixture = Mixture(None, 0.5, 0.1) if cell["anonymise"] else None
    member, originals = described(z, rng, fit=fit, mixture=mixture, max_vectors=len(z))
    return member.get("vectors", z[:0]), originals


def measure_membership(options: Options, data: Path, cell: Cell) -> Figures:
    """Return the mean over the repeats of all figures of one cell."""
    repeats = [_once(options, data, cell, options.seed + index) for index in range(options.repeats)]
    return {name: float(np.mean([each[name] for each in repeats])) for name in repeats[0]}


def _once(options: Options, data: Path, cell: Cell, seed: int) -> Figures:
    rows, form = table(data, options.sets[cell["set"]]), options.forms[cell["form"]]
    may_train = np.flatnonzero((rows.y == 0) | (form.train_on == "all"))
    halves = generator(seed, 0, "membership").permutation(may_train)
    train, fresh = np.sort(halves[: len(halves) // 2]), halves[len(halves) // 2 :]
    clients = dealt(options, data, cell, train, seed)
    unseen = to_unit_range(rows.x[fresh], rows.x[train])
    figures = [
        _of_update(options, cell, z, unseen, generator(seed, 0, name))
        for name, z in ((name, each[FEATURES]) for name, each in clients.items())
    ]
    chosen = settings_of(options, form, cell["method"], cell["value"], anonymise=cell["anonymise"])
    algorithm = build(cell["method"], unseen.shape[1], chosen)
    shared = run(algorithm, clients, seed=seed).server.global_state
    seen = np.concatenate([each[FEATURES] for each in clients.values()])
    released = scored = NOTHING_FOUND
    if shared:
        released = attack(nearness(seen, shared["vectors"]), nearness(unseen, shared["vectors"]))
        score = partial(DETECTORS[algorithm.detector].score, shared)
        scored = attack(-score(seen), -score(unseen))
    means = {name: float(np.mean([each[name] for each in figures])) for name in figures[0]}
    return means | _named("released", released) | _named("score", scored)


def _of_update(options: Options, cell: Cell, z: Array, unseen: Array, rng: np.random.Generator) -> Figures:
    sent, originals = sent_and_originals(options, cell, z, rng)
    if not len(sent):
        nothing = {**_named("update", NOTHING_FOUND), **_named("elected", NOTHING_FOUND)}
        return {"vectors": 0.0, "traced": 0.0, **nothing}
    far = nearness(unseen, sent)
    own = {row.tobytes() for row in originals}
    chosen = np.array([row.tobytes() in own for row in z])
    return {
        "vectors": float(len(sent)),
        "traced": traced(sent, originals, z),
        **_named("update", attack(nearness(z, sent), far)),
        **_named("elected", attack(nearness(z[chosen], sent), far) if chosen.any() else NOTHING_FOUND),
    }


def _named(name: str, found: Attack) -> Figures:
    return {f"{name}.auc": found.auc, f"{name}.found": found.found}


def membership_values(options: Options) -> dict[str, float]:
    """Return the one value of each form that is attacked: the median of those drawn."""
    return {name: float(np.median(drawn_values(options, form))) for name, form in options.forms.items()}


ATTACKS = {
    "update": "rows of a client against its own update, by distance to the nearest vector in it",
    "elected": "the same for those rows alone from which a sent vector came",
    "released": "rows of all clients against the released model, by distance to its nearest vector",
    "score": "the same by the score of the released model, which every gateway can compute",
}


def membership_report(options: Options, results: Results) -> str:
    """Return the report of the membership test."""
    values = ", ".join(f"`{form}` {value:.2f}" for form, value in membership_values(options).items())
    claims = f"{100 * FALSE_CLAIMS:g} %"
    intro = (
        "How well can a row that trained be told from a fresh one of the same distribution? Half of the rows that may"
        f" train do, the other half are fresh; mean over {options.repeats} ways to halve them and over the clients."
        f" γ = {options.gamma:g}, value of C or ν: {values}. Nothing was tuned. Each attack as area under the ROC curve"
        f" (0.5 is guessing) and, behind the stroke, the share of members it finds with {claims} false claims (so much"
        " is guessing). A client that sent nothing counts as one of whom nothing was found (0.50 / 0 %, nothing"
        " traced); so does, under *elected*, one that sent no vector that came from a row."
    )
    attacks = "\n".join(f"- *{name}*: {meaning};" for name, meaning in ATTACKS.items())
    traced_text = "- *traced*: share of sent vectors whose nearest row of the training data is the one they came from."
    head = ("set", "form", "method", "sends", "K", "split", "vectors a client", "traced", *ATTACKS)
    rows = [_row(cell, figures) for cell, figures in results]
    parts = [_bounds(options), intro, f"{attacks}\n{traced_text}", markdown(head, rows), _bought(results)]
    return "\n\n".join(parts)


def _bounds(options: Options) -> str:
    clients, splits = (", ".join(map(str, each)) for each in (options.clients, options.splits))
    return (
        "The attacks are simple ones, by distance and by score. Read every figure as *at least*: it is a lower bound on"
        " what an attacker learns, and a low one is no proof that nothing can be learnt. Measured with K ="
        f" {clients}, rows dealt {splits}, and with nothing else: what other numbers of clients or another split"
        " disclose is not known."
    )


def _row(cell: Cell, figures: Figures) -> list[str]:
    return [
        cell["set"],
        f"`{cell['form']}`",
        SHORT[cell["method"]],
        "anonymised" if cell["anonymise"] else "plain",
        str(cell["clients"]),
        cell["split"],
        f"{figures['vectors']:.0f}",
        f"{100 * figures['traced']:.0f} %",
        *(f"{figures[f'{name}.auc']:.2f} / {100 * figures[f'{name}.found']:.0f} %" for name in ATTACKS),
    ]


def _bought(results: Results) -> str:
    """Say in one line per method what anonymisation buys, over all cells."""
    lines = []
    for method in FEDERATED:
        parts = []
        for anonymised, name in ((False, "plain"), (True, "anonymised")):
            figures = [each for cell, each in results if (cell["method"], cell["anonymise"]) == (method, anonymised)]
            if figures:
                share, found = (100 * np.mean([each[key] for each in figures]) for key in ("traced", "update.found"))
                parts.append(f"{name} at least {share:.0f} % traced, {found:.0f} % of rows found in the update")
        lines.append(f"- {SHORT[method]}: {'; '.join(parts)}.")
    return "\n".join(["Over all cells:", "", *lines])
