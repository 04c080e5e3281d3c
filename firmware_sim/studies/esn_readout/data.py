"""Who is who in the study of the gradient-trained readout, and what each of them has."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.engine.corruption import corrupted
from fedgate.firmware_sim.studies.esn_readout.options import Attack, Options
from fedgate.firmware_sim.studies.esn_wesad.data import LEAST_DEVIATION, subject
from fedgate.models.arrays import FEATURES, LABELS, Arrays, generator

STRESS = 1  # of the classes: 0 baseline, 1 stress, 2 amusement


class Roles(NamedTuple):
    """Subjects by what they do under one seed; `bad` are the gateways that an attack changes."""

    scored: list[str]
    trusted: list[str]
    gateways: list[str]
    bad: list[str]


def roles(options: Options, seed: int) -> Roles:
    """Return who is who: two subjects are scored, the next pair for the next seed; the others are dealt at random."""
    count = len(options.scored)
    first, turn = seed % count, 1 + (seed // count) % (count - 1)
    scored = [options.scored[first], options.scored[(first + turn) % count]]
    others = [name for name in (*options.chosen_on, *options.scored) if name not in scored]
    order = generator(options.seed, seed, "roles").permutation(len(others))
    trusted, gateways = [others[at] for at in order[:2]], [others[at] for at in order[2:]]
    return Roles(scored, trusted, gateways, gateways[: round(options.bad_share * len(gateways))])


def rows_of(options: Options, data: Path, name: str) -> Arrays:
    """Return a subject's rows in units of its whole recording, or of its beginning, and whether each is of stress."""
    recorded = subject(data / options.folder / f"{name}.npz")
    known = recorded.x if options.normalisation == "recording" else recorded.x[: options.commissioning_rows]
    x = (recorded.x - known.mean(axis=0)) / np.maximum(known.std(axis=0), LEAST_DEVIATION)
    return {FEATURES: x, LABELS: (recorded.y == STRESS).astype(np.int64)}


def gateways_of(options: Options, data: Path, who: Roles, attack: Attack, seed: int) -> dict[str, Arrays]:
    """Return what each gateway trains on, the bad ones as the attack has it."""
    found = {}
    for name in who.gateways:
        rows = rows_of(options, data, name)
        rng = generator(options.seed, seed, f"attack/{name}")
        found[name] = corrupted(rows, attack.kind, attack.amount, rng) if name in who.bad else rows
    return found
