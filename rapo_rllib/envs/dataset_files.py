"""Rows of a data set: from a file, a folder that Hugging Face ``datasets`` understands, or a Hugging Face id.

Flow: ``env_config.dataset`` -> here -> rows as dictionaries -> ``dataset_rows.py``.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, wraps
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from rapo_rllib.traces.rows import BYTE_ORDER_MARK, opened_text

Row = dict[str, Any]
Reader = TypeVar("Reader", bound=Callable[..., Any])
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_MAX_CSV_FIELD = min(sys.maxsize, 2**31 - 1)


def read_rows(
    dataset: str,
    key: str,
    split: str,
    config: str | None = None,
    limit: int | None = None,
) -> list[Row]:
    """Read the first ``limit`` rows of a data set (None: all).

    Args:
        dataset: path of a file or folder, or a Hugging Face id.
        key: the key that names the data set, for error messages, e.g. ``env_config.dataset``.
        split: split of a folder or Hugging Face data set; a file holds one split only.
        config: configuration of a folder or Hugging Face data set; a folder that lacks it is read in its only configuration.
        limit: the most rows to read.

    Raises:
        ValueError: the data set is missing or cannot be read; names the key, the value and the fix.
    """
    path = Path(dataset).expanduser()
    suffix = _suffix(path)
    if suffix is not None:
        if not path.is_file():
            raise ValueError(f"{key} = {dataset!r}: there is no such file; correct the path (now in {Path.cwd()})")
        return _rows_of_file(path, suffix, key, limit)
    if path.is_dir() or (_HUB_ID.fullmatch(dataset) and not path.exists()):
        return _rows_of_hub(str(path) if path.is_dir() else dataset, key, split, config, limit)
    kinds = ", ".join(_READERS)
    raise ValueError(f"{key} = {dataset!r}: neither a file ending in {kinds}, nor a folder, nor a Hugging Face id")


def read_once(read: Reader) -> Reader:
    """Cache the results of ``read`` for the whole process; read again if a file or folder named by an argument has changed."""

    @lru_cache(maxsize=8)
    def kept(changed_at: tuple[int, ...], *args: Any, **named: Any) -> Any:
        return read(*args, **named)

    @wraps(read)
    def asked(*args: Any, **named: Any) -> Any:
        paths = [Path(part).expanduser() for part in args if part and isinstance(part, str)]
        files = [file for path in paths for file in (path, *path.rglob("*"))]  # a folder's time is not that of its files
        return kept(tuple(file.stat().st_mtime_ns for file in files if file.exists()), *args, **named)

    return cast(Reader, asked)


def _rows_of_file(path: Path, suffix: str, key: str, limit: int | None) -> list[Row]:
    rows: list[Row] = []
    try:
        for row in islice(_READERS[suffix](path), limit):
            if not isinstance(row, dict):
                raise ValueError(f"{path}: row {len(rows) + 1} is {type(row).__name__}, not an object with fields")
            rows.append(row)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise ValueError(f"{key} = {str(path)!r}: cannot be read after row {len(rows)}: {error}") from error
    return rows


def _jsonl(path: Path) -> Iterator[Any]:
    with opened_text(path) as file:
        for line in file:
            if (line := line.lstrip(BYTE_ORDER_MARK)).strip():
                yield json.loads(line)


def _json(path: Path) -> Iterable[Any]:
    with opened_text(path) as file:
        rows = json.load(file)
    if not isinstance(rows, list):
        raise ValueError(f"{path}: expected a list of objects, got {type(rows).__name__}")
    return rows


def _csv(path: Path) -> Iterator[Any]:
    csv.field_size_limit(_MAX_CSV_FIELD)
    with open(path, encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            if None in row:
                raise csv.Error("more cells than the header has: put a text with commas between quotation marks")
            yield row


def _parquet(path: Path) -> Iterator[Any]:
    from pyarrow import ArrowInvalid, parquet

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except ArrowInvalid as error:
        raise OSError(str(error)) from error


_READERS: dict[str, Callable[[Path], Iterable[Any]]] = {
    ".jsonl": _jsonl,
    ".jsonl.gz": _jsonl,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": _csv,
}


def is_file_name(dataset: str) -> bool:
    """Check whether ``dataset`` has the name of a readable file; such a file holds one split only."""
    return _suffix(Path(dataset)) is not None


def _suffix(path: Path) -> str | None:
    return next((suffix for suffix in _READERS if path.name.endswith(suffix)), None)


def _rows_of_hub(name: str, key: str, split: str, config: str | None, limit: int | None) -> list[Row]:
    import datasets

    local = Path(name).is_dir()
    try:
        if local and config not in datasets.get_dataset_config_names(name):
            config = None
        # stream a folder: the cache of ``datasets`` would take another folder with the same name and README for this one
        found = datasets.load_dataset(name, config, split=split, streaming=local)
        return [dict(row) for row in islice(found, limit)]
    # RuntimeError: a data set that is a script, which `datasets` no longer runs
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        what = f"{name!r}, configuration {config!r}, split {split!r}"
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""  # says which file is broken, and where
        raise ValueError(f"{key} = {name!r}: cannot load {what}: {error}{cause}") from error
