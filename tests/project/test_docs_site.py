"""Goal: lines of the docs that install, back up and look after a site are right, too.

Method: each page's `console` blocks are run line by line on a machine that is a folder: `/etc`, `/var` and all other
absolute paths lie below it, `sudo` and the user are left out, and a site that a line wants and no line has made is made
by `cloud-aggregator init`. What would touch the real machine or needs a running site is left to
`test_docs_machine.py`, as are the operators' pages.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.doctor.imports import TRIALS
from fedgate.config.settings.settings import AggregatorSettings, GatewaySettings, load
from fedgate.firmware_sim import children
from fedgate.gateway_agent.storage.store import Store as GatewayStore
from tests.project.test_docs import OPERATED, OURS, PAGES, commands, serve
from tests.support.receivers import free_port
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S

ABSOLUTE = re.compile(r"(?<![\w.~-])/(?=\w)")
OF_USERS = (("-u", "fedgate"), ("-u", "postgres"), ("-o", "fedgate"), ("-g", "fedgate"))
RUN_HERE = {"cat", "cp", "install", "rm", "sed", "sh"}  # below the folder alone
FOLDERS = ("etc/systemd/system", "media/usb", "mnt/backup", "var/lib")
# Nobody listens where a broker or a receiver should, and no alarm stands at a new site.
ENDS = {"doctor": {0, 1}, "notify": {1}, "alarms show": {0, 2}, "samples": {0, 2}}
PAGE = "127.0.0.1:8470"
CHANNEL = '[[notify]]\nname = "on-call"\nurl_file = "on-call.urls"\n'


def words_of(line: str) -> list[str]:
    """Return the words of a line without `sudo` and its users."""
    words = shlex.split(line)
    if words[0] == "sudo":
        words = words[1:]
        for pair in OF_USERS:
            words = without(words, pair)
    return words


def without(words: list[str], pair: tuple[str, str]) -> list[str]:
    """Return words without a pair that stands side by side."""
    places = [place for place in range(len(words)) if tuple(words[place : place + 2]) == pair]
    return [word for place, word in enumerate(words) if place not in places and place - 1 not in places]


def is_for_here(line: str) -> bool:
    """Tell whether a line needs neither the real machine nor an aggregator that answers."""
    program, *words = words_of(line)
    name = Path(program).name
    return name in RUN_HERE or (name in OURS and words[0] != "enrol")


def commands_here(page: Path) -> list[str]:
    """Return the lines of a page that are given here."""
    return [line for line in commands(page, "console") if page not in OPERATED and is_for_here(line)]


PAGES_WITH_COMMANDS = [page for page in PAGES if commands_here(page)]


class Machine:
    """A machine that is a folder; `work` is where commands are given, a checkout and a site."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.work = root, root / "work"
        for name in FOLDERS:
            (root / name).mkdir(parents=True)
        self.work.mkdir()
        monkeypatch.chdir(self.work)
        self.init(Path(), "--root-key", str(root / "media/usb/bridge-root.key"))
        (self.work / "config").symlink_to(ROOT / "config")

    def init(self, folder: Path, *words: str) -> None:
        """Make a site with a store, as the aggregator leaves it."""
        assert ours("cloud-aggregator", "init", str(folder), *words) == 0
        with closing(Store(load(folder / "aggregator.toml", AggregatorSettings).aggregator.store)):
            pass

    def run(self, line: str) -> None:
        """Run a line."""
        words = [word if word.startswith("s,") else ABSOLUTE.sub(f"{self.root}/", word) for word in words_of(line)]
        program = Path(words[0]).name
        if program in OURS:
            self.run_ours(program, words[1:])
            return
        done = children.run(words, PATIENCE_S, text=True)
        assert done.returncode == 0, done.stderr

    def run_ours(self, program: str, words: list[str]) -> None:
        """Run a command of ours on what it names."""
        command, output = words[0], io.StringIO()
        if ">" in words:
            words, written = words[: words.index(">")], Path(words[words.index(">") + 1])
        else:
            written = None
        self.provide(program, words)
        if command == "web":
            serve([str(Path(sys.executable).with_name(program)), *words], self.work, dict(os.environ))
            return
        with contextlib.redirect_stdout(output):
            assert ours(program, *words) in ENDS.get(" ".join(words[:2]), ENDS.get(command, {0}))
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
            if words[0] == "web" and "\n[web]" not in (text := config.read_text("utf-8")):
                config.write_text(f'{text}\n[web]\nlisten = "127.0.0.1:{free_port()}"\n', "utf-8")
            with closing(GatewayStore(load(config, GatewaySettings).gateway.store)):
                pass
        else:
            with closing(Store(load(config, AggregatorSettings).aggregator.store)) as store:
                if words[0] == "web":
                    config.write_text(config.read_text("utf-8").replace(PAGE, f"127.0.0.1:{free_port()}"), "utf-8")
                store.order("token", {"gateway": "gateway-1"})  # behind one that waits orders are left to the service
                if words[0] == "notify" and CHANNEL not in (text := config.read_text("utf-8")):
                    config.write_text(f"{text}\n{CHANNEL}", "utf-8")
                    (config.parent / "on-call.urls").write_text("json://127.0.0.1:9/", "utf-8")
                if "members" in words:  # of whom there must be one
                    store.commit([RecordRegistry((Certificate("1", "gateway-1", "0" * 64, 0, 2**62),))])


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


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: page.name)
def test_lines_on_a_site_and_its_machine_are_right(page: Path, machine: Machine) -> None:
    for line in commands_here(page):
        try:
            machine.run(line)
        except AssertionError as error:
            raise AssertionError(f"{page.name}: {line}\n{error}") from error
