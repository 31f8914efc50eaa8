"""Scratch folders on disk, for machines without namespaces: are they full, and away with them.

What is in them was made by code that means harm: nests of a thousand folders, folders that nobody may enter, files that have no
name any more. Symbolic and hard links cannot be there, and modes cannot be changed, since the calls for it are refused.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from itertools import chain

from .jail import MAX_FILE_BYTES

_MAX_DEPTH = 50  # of folders in folders, each of which is an open descriptor here
_BLOCK = 512
_EXITING = 0x4  # of a process's flags, in /proc/PID/stat
_MAPPED = re.compile(rb"^\S+ \S+ \S+ (\S+ \d+) +(/.*) \(deleted\)$", re.MULTILINE)  # device and number, path


def is_over(folder: str, pid: int, num_bytes: int, num_files: int) -> bool:
    """Whether a process holds more than so many bytes or files in its folder; looks at no more than that many.

    Counted are the folder's files and folders, whatever their modes, and files that have no name any more: those that are open,
    by their size, and those that are only mapped, whose size nobody can ask for, by the largest that it can be.
    """
    found, size = 0, 0
    try:
        for blocks in chain(_in_tree(folder), _without_name(pid, folder)):
            found, size = found + 1, size + blocks * _BLOCK
            if found > num_files or size > num_bytes:
                return True
    except _TooDeep:
        return True
    except PermissionError:
        if not _is_ending(pid):  # what a dead process had open belongs to root
            raise
    return False


class _TooDeep(Exception):
    """Folders in folders in folders."""


def _in_tree(folder: str) -> Iterator[int]:
    """Blocks of everything beneath a folder."""
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield from _beneath(root, 0)
    finally:
        os.close(root)


def _beneath(folder: int, depth: int) -> Iterator[int]:
    """The same by descriptors, so that no path grows too long; what is gone by now is left out."""
    if depth > _MAX_DEPTH:
        raise _TooDeep
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                about = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
                inner = _enter(entry.name, folder, about.st_mode) if stat.S_ISDIR(about.st_mode) else -1
            except (FileNotFoundError, NotADirectoryError):
                continue
            yield about.st_blocks
            if inner >= 0:
                try:
                    yield from _beneath(inner, depth + 1)
                finally:
                    os.close(inner)


def _enter(name: str, folder: int, mode: int) -> int:
    if mode & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=folder)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)


def _without_name(pid: int, folder: str) -> Iterator[int]:
    """Blocks of the files of a process that were deleted, each once."""
    seen = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
        with open(f"/proc/{pid}/maps", "rb") as file:
            maps = file.read()
    except (FileNotFoundError, ProcessLookupError):  # it ended
        return
    for name in names:
        try:
            about = os.stat(f"/proc/{pid}/fd/{name}")
        except (FileNotFoundError, ProcessLookupError):
            continue
        key = b"%02x:%02x %d" % (os.major(about.st_dev), os.minor(about.st_dev), about.st_ino)
        if stat.S_ISREG(about.st_mode) and about.st_nlink == 0 and key not in seen:
            seen.add(key)
            yield about.st_blocks
    for key, path in _MAPPED.findall(maps):
        if key not in seen and path.startswith(os.fsencode(folder)):
            seen.add(key)
            yield MAX_FILE_BYTES // _BLOCK


def _is_ending(pid: int) -> bool:
    """Whether the kernel is taking a process apart, or has done so."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *numbers = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in (b"Z", b"X") or bool(int(numbers[5]) & _EXITING)


def removal(folder: str) -> Iterator[None]:
    """Delete a scratch folder, with a pause after each file and folder.

    Nested folders are moved up first, so that no path grows too long and nothing recurses.
    """
    count, waiting = 0, [folder]
    os.chmod(folder, 0o700)
    while waiting:
        yield
        present = waiting.pop()
        for name in os.listdir(present):
            yield
            path = os.path.join(present, name)
            if not os.path.isdir(path) or os.path.islink(path):
                os.unlink(path)
            elif not _remove_empty(path):
                os.chmod(path, 0o700)
                count += 1
                moved = f"{folder}.{count}"
                os.rename(path, moved)
                waiting.append(moved)
        if present != folder:
            os.rmdir(present)
    shutil.rmtree(folder)


def _remove_empty(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except OSError:  # it is not empty
        return False
    return True
