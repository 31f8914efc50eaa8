"""From whole trajectories to a Step-Trace Buffer: cut into steps, embed, store, once. algorithm.md section 4, appendix C.3.1.

envs (expert) or traces/recorded.py --ExpertTrajectory--> step_traces --StepTrace--> StepTraceBuffer.insert

With ``retrieval_level: trajectory`` (an ablation) ``whole_trajectory`` takes the place of ``step_traces``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain

from rapo_rllib.buffer.choices import URI_KEY
from rapo_rllib.buffer.keys import trace_id
from rapo_rllib.buffer.leak_guard import LeakGuard, refuse_leaks
from rapo_rllib.buffer.shared_steps import SharedSteps
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.milvus.lite.paths import beside, check_lite_path, exclusive_lock
from rapo_rllib.types import ExpertTrajectory, StepTrace

NOTE = "built"
SHAPE = {"traces": str | None, "max_traces": int | None, "count": int}  # of that note
BUILD_TIMEOUT_S = 24 * 3600.0  # how long a second process waits for the one that builds


def step_traces(expert: ExpertTrajectory) -> list[StepTrace]:
    """The step traces of a trajectory, as :func:`cut` makes them. None if its reward is not positive."""
    return cut(expert) if expert.reward > 0 else []


def cut(expert: ExpertTrajectory) -> list[StepTrace]:
    """Cut a trajectory into step traces: key = the steps before ``t``, value = step ``t``.

    Example: steps ``("<python>3 + 5</python>…", "<answer>8</answer>")`` give two traces, with histories ``""`` and
    ``"<python>3 + 5</python>…"``.
    """
    question, traces = expert.question, []
    for index, text in enumerate(expert.steps):
        history = "".join(expert.steps[:index])
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


def whole_trajectory(expert: ExpertTrajectory) -> list[StepTrace]:
    """A trajectory as one trace: key = the question alone, value = all its steps. None if its reward is not positive.

    Example: steps ``("<python>3 + 5</python>…", "<answer>8</answer>")`` give one trace with history ``""`` and text
    ``"<python>3 + 5</python>…<answer>8</answer>"``.
    """
    return step_traces(replace(expert, steps=("".join(expert.steps),)))


def ensure_built(
    buffer: StepTraceBuffer,
    traces: Callable[[], Iterable[ExpertTrajectory]] | None,
    max_traces: int | None = None,
    on_progress: Callable[[int], None] | None = None,
    guard: LeakGuard | None = None,
) -> int:
    """Build the buffer on first use; return the number of step traces in it.

    A step that several trajectories share is stored once, with the best of their rewards, as ``rllib buffer import`` does it.
    May be killed at any time: the next call adds what is missing. Of several processes with the same Lite path one builds and
    the others wait; with a server each may build, which stores the same rows.

    Args:
        buffer: where to store.
        traces: opens the source; called, once, only if something is to be built. None: the buffer must be complete.
        max_traces: stop after so many different step traces; nothing more is asked of the source then.
        on_progress: told the number of step traces done so far.
        guard: knows the evaluation questions. Trajectories that answer one are left out, counted in ``guard.refused``; a buffer
            that holds some is refused.

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
    built = buffer.note(NOTE, SHAPE) if buffer.exists() else None
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
    buffer.create()
    into_traces = whole_trajectory if buffer.settings.level == "trajectory" else step_traces
    experts = traces() if guard is None else guard.keep(traces())
    told = None if on_progress is None else lambda seen, added: on_progress(seen)
    buffer.insert_or_update(SharedSteps().improving(chain.from_iterable(map(into_traces, experts)), max_traces), told)
    count = buffer.count()
    if count == 0:
        raise ValueError(f"step_trace_buffer.traces: {buffer.settings.traces!r} holds no trajectory with a positive reward")
    buffer.fit_index()
    buffer.set_note(NOTE, {**wanted, "count": count})
    return count


def _serves(buffer: StepTraceBuffer, built: dict, wanted: dict, as_it_is: bool) -> bool:
    """Whether what was built is what is wanted; False: more is wanted from the same source."""
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


def build_lock(buffer: StepTraceBuffer, timeout_s: float = BUILD_TIMEOUT_S) -> AbstractContextManager[None]:
    """Held by who adds to the buffer: of several processes with the same Lite path one does so at a time.

    Raises:
        ValueError: the Lite path is none.
        RetrievalError: another process holds it for longer than ``timeout_s``.
    """
    if not buffer.milvus.is_lite:
        return nullcontext()
    check_lite_path(buffer.uri, URI_KEY)
    return exclusive_lock(beside(buffer.uri, "build"), timeout_s)
