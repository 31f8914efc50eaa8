"""Seccomp: the list of system calls that are allowed, as a BPF program. Everything else fails with EPERM.

The filter is built after the fork, because it names the process: a process may send signals to itself only. Threads and
processes cannot be started (no ``clone`` at all), so the wall clock bounds CPU time, and threads cannot use up the machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import NamedTuple

from .syscalls import MACHINE, NUMBERS, prctl, syscall

_ALWAYS = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range dup dup2 dup3 pipe pipe2
stat fstat lstat newfstatat statx fstatfs access faccessat faccessat2 readlink readlinkat getdents64 getcwd chdir fchdir
mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 ftruncate fsync fdatasync fadvise64 flock
sendfile copy_file_range umask creat
poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait nanosleep clock_nanosleep
mmap munmap mprotect mremap madvise brk msync membarrier
exit exit_group getpid gettid getppid getuid geteuid getgid getegid getgroups getpgrp getrlimit getrusage times uname sysinfo
sched_yield sched_getaffinity getcpu futex set_robust_list rseq getrandom wait4 restart_syscall
clock_gettime clock_getres gettimeofday time getitimer setitimer alarm pause
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack
"""
ALLOWED = tuple(_ALWAYS.split())
# They fail with ENOSYS, so that libc falls back to calls whose arguments the filter can look into.
ABSENT = ("clone3", "openat2")

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # x86_64's second numbering of the same calls
_O_ACCMODE, _O_TRUNC = 3, 0o1000
_TERMINAL = (0x5401, 0x5413, 0x541B, 0x5451, 0x5450)  # TCGETS (isatty), TIOCGWINSZ, FIONREAD, FIOCLEX, FIONCLEX
_DESCRIPTOR = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC
_NAME = (15, 16)  # PR_SET_NAME, PR_GET_NAME


class Check(NamedTuple):
    """A condition on one 32-bit word of the arguments: ``word & mask`` is one of ``values``."""

    word: int  # 2 * number of the argument; one more for its upper half
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


def checks(pid: int) -> dict[str, tuple[Check, ...]]:
    """Map each call that is allowed with certain arguments alone to its checks, all of which must hold.

    A read-only ``open`` with O_TRUNC is refused because Landlock before version 3 does not see that it changes the file.
    """
    not_truncating = tuple(mode | truncate for mode in range(4) for truncate in (0, _O_TRUNC) if mode or not truncate)
    myself = (pid,)
    return {
        "open": (Check(2, not_truncating, _O_ACCMODE | _O_TRUNC),),
        "openat": (Check(4, not_truncating, _O_ACCMODE | _O_TRUNC),),
        "ioctl": (Check(2, _TERMINAL),),
        "fcntl": (Check(2, _DESCRIPTOR),),
        "prctl": (Check(0, _NAME),),
        "prlimit64": (Check(0, (0, pid)), Check(4, (0,)), Check(5, (0,))),  # reading one's own limits
        "kill": (Check(0, myself),),
        "tkill": (Check(0, myself),),
        "tgkill": (Check(0, myself),),
    }


_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value & 0xFFFFFFFF)


def _checked(conditions: tuple[Check, ...]) -> list[bytes]:
    """Compile to BPF: ALLOW if all conditions hold, else EPERM. Words are little endian, as on both machines."""
    program = []
    for check in conditions:
        program.append(_instruction(_LOAD, 16 + 4 * check.word))
        program.append(_instruction(_AND, check.mask))
        left = len(check.values)
        for value in check.values:
            program.append(_instruction(_EQUAL, value, if_true=left))  # jumps over the other values and the refusal
            left -= 1
        program.append(_instruction(_RETURN, _ERRNO | errno.EPERM))
    return [*program, _instruction(_RETURN, _ALLOW)]


def filter_program(machine: str, pid: int) -> bytes:
    """Build the BPF program of the allow-list; calls that the machine does not have are left out.

    Args:
        machine: ``x86_64`` or ``aarch64``.
        pid: of the process that the program will filter.

    Returns:
        ``struct sock_filter[]``.
    """
    numbers = NUMBERS[machine]
    kill = _instruction(_RETURN, _KILL)
    program = [_instruction(_LOAD, 4), _instruction(_EQUAL, _AUDIT_ARCH[machine], if_true=1), kill, _instruction(_LOAD, 0)]
    if machine == "x86_64":
        program += [_instruction(_AT_LEAST, _X32, if_false=1), kill]
    blocks = {name: [_instruction(_RETURN, _ALLOW)] for name in ALLOWED}
    blocks |= {name: [_instruction(_RETURN, _ERRNO | errno.ENOSYS)] for name in ABSENT}
    blocks |= {name: _checked(conditions) for name, conditions in checks(pid).items()}
    for name, block in blocks.items():
        if name in numbers:
            program += [_instruction(_EQUAL, numbers[name], if_false=len(block)), *block]
    program.append(_instruction(_RETURN, _ERRNO | errno.EPERM))
    return b"".join(program)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Put this thread under ``program``, for good.

    Raises:
        OSError: the kernel has no seccomp filters or does not take this one.
    """
    prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    syscall("seccomp", 1, 0, ctypes.byref(_Program(len(program) // 8, program)))


def lock() -> None:
    """Allow this process only the calls of :data:`ALLOWED` and :func:`checks`, for good.

    Raises:
        OSError: the kernel gives no seccomp, or we have no table of this machine's calls.
    """
    if MACHINE not in _AUDIT_ARCH:
        raise OSError(errno.ENOSYS, f"no table of system calls for {MACHINE}")
    install(filter_program(MACHINE, os.getpid()))
