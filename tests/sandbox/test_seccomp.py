"""The seccomp filter, read as the kernel reads it, for both machines; and the numbers of system calls."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from rapo_rllib.sandbox.inside.seccomp import ALLOWED, checks, filter_program
from rapo_rllib.sandbox.inside.syscalls import NUMBERS

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
ALLOW, KILL, PID = 0x7FFF0000, 0x80000000, 77
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the filter returns for a call."""
    padded = [value & 0xFFFFFFFFFFFFFFFF for value in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("=IIQ6Q", number, architecture or ARCHITECTURES[machine], 0, *padded)
    program = list(struct.iter_unpack("=HBBI", filter_program(machine, PID)))
    at = accumulator = 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            accumulator &= value
        else:
            holds = accumulator == value if code == 0x15 else accumulator >= value
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("read", (0, 1, 2), ALLOW),
        ("openat", (-100, 0, 0), ALLOW),
        ("openat", (-100, 0, 0o1101), ALLOW),  # to write
        ("openat", (-100, 0, 0o1000), EPERM),  # to read, and truncate
        ("openat", (-100, 0, 0o4001000), EPERM),
        ("kill", (PID, 9), ALLOW),
        ("kill", (PID + 1, 9), EPERM),
        ("kill", (-1, 9), EPERM),
        ("kill", (0, 9), EPERM),
        ("tgkill", (PID, PID, 9), ALLOW),
        ("tgkill", (1, PID, 9), EPERM),
        ("prlimit64", (0, 7, 0, 1), ALLOW),
        ("prlimit64", (0, 7, 1 << 40, 1), EPERM),
        ("prlimit64", (1, 7, 0, 1), EPERM),
        ("ioctl", (1, 0x5401), ALLOW),
        ("ioctl", (1, 0x5412), EPERM),
        ("fcntl", (1, 3), ALLOW),
        ("fcntl", (1, 8), EPERM),
        ("prctl", (15,), ALLOW),
        ("prctl", (22, 1), EPERM),
        ("clone3", (), ENOSYS),
        ("openat2", (), ENOSYS),
        ("unshare", (), EPERM),
        ("mount", (), EPERM),
        ("seccomp", (), EPERM),
    ],
)
def test_verdicts(machine: str, name: str, arguments: tuple[int, ...], expected: int) -> None:
    assert verdict(machine, NUMBERS[machine][name], *arguments) == expected


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_everything_else(machine: str) -> None:
    allowed = {number for number in range(1000) if verdict(machine, number, PID) == ALLOW}
    known = {number for name, number in NUMBERS[machine].items() if name in {*ALLOWED, *checks(PID)}}
    assert allowed <= known
    other = next(value for value in ARCHITECTURES.values() if value != ARCHITECTURES[machine])
    assert verdict(machine, 0, architecture=other) == KILL
    assert verdict("x86_64", 0x40000000) == KILL


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    header = Path("/usr/include", HEADERS[machine])
    if not header.exists():
        pytest.skip(f"no {header} here")
    found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\n", header.read_text()))
    found.setdefault("newfstatat", found.get("fstatat", ""))
    assert {name: int(found[name]) for name in NUMBERS[machine]} == NUMBERS[machine]
