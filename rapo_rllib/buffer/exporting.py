"""A buffer as a file, without loss. Flow: ``rllib buffer export`` -> here -> ``traces/exported.py`` reads it."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.traces.exported import header_row, row_of_trace


def export_traces(buffer: StepTraceBuffer, path: Path, replace: bool = False) -> int:
    """Write every step trace to a ``.jsonl`` or ``.jsonl.gz`` file; returns their number.

    The file takes its name when it is whole; a stopped export leaves nothing under it.

    Args:
        buffer: what is exported.
        path: of the file.
        replace: write over an existing file.

    Raises:
        ValueError: the file is there already, its name or folder is wrong, or the buffer changed meanwhile.
        RetrievalError: Milvus does not answer.
    """
    path = path.expanduser()
    if not path.name.endswith((".jsonl", ".jsonl.gz")):
        raise ValueError(f"{path}: the file's name must end in .jsonl or .jsonl.gz")
    if path.exists() and not replace:
        raise ValueError(f"{path} is there already; name another file, or allow it with --replace")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; make it, or correct the path")
    part = path.with_name(f".{path.name}.part")
    total, count = buffer.count(), 0
    try:
        with gzip.open(part, "wt", encoding="utf-8") if path.suffix == ".gz" else open(part, "w", encoding="utf-8") as file:
            print(json.dumps(header_row(total)), file=file)
            for trace in buffer.all_traces():
                count += 1
                print(json.dumps(row_of_trace(trace), ensure_ascii=False), file=file)
        if count != total:
            raise ValueError(f"{buffer.uri}: the buffer changed while it was exported ({total:,}, then {count:,}); do it again")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return count
