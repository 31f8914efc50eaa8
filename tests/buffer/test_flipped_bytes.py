"""A byte of a buffer's files that is not what was written: what is retrieved is right, or refused by name."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from buffer_helpers import experts, wait_until

from rapo_rllib.buffer import nearest
from rapo_rllib.buffer.build import step_traces
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.lite.server import read_endpoint
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery

TRACES = [trace for expert in experts(20) for trace in step_traces(expert)]
LONG = replace(TRACES[0], id="long", text="é" * 50_000)
QUERIES = [HistoryQuery(trace.question, trace.history) for trace in TRACES]
MakeBuffer = Callable[..., StepTraceBuffer]
FLIPS = 4  # per file


@cache
def vectors() -> np.ndarray:
    return StepTraceBuffer(BufferSettings(uri="unused.db")).embed(QUERIES)


def answers(buffer: StepTraceBuffer) -> list[list[tuple[str, float]]]:
    found = buffer.nearest(vectors(), QUERIES, 3)
    return [[(repr(hit.trace), round(hit.similarity, 5)) for hit in hits] for hits in found]


def flip(file: Path, rng: random.Random, at: int | None = None) -> None:
    """Change one bit where the file lies: who has it mapped has it changed."""
    place = rng.randrange(file.stat().st_size) if at is None else at
    with file.open("r+b") as opened:
        opened.seek(place)
        (byte,) = opened.read(1)
        opened.seek(place)
        opened.write(bytes([byte ^ 1 << rng.randrange(8)]))


@pytest.fixture
def indexed(make_buffer: MakeBuffer, monkeypatch: pytest.MonkeyPatch) -> Iterator[StepTraceBuffer]:
    """A buffer large enough for an index, which is there."""
    monkeypatch.setattr(nearest, "EXACT_LIMIT", 20)
    buffer = make_buffer()
    buffer.create()
    buffer.insert(TRACES)
    assert wait_until(lambda: has_index(buffer), 60)
    yield buffer


def has_index(buffer: StepTraceBuffer) -> bool:
    buffer.refresh()
    buffer.prepare()
    return any(Path(f"{buffer.uri}.keys").glob("*/graph.faiss"))


@pytest.mark.slow  # it waits for an index of another process behind every flip
@pytest.mark.parametrize("mapped", [True, False], ids=["while it is mapped", "before it is opened"])
def test_what_is_retrieved_is_what_was_stored(
    indexed: StepTraceBuffer, make_buffer: MakeBuffer, mapped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert make_buffer().exists()  # so that the server stays while the buffer is closed
    expected, rng = answers(indexed), random.Random(1)
    with caplog.at_level(logging.WARNING):
        for name in ("rows.arrow", "keys.faiss", "facts.json", "graph.faiss", "graph.json"):
            if name.startswith("graph"):  # it may be under way again, after the flips before
                assert wait_until(lambda: has_index(indexed), 60)
            size = next(Path(f"{indexed.uri}.keys").glob(f"*/{name}")).stat().st_size
            for at in (0, size - 1, *(rng.randrange(size) for _ in range(FLIPS))):
                if name.startswith("graph"):
                    assert wait_until(lambda: has_index(indexed), 60)
                (file,) = Path(f"{indexed.uri}.keys").glob(f"*/{name}")
                if not mapped:
                    indexed.close()
                flip(file, rng, at)
                assert answers(indexed) == expected, (name, at)
    assert "is not what was written" in caplog.text and "is damaged" in caplog.text


def test_a_file_cut_short_while_it_is_mapped(indexed: StepTraceBuffer) -> None:
    expected = answers(indexed)
    for name in ("rows.arrow", "keys.faiss", "graph.faiss"):
        (file,) = Path(f"{indexed.uri}.keys").glob(f"*/{name}")
        os.truncate(file, file.stat().st_size // 2)
        assert answers(indexed) == expected
        assert wait_until(lambda: has_index(indexed), 60)


def drawn(buffer: StepTraceBuffer) -> list[str]:
    return [repr(trace) for trace in buffer.random_traces(QUERIES, [random.Random(n) for n in range(len(QUERIES))])]


def test_what_is_drawn_is_what_was_stored(indexed: StepTraceBuffer) -> None:
    expected, rng = drawn(indexed), random.Random(2)
    for _ in range(FLIPS):
        (file,) = Path(f"{indexed.uri}.keys").glob("*/rows.arrow")
        flip(file, rng)
        assert drawn(indexed) == expected


def test_lites_own_files_are_what_was_stored_or_refused(make_buffer: MakeBuffer, tmp_path: Path) -> None:
    """Of a table, a log, and the log of a long trace's parts; there is no snapshot that would stand in for them."""
    buffer, stored = make_buffer(uri=str(tmp_path / "sound.db")), [*TRACES, LONG]
    buffer.create()
    buffer.insert(TRACES[:20])
    buffer.milvus.flush(buffer.collection)
    buffer.insert(stored[20:])
    endpoint = read_endpoint(buffer.uri)
    assert endpoint is not None
    os.kill(endpoint.pid, signal.SIGKILL)
    buffer.close()
    rng, refused = random.Random(3), 0
    for pattern in ("step_traces/partitions/*/data/*", "step_traces/wal/*", "step_traces_parts/wal/*"):
        path = Path(shutil.copytree(buffer.uri, tmp_path / f"{rng.random()}.db"))
        (file,) = path.glob(f"collections/{pattern}")
        flip(file, rng, file.stat().st_size // 2)
        reader = make_buffer(uri=str(path))
        try:
            assert sorted(reader.reader.traces(), key=repr) == sorted(stored, key=repr)
        except RetrievalError as error:
            refused += 1
            assert f"{file} is damaged" in str(error) and "restore a copy of the folder" in str(error)
        reader.close()
    assert refused == 3
