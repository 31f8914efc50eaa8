"""Scratch folders on disk, for machines without namespaces: are they full, and away with them.

What is in them was made by code that means harm: nests of a thousand folders, folders that nobody may enter. Symbolic and
hard links cannot be there, since the calls that make them are refused.
"""

from __future__ import annotations

import os
import shutil


def is_over(folder: str, num_bytes: int, num_files: int) -> bool:
    """Whether a folder holds more than so many bytes or files. Unreadable folders are counted, not entered."""
    waiting, found, size = [folder], 0, 0
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:  # no permission, a path too long, or gone by now
            continue
        for entry in entries:
            found += 1
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            else:
                size += _blocks(entry)
        if found > num_files or size > num_bytes:
            return True
    return False


def _blocks(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0


def remove(folder: str) -> None:
    """Delete a scratch folder. Nested folders are moved up first, so that no path grows too long and nothing recurses."""
    count, waiting = 0, [folder]
    os.chmod(folder, 0o700)
    while waiting:
        present = waiting.pop()
        for name in os.listdir(present):
            path = os.path.join(present, name)
            if not os.path.isdir(path) or os.path.islink(path):
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            count += 1
            moved = f"{folder}.{count}"
            os.rename(path, moved)
            waiting.append(moved)
        if present != folder:
            os.rmdir(present)
    shutil.rmtree(folder)
