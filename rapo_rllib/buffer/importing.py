"""Files of traces into a buffer; may be stopped or killed at any time, and goes on where it was.

    files --traces/formats.py--> trajectories, steps --usable_traces--> step traces, once to check and count, once more to store

No file is ever held in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from rapo_rllib.buffer.build import NOTE as BUILT
from rapo_rllib.buffer.build import SHAPE, BestOf, build_lock, cut
from rapo_rllib.buffer.keys import id_of
from rapo_rllib.buffer.leak_guard import REFUSED, LeakGuard, question_of
from rapo_rllib.buffer.rows import fits
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.buffer.writing import Written
from rapo_rllib.traces.formats import AUTO, read
from rapo_rllib.traces.rows import BuildProgress
from rapo_rllib.types import ExpertTrajectory, StepTrace

BUILT_FROM = "rllib buffer import"
SHARED = "the same step in another trajectory"
TOO_LONG = "question or step above 65,535 bytes"
IMPORT = "import"  # the note of those that were begun and not finished: until they are, some of their steps are missing
NAMED = 4  # files by name in that note, which holds 64 KB
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

    given: Counter[str]  # step traces of each source that are imported
    dropped: Counter[str]  # rows or step traces that are not, by reason
    steps: BestOf
    stamps: list[Stamp]  # of the files, before they were read


def survey(plan: ImportPlan) -> ImportReport:
    """Read and check the files, and decide what each source gives.

    Raises:
        ValueError: a file is wrong, or holds nothing usable.
    """
    given: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    steps, stamps = BestOf(), _stamps(plan)
    for trace in usable_traces(plan, dropped):
        before = len(steps)
        steps.improves(trace)
        if len(steps) == before:
            dropped[SHARED] += 1
        elif given.total() == plan.max_traces:
            dropped["beyond --max-traces"] += 1
        else:
            given[trace.source] += 1
    if not given:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in dropped.items())
        raise ValueError(f"{', '.join(map(str, plan.files))}: nothing to import ({reasons or 'no rows'})")
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
        RetrievalError: Milvus does not answer.
    """
    total, files = report.given.total(), _named(plan.files)

    def tell(seen: int, embedded: int) -> None:
        if on_progress:
            on_progress(BuildProgress(seen, embedded, total))

    with build_lock(buffer):
        _check_unchanged(plan, report)
        buffer.create()
        buffer.set_note(IMPORT, {"unfinished": sorted({*unfinished_imports(buffer), files})})
        steps = report.steps.once(usable_traces(plan, Counter()))
        written = buffer.insert_or_update(islice(steps, plan.max_traces), tell)
        _check_unchanged(plan, report)
        buffer.fit_index()
        buffer.set_note(BUILT, buffer.note(BUILT, SHAPE) or {"traces": BUILT_FROM, "max_traces": None})
        buffer.set_note(IMPORT, {"unfinished": [other for other in unfinished_imports(buffer) if other != files]})
        return written


def unfinished_imports(buffer: StepTraceBuffer) -> list[str]:
    """The files of each import that did not finish, as a text. Imports of other files do not finish it."""
    return list((buffer.note(IMPORT, {"unfinished?": [str]}) or {}).get("unfinished", []))


def _named(files: Sequence[Path]) -> str:
    names = sorted(str(path.expanduser().absolute()) for path in files)
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*names[:NAMED], *more])


def _stamps(plan: ImportPlan) -> list[Stamp]:
    paths = [path.expanduser() for path in plan.files]
    found = [path.stat() if path.exists() else None for path in paths]
    return [(stat.st_size, stat.st_mtime_ns) if stat else None for stat in found]


def _check_unchanged(plan: ImportPlan, report: ImportReport) -> None:
    for path, before, now in zip(plan.files, report.stamps, _stamps(plan), strict=True):
        if before != now:
            raise ValueError(f"{path} changed after it was checked; import it again when nobody writes to it")


def usable_traces(plan: ImportPlan, dropped: Counter[str]) -> Iterator[StepTrace]:
    """The step traces of the plan's files, in their order; ids come from the content, whatever a file calls them."""
    for path in plan.files:
        for item in read(path, plan.format, dropped):
            if item.reward < plan.min_reward if plan.min_reward is not None else item.reward <= 0:
                dropped["reward below --min-reward" if plan.min_reward is not None else "reward not positive"] += 1
            elif plan.guard is not None and plan.guard.leaks(question_of(item)):
                dropped[REFUSED] += 1
            else:
                traces = _traces(item, plan.source)
                if too_long := sum(not fits(trace) for trace in traces):
                    dropped[TOO_LONG] += too_long
                yield from filter(fits, traces)


def _traces(item: ExpertTrajectory | StepTrace, source: str | None) -> list[StepTrace]:
    named = item if source is None else replace(item, source=source)
    return cut(named) if isinstance(named, ExpertTrajectory) else [replace(named, id=id_of(named))]
