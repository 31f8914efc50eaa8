"""Files at and beside a Milvus Lite path, and the locks on them."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)


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
def exclusive_lock(file_name: Path) -> Iterator[None]:
    """Hold an exclusive flock on a file; who must wait for another process says so."""
    with file_name.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("waiting for another process to unlock %s (see `lsof` for which)", file.name)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
