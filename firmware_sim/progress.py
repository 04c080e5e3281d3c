"""How far a long command is, on standard error."""

from __future__ import annotations

import time
from typing import TextIO

PROGRESS_S = 5.0  # between two lines where there is no terminal


class Progress:
    """One line that is written over on a terminal; elsewhere a line every few seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._said_s, self._width = stream, time.monotonic(), 0

    def __call__(self, text: str) -> None:
        """Say how far the work is."""
        if self._stream.isatty():
            self._stream.write(f"\r{text.ljust(self._width)}")
            self._width = len(text)
        elif time.monotonic() - self._said_s >= PROGRESS_S:
            self._said_s = time.monotonic()
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._width:
            self._stream.write(f"\r{' ' * self._width}\r")
            self._stream.flush()
