"""Runs a study: every cell once, on all cores or a cluster, each result on disk before the next; it goes on where it
was stopped.

Results lie in `cells/<study>.jsonl` beside the report, one line a cell. A line is known by what it was measured from,
so a text may be reworded and a method added without measuring the others again. Each line says with which code and
where it was measured, and the report how many were with another. Where a probe fails, `cells/<study>.log` says where.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from fedgate.config.runtime.version import VERSION
from fedgate.firmware_sim import children
from fedgate.firmware_sim.engine.cells import EVALUATE, Cell, Probe, cells_of, check_data, load_probe
from fedgate.firmware_sim.engine.reading import only
from fedgate.firmware_sim.engine.report import parts_of, write_report
from fedgate.firmware_sim.engine.spec import Figures, Spec, StudyError

ROOT = Path(__file__).resolve().parents[2]
CONNECT_S = 10
SOURCES = ("cloud_aggregator", "config", "firmware_sim", "gateway_agent", "models")  # whatever may decide a figure


class Plan(NamedTuple):
    """How a study is run.

    :param results: folder of the report and its cells.
    :param jobs: cells at a time on this machine.
    :param cluster: the address of a Dask scheduler, whose workers have fedgate and the data at the same place.
    :param command: what the report says it was measured with.
    """

    data: Path
    results: Path
    command: str
    short: bool = False
    jobs: int = 1
    fresh: bool = False
    cluster: str = ""


class Measured(NamedTuple):
    """One finished cell: what was measured, how long it took, on which day, with which code, and where."""

    figures: Figures
    seconds: float
    date: str
    code: str
    where: str = ""  # version, machine and Python; empty in lines written before they were kept


class Outcome(NamedTuple):
    """A finished study: its cells in order, and the report."""

    cells: list[Cell]
    measured: list[Measured]
    text: str
    path: Path


def run_study(name: str, spec: Spec, plan: Plan, say: Callable[[str], None], template: str = "report.md") -> Outcome:
    """Measure what is not measured yet and write `<name>.md` with its pictures into the folder of results.

    Raises:
        StudyError: a cell cannot be measured, and those before it are kept; or another run works on the same study.
    """
    if plan.cluster and spec.jobs is not None:
        raise StudyError(
            f"--cluster: no more than {spec.jobs} cells of this study are measured at a time; leave it out"
        )
    probe = load_probe(spec.probe)
    label = f"{name}-short" if plan.short else name
    cells = cells_of(spec, probe, plan.data, short=plan.short)
    check_data(probe, cells, plan.data)
    if not spec.section:
        spec = spec.model_copy(update={"section": probe.sections(spec)})
    plan = plan._replace(jobs=min(plan.jobs, spec.jobs or plan.jobs))
    with (
        _open_cells(plan.results / "cells" / f"{label}.jsonl") as file,
        _logged(plan.results / "cells" / f"{label}.log"),
    ):
        if plan.fresh:
            file.truncate(0)
        known = _known(file)
        missing = {cell.key: cell for cell in cells if cell.key not in known}
        say(f"{label}: {len(cells)} cells, {len(cells) - len(missing)} of them measured before")
        for key, done in _with_progress(_finished(probe, plan, missing), label, len(missing), say):
            line = {"key": key, "cell": missing[key].coordinates, **done._asdict()}
            file.write(json.dumps(line) + "\n")
            file.flush()
            known[key] = done
    every = [known[cell.key] for cell in cells]
    results = [(cell.coordinates, done.figures) for cell, done in zip(cells, every, strict=True)]
    parts = list(parts_of(spec, results, plan.results / label, short=plan.short))
    facts = {"circumstances": _circumstances(every, plan, _code(probe.module)), "command": plan.command}
    path = plan.results / f"{label}{Path(template).suffix}"
    text = write_report(spec, parts, facts, template)
    path.write_text(text, encoding="utf-8")
    return Outcome(cells, every, text, path)


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Write where a probe failed into this file, which the error names."""
    path.unlink(missing_ok=True)
    try:
        yield
    except StudyError as error:
        if not (notes := getattr(error, "__notes__", [])):
            raise
        path.write_text("\n".join(notes), encoding="utf-8")
        raise StudyError(f"{error}; where it failed: {path}") from None


@contextmanager
def _open_cells(path: Path) -> Iterator[TextIO]:
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
            known[line["key"]] = Measured(**{field: line[field] for field in Measured._fields if field in line})
        except (ValueError, TypeError, KeyError):
            continue
    return known


def _finished(probe: Probe, plan: Plan, cells: dict[str, Cell]) -> Iterator[tuple[str, Measured]]:
    """Yield each cell as it is finished, and only then raise what kept others from it."""
    if not plan.cluster and (plan.jobs == 1 or len(cells) < 2):
        yield from ((key, _measure(probe.name, cell, plan.data)) for key, cell in cells.items())
        return
    with _open_pool(plan, len(cells)) as pool:
        names = {pool.submit(_measure, probe.name, cell, plan.data): key for key, cell in cells.items()}
        yield from ((names[future], future.result()) for future in _completed(set(names)))


def _completed(waiting: set[Future[Measured]]) -> Iterator[Future[Measured]]:
    """Yield each as it is done. Where one fails, no further one begins, those that have begun are waited for, and its
    error is raised then.
    """
    failed: list[Future[Measured]] = []
    while waiting:
        finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in finished:
            if future.cancelled() or future.exception() is not None:
                failed.append(future)
            else:
                yield future
        if failed:
            waiting = {future for future in waiting if not future.cancel()}
    for future in failed:
        future.result()


@contextmanager
def _open_pool(plan: Plan, count: int) -> Iterator[Executor]:
    """Open the processes of this machine, or those of a cluster."""
    opened = _open_cluster(plan.cluster) if plan.cluster else _open_workers(min(plan.jobs, count))
    try:
        with opened as pool:
            yield pool
    except BrokenProcessPool:
        raise StudyError(
            "a worker was killed, most likely for want of memory; run it again with fewer --jobs"
        ) from None
    except CancelledError:
        raise StudyError(f"--cluster: the scheduler at {plan.cluster} has gone; run it again when it is back") from None


@contextmanager
def _open_workers(count: int) -> Iterator[Executor]:
    pool = children.workers(count)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _open_cluster(address: str) -> Iterator[Executor]:
    from distributed import Client, KilledWorker

    try:
        client = Client(address, set_as_default=False, timeout=CONNECT_S)  # type: ignore[no-untyped-call] # distributed is typed in part
    except (OSError, ValueError) as error:
        raise StudyError(f"--cluster: no Dask scheduler answers at {address!r}: {error}") from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise StudyError(f"--cluster: no worker has come to the scheduler at {address}; start one: dask worker")
        pool = client.get_executor(pure=False)  # type: ignore[no-untyped-call] # distributed is typed in part
        try:
            yield pool
        except KilledWorker as error:
            raise StudyError(f"--cluster: workers were killed, most likely for want of memory: {error}") from None
        finally:
            pool.shutdown(wait=False)  # what still runs would hold up the error that ends this run


def _measure(probe: str, cell: Cell, data: Path) -> Measured:
    from threadpoolctl import threadpool_limits

    loaded = load_probe(probe)
    started_s = time.perf_counter()
    try:
        # Beside a user's table there may be anything, an environment too; a study's folder of data holds data alone.
        watched = nullcontext() if probe == EVALUATE else only(loaded.reads(cell.case, data), data)
        with threadpool_limits(1), watched:  # cells are many and small, and threads of several workers would only wait
            figures = loaded.measure(cell.case, data)
    except (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, ValueError) as error:
        where = ", ".join(f"{key}={value}" for key, value in cell.coordinates.items() if "." not in key)
        failure = StudyError(f"{where}: {type(error).__name__}: {' '.join(str(error).split())}")
        failure.add_note(traceback.format_exc())  # a note reaches the process that waits, a cause does not
        raise failure from None
    seconds = round(time.perf_counter() - started_s, 3)
    return Measured(figures, seconds, time.strftime("%Y-%m-%d"), _code(loaded.module), _where())


def _where() -> str:
    return f"fedgate {VERSION} on {platform.machine()}, Python {platform.python_version()}"


@lru_cache(maxsize=8)
def _code(module: str) -> str:
    """Return a number that tells the code that measures, ours and the package of the probe, from any other."""
    sources = [ROOT / folder for folder in SOURCES]
    top = importlib.import_module(module.partition(".")[0])
    if top.__name__ != __name__.partition(".")[0]:
        sources += [Path(place) for place in getattr(top, "__path__", [top.__file__])]
    digest = hashlib.sha256()
    for source in sources:
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _with_progress(
    finished: Iterator[tuple[str, Measured]], label: str, count: int, say: Callable[[str], None]
) -> Iterator[tuple[str, Measured]]:
    """Pass the finished cells on and say how far it is and how long it will go on."""
    started_s = time.monotonic()
    for index, done in enumerate(finished, start=1):
        left_s = (time.monotonic() - started_s) / index * (count - index)
        say(f"{label}: {index} of {count} cells, about {left_s / 60:.0f} min left")
        yield done


def _circumstances(every: list[Measured], plan: Plan, code: str) -> str:
    """Return how the figures came about, as every report states it."""
    total_s, days = sum(each.seconds for each in every), sorted({each.date for each in every})
    taken = f"{total_s / 60:.1f} minutes" if total_s >= 60 else f"{total_s:.1f} seconds"
    other = sum(each.code != code for each in every)
    notes = [f"{other} of them were measured before the code last changed (`--fresh` measures anew)."] * (other > 0)
    notes += ["A short run: it shows that the study runs, not what the methods are worth."] * plan.short
    where = "on a Dask cluster" if plan.cluster else f"at most {plan.jobs} at a time"
    places = sorted({each.where for each in every if each.where})
    unsaid = sum(not each.where for each in every)
    notes += [f"With which version and where {unsaid} of them were measured was not kept."] * (unsaid > 0)
    return (
        f"Measured on {' and '.join(days)}{' with ' * bool(places)}{' and '.join(places)}:"
        f" {len(every)} cells, {taken} of one core in all, {where}."
        f" {' '.join([*notes, 'Command:'])}"
    )
