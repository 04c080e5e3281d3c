"""What the pictures of the studies share: more colours of Okabe and Ito than a replay needs, and how a file is made."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedgate.firmware_sim.demo.picture import DOTS_PER_IN

GREEN, PINK, ORANGE, SKY = "#009E73", "#CC79A7", "#E69F00", "#56B4E9"


def beside(prefix: Path, name: str) -> Path:
    """Return the file of a picture of the report `<prefix>.md`."""
    return prefix.with_name(f"{prefix.name}-{name}.png")


def write(figure: Figure, path: Path) -> None:
    """Write a figure; the same figure gives the same bytes."""
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=DOTS_PER_IN, metadata={"Software": None})
