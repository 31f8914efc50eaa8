"""A writer killed on a full disk: ``python full_disk_lite.py FOLDER`` prints as JSON what another finds then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from full_disk import QUERIES, STORED, fill_up, read, refusal

from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.settings import BufferSettings


def write_and_die(folder: Path, told: int) -> None:
    """Insert until it is refused; ``told`` is the end of a pipe."""
    buffer = StepTraceBuffer(settings(folder))
    buffer.create()
    buffer.insert(STORED)
    found = {"refusal": refusal(buffer), "stored": buffer.count()}
    fill_up(folder / "filler")
    os.write(told, json.dumps(found).encode())
    os.kill(os.getpid(), signal.SIGKILL)


def settings(folder: Path) -> BufferSettings:
    return BufferSettings(uri=str(folder / "steps.db"))


def answer(buffer: StepTraceBuffer) -> str:
    try:
        buffer.retrieve(QUERIES)
        return f"{buffer.count()} rows"
    except RetrievalError as error:
        return str(error)


def main(folder: Path) -> None:
    reads, writes = os.pipe()
    if (writer := os.fork()) == 0:
        write_and_die(folder, writes)
    assert os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) == -signal.SIGKILL
    found = json.loads(os.read(reads, 100_000))
    buffer = StepTraceBuffer(settings(folder))
    found["while_full"] = [answer(buffer) for _ in range(2)]
    (folder / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,size=40m", str(folder)], check=True)  # what Lite wrote itself fills the small one
    found |= {"after": read(buffer), "count": buffer.count()}
    buffer.close()
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
