"""The order in which a process locks itself in: working folder, limits, capabilities, Landlock, and seccomp last.

Each step takes away what the earlier ones needed. ``Jail`` is prepared once, before the fork; ``lock`` runs in each child.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import struct
from collections.abc import Sequence
from typing import NamedTuple

from . import landlock, namespaces, seccomp
from .syscalls import prctl, syscall

REQUIRED = ("rlimits", "landlock", "seccomp")
NAMESPACES = "namespaces"
PIDFD = "pidfd_open"  # no layer: without it nothing can be run
# stdin, stdout, stderr, the pipe that brings code, the pipe that takes its outcome: all that a locked process has open
REQUEST_FD, STATUS_FD, FIRST_FREE_FD = 3, 4, 5
MAX_FILE_BYTES = 16 * 2**20
_MAX_OPEN_FILES = 64


class Limits(NamedTuple):
    """Limits of the code of one process."""

    cpu_s: float  # of a process for one call; the others are stopped between calls, each of which has a deadline
    memory_bytes: int  # address space beyond what the interpreter and its packages hold already
    scratch_bytes: int  # of all files together, where there are any: in namespaces
    scratch_files: int
    one_call: bool  # the process ends after its first call


class Jail:
    """The walls around a process.

    Args:
        layers: those of :data:`REQUIRED` that are to be in force, and ``namespaces`` if the process is in them.
        readable: files and folders that can be read.
        working: the working folder. In namespaces each process has one of its own there, in memory; without, it stays empty.
    """

    def __init__(self, layers: Sequence[str], readable: Sequence[str], working: str) -> None:
        self.layers, self._readable, self._working = frozenset(layers), tuple(readable), working
        self._ruleset: landlock.Ruleset | None = None

    def prepare(self) -> None:
        """Once, before the first fork and after all packages are loaded: what is the same for all children.

        What can be done here is cheaper than in a child, where each page of memory that is touched is copied. One ruleset does
        for all: what a child mounts beneath ``/scratch`` is seen by that child alone.
        """
        while os.open(os.devnull, os.O_RDONLY) < FIRST_FREE_FD:
            continue  # numbers that each child gives to its pipes
        if "landlock" in self.layers:
            rights = dict.fromkeys(self._readable, landlock.READ) | {"/dev/null": landlock.READ | landlock.WRITE}
            rights[self._working] = landlock.SCRATCH if NAMESPACES in self.layers else landlock.READ
            self._ruleset = landlock.Ruleset()
            self._ruleset.allow(rights)
        if "seccomp" in self.layers:
            seccomp.prepare()

    def lock(self, limits: Limits, base_bytes: int) -> None:
        """Lock the present process in, for good.

        Args:
            limits: what it may take.
            base_bytes: the address space it has already.

        Raises:
            OSError, ValueError: the kernel refuses a layer. The process must end then.
        """
        if NAMESPACES in self.layers:
            namespaces.private_scratch(limits.scratch_bytes, limits.scratch_files)
        else:
            os.chdir(self._working)
        if "rlimits" in self.layers:  # after the last file was opened: this process has those of all others, still
            set_limits(limits, base_bytes)
        drop_capabilities()
        if self._ruleset is not None:
            self._ruleset.lock()
        syscall("close_range", FIRST_FREE_FD, 0xFFFFFFFF, 0)
        if "seccomp" in self.layers:
            seccomp.lock()


def set_limits(limits: Limits, base_bytes: int) -> None:
    """Set the resource limits, hard ones, so that the process cannot raise them again.

    Raises:
        OSError, ValueError: the kernel refuses a limit.
    """
    wanted = {
        resource.RLIMIT_AS: base_bytes + limits.memory_bytes,
        resource.RLIMIT_FSIZE: min(MAX_FILE_BYTES, limits.scratch_bytes),
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _MAX_OPEN_FILES,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if limits.one_call:
        wanted[resource.RLIMIT_CPU] = math.ceil(limits.cpu_s) + 1
    for kind, limit in wanted.items():
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:  # a stricter limit of the machine stays
            limit = min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def drop_capabilities() -> None:
    """Give up what being root, here or in namespaces, allows. Only ``execve`` could give it back, and seccomp refuses that."""
    header = ctypes.create_string_buffer(struct.pack("=II", 0x20080522, 0))  # version 3 of the interface, this process
    syscall("capset", header, bytes(24))


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process as soon as its parent is gone."""
    prctl(1, 9)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
