"""The lines of a text file, plain or gzipped, for readers that name file and line where something is wrong."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path


def numbered_lines(path: Path, what: str = "file") -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers from 1.

    Raises:
        ValueError: the file is missing, cut short, or no UTF-8 text; ``what`` says which kind of file it should be.
    """
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except FileNotFoundError as error:
        raise ValueError(f"there is no {what} {path}; correct the path (now in {Path.cwd()})") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"the {what} {path} cannot be read after line {number}: {error}") from error
