"""Throw-away copies of this machine, on which a test may install, enable and break whatever it likes.

A copy is an overlay of the root folder in memory with systemd as its first process, in namespaces of its own. The
copies of a site share one network that has a loopback and nothing else, so that ports are free and nobody outside
reaches them. The kernel ends all of it with the test, and the real machine is as it was.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedgate.firmware_sim import children
from tests.support.waiting import PATIENCE_S, until

# Makes a copy in FOLDER, above LAYERS of a file system, whose first process becomes COMMAND. It is the first process of
# new namespaces. What of the kernel would reach the real machine is read-only or not there.
BECOME_COPY = """
set -euo pipefail
folder=$1 layers=$2
shift 2
mkdir "$folder" "$folder/upper" "$folder/work" "$folder/root"
mount -t overlay -o "lowerdir=$layers,upperdir=$folder/upper,workdir=$folder/work" overlay "$folder/root"
cd "$folder/root"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
[ ! -e proc/sysrq-trigger ] || mount --bind /dev/null proc/sysrq-trigger  # not every kernel has it
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do
    touch "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mkdir run/before
pivot_root . run/before
umount -l run/before
mount --make-rshared /  # a container's manager does so for systemd, which else hands no credentials to its services
export -n $(compgen -e)
export container=unshare PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec setpriv --bounding-set=-sys_boot,-sys_module,-sys_rawio,-sys_time,-syslog "$@"
"""
CHECKOUT = Path("/srv/reader/fedgate")
SPACES = ("--mount", "--pid", "--uts", "--ipc", "--cgroup")
HOLD = 'mount -t tmpfs tmpfs "$0" && ip link set lo up && touch "$0/up" && exec sleep infinity'
NO_PART = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", "*.egg-info")  # of a fresh checkout
# A Debian machine as a reader has one: somebody who may use sudo, and nothing of what a page installs.
PREPARE = """
export DEBIAN_FRONTEND=noninteractive
rm -f /usr/sbin/policy-rc.d
apt-get -qq update
apt-get -qq install --yes --no-install-recommends sudo
apt-get -qq purge --yes mosquitto mosquitto-clients python3-venv
systemctl --quiet disable postgresql
echo 'APT::Get::Assume-Yes "true";' > /etc/apt/apt.conf.d/reader
echo 'reader ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/reader
useradd --create-home --home-dir /srv/reader --shell /bin/bash reader
echo '127.0.0.1 aggregator.example' >> /etc/hosts
install -d -m 0777 /media/usb /mnt/backup
"""


def why_none() -> str:
    """Return why no copy can be made here; nothing where it can."""
    if os.geteuid() != 0:
        return "only root may mount a copy of this machine"
    with tempfile.TemporaryDirectory() as folder:
        mount = f"mount -t tmpfs tmpfs {folder} && cd {folder} && mkdir u w r && "
        mount += "mount -t overlay -o lowerdir=/,upperdir=u,workdir=w overlay r && test -x r/lib/systemd/systemd"
        done = children.run(["unshare", "--mount", "--net", "sh", "-c", mount], PATIENCE_S, text=True)
    return "" if done.returncode == 0 else f"no overlay of / with systemd can be mounted here: {done.stderr.strip()}"


class Machine:
    """A running copy. Lines are given by its user `reader`, in a checkout."""

    def __init__(self, name: str, pid: int) -> None:
        self.name, self._pid = name, pid

    def start(self, line: str, *, is_online: bool = False, **options: Any) -> subprocess.Popen[str]:
        """Start a line of a shell; one that is online has the network of the real machine, to install from."""
        spaces = [*SPACES, *([] if is_online else ["--net"])]
        shell = ["/usr/sbin/runuser", "-u", "reader", "--", "env", "--chdir", str(CHECKOUT), "bash", "-c", line]
        surroundings = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/srv/reader", "LANG": "C.UTF-8"}
        words = ["nsenter", "--target", str(self._pid), *spaces, "--", *shell]
        return children.start(words, env=surroundings, text=True, **options)

    def run(self, line: str, *, is_online: bool = False, given: str = "", ends: tuple[int, ...] = (0,)) -> str:
        """Run a line to its end and return what it prints; fails where it ends otherwise than it should."""
        with tempfile.TemporaryFile("w+") as stdin, tempfile.TemporaryFile("w+") as out:
            stdin.write(given)
            stdin.seek(0)
            process = self.start(line, is_online=is_online, stdin=stdin, stdout=out, stderr=subprocess.STDOUT)
            try:
                code = children.wait_for_end(process, PATIENCE_S)
            finally:
                process.kill()
                process.wait()
            out.seek(0)
            said = out.read()
        assert code in ends, f"{self.name}: {line}\nended with {code}:\n{said}"
        return said


@contextmanager
def machines(*names: str, checkout: Path) -> Iterator[list[Machine]]:
    """Yield running machines of one network, each with a copy of a checkout."""
    with ExitStack() as stack:
        box = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        holder = children.start(["unshare", "--mount", "--net", "sh", "-c", HOLD, str(box)])
        stack.callback(holder.wait)
        stack.callback(holder.kill)
        inside = Path(f"/proc/{holder.pid}/root{box}")
        until((inside / "up").exists)
        with copy(holder.pid, box / "bare", "/", ["sh", "-euc", PREPARE], is_online=True) as (process, _):
            assert children.wait_for_end(process, PATIENCE_S) == 0, "the bare machine could not be made"
        found = []
        for name in names:
            layers = f"{box}/bare/upper:/"
            _, pid = stack.enter_context(copy(holder.pid, box / name, layers, ["/lib/systemd/systemd"]))
            until(functools.partial(is_copy, pid))
            shutil.copytree(checkout, f"/proc/{pid}/root{CHECKOUT}", ignore=NO_PART, symlinks=True)
            machine = Machine(name, pid)
            machine.run("sudo chown -R reader: . && sudo systemctl --wait is-system-running", ends=(0, 1))
            found.append(machine)
        yield found


def is_copy(pid: int) -> bool:
    """Tell whether the first process of a copy has come so far that its root folder is the copy's."""
    return Path(f"/proc/{pid}/comm").read_text() == "systemd\n"


@contextmanager
def copy(
    holder: int, folder: Path, layers: str, command: list[str], *, is_online: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Yield a copy that runs in the spaces of a holder: the process that waits for it, and its first process."""
    group = Path(tempfile.mkdtemp(prefix="fedgate-", dir=control_groups()))
    spaces = ["nsenter", "--target", str(holder), "--mount", *([] if is_online else ["--net"])]
    new = [
        "unshare",
        "--fork",
        "--kill-child",
        *SPACES,
        "bash",
        "-c",
        BECOME_COPY,
        "copy",
        str(folder),
        layers,
        *command,
    ]
    enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(group)]
    process = children.start([*enter, *spaces, *new], stdin=subprocess.DEVNULL)
    below = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(below.read_text)
    first = int(below.read_text())
    try:
        yield process, first
    finally:
        with suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)  # and the kernel ends all others in it before it tells
        while process.poll() is None:
            reap_orphans()
            time.sleep(children.POLL_S)
        for path in sorted(filter(Path.is_dir, group.rglob("*")), reverse=True):
            path.rmdir()
        group.rmdir()


def reap_orphans() -> None:
    """Reap what was left by a line that was given up: it is a child of ours by then, and as long as it is not waited
    for, the first process of its copy does not end.
    """
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(FileNotFoundError, ProcessLookupError, ChildProcessError):
            facts = dict(line.split(":", 1) for line in status.read_text().splitlines())
            is_inside = len(facts["NSpid"].split()) > 1
            if is_inside and int(facts["PPid"]) == os.getpid():
                os.waitpid(int(facts["Pid"]), os.WNOHANG)


def control_groups() -> Path:
    """Return where the kernel's control groups, of the second version, are mounted."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return next(Path(place) for _, place, kind, *_ in mounts if kind == "cgroup2")
