"""What the pictures of the studies share: more colours of Okabe and Ito than a replay needs."""

from __future__ import annotations

from pathlib import Path

GREEN, PINK, ORANGE, SKY = "#009E73", "#CC79A7", "#E69F00", "#56B4E9"


def beside(prefix: Path, name: str) -> Path:
    """Return the file of a picture of the report `<prefix>.md`."""
    return prefix.with_name(f"{prefix.name}-{name}.png")
