"""What int8 with error feedback costs in quality: the same trainings compressed and as they are, seed by seed.

    python -m tests.benchmarks.compression DATA

DATA holds `tabular/` and `streams/`. Each seed draws the rows that train and those that are scored before anything is
trained; of both trainings of a seed these and all random numbers are the same, and nothing is tuned. Minutes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgate.config.runtime.cli import table
from fedgate.firmware_sim.engine.spec import overlaid
from fedgate.firmware_sim.evaluate import probe

SEEDS = range(10)
INT8 = {"compression": {"number": "int8"}}
LIMIT = 0.002  # of AUC
STRESS = 2


class Case(NamedTuple):
    """A training on a data set, with settings that nobody tuned."""

    name: str
    options: dict[str, Any]
    method: dict[str, Any]


class Pair(NamedTuple):
    """AUC and bytes that a gateway sends, without compression and with it."""

    plain: float
    narrow: float
    plain_bytes: float
    narrow_bytes: float


def cases(data: Path, scratch: Path) -> Iterator[Case]:
    """Yield a table with rare anomalies, a pump with an SVM of its own, and wearables whose memory matters."""
    logistic = {"algorithm": "fedavg", "settings": {"loss": "logistic"}}
    yield Case("satellite, fedavg", {"data": str(data / "tabular" / "satellite.csv")}, logistic)
    robust = {"algorithm": "robust-svm-subgradient"}
    yield Case("pump_triplex, robust-svm-subgradient", {"data": str(data / "tabular" / "pump_triplex.csv")}, robust)
    subjects = write_subjects(data / "streams" / "wesad_features", scratch / "subjects.npz")
    yield Case("wesad, esn-fedavg", {"data": str(subjects), "groups": "subject"}, {"algorithm": "esn-fedavg"})


def write_subjects(folder: Path, into: Path) -> Path:
    """Write the windows of all subjects as one table: stress is the class to tell, a subject is a gateway."""
    tables = []
    for file in sorted(folder.glob("S*.npz")):
        with np.load(file) as held:
            columns = dict(zip(map(str, held["feature_names"]), held["X"].T, strict=True))
            label = held["y"] == STRESS
        tables.append({**columns, "subject": np.full(len(label), int(file.stem[1:])), "label": label})
    columns = {name: np.concatenate([one[name] for one in tables]) for name in tables[0]}
    np.savez(into, allow_pickle=False, **columns)
    return into


def measure(case: Case, seed: int) -> Pair:
    """Return what both trainings of a seed come to."""
    plain, narrow = (
        probe.measure(
            probe.Case.model_validate(
                {**case.options, "seed": seed, "method": overlaid(case.method, {"settings": chosen})}
            ),
            Path(),
        )
        for chosen in ({}, INT8)
    )
    return Pair(plain["auc"], narrow["auc"], plain["bytes_up"], narrow["bytes_up"])


def row(name: str, pairs: list[Pair]) -> list[str]:
    """Return a line of the table: means, what is lost on average and at most, and bytes."""
    values = np.array(pairs)
    lost = values[:, 0] - values[:, 1]
    plain, narrow, plain_bytes, narrow_bytes = values.mean(axis=0)
    met = "yes" if lost.mean() <= LIMIT else "**no**"
    spread = f"{plain:.4f} ± {values[:, 0].std(ddof=1):.4f}"
    figures = [spread, f"{narrow:.4f}", f"{lost.mean():+.5f}", f"{lost.max():+.5f}", f"{lost.min():+.5f}", met]
    return [name, *figures, f"{plain_bytes:,.0f}", f"{narrow_bytes:,.0f}", f"{plain_bytes / narrow_bytes:.2f}"]


def main() -> int:
    """Measure all cases and print the table."""
    columns = ["data, algorithm", "AUC", "int8", "lost", "most", "least", "met", "bytes up", "int8", "times"]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in cases(Path(sys.argv[1]), Path(scratch)):
            pairs = [measure(case, seed) for seed in SEEDS]
            rows.append(row(case.name, pairs))
            sys.stderr.write(f"{case.name}: {[round(one.plain - one.narrow, 5) for one in pairs]}\n")
    sys.stdout.write(f"{table(columns, rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
