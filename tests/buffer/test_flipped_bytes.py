"""A byte of a buffer's files that is not what was written: what is retrieved is right, or refused by name."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from buffer_helpers import experts
from processes import run_until_it_kills_itself

from rapo_rllib.buffer.build import step_traces
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery

TRACES = [trace for expert in experts(20) for trace in step_traces(expert)]
LONG = replace(TRACES[0], id="long", text="é" * 30_000)
STORED = [*TRACES, LONG]
QUERIES = [HistoryQuery(trace.question, trace.history) for trace in TRACES]
MakeBuffer = Callable[..., StepTraceBuffer]
FLIPS = 6  # per file
ADVICE = re.compile("[Rr]estore a copy")


@cache
def vectors() -> np.ndarray:
    return StepTraceBuffer(BufferSettings(uri="unused.db")).embed(QUERIES)


def answers(buffer: StepTraceBuffer) -> list[list[tuple[str, float]]]:
    found = buffer.nearest(vectors(), QUERIES, 3)
    return [[(repr(hit.trace), round(hit.similarity, 5)) for hit in hits] for hits in found]


def flip(file: Path, rng: random.Random, at: int | None = None) -> None:
    """Change one bit where the file lies."""
    place = rng.randrange(file.stat().st_size) if at is None else at
    with file.open("r+b") as opened:
        opened.seek(place)
        (byte,) = opened.read(1)
        opened.seek(place)
        opened.write(bytes([byte ^ 1 << rng.randrange(8)]))


def fill_and_die(uri: str) -> None:
    """Leaves a table and a log."""
    buffer = StepTraceBuffer(BufferSettings(uri=uri))
    buffer.create()
    buffer.insert(TRACES[:20])
    buffer.milvus.flush(buffer.collection)
    buffer.insert(STORED[20:])
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a buffer whose writer was killed."""
    path = tmp_path_factory.mktemp("sound") / "steps.db"
    run_until_it_kills_itself(fill_and_die, str(path))
    return path


def all_of(buffer: StepTraceBuffer) -> tuple[list, list]:
    """What is read of it, and what is retrieved."""
    buffer.prepare()
    return sorted(buffer.all_traces(), key=repr), answers(buffer)


@pytest.mark.parametrize("pattern", ["step_traces/partitions/*/data/*", "step_traces/wal/*"])
def test_lites_own_files_are_what_was_stored_or_refused(
    sound: Path, make_buffer: MakeBuffer, tmp_path: Path, pattern: str
) -> None:
    rng, refused = random.Random(3), 0
    expected = all_of(make_buffer(uri=str(shutil.copytree(sound, tmp_path / "sound.db"))))
    assert expected[0] == sorted(STORED, key=repr)
    for number in range(FLIPS):
        path = Path(shutil.copytree(sound, tmp_path / f"{number}.db"))
        (file,) = path.glob(f"collections/{pattern}")
        flip(file, rng, None if number else file.stat().st_size // 2)
        reader = make_buffer(uri=str(path))
        try:
            assert all_of(reader) == expected, number
        except RetrievalError as error:
            refused += 1
            assert str(path) in str(error) and ADVICE.search(str(error)), error
        reader.close()
    assert refused
