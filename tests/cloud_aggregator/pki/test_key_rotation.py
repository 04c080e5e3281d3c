"""Goal: a running site gets another release key and another authority by one command each, and no hand is laid on a
gateway: those that run go on, one that was off through three of both comes back by itself.

Method: Mosquitto with TLS as `init` configures it, the aggregator, and gateways as processes that are never restarted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.runtime.app import Aggregator
from fedgate.config.identity import pki
from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import mosquitto_program
from fedgate.gateway_agent.__main__ import main as gateway_agent
from fedgate.gateway_agent.events import Keep, Save
from fedgate.gateway_agent.storage.store import Store
from tests.support import waiting
from tests.support.agents import commissioned
from tests.support.site_folders import Folder, aggregator_of, broker_of, founded
from tests.support.sites import FEATURES, SITE, WINDOWS, Shelf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.skipif(
        mosquitto_program() is None, reason="Mosquitto is not installed (Debian: apt install mosquitto)"
    ),
]
NAMES = ("north", "south")
AWAY = "west"
CHANGES = 3
LOOK_S = 0.2  # between two looks, each of which reads certificates of all
TLS = (
    'host = "localhost"\nport = {port}\nca_file = "ca.pem"\ncertificate_file = "{name}.pem"\nkey_file = "{name}.key"\n'
)
COMMON = "[features]\n" + "".join(f"{name} = {json.dumps(FEATURES[name])}\n" for name in ("rate_hz", "window_s"))
COMMON += 'channels = ["load"]\nsteps = [{ kind = "level" }, { kind = "deviation" }, { kind = "peak" }]\n'
CLOUD = """[aggregator]
site = "{site}"
[broker]
{tls}[identity]
root_key = "{root}"
broker_pid_file = "mosquitto.pid"
[enrolment]
listen = "127.0.0.1:{enrolment}"
address = "localhost:{enrolment}"
[algorithm]
settings = {{ gamma = 0.3 }}
[rounds]
quorum = 2
"""
GATEWAY = """[gateway]
id = "{name}"
site = "{site}"
[broker]
{tls}[[source]]
name = "deck"
kind = "frames"
channels = [{{ role = "load" }}]
silent_after_s = 1e7
[baseline]
windows = {windows}
[exchange]
status_s = 0.5
[identity]
enrolment = "localhost:{enrolment}"
check_s = 2.0
"""


@dataclass
class Site:
    """A running site, and the folders of its gateways."""

    folder: Folder
    root_key: Path
    aggregator: Aggregator
    gateways: Path
    capsys: pytest.CaptureFixture[str]

    def command(self, *words: str) -> int:
        return cloud_aggregator([*words, "-c", str(self.folder.path / "aggregator.toml")])

    def said(self, *words: str) -> dict[str, object]:
        self.capsys.readouterr()
        assert self.command(*words, "--json") == 0
        said: dict[str, object] = json.loads(self.capsys.readouterr().out)
        return said

    def until(self, done: Callable[[], object]) -> None:
        logs = sorted(self.gateways.glob("*/log"))
        waiting.until(done, lambda: "\n".join(path.read_text() for path in logs), poll_s=LOOK_S)

    def enrol(self, name: str) -> Path:
        """Make a gateway that has a whole baseline, and enrol it."""
        folder = self.gateways / name
        folder.mkdir(parents=True)
        port = self.folder.port
        tls = TLS.format(port=port, name="gateway")
        words = {"name": name, "site": SITE, "tls": tls, "windows": WINDOWS, "enrolment": port + 1}
        (folder / "gateway.toml").write_text(GATEWAY.format(**words) + COMMON)
        shelf = Shelf()
        commissioned(shelf)
        store = Store(folder / "gateway.db")
        store.commit([*map(Keep, shelf.baseline), *(Save(key, body) for key, body in shelf.blobs.items())])
        store.close()
        token = str(self.said("gateways", "token", name)["token"])
        assert gateway_agent(["enrol", "-c", str(folder / "gateway.toml"), "--token", token]) == 0
        return folder

    @contextmanager
    def running(self, folder: Path) -> Iterator[None]:
        """Run a gateway; nothing but the end of the test may end it."""
        with (folder / "log").open("ab") as log:
            command = [sys.executable, "-P", "-m", "fedgate.gateway_agent", "run", "-c", str(folder / "gateway.toml")]
            process = children.start(command, stdout=log, stderr=log)
        try:
            yield
            assert process.poll() is None, (folder / "log").read_text()
        finally:
            process.terminate()
            process.wait()

    def versions(self) -> dict[str, int]:
        known = self.aggregator.service.state.access.gateways
        return {name: one.model_version for name, one in known.items() if one.state == "online"}

    def have(self, version: int, *names: str) -> bool:
        return all(self.versions().get(name) == version for name in names or NAMES)

    def goes_by(self, name: str) -> bool:
        """Tell whether a gateway holds what the aggregator says now, and a certificate of the newest authority."""
        mine = self.gateways / name
        same = all((mine / one).read_bytes() == (self.folder.path / one).read_bytes() for one in FOLLOWING)
        made = pki.load_certificate(mine / "gateway.pem")
        return same and made.issuer == pki.load_certificate(self.folder.path / "ca.pem").subject

    def release(self, version: int) -> None:
        """Release the first model once more, as the next version, and see that those that run take it."""
        assert self.command("release", "--all", "--version", "1") == 0
        self.until(partial(self.have, version))


FOLLOWING = ("release.pub", "ca.pem", "keys.json")


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[Site, ExitStack]]:
    folder, root = founded(tmp_path / "site", "--root-key", str(tmp_path / "stick")), tmp_path / "stick"
    tls = TLS.format(port=folder.port, name="cloud")
    words = {"site": SITE, "tls": tls, "root": root, "enrolment": folder.port + 1}
    (folder.path / "aggregator.toml").write_text(CLOUD.format(**words) + COMMON)
    with ExitStack() as broker:
        broker.enter_context(broker_of(folder))
        with aggregator_of(folder) as aggregator:
            yield Site(folder, root, aggregator, tmp_path / "gateways", capsys), broker


def test_keys_are_changed_on_a_running_site_without_a_hand_on_a_gateway(site: tuple[Site, ExitStack]) -> None:
    """One gateway is off through `CHANGES` of both keys."""
    here, broker = site
    folders = [here.enrol(name) for name in (*NAMES, AWAY)]
    begun = {path.name: path.read_bytes() for path in folders[-1].iterdir()}
    with ExitStack() as running:
        for folder in folders[:-1]:
            running.enter_context(here.running(folder))
        here.until(partial(here.have, 1))

        # Another release key: what is released from now on is taken, and by those that run.
        first = (here.folder.path / "release.pub").read_bytes()
        assert here.command("keys", "rotate", "--release") == 0
        assert (here.folder.path / "release.pub").read_bytes() != first
        here.until(lambda: all(map(here.goes_by, NAMES)))
        here.release(2)

        # Another authority: they have themselves certified by it before the one before is dropped.
        assert here.command("keys", "rotate", "--authority") == 0
        here.until(lambda: all(map(here.goes_by, NAMES)))
        assert here.said("keys", "show")["lacking"] == [AWAY]
        here.capsys.readouterr()
        assert here.command("keys", "finish") == 1 and AWAY in here.capsys.readouterr().err
        assert here.command("keys", "rotate", "--authority") == 2 and "keys finish" in here.capsys.readouterr().err
        assert here.command("keys", "finish", "--anyway") == 0
        here.until(lambda: all(map(here.goes_by, NAMES)))
        broker.close()  # all connections end, and begin again with what is there now
        broker.enter_context(broker_of(here.folder))
        here.release(3)

        for version in range(4, 3 + CHANGES):
            assert here.command("keys", "rotate", "--release", "--authority") == 0
            here.until(lambda: all(map(here.goes_by, NAMES)))
            assert here.command("keys", "finish", "--anyway") == 0
            here.release(version)
        broker.close()
        broker.enter_context(broker_of(here.folder))
        here.release(3 + CHANGES)

        # Nothing that it holds is good any more but its key and the root key.
        assert {path.name: path.read_bytes() for path in folders[-1].iterdir()} == begun
        running.enter_context(here.running(folders[-1]))
        here.until(lambda: here.have(3 + CHANGES, *NAMES, AWAY))
        assert here.goes_by(AWAY) and (folders[-1] / "gateway.key").read_bytes() == begun["gateway.key"]
