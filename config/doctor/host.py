"""The machine itself: its clock, its disk and what is left of it, who may read the keys."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from fedgate.config.doctor.report import Finding, failure, ok, warning
from fedgate.config.protocol.messages import ClockQuality
from fedgate.config.runtime.clock import ask_quality
from fedgate.config.runtime.files import PRIVATE_MODE, write
from fedgate.models.time_units import DAY_S

MIB = 1024 * 1024
EARLIEST_S = datetime(2024, 1, 1, tzinfo=UTC).timestamp()  # before any of this was written
SYS = Path("/sys")
MOUNTS = Path("/proc/self/mounts")
# Of file systems: what is wrong with them, what to do.
KINDS = (
    ({"tmpfs", "ramfs", "overlay", "aufs"}, warning, "may forget all at a power cut", "move the store to a disk"),
    (
        {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"},
        failure,
        "does not keep SQLite's locks",
        "move the store to a disk of this machine",
    ),
    (
        {"vfat", "msdos", "exfat", "ext2"},
        warning,
        "has no journal and suffers in a power cut",
        "take ext4 or f2fs",
    ),
)
OTHERS = 0o077
WORN_TENTHS = 8  # of a life, in tenths as eMMC reports them, from which on it should be replaced
PRE_END = {2: "80 % of its reserve is used", 3: "90 % of its reserve is used"}


class Mount(NamedTuple):
    """Where a folder lies."""

    device: str
    kind: str
    read_only: bool


def clock(files: Iterable[Path], *, now_s: float, stated: ClockQuality, has_rtc: bool) -> Iterator[Finding]:
    """Yield whether the clock can be believed: by what the kernel says of it, and by files that were written before."""
    shown = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    newest_s = max((path.stat().st_mtime for path in files if path.exists()), default=0.0)
    if now_s < EARLIEST_S:
        yield failure("clock", f"it says {shown}", "connect to a time server (systemd-timesyncd, chrony), or set it")
    elif newest_s > now_s + DAY_S:
        later = datetime.fromtimestamp(newest_s, UTC).isoformat(timespec="seconds")
        yield warning("clock", f"it says {shown}, a file here was written {later}", "connect to a time server")
    else:
        yield ok("clock", f"it says {shown}")
    if stated == "synchronised":
        yield ok("clock source", "the kernel's clock is kept by a time server")
    elif stated == "unknown":
        yield warning("clock source", "the kernel does not say what keeps its clock", "see timedatectl")
    else:
        text = "nothing keeps the clock" + ("" if has_rtc else ", and no battery does while the power is off")
        advice = "alarms say so and keep their order; connect to a time server" + ("" if has_rtc else ", or fit an RTC")
        yield warning("clock source", text, advice)


def clock_here(files: Iterable[Path]) -> Iterator[Finding]:
    """Yield what the clock of this machine is worth."""
    return clock(files, now_s=time.time(), stated=ask_quality(), has_rtc=(SYS / "class/rtc/rtc0").exists())


def mount_of(folder: Path, mounts: Path = MOUNTS) -> Mount:
    """Return where a folder lies; raises `OSError` where the kernel does not tell."""
    best, found = -1, Mount("", "unknown", False)
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        device, place, kind, options, *_ = line.split(" ")
        where = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place))
        if (where == folder or where in folder.parents) and len(where.parts) >= best:
            best, found = len(where.parts), Mount(device, kind, "ro" in options.split(","))
    return found


def disk(store: Path, needed_bytes: int, mounts: Path = MOUNTS) -> Iterator[Finding]:
    """Yield whether the folder of a store has space for it, outlives a power cut and can be written."""
    folder = store.parent.resolve()
    if not folder.is_dir():
        yield failure("disk", f"there is no folder {folder}", "make it, owned by the user of the service")
        return
    held = sum(path.stat().st_size for path in folder.glob(f"{store.name}*") if path.is_file())
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    text = f"{free // MIB} MiB free at {folder}, the store may need {max(needed_bytes - held, 0) // MIB} MiB more"
    if free < needed_bytes - held:
        yield warning("disk", text, "make room, or set smaller bounds")
    else:
        yield ok("disk", text)
    yield _judge_filesystem(mount_of(folder, mounts))
    yield _check_writes(folder)


def _judge_filesystem(mount: Mount) -> Finding:
    name, where = "file system", f"{mount.kind} on {mount.device or 'an unknown device'}"
    if mount.read_only:
        return failure(name, f"{where} is read-only", "mount it for writing, or move the store")
    for kinds, finding, problem, advice in KINDS:
        if mount.kind in kinds:
            return finding(name, f"{where} {problem}", advice)
    return ok(name, where)


def _check_writes(folder: Path) -> Finding:
    path, started_s = folder / f".doctor-{os.getpid()}", time.monotonic()
    try:
        write(path, bytes(4096), PRIVATE_MODE)
        path.unlink()
    except OSError as error:
        return failure("disk writes", f"{folder}: {error.strerror}", "run this as the user of the service; free space")
    took_s = time.monotonic() - started_s
    if took_s > 1.0:
        return warning("disk writes", f"one page took {took_s:.1f} s to be on the disk", "a worn or overloaded card")
    return ok("disk writes", f"one page is on the disk within {took_s * 1e3:.0f} ms")


def wear(device: str, sys: Path = SYS) -> Iterator[Finding]:
    """Yield how much of its life a flash device has behind it, where it reports that: eMMC does, SD cards do not."""
    block = re.sub(r"^(mmcblk\d+|nvme\d+n\d+)p\d+$|^([a-z]{2,3})\d+$", r"\1\2", Path(device).name)
    folder = sys / "class" / "block" / block / "device"
    kind = _read_text(folder / "type")
    if (stated := _read_text(folder / "life_time")) is not None:
        tenths = max((int(part, 16) for part in stated.split() if re.fullmatch(r"0x[0-9a-fA-F]+", part)), default=0)
        end = PRE_END.get(int(_read_text(folder / "pre_eol_info") or "0", 16), "")
        text = f"{block}: {max(tenths - 1, 0) * 10} to {tenths * 10} % of its life are behind it" if tenths else block
        if tenths > WORN_TENTHS or end:
            yield warning("disk wear", f"{text}{', ' if end else ''}{end}", "replace it")
        else:
            yield ok("disk wear", text)
    elif kind == "SD":
        yield ok(
            "disk wear", f"{block} is an SD card, which does not tell; docs/reference/operations.md has what is written"
        )
    else:
        yield ok("disk wear", f"{block or 'the device'} does not tell")


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def check_secrets(files: Iterable[Path | None]) -> Iterator[Finding]:
    """Yield whether files that hold secrets can be read by others than their owner."""
    held = [path for path in files if path is not None and path.is_file()]
    open_ = [path for path in held if stat.S_IMODE(path.stat().st_mode) & OTHERS]
    for path in open_:
        mode = stat.S_IMODE(path.stat().st_mode)
        # A group of the service's own is how a package installs it; anybody else is too many.
        if mode & 0o007 or mode & 0o020:
            yield failure("secrets", f"{path} can be read or changed by others ({mode:04o})", f"chmod 600 {path}")
        else:
            yield warning("secrets", f"{path} can be read by its group ({mode:04o})", "is that the service's alone?")
    if held and not open_:
        yield ok("secrets", f"{len(held)} files are their owner's alone")
