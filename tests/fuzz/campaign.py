"""Coverage-guided fuzzing with atheris, for minutes and not for the seconds of CI: `make fuzz ARGS="--minutes 5 wire"`.

Each target runs in a process of its own at low priority, since a crash of native code ends a process. What it found is
kept, so that the next run begins where this one ended. atheris has wheels for few machines, so it is no dependency:
where it is not installed, that is said and nothing runs.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fedgate.firmware_sim import children
from tests.support.waiting import PATIENCE_S

NICE = 19
MEMORY_MIB = 2_048
INPUT_BYTES_MAX = 16_384
INPUT_S_MAX = 20
DONE = re.compile(r"Done (\d+) (?:runs )?in|#(\d+)\s+DONE")
TAIL_LINES = 25
MISSING = (
    "atheris is not installed here: pip install atheris, where it has a wheel (x86-64 Linux); hypothesis runs anyway"
)


class Tried(NamedTuple):
    """What became of one target."""

    name: str
    inputs: int
    crash: str  # the end of what was said, empty where nothing crashed


def main(argv: list[str] | None = None) -> int:
    """Fuzz the named targets, or all, and print one line each; 1 where one crashed."""
    from tests.fuzz.targets import NAMES

    parser = argparse.ArgumentParser(description="Fuzz with atheris.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--minutes", type=float, default=1.0, help="per target (default: 1)")
    parser.add_argument("--folder", type=Path, default=Path("out/fuzz"), help="for what was found (default: out/fuzz)")
    arguments = parser.parse_args(argv)
    if unknown := sorted(set(arguments.targets) - set(NAMES)):
        parser.error(f"unknown targets {unknown}; expected some of {', '.join(NAMES)}")
    if find_spec("atheris") is None:
        print(f"fuzz: skipped, {MISSING}")
        return 0
    crashed = False
    for name in arguments.targets or NAMES:
        tried = campaign(name, arguments.minutes * 60.0, arguments.folder)
        crashed |= bool(tried.crash)
        print(f"{name}: {tried.inputs} inputs, {'CRASH' if tried.crash else 'no crash'}", flush=True)
        if tried.crash:
            print(tried.crash, flush=True)
    return int(crashed)


def campaign(name: str, seconds: float, folder: Path, nice: int = NICE) -> Tried:
    """Fuzz one target in a child process."""
    corpus, crashes = folder / name / "corpus", folder / name / "crashes"
    for made in (corpus, crashes):
        made.mkdir(parents=True, exist_ok=True)
    options = (
        *(f"-max_total_time={max(round(seconds), 1)}", f"-rss_limit_mb={MEMORY_MIB}", f"-timeout={INPUT_S_MAX}"),
        *(f"-max_len={INPUT_BYTES_MAX}", f"-artifact_prefix={crashes}/", "-print_final_stats=1", "-verbosity=1"),
    )
    command = ["nice", "-n", str(nice), sys.executable, "-m", "tests.fuzz.campaign", name, *options, str(corpus)]
    environment = {**os.environ, "FUZZ_CHILD": "1"}
    done = children.run(command, PATIENCE_S + seconds, text=True, errors="replace", env=environment)
    said = done.stdout + done.stderr
    counts = [int(first or second) for first, second in DONE.findall(said)]
    counts += [int(found) for found in re.findall(r"stat::number_of_executed_units:\s+(\d+)", said)]
    return Tried(
        name, max(counts, default=0), "" if done.returncode == 0 else "\n".join(said.splitlines()[-TAIL_LINES:])
    )


def child(name: str, options: list[str]) -> None:
    """Fuzz one target until atheris ends the process."""
    import atheris

    with atheris.instrument_imports(include=["config", "models", "gateway_agent", "cloud_aggregator", "firmware_sim"]):
        from tests.fuzz.target import attempt
        from tests.fuzz.targets import target
    made = target(name)
    for number, seed in enumerate(made.seeds):
        (Path(options[-1]) / f"seed-{number}").write_bytes(seed)
    warnings.simplefilter("error")  # as in the tests
    atheris.Setup([sys.argv[0], *options], lambda data: void(attempt(made, data)))
    atheris.Fuzz()


def void(_taken: bool) -> None:
    """Return nothing: to atheris a value is a mistake."""


if __name__ == "__main__":
    if os.environ.get("FUZZ_CHILD"):
        child(sys.argv[1], sys.argv[2:])
    sys.exit(main())
