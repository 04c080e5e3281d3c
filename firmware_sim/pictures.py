"""What all pictures share: colours that colour-blind readers tell apart, and one way to write them."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Of Okabe and Ito (Color Universal Design, 2008).
BLUE, VERMILLION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, GREY, INK = "#E69F00", "#56B4E9", "#8A949E", "#22272B"
COLOURS = (BLUE, VERMILLION, GREEN, PINK, ORANGE, SKY, INK, GREY)
DOTS_PER_IN = 130


def write(figure: Figure, path: Path) -> None:
    """Write a figure as PNG; the same figure gives the same bytes."""
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=DOTS_PER_IN, metadata={"Software": None})
