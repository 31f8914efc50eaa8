"""Namespaces, if the machine allows them without root: a network without interfaces, and processes and files apart from others.

The new root shows the interpreter, its packages and libraries, read-only, and nothing else. Of other files, not even names and
sizes can be read, and no file of the machine can be written, whatever its permissions say.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence

from .syscalls import syscall

MODULES = "/modules"  # the folder that code finds modules in
SCRATCH = "/scratch"
WORK = f"{SCRATCH}/work"  # where a child mounts its own folder; Landlock's rules for ``SCRATCH`` hold there
_NEWNS, _NEWUSER = 0x20000, 0x10000000
_ALL = _NEWUSER | _NEWNS | 0x02000000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000  # and cgroup, uts, ipc, pid, net
_NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_DETACH = 2
_OLD = "/.old"
_MOUNT_POINTS = ("/tmp", "/var/tmp", "/run", "/mnt", "/usr")  # any folder will do for the new root to be put on


def enter() -> None:
    """Move this process, and its future children, into new namespaces, as the same user.

    Raises:
        OSError: the machine does not allow it.
    """
    uid, gid = os.geteuid(), os.getegid()
    syscall("unshare", _ALL)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def new_root(shown: Sequence[str], hidden: Sequence[str], links: Mapping[str, str]) -> None:
    """Replace the root by one that has ``shown``, the links to modules and an empty folder ``/scratch``, all read-only.

    Args:
        shown: files and folders of the new root.
        hidden: folders in ``shown`` that become empty, but for other paths of ``shown`` that lie in them.
        links: names in its folder of modules, and the paths that they lead to.

    Raises:
        OSError: the machine does not allow it.
    """
    places = sorted((os.path.realpath(path).split("/"), path, path in hidden) for path in {*shown, *hidden})
    base = next(path for path in _MOUNT_POINTS if os.path.isdir(path))
    syscall("mount", b"none", b"/", None, _REC | _PRIVATE, None)
    syscall("mount", b"tmpfs", base.encode(), b"tmpfs", _NOSUID | _NODEV, b"size=1m,mode=755")
    os.mkdir(f"{base}{_OLD}")
    syscall("pivot_root", base.encode(), f"{base}{_OLD}".encode())
    os.chdir("/")
    for parts, _, covered in places:  # a folder comes before what is in it
        if covered:
            syscall("mount", b"tmpfs", "/".join(parts).encode(), b"tmpfs", _NOSUID | _NODEV, b"size=1m,mode=755")
        else:
            _show("/".join(parts))
    for parts, path, _ in places:  # after all mounts: a link must not make a folder that is still to be shown
        _link(path, "/".join(parts))
    link_modules(MODULES, links)
    os.makedirs(WORK)
    syscall("umount2", _OLD.encode(), _DETACH)
    os.rmdir(_OLD)
    read_only = struct.pack("=QQQQ", 1 | 2, 0, 0, 0)  # and no set-user-id programs
    syscall("mount_setattr", -1, b"/", 0x8000, read_only, len(read_only))  # all mounts beneath


def link_modules(folder: str, links: Mapping[str, str]) -> None:
    """Make a folder of links to modules, by name, so that code need not list the folders that the modules lie in."""
    os.mkdir(folder, 0o755)
    for name, path in links.items():
        place = os.path.join(folder, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(path, place)


def _show(real: str) -> None:
    """Bind a path of the old root to the same place in the new one."""
    if os.path.lexists(real):
        return
    os.makedirs(os.path.dirname(real), exist_ok=True)
    if os.path.isdir(f"{_OLD}{real}"):
        os.mkdir(real)
    else:
        os.close(os.open(real, os.O_CREAT | os.O_WRONLY, 0o644))
    syscall("mount", f"{_OLD}{real}".encode(), real.encode(), None, _BIND | _REC, None)


def _link(path: str, real: str) -> None:
    """Link ``path`` to its real path if it goes through links."""
    if real != path and not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(real, path)


def private_scratch(num_bytes: int, num_files: int) -> None:
    """Mount a folder in memory that this process alone has, and that ends with it, as its working folder."""
    syscall("unshare", _NEWNS)
    options = f"size={num_bytes},nr_inodes={num_files},mode=700".encode()
    syscall("mount", b"tmpfs", WORK.encode(), b"tmpfs", _NOSUID | _NODEV | _NOEXEC, options)
    os.chdir(WORK)
