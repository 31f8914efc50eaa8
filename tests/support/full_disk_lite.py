"""A Lite server killed on a full disk: ``python full_disk_lite.py FOLDER`` prints as JSON what happened then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from full_disk import QUERIES, STORED, fill_up, read, refusal

from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.lite.server import read_endpoint
from rapo_rllib.settings import BufferSettings


def kill_server(path: str) -> None:
    endpoint = read_endpoint(path)
    if endpoint is not None:
        os.kill(endpoint.pid, signal.SIGKILL)
        while read_endpoint(path) is not None:
            time.sleep(0.05)


def answer(buffer: StepTraceBuffer) -> str:
    try:
        buffer.retrieve(QUERIES)
        return f"{buffer.count()} rows"
    except RetrievalError as error:
        return str(error)


def main(folder: Path) -> None:
    path, filler = str(folder / "steps.db"), folder / "filler"
    buffer = StepTraceBuffer(BufferSettings(uri=path))
    buffer.create()
    buffer.insert(STORED)
    found: dict[str, object] = {"refusal": refusal(buffer), "stored": buffer.count()}
    fill_up(filler)
    kill_server(path)
    found["the same user"] = [answer(buffer) for _ in range(2)]
    kill_server(path)
    buffer.close()
    found["another user"] = [answer(StepTraceBuffer(BufferSettings(uri=path))) for _ in range(2)]
    kill_server(path)
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=40m", str(folder)], check=True)  # what Lite wrote itself fills the small one
    found |= {"after": read(buffer), "count": buffer.count()}
    buffer.close()
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
