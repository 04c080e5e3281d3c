"""Runs a study: every cell once, on all cores, each result on disk before the next; a stopped study goes on.

Results lie in `cells/<experiment>.jsonl` beside the report: a first line that names what they were measured with, then
one line for each cell.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from config.version import VERSION
from firmware_sim.studies import STUDIES, Cell, Figures, StudyOptions
from firmware_sim.studies.study import Profile, StudyError

# One thread a worker: cells are many and small, and threads of several workers would only wait for one another.
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Measured(NamedTuple):
    """One finished cell."""

    cell: Cell
    figures: Figures
    seconds: float


class Outcome(NamedTuple):
    """A finished study: every cell in the order of the study, and the report."""

    measured: list[Measured]
    text: str
    path: Path


def measured(
    name: str,
    options: StudyOptions,
    data: Path,
    *,
    results: Path,
    profile: Profile,
    command: str,
    jobs: int,
    say: Callable[[str], None],
) -> Outcome:
    """Measure what is not measured yet and write `<name>.md` with its pictures into the folder `results`.

    Raises:
        StudyError: a cell cannot be measured; those before it are kept.
    """
    study = STUDIES[options.study]
    cells = study.cells(options)
    label = name if profile == "full" else f"{name}-{profile}"
    (results / "cells").mkdir(parents=True, exist_ok=True)
    path = results / "cells" / f"{label}.jsonl"
    made_with = _fingerprint(options, data)
    known = _known(path, made_with)
    missing = [cell for cell in cells if _key(cell) not in known]
    say(f"{label}: {len(cells)} cells, {len(cells) - len(missing)} of them measured before")
    with path.open("a" if known else "w", encoding="utf-8") as file:
        if not known:
            _write(file, {"made_with": made_with})
        for done in _told(_finished(options, data, missing, jobs), label, len(missing), say):
            _write(file, done._asdict())
            known[_key(done.cell)] = done
    every = [known[_key(cell)] for cell in cells]
    body = study.report(options, [(each.cell, each.figures) for each in every], results)
    text = f"# {options.title}\n\n{body.strip()}\n\n{_circumstances(every, profile, command)}\n"
    report = results / f"{label}.md"
    report.write_text(text, encoding="utf-8")
    return Outcome(every, text, report)


def _fingerprint(options: StudyOptions, data: Path) -> str:
    """Return what tells apart results of other options, data or versions."""
    identity = [options.model_dump(mode="json", exclude={"short", "data"}), str(data.resolve()), VERSION]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def _known(path: Path, made_with: str) -> dict[str, Measured]:
    """Return the cells of an earlier run with the same options; a line that was cut off is measured again."""
    if not path.exists():
        return {}
    whole = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    lines: list[dict[str, Any]] = [json.loads(line) for line in whole]
    if not lines or lines[0].get("made_with") != made_with:
        return {}
    path.write_text("".join(whole), encoding="utf-8")
    return {_key(line["cell"]): Measured(**line) for line in lines[1:]}


def _write(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


def _finished(options: StudyOptions, data: Path, cells: list[Cell], jobs: int) -> Iterator[Measured]:
    """Yield each cell as it is finished."""
    if jobs == 1 or len(cells) < 2:
        yield from (_measure(options, data, cell) for cell in cells)
        return
    os.environ.update(THREADS)  # read by the libraries of the workers when they are loaded
    pool = ProcessPoolExecutor(min(jobs, len(cells)), get_context("spawn"), initializer=_end_with_parent)
    try:
        waiting = {pool.submit(_measure, options, data, cell) for cell in cells}
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in finished)
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this worker when the process that started it is gone: killed, it cannot tell its workers."""
    parent = parent_process()
    if parent is not None:
        sentinel = parent.sentinel
        threading.Thread(target=lambda: (wait_for([sentinel]), os._exit(1)), daemon=True).start()


def _measure(options: StudyOptions, data: Path, cell: Cell) -> Measured:
    started_s = time.perf_counter()
    try:
        figures = STUDIES[options.study].measure(options, data, cell)
    except (ArithmeticError, OSError, ValueError) as error:
        where = ", ".join(f"{key}={value}" for key, value in cell.items())
        raise StudyError(f"{where}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    return Measured(cell, figures, round(time.perf_counter() - started_s, 3))


def _told(finished: Iterator[Measured], label: str, count: int, say: Callable[[str], None]) -> Iterator[Measured]:
    """Pass the finished cells on and say how far it is and how long it will go on."""
    started_s = time.monotonic()
    for index, done in enumerate(finished, start=1):
        left_s = (time.monotonic() - started_s) / index * (count - index)
        say(f"{label}: {index} of {count} cells, about {left_s / 60:.0f} min left")
        yield done


def _circumstances(every: list[Measured], profile: Profile, command: str) -> str:
    """Return how the figures came about, as every report states it."""
    total_s = sum(each.seconds for each in every)
    taken = f"{total_s / 60:.1f} minutes" if total_s >= 60 else f"{total_s:.1f} seconds"
    short = " A short profile: it shows that the study runs, not what the methods are worth." * (profile == "short")
    return (
        f"---\n\nMeasured on {time.strftime('%Y-%m-%d')} with fedgate {VERSION} on {platform.machine()}, Python"
        f" {platform.python_version()}: {len(every)} cells, {taken} of one core in all.{short} Command:"
        f"\n\n    {command}"
    )
