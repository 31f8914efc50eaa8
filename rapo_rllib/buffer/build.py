"""Build a Step-Trace Buffer once: cut trajectories into steps, embed and store them. algorithm.md section 4, appendix C.3.1.

envs (expert) or traces/recorded.py --ExpertTrajectory--> step_traces --StepTrace--> StepTraceBuffer.insert
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from filelock import FileLock, Timeout

from rapo_rllib.buffer.keys import trace_id
from rapo_rllib.buffer.leak_guard import LeakGuard, refuse_leaks
from rapo_rllib.buffer.maker import URI_KEY
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.milvus.address import check_lite_path
from rapo_rllib.types import ExpertTrajectory, StepTrace

logger = logging.getLogger(__name__)

NOTE = "built"


def step_traces(expert: ExpertTrajectory) -> list[StepTrace]:
    """Cut a trajectory into step traces by :func:`cut`; into no traces if its reward is not positive."""
    return cut(expert) if expert.reward > 0 else []


def cut(expert: ExpertTrajectory, level: str = "step") -> list[StepTrace]:
    """Cut a trajectory into step traces: key = the steps before ``t``, value = step ``t``.

    At the level ``trajectory`` (an ablation) all steps are one: key = the question alone.

    Example: steps ``("<python>3 + 5</python>…", "<answer>8</answer>")`` give two traces, with histories ``""`` and
    ``"<python>3 + 5</python>…"``.
    """
    question, traces = expert.question, []
    steps = expert.steps if level == "step" else ("".join(expert.steps),)
    for index, text in enumerate(steps):
        history = "".join(steps[:index])
        traces.append(
            StepTrace(
                id=trace_id(question.text, history, text, expert.source),
                question=question.text,
                history=history,
                text=text,
                reward=expert.reward,
                question_id=question.id,
                step_index=index,
                source=expert.source,
            )
        )
    return traces


class BestOf:
    """Best trajectory of each step, by the step's id: its reward, its question id and the step's index in it.

    Example: a step occurs in a trajectory with reward 0.2, and again in one with reward 1. The step is stored with reward 1 and
    with the question id of the second trajectory.
    """

    def __init__(self) -> None:
        self._best: dict[str, tuple[float, str, int]] = {}

    def __len__(self) -> int:
        return len(self._best)

    def improves(self, trace: StepTrace) -> bool:
        """Register a step trace; return whether it is the first with its id, or has a higher reward than all before."""
        better = trace.id not in self._best or trace.reward > self._best[trace.id][0]
        if better:
            self._best[trace.id] = trace.reward, trace.question_id, trace.step_index
        return better

    def improving(self, traces: Iterable[StepTrace], most: int | None = None) -> Iterator[StepTrace]:
        """Yield each step when it first occurs, and again when its reward is higher; stop after ``most`` different steps."""
        for trace in traces:
            if self.improves(trace):
                yield trace
            if len(self) == most:
                return

    def once(self, traces: Iterable[StepTrace]) -> Iterator[StepTrace]:
        """Yield each registered step once, when it first occurs, with the data of its best trajectory."""
        seen: set[str] = set()
        for trace in traces:
            if trace.id in self._best and trace.id not in seen:
                seen.add(trace.id)
                reward, question_id, step_index = self._best[trace.id]
                yield replace(trace, reward=reward, question_id=question_id, step_index=step_index)


def ensure_built(
    buffer: StepTraceBuffer,
    traces: Callable[[], Iterable[ExpertTrajectory]] | None,
    max_traces: int | None = None,
    on_progress: Callable[[int], None] | None = None,
    guard: LeakGuard | None = None,
) -> int:
    """Build the buffer on first use; return the number of step traces in it.

    A step that several trajectories share is stored once, with the best of their rewards, as ``rllib buffer import`` does it.
    A build may be killed at any time: the next call adds what is missing. If several processes use the same Lite path, one
    builds and the others wait; on a server each may build, and all store the same rows.

    Args:
        buffer: where to store.
        traces: opens the source; called, once, only if something is to be built. None: the buffer must be complete.
        max_traces: stop after so many different step traces, and read no more from the source.
        on_progress: called with the number of step traces done so far.
        guard: the evaluation questions. Their trajectories are left out and counted in ``guard.refused``; a buffer that holds
            step traces of such questions is refused.

    Raises:
        ValueError: there is nothing to build from, or the buffer was built from something else, with another embedder, at
            another level, or holds evaluation questions.
        RetrievalError: Milvus does not answer.
    """
    with build_lock(buffer):
        count = _built(buffer, traces, max_traces, on_progress, guard)
        if guard is not None:
            refuse_leaks(buffer, guard)
        return count


def _built(
    buffer: StepTraceBuffer,
    traces: Callable[[], Iterable[ExpertTrajectory]] | None,
    max_traces: int | None,
    on_progress: Callable[[int], None] | None,
    guard: LeakGuard | None,
) -> int:
    wanted = {"traces": buffer.settings.traces, "max_traces": max_traces}
    built = buffer.note(NOTE) if buffer.exists() else None
    damaged = built is not None and traces is not None and buffer.missing() > 0
    if built is not None and _serves(buffer, built, wanted, traces is None) and not damaged:
        buffer.create()  # checks that embedder and level are the same
        if buffer.settings.index != "auto":
            buffer.fit_index()
        return buffer.count()
    if traces is None:
        raise ValueError(
            f"step_trace_buffer: there is no complete buffer in collection {buffer.collection!r} at {buffer.uri}, and "
            "step_trace_buffer.traces names nothing to build it from. Name a trace file or 'expert'."
        )
    if built is None and buffer.exists() and (count := buffer.count()):
        logger.warning(
            "%s holds %d step traces of a build or an import that was not finished; it is added to", buffer.uri, count
        )
    buffer.create()
    experts = traces() if guard is None else guard.keep(traces())
    given = (trace for expert in experts if expert.reward > 0 for trace in cut(expert, buffer.settings.level))
    told = None if on_progress is None else lambda seen, added: on_progress(seen)
    buffer.insert(BestOf().improving(given, max_traces), told)
    count = buffer.count()
    if count == 0:
        raise ValueError(f"step_trace_buffer.traces: {buffer.settings.traces!r} holds no trajectory with a positive reward")
    buffer.fit_index()
    buffer.set_note(NOTE, wanted)
    return count


def _serves(buffer: StepTraceBuffer, built: dict, wanted: dict, as_it_is: bool) -> bool:
    """Return whether the buffer is built as wanted; False: more of the same source is wanted. Refuses another source."""
    if as_it_is or wanted["traces"] is None:
        return True
    if built["traces"] != wanted["traces"]:
        raise ValueError(
            f"step_trace_buffer.traces: the buffer in collection {buffer.collection!r} at {buffer.uri} was built from "
            f"{built['traces']!r}, not from {wanted['traces']!r}. "
            "Name another uri or collection, or set traces to null to use it."
        )
    if wanted["max_traces"] is None or built["max_traces"] is None:
        return built["max_traces"] is None
    return built["max_traces"] >= wanted["max_traces"]


def build_lock(buffer: StepTraceBuffer) -> AbstractContextManager[object]:
    """Lock the buffer for adding, or wait for the lock: only one process at a time may add to a Lite path.

    Raises ``ValueError`` if the path cannot be a Milvus Lite folder.
    """
    if not buffer.milvus.is_lite:
        return nullcontext()
    check_lite_path(buffer.uri, URI_KEY)
    lock = FileLock(f"{buffer.uri}.build")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        logger.warning("waiting for another process to unlock %s", lock.lock_file)
        return lock.acquire()
