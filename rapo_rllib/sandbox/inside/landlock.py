"""Landlock: which files a process can open, from rules on folders. It needs no privilege.

Landlock does not cover the metadata of files. ``seccomp.py`` refuses the calls that change metadata; the calls that read it
(``stat``) reach every file that the mount namespace shows.
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


def ruleset(rights: Mapping[str, int]) -> int:
    """Make rules that deny all that Landlock covers, except ``rights`` to files and beneath folders; return their fd.

    TCP, abstract sockets and signals to other processes are denied, too, if the kernel's version of Landlock covers them.

    Raises:
        OSError: there is no Landlock, or it is switched off; or there is no such file.
    """
    abi = syscall("landlock_create_ruleset", 0, 0, 1)  # version of the kernel's interface
    known = (1 << _RIGHTS[min(abi, 5)]) - 1
    attributes = struct.pack("=QQQ", known, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = syscall("landlock_create_ruleset", attributes, size, 0)
    for path, access in rights.items():
        fd = os.open(path, os.O_PATH)
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _OF_A_FILE
        rule = ctypes.create_string_buffer(struct.pack("=Qi", access & known, fd))
        syscall("landlock_add_rule", rules, 1, rule, 0)
        os.close(fd)
    return rules


def lock(rules: int) -> None:
    """Put this process under ``rules``, for good."""
    prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    syscall("landlock_restrict_self", rules, 0)
