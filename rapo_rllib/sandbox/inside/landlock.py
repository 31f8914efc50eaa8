"""Landlock: which files a process can open, from rules on folders. It needs no privilege.

Not covered by Landlock itself: the metadata of files. ``seccomp.py`` refuses the calls that change it; those that read it
(``stat``) reach whatever the mount namespace shows.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Mapping

from .syscalls import prctl, syscall

_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5
_MAKE_DIR, _MAKE_REG, _REFER, _TRUNCATE = 1 << 7, 1 << 8, 1 << 13, 1 << 14
_OF_A_FILE = _WRITE_FILE | _READ_FILE | _TRUNCATE
READ = _READ_FILE | _READ_DIR
WRITE = _WRITE_FILE | _TRUNCATE
SCRATCH = READ | WRITE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER

# rights known to each version of the interface: the first 13 in version 1, then moves between folders, truncation, device ioctl
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}


def version() -> int:
    """Version of the kernel's Landlock interface.

    Raises:
        OSError: there is none, or it is switched off.
    """
    return syscall("landlock_create_ruleset", 0, 0, 1)


class Ruleset:
    """Denies all that Landlock knows but what is added. TCP, abstract sockets and signals, if the kernel's version has them."""

    def __init__(self) -> None:
        abi = version()
        self._rights = (1 << _RIGHTS[min(abi, 5)]) - 1
        attributes = struct.pack("=QQQ", self._rights, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
        size = 8 if abi < 4 else 16 if abi < 6 else 24
        self.fd = syscall("landlock_create_ruleset", attributes, size, 0)

    def allow(self, rights: Mapping[str, int]) -> None:
        """Give rights beneath folders, or to files, by their paths."""
        for path, access in rights.items():
            fd = os.open(path, os.O_PATH)
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                access &= _OF_A_FILE
            rule = ctypes.create_string_buffer(struct.pack("=Qi", access & self._rights, fd))
            syscall("landlock_add_rule", self.fd, 1, rule, 0)
            os.close(fd)

    def lock(self) -> None:
        """Put this process under the rules, for good."""
        prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
        syscall("landlock_restrict_self", self.fd, 0)
