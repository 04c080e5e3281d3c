"""WESAD as features: each subject a gateway, the means of 14 channels every 2.5 s, in units of its own.

Schmidt et al., "Introducing WESAD, a Multimodal Dataset for Wearable Stress and Affect Detection", ICMI 2018; given out
for research. One file for each subject, S2.npz .. S11.npz: X (n, F), y (n,) from 1 to 3, feature_names (F,).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.models.arrays import FEATURES, LABELS, Arrays

Units = Literal["whole recording", "first rows"]
CLASSES = 3  # baseline, stress, amusement
STRESS = 1
MEAN = "_mean"
FIRST_ROWS = 120  # five minutes, after which a gateway in the field knows its centre and scale
LEAST_DEVIATION = 1e-6


@lru_cache(maxsize=64)
def _recorded(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as archive:
            names, x, y = archive["feature_names"], archive["X"], archive["y"]
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise StudyError(f"{path}: expected an npz file with X, y and feature_names ({error})") from None
    columns = [index for index, name in enumerate(names) if str(name).endswith(MEAN)]
    classes = y.astype(np.int64) - 1
    if not columns or len(x) != len(y) or not np.isin(classes, np.arange(CLASSES)).all():
        raise StudyError(f"{path}: expected columns named *{MEAN} and a class from 1 to {CLASSES} for each row")
    return {FEATURES: x[:, columns].astype(np.float64), LABELS: classes}


def load_subject(folder: Path, name: str, units: Units = "whole recording") -> Arrays:
    """Return features (n, F) and classes (n,) from 0 of a subject in their order; no class is looked at for its units.

    Raises:
        StudyError: the file is missing or laid out otherwise.
    """
    rows = _recorded(folder / f"{name}.npz")
    known = rows[FEATURES][: None if units == "whole recording" else FIRST_ROWS]
    x = (rows[FEATURES] - known.mean(axis=0)) / np.maximum(known.std(axis=0), LEAST_DEVIATION)
    return {**rows, FEATURES: x}
