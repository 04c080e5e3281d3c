"""What sees one row at a time: a memory, and a federation, have to be better than this."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

import numpy as np

from fedgate.models.arrays import FEATURES, LABELS, Array, Arrays, Floats

Memoryless = Literal["majority", "logistic"]
CLIP = 8.0  # deviations, as networks hear them


def fit_memoryless(
    kind: Memoryless, rows: Collection[Arrays], class_weight: Literal["balanced"] | None = None
) -> Callable[[Array], Floats]:
    """Return the probabilities (n, classes) of features (n, F): a logistic regression of the rows of all gateways in
    one place, or always their most frequent class.
    """
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression

    x, y = (np.concatenate([each[key] for each in rows]) for key in (FEATURES, LABELS))
    model = DummyClassifier(strategy="most_frequent")
    if kind == "logistic":
        model = LogisticRegression(max_iter=1_000, class_weight=class_weight)
    model.fit(np.clip(x, -CLIP, CLIP), y)
    return lambda scored: np.asarray(model.predict_proba(np.clip(scored, -CLIP, CLIP)))
