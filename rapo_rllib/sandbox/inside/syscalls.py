"""System calls without a compiled helper: libc through ``ctypes``, and the numbers of the two machines we know.

The numbers are the kernel's stable interface (``asm/unistd_64.h`` for x86_64, ``asm-generic/unistd.h`` for aarch64).
"""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
MACHINE = os.uname().machine

# name, number on x86_64, number on aarch64 ("-": it does not exist there)
_TABLE = """
# files
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70
preadv2 327 286, pwritev2 328 287, lseek 8 62, close 3 57, close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -
pipe2 293 59, open 2 -, openat 257 56, creat 85 -, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291
fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, getdents64 217 61
getcwd 79 17, chdir 80 49, fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35, rename 82 -
renameat 264 38, renameat2 316 276, ftruncate 77 46, fsync 74 82, fdatasync 75 83, fadvise64 221 223
flock 73 32, sendfile 40 71, copy_file_range 326 285, umask 95 166
# waiting
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -
epoll_pwait 281 22, nanosleep 35 101, clock_nanosleep 230 115
# memory
mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214, msync 26 227, membarrier 324 283
# process
exit 60 93, exit_group 231 94, getpid 39 172, gettid 186 178, getppid 110 173, getuid 102 174, geteuid 107 175
getgid 104 176, getegid 108 177, getgroups 115 158, getpgrp 111 -, getrlimit 97 163, getrusage 98 165, times 100 153
uname 63 160, sysinfo 99 179, sched_yield 24 124, sched_getaffinity 204 123, getcpu 309 168, futex 202 98
set_robust_list 273 99, rseq 334 293, getrandom 318 278, wait4 61 260, restart_syscall 219 128
# clocks
clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, time 201 -, getitimer 36 102, setitimer 38 103, alarm 37 -
pause 34 -
# signals
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigsuspend 130 133
rt_sigtimedwait 128 137, sigaltstack 131 132
# checked
ioctl 16 29, fcntl 72 25, prctl 157 167, prlimit64 302 261, kill 62 129, tkill 200 130, tgkill 234 131
# refused
clone3 435 435, openat2 437 437
# locking in
capset 126 91, mount 165 40, mount_setattr 442 442, pivot_root 155 41, umount2 166 39, unshare 272 97, seccomp 317 277
landlock_create_ruleset 444 444, landlock_add_rule 445 445, landlock_restrict_self 446 446
"""


def _parse(table: str) -> dict[str, dict[str, int]]:
    numbers: dict[str, dict[str, int]] = {"x86_64": {}, "aarch64": {}}
    for line in table.strip().splitlines():
        for entry in [] if line.startswith("#") else line.split(", "):
            name, *found = entry.split()
            for machine, number in zip(numbers, found, strict=True):
                if number != "-":
                    numbers[machine][name] = int(number)
    return numbers


NUMBERS = _parse(_TABLE)


def syscall(name: str, *arguments: int | bytes | object) -> int:
    """Make a system call.

    Args:
        name: as in the table.
        *arguments: numbers, byte strings, or ctypes objects.

    Raises:
        OSError: what the kernel answered; ENOSYS if we have no numbers for the machine.
    """
    number = NUMBERS.get(MACHINE, {}).get(name, -1)
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in (number, *arguments)]
    result: int = libc.syscall(*words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def prctl(option: int, *arguments: int) -> int:
    """Call ``prctl(2)``; unused arguments are zero.

    Raises:
        OSError: what the kernel answered.
    """
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    result = libc.prctl(ctypes.c_int(option), *padded)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")
    return result
