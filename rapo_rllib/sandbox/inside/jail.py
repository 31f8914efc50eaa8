"""The order in which a process locks itself in: working folder, limits, capabilities, Landlock, and seccomp last.

Each step takes away what the earlier ones needed.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import landlock, namespaces, seccomp
from .syscalls import prctl, syscall

REQUIRED = ("rlimits", "landlock", "seccomp")
NAMESPACES = "namespaces"
PIDFD = "pidfd_open"  # no layer: without it nothing can be run
SOCKET_FD = 3  # the only one that a locked process has open, beside stdin, stdout and stderr
MAX_FILE_BYTES = 16 * 2**20
SCRATCH_BYTES, SCRATCH_FILES = 32 * 2**20, 1000  # of a writable working folder, which exists in namespaces only
_MAX_OPEN_FILES = 64


class SandboxLimits(NamedTuple):
    """Limits of one process of a sandbox."""

    timeout_s: float = 5.0  # of one call, as wall clock and as CPU time
    memory_mb: float = 512  # address space beyond the preloaded packages'
    max_output_bytes: int = 64 * 2**10  # stdout and stderr together; more ends the call


class Jail:
    """The walls around a process. They are prepared once, before the first fork and after all packages are loaded.

    Work is cheaper here than in a child, which copies each page of memory that it touches. One Landlock ruleset does for all
    children: a folder that a child mounts beneath ``/scratch`` is seen by that child alone.

    Args:
        layers: those of :data:`REQUIRED` that are to be in force, and ``namespaces`` if the process is in them.
        readable: files and folders that can be read.
        working: the working folder. In namespaces each child mounts its own in it, in memory; without them it stays empty.
    """

    def __init__(self, layers: Sequence[str], readable: Sequence[str], working: str) -> None:
        self.layers, self._working = frozenset(layers), working
        while os.open(os.devnull, os.O_RDONLY) <= SOCKET_FD:
            continue  # keep these numbers free for the descriptors of each child
        if "landlock" in self.layers:
            rights = dict.fromkeys(readable, landlock.READ) | {"/dev/null": landlock.READ | landlock.WRITE}
            rights[working] = landlock.SCRATCH if NAMESPACES in self.layers else landlock.READ
            self._rules = landlock.ruleset(rights)

    def lock(self, limits: SandboxLimits, one_call: bool, base_bytes: int) -> None:
        """Lock the present process in, for good.

        Args:
            limits: what it may take.
            one_call: whether its CPU time is limited to that of one call. A process of several is stopped between them.
            base_bytes: the address space it has already.

        Raises:
            OSError, ValueError: the kernel refuses a layer. The process must end then.
        """
        if NAMESPACES in self.layers:
            namespaces.private_scratch(SCRATCH_BYTES, SCRATCH_FILES)
        else:
            os.chdir(self._working)
        if "rlimits" in self.layers:  # after the last file is opened: this process still holds those of all others
            set_limits(limits, one_call, base_bytes)
        drop_capabilities()
        if "landlock" in self.layers:
            landlock.lock(self._rules)
        syscall("close_range", SOCKET_FD + 1, 0xFFFFFFFF, 0)
        if "seccomp" in self.layers:
            seccomp.lock()


def set_limits(limits: SandboxLimits, one_call: bool, base_bytes: int) -> None:
    """Set the resource limits, hard ones, so that the process cannot raise them again.

    Raises:
        OSError, ValueError: the kernel refuses a limit.
    """
    wanted = {
        resource.RLIMIT_AS: base_bytes + int(limits.memory_mb * 2**20),
        resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _MAX_OPEN_FILES,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if one_call:
        wanted[resource.RLIMIT_CPU] = math.ceil(limits.timeout_s) + 1
    for kind, limit in wanted.items():
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:  # a stricter limit of the machine stays
            limit = min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def drop_capabilities() -> None:
    """Give up root's capabilities, here or in namespaces. Only ``execve`` could give them back, and seccomp refuses that."""
    header = ctypes.create_string_buffer(struct.pack("=II", 0x20080522, 0))  # version 3 of the interface, this process
    syscall("capset", header, bytes(24))


def die_with_parent(parent: int) -> None:
    """Ask for SIGKILL as soon as the parent is gone."""
    prctl(1, 9)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def probe(files: dict[str, Any]) -> None:
    """Lock this process in, and print which layers really went on: ``{layer: null or why not}``.

    Args:
        files: what a new root would show.
    """

    def enter() -> None:
        namespaces.enter()
        namespaces.new_root(files["shown"], files["hidden"], files["modules"])
        namespaces.private_scratch(2**20, 10)

    tries: dict[str, Callable[[], object]] = {
        PIDFD: lambda: os.pidfd_open(os.getpid()),
        NAMESPACES: enter,
        "rlimits": lambda: set_limits(SandboxLimits(), False, 2**30),
        "landlock": lambda: landlock.lock(landlock.ruleset({})),
        "seccomp": seccomp.lock,
    }
    found: dict[str, str | None] = {}
    for layer, attempt in tries.items():
        try:
            attempt()
            found[layer] = None
        except (OSError, ValueError) as error:
            found[layer] = getattr(error, "strerror", None) or str(error)
    print(json.dumps(found))  # noqa: T201
