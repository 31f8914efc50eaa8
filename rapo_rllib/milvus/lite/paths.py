"""Files at and beside a Milvus Lite path, and the locks on them."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rapo_rllib.errors import RetrievalError

logger = logging.getLogger(__name__)

SAY_S = 10.0  # between messages about a lock that is waited for


def beside(path: str, kind: str) -> Path:
    """Name the file ``<path>.<kind>``."""
    return Path(f"{path}.{kind}")


def check_lite_path(path: str, uri_key: str) -> None:
    """Refuse a path that cannot hold a Milvus Lite folder; makes the parent folders.

    Raises:
        ValueError: naming ``uri_key``, what the user calls the path, and what to do.
    """
    folder = Path(path)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{uri_key}: the folder {folder.parent} cannot be made ({error}). Name another.") from error
    if folder.exists() and not folder.is_dir():
        raise ValueError(
            f"{uri_key}: {path} is a file; Milvus Lite 3 keeps a folder. Name another path, or move the file away."
        )
    for place in [folder.parent, *([folder] if folder.exists() else [])]:
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
            raise ValueError(f"{uri_key}: no permission to read and write {place}. Name another path, or change it.")


@contextmanager
def exclusive_lock(file_name: Path, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive flock on a file. Raises ``RetrievalError`` if it is not free within ``timeout_s``."""
    with file_name.open("a") as file:
        start = said = time.monotonic()
        while not _try_lock(file):
            now = time.monotonic()
            if now - start > timeout_s:
                raise RetrievalError(
                    f"{file.name} stayed locked for {timeout_s:.0f} s; a process that holds it may hang (see `lsof`)"
                )
            if now - said > SAY_S:
                said = now
                logger.warning("waiting for another process to unlock %s (for %.0f s now)", file.name, now - start)
            time.sleep(0.05)
        yield


def _try_lock(file: IO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
