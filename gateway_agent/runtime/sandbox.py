"""A process that has all it needs gives up the rest: files, network, other programs, more time and memory.

Its standard input and output stay open, so it can answer. By limits of the kernel that every Linux keeps, and by a list
of the system calls that arithmetic takes (seccomp): any other one fails, whoever makes it and however it got there.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
from pathlib import Path

NO_NEW_PRIVILEGES, SET_FILTER, ALL_THREADS = 38, 1, 1  # linux/prctl.h and linux/seccomp.h
NOT_PERMITTED, ALLOW = 0x00050000 | 1, 0x7FFF0000  # the call fails with EPERM; the call is made
LOAD, IS_EQUAL, RETURN = 0x20, 0x15, 0x06  # of the filter's instructions, linux/filter.h
NUMBER_AT, MACHINE_AT = 0, 4  # in what a filter looks at
STANDARD_FILES = 3  # input, output and errors, which stay open
CALLS = (
    *("read", "write", "close", "fstat", "lseek", "mmap", "mprotect", "munmap", "brk", "mremap", "madvise"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "sched_yield", "futex", "getpid", "gettid"),
    *("nanosleep", "clock_nanosleep", "clock_gettime", "gettimeofday", "getrusage", "getrandom", "getcpu"),
    *("sched_getaffinity", "membarrier", "restart_syscall", "exit", "exit_group"),
)
# By machine: what the kernel calls it, the number of the call seccomp, and those of `CALLS`.
NUMBERS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        317,
        (
            *(0, 1, 3, 5, 8, 9, 10, 11, 12, 25, 28),
            *(13, 14, 15, 131, 24, 202, 39, 186),
            *(35, 230, 228, 96, 98, 318, 309),
            *(204, 324, 219, 60, 231),
        ),
    ),
    "aarch64": (
        0xC00000B7,
        277,
        (
            *(63, 64, 57, 80, 62, 222, 226, 215, 214, 216, 233),
            *(134, 135, 139, 132, 124, 98, 172, 178),
            *(101, 115, 113, 169, 165, 278, 168),
            *(123, 283, 128, 93, 94),
        ),
    ),
}


class _Program(ctypes.Structure):
    """What the kernel calls sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def enter(cpu_s: int, memory_bytes: int) -> str:
    """Give up what a process does not need that computes for `cpu_s` more and takes so much more memory.

    Returns what this machine does not offer of it, an empty string where all is in force.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    os.closerange(STANDARD_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    spent = resource.getrusage(resource.RUSAGE_SELF)
    ends_s = int(spent.ru_utime + spent.ru_stime) + cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (ends_s, ends_s + 1))  # told first, and ended then
    limits = {
        resource.RLIMIT_AS: pages * resource.getpagesize() + memory_bytes,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    lacks = [] if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 else ["no_new_privs"]
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    if problem := _filter_calls(libc):
        lacks.append(f"seccomp ({problem})")
    return ", ".join(lacks)


def _filter_calls(libc: ctypes.CDLL) -> str:
    """Let no other calls through than `CALLS`, in every thread; return why not, or an empty string."""
    if platform.machine() not in NUMBERS:
        return f"its calls are not known on {platform.machine()}"
    machine, seccomp, numbers = NUMBERS[platform.machine()]
    instructions = [(LOAD, 0, 0, MACHINE_AT), (IS_EQUAL, 0, len(numbers) + 1, machine), (LOAD, 0, 0, NUMBER_AT)]
    instructions += [(IS_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    instructions += [(RETURN, 0, 0, NOT_PERMITTED), (RETURN, 0, 0, ALLOW)]
    program = b"".join(struct.pack("=HBBI", *one) for one in instructions)
    given = _Program(len(instructions), program)
    if libc.syscall(seccomp, SET_FILTER, ALL_THREADS, ctypes.byref(given)) == 0:
        return ""
    return os.strerror(ctypes.get_errno())
