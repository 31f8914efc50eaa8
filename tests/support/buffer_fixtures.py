"""Real parts for the buffer's tests: MiniLM (loaded once) and Milvus Lite paths that are closed behind their test."""

import os
from collections.abc import Callable, Iterator

import pytest

from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.embedding.local import resolve_embedder
from rapo_rllib.settings import BufferSettings


@pytest.fixture(scope="session", autouse=True)
def minilm() -> str:
    """Folder of the packaged embedding model."""
    return resolve_embedder("all-minilm-l6-v2", "embedder")


@pytest.fixture
def make_buffer(tmp_path) -> Iterator[Callable[..., StepTraceBuffer]]:
    """Makes buffers on a path of this test; all are closed afterwards."""
    made = []

    def make(**settings) -> StepTraceBuffer:
        made.append(StepTraceBuffer(BufferSettings(**({"uri": os.path.join(tmp_path, "steps.db")} | settings))))
        return made[-1]

    yield make
    for buffer in made:
        buffer.close()
