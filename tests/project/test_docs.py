"""The README and every page of docs are executed, so that no command or snippet in them can go stale.

Blocks marked `sh` are run line by line in one folder a page, with a real broker: services as processes, other commands
of ours in this process, which has imported their libraries already. The `python` blocks of a page are one script, whose
pictures must be those that the page shows, and `toml` blocks are parsed. `console` blocks hold what a test must not do
to this machine: `test_docs_machine.py` gives them on copies of it, and `test_docs_site.py` those of them that can be on
a machine that is a folder. `NOT_RUN` has the lines that nobody runs, and `test_docs_lines.py` sees that there are no
others.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import struct
import sys
import time
import tomllib
import warnings
from itertools import zip_longest
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.firmware_sim import children
from fedgate.firmware_sim.__main__ import main as firmware_sim
from fedgate.firmware_sim.broker import broker
from fedgate.firmware_sim.studies.datasets.tiny import write_tiny
from fedgate.gateway_agent.__main__ import main as gateway_agent
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.operators import OPERATORS
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S, until

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
HEREDOC = re.compile(r"^(cat > \S+ <<'END'\n.*?\nEND)$", re.DOTALL | re.MULTILINE)
REMARK = re.compile(r" +# .*")
SAVED = re.compile(r'savefig\("([\w-]+\.png)"')
PNG_HEADER, PNG_SIGNATURE = struct.Struct(">8s8x2I"), b"\x89PNG\r\n\x1a\n"
LINK = re.compile(r"\]\(([^)#:]+)\)")
OPERATED = [ROOT / "docs" / name for name in ("run-aggregator.md", "install-gateway.md")]  # by test_docs_machine.py
RESULTS = ROOT / "docs" / "results"  # whose commands run in short on the tiny data
# Pages of results whose studies take more than half a minute in short; that their cases are valid is tested elsewhere.
SLOW_STUDIES = {
    "building-alarms.md",
    "building-federation.md",
    "building-tables.md",
    "esn-memory.md",
    "esn-streams.md",
    "fdr-svm-scaling.md",
    "fdr-svm-sensitivity.md",
    "fdr-svm-table-1.md",
    "fleet-causes.md",
    "kernel-widths.md",
    "stress-predict.md",
    "svdd-table-2.md",
    "wesad-table-b3.md",
    "wesad-tables-6.md",
    "z24-rounds.md",
    "z24-table-2.md",
}
# Other pages of which soak alone runs the lines, and why.
LONG = {
    "algorithms.md": "ten trainings",
    "compare-algorithms.md": "a minute of trainings, whose options are tested where they are read",
    "extend.md": "a package built, installed and evaluated; its parts are tested one by one",
    "evaluate.md": "the lines of compare-algorithms.md, and more of their kind",
    "researcher.md": "half a minute of trainings",
    "replay.md": "both demos, half a minute each",
    "datasets.md": "a study on the tiny data",
}
# Lines that no test runs, and why.
SAME = "another test says and hears the same through a real broker with our access list"
NOT_RUN = {
    "make test": "it runs the tests, these among them",
    "make bench": "it measures for minutes, and on a machine that does nothing else",
    "make bench-peers": "the same, and it installs what others make",
    ".venv/bin/python -m tests.benchmarks.compression DATA": "it measures for minutes, on data that is not shipped",
    "make reproduce DATA=folder": "it measures for hours, on data that is not shipped",
    'make reproduce DATA=out/tiny ARGS="--short"': "its lines are on the pages of the results",
    "python -m fedgate.firmware_sim.studies convert z24_bridge SOURCE DATA": "its data is not shipped",
    "mosquitto_sub -u building -v -t 'fedgate/v1/+/+/alarm-state/+' -t 'fedgate/v1/+/cloud/answer/+'": SAME,
    "mosquitto_pub -u building -q 1 -t fedgate/v1/bridge/cloud/action/building -f action.json": SAME,
}
OURS = {"gateway-agent": gateway_agent, "cloud-aggregator": cloud_aggregator, "firmware-sim": firmware_sim}
COMMANDS = (*OURS, "python", "mkdir")
HALF = "x,y,label\n" + "".join(f"{row % 7},{row % 11},{int(row > 50)}\n" for row in range(60))  # as a reader has one
# Logged once signals are listened to.
STARTED = re.compile(r"fedgate.*: (gateway \S+ watches|aggregator of site|the page is at)")
SERVE_S = 1.0
STOP_S = 30.0


def blocks(page: Path | str, kind: str) -> list[str]:
    """Return the blocks of a kind on a page, or in a text."""
    text = page if isinstance(page, str) else page.read_text(encoding="utf-8")
    return [body for _, found, body in BLOCK.findall(text) if found == kind]


def lines(block: str) -> list[str]:
    """Return the commands of a block, continued lines joined and remarks left out."""
    every = []
    for text, given in zip_longest(*[iter(HEREDOC.split(block.replace("\\\n", " ")))] * 2):
        every += [REMARK.sub("", line.strip()) for line in text.splitlines()]
        every += [given] if given else []
    return [line for line in every if line and not line.startswith("#")]


def commands(page: Path, kind: str) -> list[str]:
    """Return the lines of all blocks of a kind on a page that a test has to run."""
    return [line for block in blocks(page, kind) for line in lines(block) if line not in NOT_RUN]


PAGES_WITH_COMMANDS = [
    pytest.param(page, marks=[pytest.mark.soak] if page.name in LONG or page.parent == RESULTS else [])
    for page in PAGES
    if commands(page, "sh") and not (page.parent == RESULTS and page.name in SLOW_STUDIES)
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data, which pages only read."""
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: page.name)
def test_commands_run(page: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_folder = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broker").mkdir()
    for name in ("firmware_sim", "config"):  # a page's commands are run in a checkout
        (tmp_path / name).symlink_to(ROOT / name)
    if page.parent == RESULTS:
        (tmp_path / "DATA").symlink_to(tiny)
    (tmp_path / "half.csv").write_text(HALF, encoding="utf-8")
    with broker(tmp_path / "broker") as server:
        for line in commands(page, "sh"):
            if HEREDOC.fullmatch(line):
                assert children.run(["bash", "-c", line], PATIENCE_S).returncode == 0
                continue
            words = shlex.split(line)
            assert words[0] in COMMANDS, f"{page.name}: {line}: mark it console if a test must not run it"
            if words[1] == "replay":
                words += ["--broker", str(server.address)]
            if words[-1] == "DATA":
                words += ["--short"]  # of a study that takes minutes
            if words[1] == "run":
                serve(words, tmp_path, environment)
                continue
            if words[0] in OURS:
                assert exit_code(words) == 0, f"{page.name}: {line}"
                continue
            done = children.run(words, PATIENCE_S, env=environment, text=True)
            assert done.returncode == 0, f"{page.name}: {line}\n{done.stderr}"


def exit_code(words: list[str]) -> int | str | None:
    """Return what a command of ours ends with, run here."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as in a process of its own
        try:
            return OURS[words[0]](words[1:])
        except SystemExit as ended:  # by argparse
            return ended.code


def serve(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Start a service, let it run for a moment, and see that SIGTERM ends it well."""
    log = folder / "service.log"
    with log.open("w", encoding="utf-8") as output:
        process = children.start(words, cwd=folder, env=environment, stderr=output)
    try:

        def has_started() -> bool:
            said = log.read_text(encoding="utf-8")
            assert process.poll() is None, f"{shlex.join(words)} did not start:\n{said}"
            return STARTED.search(said) is not None

        until(has_started, log.read_text)
        time.sleep(SERVE_S)
        process.send_signal(signal.SIGTERM)
        assert children.wait_for_end(process, STOP_S) == 0, log.read_text(encoding="utf-8")
    finally:
        process.kill()
        process.wait()


PAGES_WITH_PYTHON = [
    pytest.param(page, marks=[pytest.mark.soak] if page.name in LONG else [])
    for page in PAGES
    if blocks(page, "python")
]


@pytest.mark.soak
@pytest.mark.parametrize("page", PAGES_WITH_PYTHON, ids=lambda page: page.name)
def test_python_snippets_run_and_make_the_pictures_that_they_save(page: Path, tmp_path: Path) -> None:
    script = "\n".join(blocks(page, "python"))
    (tmp_path / "page.py").write_text(script, encoding="utf-8")
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    done = children.run([sys.executable, "page.py"], PATIENCE_S, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, f"{page.name}:\n{done.stderr}"
    for name in SAVED.findall(script):
        shown = page.parent / "images" / name
        assert f"](images/{name})" in page.read_text(encoding="utf-8"), f"{page.name} shows no {name}"
        assert size_px(tmp_path / name) == size_px(shown), f"{name} is another now: run the page in docs/images"


def size_px(picture: Path) -> tuple[int, int]:
    """Return width and height of a PNG, which are what fonts and libraries do not change."""
    header = picture.read_bytes()[: PNG_HEADER.size]
    signature, width, height = PNG_HEADER.unpack(header)
    assert signature == PNG_SIGNATURE, picture
    return width, height


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_toml_parses_and_links_lead_somewhere(page: Path) -> None:
    for block in blocks(page, "toml"):
        tomllib.loads(block)
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: link to {target} leads nowhere"


def test_the_page_of_extensions_lists_the_operators_and_counts_its_lines() -> None:
    page = ROOT / "docs" / "reference" / "extend.md"
    (listed,) = blocks(page, "text")
    assert listed.split() == sorted(OPERATORS)
    (algorithm,) = [block for block in blocks(page, "python") if "def mean_distance(" in block]
    assert 'return Algorithm("distance"' in algorithm.splitlines()[-1]
    assert f"after {len(algorithm.splitlines()) - 1} others" in page.read_text("utf-8")


def test_the_page_of_the_library_names_the_algorithms_that_train_on_labels() -> None:
    page = (ROOT / "docs" / "reference" / "library.md").read_text("utf-8")
    names = ", ".join(f"`{name}`" for name in sorted(ALGORITHMS.ours) if build(name, 2, {}).labels)
    assert f"  {names}.\n" in page
