"""Files of traces into a buffer; may be stopped or killed at any time, and goes on where it was.

    files --traces/formats.py--> trajectories, steps --usable_traces--> step traces, once to check and count, once more to store

No file is ever held in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rapo_rllib.buffer.build import NOTE as BUILT
from rapo_rllib.buffer.build import SHAPE, build_lock, cut
from rapo_rllib.buffer.keys import looks_made, trace_id
from rapo_rllib.buffer.leak_guard import REFUSED, LeakGuard
from rapo_rllib.buffer.shared_steps import SharedSteps
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.buffer.unfinished import begin, finish
from rapo_rllib.buffer.writing import Written
from rapo_rllib.traces.formats import AUTO, read
from rapo_rllib.traces.rows import BuildProgress
from rapo_rllib.types import ExpertTrajectory, StepTrace

BUILT_FROM = "rllib buffer import"
LOCK_TIMEOUT_S = 2.0
SHARED = "the same step in another trajectory"
Stamp = tuple[int, int] | None  # size and time of change, ns; None: there is no such file


@dataclass(frozen=True)
class ImportPlan:
    """The plan of an import."""

    files: tuple[Path, ...]
    format: str = AUTO
    source: str | None = None  # in place of the files' own
    max_traces: int | None = None
    min_reward: float | None = None  # None: only positive rewards
    guard: LeakGuard | None = None


@dataclass
class ImportReport:
    """The content of the files."""

    given: dict[str, int]  # step traces of each source that are imported
    dropped: Counter[str]  # rows or step traces that are not, by reason
    steps: SharedSteps
    stamps: list[Stamp]  # of the files, before they were read


def survey(plan: ImportPlan) -> ImportReport:
    """Read and check the files, and decide what each source gives.

    Raises:
        ValueError: a file is wrong, or holds nothing usable.
    """
    dropped: Counter[str] = Counter()
    available: Counter[str] = Counter()
    steps, stamps = SharedSteps(), _stamps(plan)
    for trace in usable_traces(plan, dropped):
        if steps.is_new(trace):
            available[trace.source] += 1
        else:
            dropped[SHARED] += 1
    if not available:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in dropped.items())
        raise ValueError(f"{', '.join(map(str, plan.files))}: nothing to import ({reasons or 'no rows'})")
    given = quotas(available, plan.max_traces)
    if left := available.total() - sum(given.values()):
        dropped["beyond --max-traces"] = left
    return ImportReport(given, dropped, steps, stamps)


def import_traces(
    buffer: StepTraceBuffer,
    plan: ImportPlan,
    report: ImportReport,
    on_progress: Callable[[BuildProgress], None] | None = None,
) -> Written:
    """Store what :func:`survey` found.

    What is stored already is not embedded again, but gets the reward, question id and step index that the files give it.

    Raises:
        ValueError: the buffer was made with another embedder, or a file changed since the survey.
        RetrievalError: Milvus does not answer, or another process builds at this Lite path.
    """
    total = sum(report.given.values())

    def tell(seen: int, embedded: int) -> None:
        if on_progress:
            on_progress(BuildProgress(seen, embedded, total))

    with build_lock(buffer, LOCK_TIMEOUT_S):
        _check_unchanged(plan, report)
        buffer.create()
        halfway = begin(buffer, plan.files)
        written = buffer.insert_or_update(_chosen(plan, report), tell)
        if halfway:  # the import that was killed may have changed rows without saying so at its end
            buffer.mark_changed()
        _check_unchanged(plan, report)
        buffer.fit_index()
        count = buffer.count()
        before = buffer.note(BUILT, SHAPE) or {"traces": BUILT_FROM, "max_traces": None}
        buffer.set_note(BUILT, {**before, "count": count})
        finish(buffer, plan.files)
        return written


def _stamps(plan: ImportPlan) -> list[Stamp]:
    paths = [path.expanduser() for path in plan.files]
    found = [path.stat() if path.exists() else None for path in paths]
    return [(stat.st_size, stat.st_mtime_ns) if stat else None for stat in found]


def _check_unchanged(plan: ImportPlan, report: ImportReport) -> None:
    for path, before, now in zip(plan.files, report.stamps, _stamps(plan), strict=True):
        if before != now:
            raise ValueError(f"{path} changed after it was checked; import it again when nobody writes to it")


def usable_traces(plan: ImportPlan, dropped: Counter[str]) -> Iterator[StepTrace]:
    """The step traces of the plan's files, in their order, with content-derived ids.

    An id that a file gives is kept, unless it looks like one of ours and is of another content, or another step has it already.
    """
    given: dict[str, str] = {}  # ids of files -> the content-derived one of the step that came with it first
    for path in plan.files:
        for item in read(path, plan.format, dropped):
            if item.reward < plan.min_reward if plan.min_reward is not None else item.reward <= 0:
                dropped["reward below --min-reward" if plan.min_reward is not None else "reward not positive"] += 1
            elif plan.guard is not None and plan.guard.leaks(_question(item)):
                dropped[REFUSED] += 1
            else:
                yield from _traces(item, plan.source, given)


def _question(item: ExpertTrajectory | StepTrace) -> str:
    return item.question.text if isinstance(item, ExpertTrajectory) else item.question


def _traces(item: ExpertTrajectory | StepTrace, source: str | None, given: dict[str, str]) -> list[StepTrace]:
    source = item.source if source is None else source
    if isinstance(item, ExpertTrajectory):
        return cut(replace(item, source=source))
    made = trace_id(item.question, item.history, item.text, source)
    keeps = item.id and source == item.source and not looks_made(item.id) and given.setdefault(item.id, made) == made
    return [item if keeps else replace(item, source=source, id=made)]


def _chosen(plan: ImportPlan, report: ImportReport) -> Iterator[StepTrace]:
    left = dict(report.given)
    for trace in report.steps.once(usable_traces(plan, Counter())):
        if left.get(trace.source, 0):
            left[trace.source] -= 1
            yield trace


def quotas(available: Mapping[str, int], wanted: int | None) -> dict[str, int]:
    """Share ``wanted`` evenly among the sources; what one cannot give, the others give.

    Example: sources with 100, 100 and 3 traces: of 40 traces 18, 19 and 3.

    Args:
        available: traces of each source.
        wanted: traces in all; None: every one.
    """
    given, left = dict(available), sum(available.values()) if wanted is None else wanted
    for behind, source in enumerate(sorted(available, key=lambda name: (available[name], name))):
        given[source] = min(available[source], left // (len(available) - behind))
        left -= given[source]
    return given
