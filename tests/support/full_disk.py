"""A Lite path on a full disk: ``python full_disk.py FOLDER`` prints as JSON what happened, for ``test_buffer_failures.py``."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from buffer_helpers import experts

from rapo_rllib.buffer.build import step_traces
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery

TRACES = [trace for expert in experts(5) for trace in step_traces(expert)]
STORED, LATER = TRACES[:8], TRACES[8:]
QUERIES = [HistoryQuery(trace.question, trace.history) for trace in STORED]


def read(buffer: StepTraceBuffer) -> bool:
    return [hits[0].trace for hits in buffer.retrieve(QUERIES)] == STORED


def refusal(buffer: StepTraceBuffer) -> str:
    try:
        for number in range(20):
            buffer.insert([replace(LATER[0], id=f"big{number}/{part}", text="x" * 62_000) for part in range(64)])  # 4 MB
    except RetrievalError as error:
        return str(error)
    return "all was stored"


def fill_up(filler: Path) -> None:
    """Take the last bytes of the disk."""
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def fill_up_beside(*, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
    """A callback: behind the iteration N, if a file ``fill_N`` lies in ``env_config["folder"]``, its disk is full."""
    folder = Path(algorithm.config.env_config["folder"])
    if (folder / f"fill_{result['training_iteration']}").exists():
        fill_up(folder / "filler")


def main(folder: Path) -> None:
    settings = BufferSettings(uri=str(folder / "steps.db"))
    buffer = StepTraceBuffer(settings)
    buffer.create()
    buffer.insert(STORED)
    found = {"before": read(buffer), "refusal": refusal(buffer)}
    fill_up(folder / "filler")
    found |= {"while_full": read(buffer), "another_reader": read(StepTraceBuffer(settings)), "count": buffer.count()}
    (folder / "filler").unlink()
    buffer.close()
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
