"""Goal: lines of the docs that install, enrol, back up and look after a site are right, too.

Method: each page's `console` and `text` blocks are run line by line on a machine that is a folder: `/etc`, `/var` and
all other absolute paths lie below it, `sudo` and the user are left out, and a site that a line wants and no line has
made is made by `cloud-aggregator init`. What would touch the real machine, needs a broker or runs for minutes is looked
at and not run: options are parsed, and units, files and extras that it names must exist.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.doctor.imports import TRIALS
from fedgate.config.runtime import cli
from fedgate.config.settings.settings import AggregatorSettings, GatewaySettings, load
from fedgate.firmware_sim import children
from fedgate.gateway_agent.storage.store import Store as GatewayStore
from tests.project.test_docs import OPERATED, OURS, PAGES, lines
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S

BLOCK = re.compile(r"^( *)```(?:console|text)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
REMARK = re.compile(r" {3,}\S.*| +# .*")
ABSOLUTE = re.compile(r"(?<![\w.~-])/(?=\w)")
INDENTED = re.compile(r"^ {4}(firmware-sim .*)$", re.MULTILINE)
USERS = (("-u", "fedgate"), ("-u", "postgres"))
OWNER = ("-o", "fedgate")
RUN_HERE = {"cat", "cp", "install", "ln", "rm", "sed", "sh"}  # below the folder alone
OF_THE_MACHINE = {"apt", "psql", "python3", "useradd"}
FOLDERS = ("etc/systemd/system", "media/usb", "mnt/backup", "opt", "var/lib")
PARSED = {"run", "demo", "demo-building", "replay", "enrol", "evaluate"}
ENDS = {"doctor": {0, 1}}  # nobody listens where a broker should
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def commands(page: Path) -> list[str]:
    """Return the lines of a page that begin with a command that is known here."""
    text = page.read_text(encoding="utf-8")
    blocks = [body for _, body in BLOCK.findall(text)]
    every = [REMARK.sub("", line.strip()) for body in blocks for line in lines(body)] + INDENTED.findall(text)
    return [line for line in every if line.split()[0] in {*OURS, "sudo", "make", "mosquitto", "mosquitto_sub", "rm"}]


PAGES_WITH_COMMANDS = [page for page in PAGES if page not in OPERATED and commands(page)]


class Machine:
    """A machine that is a folder; `work` is where commands are given, a checkout and a site."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.work, self._monkeypatch = root, root / "work", monkeypatch
        for name in FOLDERS:
            (root / name).mkdir(parents=True)
        self.work.mkdir()
        monkeypatch.chdir(self.work)
        self.init(Path(), "--root-key", str(root / "media/usb/bridge-root.key"))
        for name in ("config", "constraints.txt", "firmware_sim"):
            (self.work / name).symlink_to(ROOT / name)

    def init(self, folder: Path, *words: str) -> None:
        """Make a site with a store, as the aggregator leaves it."""
        assert ours("cloud-aggregator", "init", str(folder), *words) == 0
        with closing(Store(load(folder / "aggregator.toml", AggregatorSettings).aggregator.store)):
            pass

    def run(self, line: str) -> None:
        """Run a line, or look at what it names."""
        words = shlex.split(line)
        if words[0] == "sudo":
            words = words[1:]
            for given in (*USERS, OWNER):
                words = without(words, given)
        words = [word if word.startswith("s,") else ABSOLUTE.sub(f"{self.root}/", word) for word in words]
        program = Path(words[0]).name
        if program in OURS:
            self.run_ours(program, words[1:])
        elif program in RUN_HERE:
            done = children.run(words, PATIENCE_S, text=True)
            assert done.returncode == 0, done.stderr
        elif program == "systemctl":
            names = [word for word in words[2:] if not word.startswith("-")]
            units = [name if "." in name else f"{name}.service" for name in names]
            assert units and all((ROOT / "config" / name).exists() for name in units), units
        elif program == "pip":
            assert (ROOT / words[3]).exists() and words[4].removeprefix(".[").removesuffix("]") in EXTRAS
        elif program == "mosquitto":
            assert Path(words[2]).exists()
        elif program == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        else:
            assert program in {*OF_THE_MACHINE, "mosquitto_sub"}, line

    def run_ours(self, program: str, words: list[str]) -> None:
        """Run a command of ours on what it names, or parse its options where it would run for long."""
        command, output = words[0], io.StringIO()
        if ">" in words:
            words, written = words[: words.index(">")], Path(words[words.index(">") + 1])
        else:
            written = None
        if command in PARSED:
            with self._monkeypatch.context() as parsing:
                parsing.setattr(cli, "run", lambda *_: 0)
                assert ours(program, *words) == 0
            assert all(Path(word).exists() for word in words if word.startswith("firmware_sim/"))
            return
        self.provide(program, words)
        with contextlib.redirect_stdout(output):
            assert ours(program, *words) in ENDS.get(command, {0})
        if written is not None:
            written.write_text(output.getvalue(), encoding="utf-8")

    def provide(self, program: str, words: list[str]) -> None:
        """Make the site and the store that a command wants, where no line before it has."""
        if "-c" not in words:
            return
        config = Path(words[words.index("-c") + 1])
        if words[0] == "restore":
            if not Path(words[1]).exists():
                assert ours("cloud-aggregator", "backup", words[1], "-c", "aggregator.toml", "--encrypt") == 0
            return
        if not config.exists():
            config.parent.mkdir(parents=True, exist_ok=True)
            if not (config.parent / "gateway.toml").exists():
                self.init(config.parent)
            if not config.exists():
                shutil.copy(config.parent / "gateway.toml", config)
        if program == "gateway-agent":
            with closing(GatewayStore(load(config, GatewaySettings).gateway.store)):
                pass
        else:
            with closing(Store(load(config, AggregatorSettings).aggregator.store)) as store:
                store.order("token", {"gateway": "gateway-1"})  # behind one that waits orders are left to the service
                if "members" in words:  # of whom there must be one
                    store.commit([RecordRegistry((Certificate("1", "gateway-1", "0" * 64, 0, 2**62),))])


def without(words: list[str], pair: tuple[str, str]) -> list[str]:
    """Return words without a pair that stands side by side."""
    places = [place for place in range(len(words)) if tuple(words[place : place + 2]) == pair]
    return [word for place, word in enumerate(words) if place not in places and place - 1 not in places]


def ours(program: str, *words: str) -> int | str | None:
    """Return what a command of ours ends with."""
    try:
        return OURS[program](list(words))
    except SystemExit as ended:  # by argparse
        return ended.code


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr("fedgate.cloud_aggregator.commands.store.WAIT_S", 0.0)  # orders wait for a service
    # Tried by the tests of the doctors; nine processes for each line that calls one would be most of the work here.
    monkeypatch.setattr("fedgate.config.doctor.imports.TRIALS", dict.fromkeys(TRIALS, "v = 1"))
    monkeypatch.setattr("getpass.getpass", lambda _prompt: "a passphrase of several words")
    yield Machine(tmp_path / "machine", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: page.name)
def test_lines_on_a_site_and_its_machine_are_right(page: Path, machine: Machine) -> None:
    for line in commands(page):
        try:
            machine.run(line)
        except AssertionError as error:
            raise AssertionError(f"{page.name}: {line}\n{error}") from error
