"""The Step-Trace Buffer is made on the first run, before any engine starts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rapo_rllib.progress import Progress
from rapo_rllib.question_source import expert_trajectories
from rapo_rllib.types import ExpertTrajectory


def open_buffer(config: Any, progress: Progress) -> Any:
    """The complete buffer of this config, built if it is not there yet; the caller closes it.

    Raises:
        ValueError: it cannot be built, or was built from something else.
        RetrievalError: Milvus does not answer.
    """
    from rapo_rllib.buffer.build import ensure_built
    from rapo_rllib.buffer.store import StepTraceBuffer

    settings = config.buffer_settings
    buffer = StepTraceBuffer(settings)
    progress.say(f"opening the Step-Trace Buffer at {settings.uri}")
    said = 0

    def on_progress(count: int) -> None:
        nonlocal said
        if count - said >= 250:
            said = count
            progress.say(f"embedded and stored {count} step traces")

    count = ensure_built(buffer, _traces(config), settings.max_traces, on_progress)
    progress.say(f"the Step-Trace Buffer holds {count} step traces")
    return buffer


def _traces(config: Any) -> Any:
    source = config.buffer_settings.traces
    if source is None:
        return None
    if source == "expert":
        return lambda: expert_trajectories(config)

    def from_file() -> Iterable[ExpertTrajectory]:
        from rapo_rllib.trace_files import read_trace_file

        return read_trace_file(source)

    return from_file
