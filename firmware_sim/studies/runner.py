"""Runs a study: every cell once, on all cores, each result on disk before the next; a stopped study goes on.

Results lie in `cells/<experiment>.jsonl` beside the report, one line a cell. A line is known by what it was measured
from: the cell, what the study says it depends on, and the folder of data. So a note may be reworded and a method added
without measuring the others again. Each line says with which code it was measured, and the report how many were with
another.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from fedgate.config.runtime.version import VERSION
from fedgate.firmware_sim import children
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Profile, StudyError, StudyOptions
from fedgate.firmware_sim.studies.registry import STUDIES

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("models", "firmware_sim/studies")


class Measured(NamedTuple):
    """One finished cell: what was measured, how long it took, on which day and with which code."""

    cell: Cell
    figures: Figures
    seconds: float
    date: str
    code: str


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
    fresh: bool = False,
) -> Outcome:
    """Measure what is not measured yet (all where `fresh`) and write `<name>.md` with its pictures into `results`.

    Raises:
        StudyError: a cell cannot be measured, and those before it are kept; or another run works on the same study.
    """
    study = STUDIES[options.study]
    label = name if profile == "full" else f"{name}-{profile}"
    cells = {_key(options, data, cell): cell for cell in study.cells(options)}
    jobs = min(jobs, options.jobs or jobs)
    with _opened(results / "cells" / f"{label}.jsonl") as file:
        if fresh:
            file.truncate(0)
        known = _known(file)
        missing = {key: cell for key, cell in cells.items() if key not in known}
        say(f"{label}: {len(cells)} cells, {len(cells) - len(missing)} of them measured before")
        for key, done in _told(_finished(options, data, missing, jobs), label, len(missing), say):
            file.write(json.dumps({"key": key, **done._asdict()}) + "\n")
            file.flush()
            known[key] = done
    every = [known[key] for key in cells]
    body = study.report(options, [(each.cell, each.figures) for each in every], results / label)
    text = f"# {options.title}\n\n{body.strip()}\n\n{_circumstances(every, profile, command, jobs)}\n"
    report = results / f"{label}.md"
    report.write_text(text, encoding="utf-8")
    return Outcome(every, text, report)


def _key(options: StudyOptions, data: Path, cell: Cell) -> str:
    """Return what tells this measurement from every other."""
    identity = [options.study, STUDIES[options.study].identity(options, cell), cell, str(data.resolve())]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open the file of cells for this run alone, without the line that a power cut left half-written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as raw:
        try:
            fcntl.flock(raw, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyError(f"{path}: another run measures this study; wait for it, or name other --results") from None
        raw.seek(0)
        raw.truncate(raw.read().rfind(b"\n") + 1)
        with path.open("a+", encoding="utf-8", errors="replace") as file:
            yield file


def _known(file: TextIO) -> dict[str, Measured]:
    """Return the cells in a file by their key; a line that cannot be read is measured again."""
    file.seek(0)
    known = {}
    for text in file:
        try:
            line: dict[str, Any] = json.loads(text)
            key = line.pop("key")
            known[key] = Measured(**line)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return known


def _finished(options: StudyOptions, data: Path, cells: dict[str, Cell], jobs: int) -> Iterator[tuple[str, Measured]]:
    """Yield each cell as it is finished, and only then raise what kept others from it."""
    code = _code()
    if jobs == 1 or len(cells) < 2:
        yield from ((key, _measure(options, data, cell, code)) for key, cell in cells.items())
        return
    pool = children.workers(min(jobs, len(cells)))
    try:
        names = {pool.submit(_measure, options, data, cell, code): key for key, cell in cells.items()}
        waiting = set(names)
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            failed = {future for future in finished if future.exception() is not None}
            yield from ((names[future], future.result()) for future in finished - failed)
            for future in failed:
                future.result()
    except BrokenProcessPool:
        raise StudyError(
            "a worker was killed, most likely for want of memory; run it again with fewer --jobs"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _measure(options: StudyOptions, data: Path, cell: Cell, code: str) -> Measured:
    from threadpoolctl import threadpool_limits

    started_s = time.perf_counter()
    try:
        with threadpool_limits(1):  # cells are many and small, and threads of several workers would only wait
            figures = STUDIES[options.study].measure(options, data, cell)
    except (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, ValueError) as error:
        where = ", ".join(f"{key}={value}" for key, value in cell.items())
        raise StudyError(f"{where}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    seconds = round(time.perf_counter() - started_s, 3)
    return Measured(cell, figures, seconds, time.strftime("%Y-%m-%d"), code)


def _code() -> str:
    """Return a number that tells the code that measures from any other."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _told(
    finished: Iterator[tuple[str, Measured]], label: str, count: int, say: Callable[[str], None]
) -> Iterator[tuple[str, Measured]]:
    """Pass the finished cells on and say how far it is and how long it will go on."""
    started_s = time.monotonic()
    for index, done in enumerate(finished, start=1):
        left_s = (time.monotonic() - started_s) / index * (count - index)
        say(f"{label}: {index} of {count} cells, about {left_s / 60:.0f} min left")
        yield done


def _circumstances(every: list[Measured], profile: Profile, command: str, jobs: int) -> str:
    """Return how the figures came about, as every report states it."""
    total_s, days = sum(each.seconds for each in every), sorted({each.date for each in every})
    taken = f"{total_s / 60:.1f} minutes" if total_s >= 60 else f"{total_s:.1f} seconds"
    other = sum(each.code != _code() for each in every)
    notes = [f"{other} of them were measured before the code last changed (`--fresh` measures anew)."] * (other > 0)
    notes += ["A short profile: it shows that the study runs, not what the methods are worth."] * (profile == "short")
    return (
        f"---\n\nMeasured on {' and '.join(days)} with fedgate {VERSION} on {platform.machine()}, Python"
        f" {platform.python_version()}: {len(every)} cells, {taken} of one core in all, at most {jobs} at a time."
        f" {' '.join([*notes, 'Command:'])}\n\n```sh\n{command}\n```"
    )
