"""Goal: who follows the two operator pages from nothing, line by line, gets the first model and the first alarm.

Method: the lines of `console` blocks are given on machines of their own (`tests/support/machines.py`): an aggregator's,
beside which a second gateway runs as the reference page says, and a gateway's. Nothing of a line is left out or changed
but what the page marks as the reader's own.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from fedgate.firmware_sim import children
from tests.project.test_docs import STARTED, blocks, lines
from tests.support.machines import Machine, machines, why_none
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S, until

AGGREGATOR, GATEWAY = ROOT / "docs/run-aggregator.md", ROOT / "docs/install-gateway.md"
BESIDE, REFERENCE = ROOT / "docs/reference/gateway.md", ROOT / "docs/reference/aggregator.md"
BACKUPS = ROOT / "docs/reference/operations.md"
INSTALLS = ("apt ", "/pip ")
SERVES = re.compile(r"/usr/sbin/mosquitto|(cloud-aggregator|gateway-agent) run ")
SERVING = re.compile(rf"{STARTED.pattern}|mosquitto version \S+ running")
CTRL_C = "pkill --signal INT --uid reader --exact 'cloud-aggregato|gateway-agent|mosquitto'"  # as /proc cuts names
TOKEN = re.compile(r"fedgate1\.[\w.-]+")
TOKEN_ON_PAGES = "fedgate1.eyJ..."  # noqa: S105 - stands for one
CERTIFICATE = "cloud-aggregator certificate operator -c aggregator.toml --out operator"
CERTIFICATES = "-h aggregator.example -p 8883 --cafile ca.pem --cert operator.pem --key operator.key"  # as it says
IN_SITE = 'sudo -u fedgate sh -c "cd /etc/fedgate && {}"'
LOOK_S, TIMED_OUT = 3, 27  # mosquitto_sub's own limit, and what it ends with then
PASSPHRASE = "five words that nobody guesses\n" * 2
# The fewest windows of a baseline, as the page says to see all of it today: with those of a site it takes hours.
NAMED = """sed -i 's/^id = "gateway-1"/id = "{name}"/; s/^windows = 2000/windows = 60/' gateway.toml"""


def section(page: Path, number: int) -> list[str]:
    """Return the lines of the `console` blocks of a numbered section."""
    text = page.read_text(encoding="utf-8")
    part = re.search(rf"^## {number}\. .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert part, f"{page.name} has no section {number}"
    return [line for block in blocks(part.group(), "console") for line in lines(block)]


def follow(machine: Machine, given: list[str], token: str = "") -> str:
    """Give lines in their order and return what the last one prints; what serves goes on until the last has ended."""
    said, served = "", []
    for line in given:
        if SERVES.match(line):
            served.append(serve(machine, line))
            continue
        is_online = any(word in line for word in INSTALLS)
        said = machine.run(line.replace(TOKEN_ON_PAGES, token), is_online=is_online, given=PASSPHRASE)
    if served:
        machine.run(CTRL_C)
    for process in served:
        assert children.wait_for_end(process, PATIENCE_S) == 0, process.args
    return said


def serve(machine: Machine, line: str) -> subprocess.Popen[str]:
    """Start a line that serves until Ctrl-C, and wait until it does."""
    with tempfile.NamedTemporaryFile("w") as out:
        process = machine.start(line, stdout=out, stderr=out)
        said = Path(out.name)
        until(lambda: process.poll() is not None or SERVING.search(said.read_text()), said.read_text)
        assert process.poll() is None, f"{machine.name}: {line}\n{said.read_text()}"
    return process


def admit(aggregator: Machine, machine: Machine, name: str) -> str:
    """Give a gateway the settings of its site and a name of its own; returns a token for it."""
    settings = aggregator.run("cat gateway.toml")
    machine.run("cat > gateway.toml", given=settings)
    machine.run(NAMED.format(name=name))
    token = next(line for line in section(AGGREGATOR, 6) if " gateways token " in line)
    *_, found = TOKEN.findall(aggregator.run(token.replace("gateway-1", name)))
    return str(found)


def block_with(page: Path, words: str) -> list[str]:
    """Return the lines of the `console` block of a page that holds these words."""
    return next(lines(block) for block in blocks(page, "console") if words in block)


def look_on(aggregator: Machine) -> None:
    """Give the lines that show what happens, as the page says with certificates, and see messages of the site."""
    assert CERTIFICATE in REFERENCE.read_text(encoding="utf-8")
    install, *shown = block_with(REFERENCE, "mosquitto_sub")
    follow(aggregator, [install])
    aggregator.run(IN_SITE.format(CERTIFICATE))
    for line in shown:
        said = aggregator.run(IN_SITE.format(f"{line} {CERTIFICATES} -W {LOOK_S}"), ends=(TIMED_OUT,))
        assert "fedgate/v1/bridge/" in said, line


@pytest.mark.soak
def test_the_operators_pages_lead_from_nothing_to_a_model_and_an_alarm() -> None:
    if reason := why_none():
        pytest.skip(reason)
    with machines("aggregator", "gateway", checkout=ROOT) as (aggregator, gateway):
        for number in (1, 2, 3, 5, 6):
            follow(aggregator, section(AGGREGATOR, number))
        follow(gateway, section(GATEWAY, 1))
        follow(gateway, section(GATEWAY, 2))
        follow(gateway, section(GATEWAY, 4), admit(aggregator, gateway, "gateway-1"))
        follow(aggregator, block_with(BESIDE, "/fedgate/gateway/"), admit(aggregator, aggregator, "gateway-2"))

        play, status = section(GATEWAY, 5)
        gateway.run(play)
        aggregator.run(play.replace("/etc/fedgate/", "/var/lib/fedgate/gateway/"))
        until(lambda: "watches with model 1" in gateway.run(status), lambda: gateway.run(status), poll_s=1.0)
        watched = follow(aggregator, section(AGGREGATOR, 7))
        assert re.search(r"^gateway-1 +online +\S+ +60/60 +1 ", watched, re.MULTILINE), watched
        follow(aggregator, section(AGGREGATOR, 8))

        follow(aggregator, block_with(BACKUPS, "--encrypt"))
        look_on(aggregator)
        aggregator.run("sudo systemctl start postgresql")
        follow(aggregator, block_with(REFERENCE, "CREATE ROLE"))

        *disturb, alarms = section(GATEWAY, 6)
        follow(gateway, disturb)
        until(lambda: re.search(r"^gateway-1 +anomaly ", aggregator.run(alarms), re.MULTILINE), poll_s=1.0)
