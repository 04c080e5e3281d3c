"""Goal: who follows the two operator pages from nothing, line by line, gets the first model and the first alarm, and
has both again from a backup; and a bare checkout is installed by make.

Method: the lines of `console` blocks are given on machines of their own (`tests/support/machines.py`): an aggregator's,
beside which a second gateway runs as the reference page says, and a gateway's. Nothing of a line is left out or changed
but what the page marks as the reader's own.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedgate.firmware_sim import children
from tests.project.test_docs import NOT_RUN, STARTED, blocks, lines
from tests.support.machines import Machine, machines, why_none
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S, until

AGGREGATOR, GATEWAY = ROOT / "docs/run-aggregator.md", ROOT / "docs/install-gateway.md"
BESIDE, REFERENCE = ROOT / "docs/reference/gateway.md", ROOT / "docs/reference/aggregator.md"
BACKUPS, PAGES = ROOT / "docs/reference/operations.md", ROOT / "docs/reference/page.md"
README, COMPARE = ROOT / "README.md", ROOT / "docs/compare-algorithms.md"
INSTALLS = ("apt ", "/pip ", "make ")
SERVES = re.compile(r"/usr/sbin/mosquitto|(cloud-aggregator|gateway-agent) run |make demo KEEP=1")
SERVING = re.compile(rf"{STARTED.pattern}|mosquitto version \S+ running|page run until Ctrl-C")
# As /proc cuts names.
CTRL_C = "pkill --signal INT --uid reader --exact 'cloud-aggregato|firmware-sim|gateway-agent|mosquitto'"
TOKEN = re.compile(r"fedgate1\.[\w.-]+")
TOKEN_ON_PAGES = "fedgate1.eyJ..."  # noqa: S105 - stands for one
CERTIFICATE = "cloud-aggregator certificate operator -c aggregator.toml --out operator"
CERTIFICATES = "-h aggregator.example -p 8883 --cafile ca.pem --cert operator.pem --key operator.key"  # as it says
IN_SITE = 'sudo -u fedgate sh -c "cd /etc/fedgate && {}"'
WATCHES = re.compile(r"^gateway-1 +online +\S+ +60/60 +1 ", re.MULTILINE)
ANOMALY = re.compile(r"^gateway-1\.anomaly\.", re.MULTILINE)
PAGE = "http://127.0.0.1:8470"
OWN_UNIT, OWN_ADDRESS = "fedgate-gateway-web", "127.0.0.1:8471"
MAIN_PROCESS = f"$(systemctl show --value --property MainPID {OWN_UNIT})"
IN_UNIT = f"sudo nsenter --target {MAIN_PROCESS} --mount -- runuser -u fedgate -- {{}}"  # as its process sees the files
CONFINED = ("CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2")
GATEWAYS_KEY = "/var/lib/fedgate/gateway.key"
LOOK_S, TIMED_OUT = 3, 27  # mosquitto_sub's own limit, and what it ends with then
PASSPHRASE = "five words that nobody guesses\n" * 2
BACKUP = "site-Mon.fedgate"  # of the day at which the page was written
# The fewest windows of a baseline, as the page says to see all of it today: with those of a site it takes hours.
NAMED = """sed -i 's/^id = "[^"]*"/id = "{name}"/; s/^windows = 2000/windows = 60/' gateway.toml"""


class Part(NamedTuple):
    """Lines of a page that are given one after the other."""

    page: Path
    lines: list[str]


def section(page: Path, number: int) -> Part:
    """Return the lines of the `console` blocks of a numbered section."""
    text = page.read_text(encoding="utf-8")
    part = re.search(rf"^## {number}\. .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert part, f"{page.name} has no section {number}"
    return Part(page, [line for block in blocks(part.group(), "console") for line in lines(block)])


def block_with(page: Path, words: str) -> Part:
    """Return the lines of the `console` block of a page that holds these words, but for those that nobody runs."""
    block = next(block for block in blocks(page, "console") if words in block)
    return Part(page, [line for line in lines(block) if line not in NOT_RUN])


PARTS = {
    **{f"aggregator {number}": section(AGGREGATOR, number) for number in (1, 2, 3, 5, 6, 7, 8, 9)},
    **{f"gateway {number}": section(GATEWAY, number) for number in (1, 2, 4, 5, 6)},
    "beside": block_with(BESIDE, "/fedgate/gateway/"),
    "by hand": block_with(BESIDE, "gateway-agent enrol -c gateway.toml"),
    "look on": block_with(REFERENCE, "mosquitto_sub"),
    "database": block_with(REFERENCE, "CREATE ROLE"),
    "backup": block_with(BACKUPS, "--encrypt"),
    "every day": block_with(BACKUPS, "fedgate-backup.timer"),
    "drill": block_with(BACKUPS, "drill"),
    "restore": block_with(BACKUPS, "systemctl stop"),
}
MADE = (block_with(README, "make demo"), block_with(COMPARE, "make install"))
OWN_PAGE = block_with(PAGES, "fedgate-gateway-web")
GIVEN = {(part.page, line) for part in (*PARTS.values(), *MADE, OWN_PAGE) for line in part.lines}


def follow(machine: Machine, given: list[str], token: str = "", passphrase: str = PASSPHRASE) -> str:
    """Give lines in their order and return what the last one prints; what serves goes on until the last has ended."""
    said, served = "", []
    for line in given:
        if SERVES.match(line):
            served.append(serve(machine, line))
            continue
        is_online = any(word in line for word in INSTALLS)
        said = machine.run(line.replace(TOKEN_ON_PAGES, token), is_online=is_online, given=passphrase)
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
    token = next(line for line in PARTS["aggregator 6"].lines if " gateways token " in line)
    *_, found = TOKEN.findall(aggregator.run(token.replace("gateway-1", name)))
    return str(found)


def look_on(aggregator: Machine, given: list[str]) -> None:
    """Give the lines that show what happens, as the page says with certificates, and see messages of the site."""
    assert CERTIFICATE in REFERENCE.read_text(encoding="utf-8")
    install, *shown = given
    follow(aggregator, [install])
    aggregator.run(IN_SITE.format(CERTIFICATE))
    for line in shown:
        said = aggregator.run(IN_SITE.format(f"{line} {CERTIFICATES} -W {LOOK_S}"), ends=(TIMED_OUT,))
        assert "fedgate/v1/bridge/" in said, line


def log_in(aggregator: Machine) -> None:
    """Log in to the page, which another user serves, and acknowledge nothing: its order reaches the service."""
    password = PASSPHRASE.splitlines()[0]
    aggregator.run(f"curl -sS -c cookies -d 'name=ada' --data-urlencode 'password={password}' {PAGE}/login")
    seen = aggregator.run(f"curl -sS -b cookies {PAGE}/")
    assert "gateway-1" in seen, seen
    token = seen.partition('name="csrf" value="')[2].partition('"')[0]
    form = f"-d csrf={token} -d alarms=gateway-1/none -d back=/"
    aggregator.run(f"curl -sS -b cookies {form} {PAGE}/orders/acknowledge")
    seen = aggregator.run(f"curl -sS -b cookies {PAGE}/")
    assert "there is no such alarm" in seen, seen


def restore(aggregator: Machine, drill: list[str], stop: str, *go_on: str) -> str:
    """Try the backup of the day, lose the disk and go on from it; returns the alarms that the trial shows."""
    passphrase = aggregator.run("sudo cat /etc/fedgate-passphrase")
    aggregator.run(f"sudo install -o reader /mnt/backup/site-???.fedgate {BACKUP}")
    *restored, models, removed = drill
    said = follow(aggregator, restored, passphrase=passphrase)
    follow(aggregator, [models, removed, stop])
    aggregator.run("sudo rm -r /var/lib/fedgate/site")
    aggregator.run(f"sudo install -o fedgate {BACKUP} -t /mnt/backup")
    follow(aggregator, [*go_on], passphrase=passphrase)
    return said


def skip_without_machines() -> None:
    """Skip a test where no copy of the machine can be made."""
    if reason := why_none():
        pytest.skip(reason)


@pytest.mark.soak
def test_the_operators_pages_lead_from_nothing_to_a_model_and_an_alarm_and_back_to_them_from_a_backup() -> None:
    skip_without_machines()
    left = {name: part.lines for name, part in PARTS.items()}
    with machines("aggregator", "gateway", checkout=ROOT) as (aggregator, gateway):
        for number in (1, 2, 3, 5, 6):
            follow(aggregator, left.pop(f"aggregator {number}"))
        follow(gateway, left.pop("gateway 1"))
        follow(gateway, left.pop("gateway 2"))
        follow(gateway, left.pop("gateway 4"), admit(aggregator, gateway, "gateway-1"))
        follow(aggregator, left.pop("beside"), admit(aggregator, aggregator, "gateway-2"))

        play, status = left.pop("gateway 5")
        gateway.run(play)
        aggregator.run(play.replace("/etc/fedgate/", "/var/lib/fedgate/gateway/"))
        until(lambda: "watches with model 1" in gateway.run(status), lambda: gateway.run(status), poll_s=1.0)
        *_, seen = watch = left.pop("aggregator 7")
        watched = follow(aggregator, watch)
        assert WATCHES.search(watched), watched
        follow(aggregator, left.pop("aggregator 8"))
        log_in(aggregator)
        follow(aggregator, left.pop("aggregator 9"))
        follow(aggregator, left.pop("backup"))
        look_on(aggregator, left.pop("look on"))
        aggregator.run("sudo systemctl start postgresql")
        follow(aggregator, left.pop("database"))

        *disturb, alarms = left.pop("gateway 6")
        follow(gateway, disturb)
        until(lambda: ANOMALY.search(aggregator.run(alarms)), poll_s=1.0)
        follow(aggregator, left.pop("every day"))
        tried = restore(aggregator, left.pop("drill"), *left.pop("restore"))
        assert ANOMALY.search(tried), tried
        until(lambda: WATCHES.search(aggregator.run(seen)), poll_s=1.0)
        follow(aggregator, left.pop("by hand"), admit(aggregator, aggregator, "gateway-3"))
    assert not left


@pytest.mark.soak
def test_make_installs_a_checkout_and_shows_the_demo_on_a_bare_machine() -> None:
    skip_without_machines()
    with machines("reader", checkout=ROOT) as (reader,):
        follow(reader, ["sudo apt install make python3-venv"])  # both pages say that these are needed
        for part in MADE:
            follow(reader, part.lines)
        reader.run("ls out/demo-munich/report.html .venv/bin/pytest")


def start_without_site(gateway: Machine) -> None:
    """Start the agent as its page says, but for what takes an aggregator; with a key, as an enrolled one has it."""
    follow(gateway, PARTS["gateway 1"].lines)
    gateway.run("cloud-aggregator init site --loopback && cp site/gateway.toml .")
    (table,) = (block for block in blocks(PAGES, "toml") if OWN_ADDRESS in block)
    gateway.run("cat >> gateway.toml", given=f"\n{table}")
    *_, started = lines = [line for line in PARTS["gateway 4"].lines if not re.search(" (enrol|doctor) ", line)]
    follow(gateway, lines[:-1])
    gateway.run("sudo install -o fedgate -m 0644 site/release.pub -t /var/lib/fedgate")
    gateway.run(f"sudo install -o fedgate -m 0600 site/release.key {GATEWAYS_KEY}")
    gateway.run(started)


def ask_own_page(gateway: Machine, path: str) -> Any:
    """Return what the page of a gateway answers; it is tried again while the page starts."""
    return json.loads(gateway.run(f"curl -sS --retry 9 --retry-connrefused http://{OWN_ADDRESS}/api/{path}"))


@pytest.mark.soak
def test_the_page_of_a_gateway_runs_as_installed_reads_what_it_shows_and_can_write_nothing() -> None:
    skip_without_machines()
    with machines("gateway", checkout=ROOT) as (gateway,):
        start_without_site(gateway)
        follow(gateway, OWN_PAGE.lines)
        assert ask_own_page(gateway, "overview")["is_live"]
        (listens,) = gateway.run(f"ss --no-header --listening --tcp --numeric sport = {OWN_ADDRESS[-5:]}").splitlines()
        assert f" {OWN_ADDRESS} " in listens
        check_sandbox(gateway)
        gateway.run("sudo systemctl stop gateway-agent")  # which takes the log of its store along
        check_stored_is_shown(gateway)
        gateway.run("sudo systemctl start gateway-agent")
        until(lambda: ask_own_page(gateway, "overview")["is_live"], poll_s=1.0)
        gateway.run("sudo systemctl kill --signal KILL gateway-agent; sudo systemctl stop gateway-agent")  # leaves it
        check_stored_is_shown(gateway)
        told = gateway.run(f"systemctl show --property NRestarts,ActiveState {OWN_UNIT}")
        assert sorted(told.split()) == ["ActiveState=active", "NRestarts=0"]
        assert "Traceback" not in gateway.run(f"sudo journalctl --unit {OWN_UNIT}")


def check_sandbox(gateway: Machine) -> None:
    """See that the process of the page is kept to what it needs: it may write nothing but what is its own, and the key
    of the gateway, which its user owns, is not there.
    """
    told = gateway.run(f"cat /proc/{MAIN_PROCESS}/status").splitlines()
    assert set(CONFINED) <= set(told), told
    gateway.run(f"sudo -u fedgate cat {GATEWAYS_KEY}")
    assert "Permission denied" in gateway.run(IN_UNIT.format(f"cat {GATEWAYS_KEY}"), ends=(1,))
    where = "/boot /etc /home /opt /root /srv /usr /var/lib"
    found = gateway.run(IN_UNIT.format(f"find {where} -writable ! -type l -print 2> /dev/null"), ends=(0, 1))
    assert set(found.split()) == {"/var/lib/fedgate/gateway.socket"}


def check_stored_is_shown(gateway: Machine) -> None:
    """See that the page says that the agent does not run, and shows what it has stored."""
    until(lambda: not ask_own_page(gateway, "device")["is_live"], poll_s=1.0)
    found = ask_own_page(gateway, "device")
    assert "does not run" in found["notice"] and found["store_problem"] == "", found
    assert found["store"]["baseline_windows"] == 0
