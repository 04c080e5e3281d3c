"""What is said of compression is what was measured: losses have their sign, and a loss above the limit is not met."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.benchmarks.compression import Case, Pair, measure, row, write_subjects


def test_a_line_says_what_was_lost_on_average_and_at_most() -> None:
    line = row("a table", [Pair(0.9, 0.9, 800.0, 100.0), Pair(0.8, 0.795, 800.0, 100.0)])
    lost = ["+0.00250", "+0.00500", "+0.00000", "**no**"]
    assert line == ["a table", "0.8500 ± 0.0707", "0.8475", *lost, "800", "100", "8.00"]


def test_subjects_are_gateways_and_stress_is_the_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in (2, 11):
        y = np.arange(60) % 3 + 1
        x = rng.normal(size=(60, 2)) + (y == 2)[:, None]
        np.savez(tmp_path / f"S{number}.npz", X=x.astype(np.float32), y=y, feature_names=np.array(["a", "b"]))
    table = write_subjects(tmp_path, tmp_path / "subjects.npz")
    with np.load(table) as held:
        assert sorted(set(held["subject"].tolist())) == [2, 11] and int(held["label"].sum()) == 40
    chosen = {"loss": "logistic", "rounds": 2}
    case = Case("subjects", {"data": str(table), "groups": "subject"}, {"algorithm": "fedavg", "settings": chosen})
    found = measure(case, 0)
    assert found.plain > 0.6 and abs(found.plain - found.narrow) < 0.05 and found.narrow_bytes < found.plain_bytes
