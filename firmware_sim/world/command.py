"""`firmware-sim world`: let a seeded world run and print its history, or many worlds and what they broke."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, as_completed
from dataclasses import asdict
from pathlib import Path

from fedgate.config.runtime import cli
from fedgate.firmware_sim import children
from fedgate.firmware_sim.world.environment.faults import Faults, load_faults
from fedgate.firmware_sim.world.environment.setup import HOURS

DIGITS_MAX, JOBS_MAX = 18, 1_024
SEEDS = re.compile(rf"(\d{{1,{DIGITS_MAX}}})\.\.(\d{{1,{DIGITS_MAX}}})")
PROGRESS_S = 10.0
EPILOG = """examples:
  firmware-sim world --seed 7                                   what happened, line by line, and whether a promise broke
  firmware-sim world --seed 7 --hours 3 --faults F.toml         other faults than those that the seed draws
  firmware-sim world --seeds 0..300 --jobs 2 --quiet            many worlds; each that fails says how to replay it
"""


def add_arguments(world: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    world.description = (
        "Run the real agent, aggregator and sensor nodes in a simulated world of broken networks, power, disks and "
        "clocks, and check that nothing was lost, counted twice or given away. Equal seeds give equal histories."
    )
    world.epilog = EPILOG
    chosen = world.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--seed", type=_seed, metavar="N", help="one world, with its history")
    chosen.add_argument("--seeds", type=_seeds, metavar="A..B", help="worlds A to B, B left out")
    world.add_argument(
        "--hours", type=_hours, default=HOURS, help=f"of faults, before all is mended (default: {HOURS})"
    )
    world.add_argument(
        "--faults", type=Path, metavar="F.toml", help="what fails how often (default: drawn from the seed)"
    )
    world.add_argument("--jobs", type=_jobs, default=1, metavar="K", help="worlds at once (default: 1)")
    world.add_argument("--folder", type=_folder, help="where stores are made and removed again (default: in memory)")
    world.add_argument("-q", "--quiet", action="store_true", help="no history and no progress")
    world.add_argument("--json", action="store_true", help="print JSON")
    world.set_defaults(act=main)


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > DIGITS_MAX:
        raise argparse.ArgumentTypeError(
            f"expected a number of 0 or above, of {DIGITS_MAX} digits at most, got {text!r}"
        )
    return int(text)


def _jobs(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= JOBS_MAX:
        raise argparse.ArgumentTypeError(f"expected 1 to {JOBS_MAX} worlds at once, got {text!r}")
    return int(text)


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"expected a folder that is there, got {text!r}")
    return Path(text)


def _seeds(text: str) -> range:
    found = SEEDS.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]):
        raise argparse.ArgumentTypeError(f"expected A..B with A below B, such as 0..300, got {text!r}")
    return range(int(found[1]), int(found[2]))


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0.0 < hours <= 10_000.0:
        raise argparse.ArgumentTypeError(f"expected hours above 0, up to 10000, got {text!r}")
    return hours


def main(arguments: argparse.Namespace) -> int:
    """Run one world or many; the exit code is 1 where a promise was broken."""
    faults = None if arguments.faults is None else load_faults(arguments.faults)
    if arguments.seeds is not None:
        return _many(arguments, faults)
    return _one(arguments, faults)


def replay(seed: int, arguments: argparse.Namespace | None = None) -> str:
    """Return the command that runs a world again."""
    command = f"firmware-sim world --seed {seed}"
    if arguments is not None and arguments.hours != HOURS:
        command += f" --hours {arguments.hours:g}"
    if arguments is not None and arguments.faults is not None:
        command += f" --faults {shlex.quote(str(arguments.faults))}"
    return command


def _one(arguments: argparse.Namespace, faults: Faults | None) -> int:
    from fedgate.firmware_sim.world.world import run

    try:
        outcome = run(arguments.seed, arguments.hours, faults, arguments.folder)
    except Exception:
        sys.stderr.write(f"a machine ended with an error of its own; again: {replay(arguments.seed, arguments)}\n")
        raise
    history = [] if arguments.quiet else list(outcome.history)
    facts = {**asdict(outcome), "history": history, "replay": replay(arguments.seed, arguments)}
    cli.show(arguments, facts, "\n".join([*history, _verdict(outcome.violations, arguments.seed, arguments)]))
    return cli.SERVICE_ERROR if outcome.violations else 0


def _verdict(violations: tuple[str, ...], seed: int, arguments: argparse.Namespace) -> str:
    if not violations:
        return f"seed {seed}: every promise kept"
    lines = [f"seed {seed}: {len(violations)} promises broken", *(f"  {text}" for text in violations)]
    return "\n".join([*lines, f"  again: {replay(seed, arguments)}"])


def verdicts(
    seeds: range, hours: float, faults: Faults | None, folder: Path | None, jobs: int
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield, for each of the worlds as it ends, its seed and what it broke; an error in a machine is one of these."""
    pool = children.workers(jobs)
    try:
        running = {pool.submit(violations_of, seed, hours, faults, folder): seed for seed in seeds}
        for future in as_completed(running):
            yield running[future], _broken(future)
    finally:  # who interrupts waits for the worlds that have begun, and for no other
        pool.shutdown(cancel_futures=True)


def violations_of(seed: int, hours: float, faults: Faults | None, folder: Path | None) -> tuple[str, ...]:
    """Return what one world broke."""
    from fedgate.firmware_sim.world.world import run

    return run(seed, hours, faults, folder).violations


def _broken(future: Future[tuple[str, ...]]) -> tuple[str, ...]:
    error = future.exception()
    return future.result() if error is None else (f"a machine ended with {type(error).__name__}: {error}",)


def _many(arguments: argparse.Namespace, faults: Faults | None) -> int:
    started_s = reported_s = time.monotonic()
    broken: dict[int, tuple[str, ...]] = {}
    done = 0
    for seed, violations in verdicts(arguments.seeds, arguments.hours, faults, arguments.folder, arguments.jobs):
        done += 1
        if violations:
            broken[seed] = violations
            sys.stderr.write(_verdict(violations, seed, arguments) + "\n")
        if not arguments.quiet and time.monotonic() - reported_s >= PROGRESS_S:
            reported_s = time.monotonic()
            per_s = done / (reported_s - started_s)
            sys.stderr.write(f"{done} of {len(arguments.seeds)} worlds, {per_s:.2f} a second, {len(broken)} failed\n")
    took_s = time.monotonic() - started_s
    again = {str(seed): {"violations": broken[seed], "replay": replay(seed, arguments)} for seed in sorted(broken)}
    facts = {"worlds": done, "seconds": round(took_s, 1), "failed": again}
    cli.show(arguments, facts, f"{done} worlds in {took_s:.0f} s, {done / took_s:.2f} a second, {len(broken)} failed")
    return cli.SERVICE_ERROR if broken else 0
