"""A probe for tests of the engine of studies: the power of a number. What it does otherwise, files beside say."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedgate.config.settings import settings
from fedgate.firmware_sim.engine.spec import Figures

POLL_S = 0.02
MEASURED = "measured.txt"  # a line for each number, whichever process has measured it


class Method(settings.Table):
    """How a power is made."""

    exponent: int
    data: Literal["whole", "part"] = "whole"
    settings: dict[str, Any] = Field(default_factory=dict)


class Case(settings.Table):
    """What is measured."""

    number: int = 1
    method: Method = Method(exponent=3)
    seed: int = 0
    scale: float = 1.0
    rounds: int = 1
    names: list[str] = Field(default_factory=list)


def measure(case: Case, data: Path) -> Figures:
    """Return the power; or raise, kill this process, or wait as long as there is a file `raise-NUMBER`, `kill-NUMBER`
    or `wait-NUMBER`.
    """
    if (data / f"raise-{case.number}").exists():
        raise ValueError("this number\nis out of order")
    if (data / f"kill-{case.number}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    while (data / f"wait-{case.number}").exists():
        time.sleep(POLL_S)
    with (data / MEASURED).open("a", encoding="utf-8") as file:
        file.write(f"{case.number}\n")
    return {"power": float(case.number**case.method.exponent), "nothing": float("nan")}
