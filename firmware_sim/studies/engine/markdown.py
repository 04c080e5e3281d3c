"""Parts of every study's report in Markdown: a table, and a figure with its spread."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table, without a line break at its end."""
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def deviation(values: ArrayLike) -> float:
    """Return the sample standard deviation (divided by n - 1); a single value has none, hence nan."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.std(ddof=1)) if array.size > 1 else float("nan")


def spread(mean: float, deviation: float) -> str:
    """Return `mean ± standard deviation`, the latter where there is one."""
    return f"{mean:.3f}" if np.isnan(deviation) else f"{mean:.3f} ± {deviation:.3f}"
