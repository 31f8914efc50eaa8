"""Import of trace files into a buffer, and export. An import that was stopped or killed goes on where it was when repeated.

    files --traces/formats.py--> trajectories, steps --usable_traces--> step traces, once to check and count, once more to store

Files are read as streams, never held in memory. An export loses nothing, and ``traces/exported.py`` reads it back.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from rapo_rllib.buffer.build import NOTE as BUILT
from rapo_rllib.buffer.build import BestOf, build_lock, cut
from rapo_rllib.buffer.keys import id_of
from rapo_rllib.buffer.leak_guard import REFUSED, LeakGuard, question_of
from rapo_rllib.buffer.rows import fits
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.buffer.writing import Written
from rapo_rllib.traces.exported import header_row
from rapo_rllib.traces.formats import AUTO, read
from rapo_rllib.traces.rows import BuildProgress
from rapo_rllib.types import ExpertTrajectory, StepTrace

BUILT_FROM = "rllib buffer import"
SHARED = "the same step in another trajectory"
TOO_LONG = "question or step above 65,535 bytes"


@dataclass(frozen=True)
class ImportPlan:
    """The plan of an import."""

    files: tuple[Path, ...]
    format: str = AUTO
    source: str | None = None  # replaces the sources that the files name
    max_traces: int | None = None
    min_reward: float | None = None  # None: only positive rewards
    guard: LeakGuard | None = None
    level: str = "step"  # of the buffer


@dataclass
class ImportReport:
    """Counts of what an import takes from the files, and the best trajectory of each step."""

    given: Counter[str]  # step traces that are imported, by source
    dropped: Counter[str]  # rows or step traces that are not imported, by reason
    steps: BestOf


def survey(plan: ImportPlan) -> ImportReport:
    """Read and check the files, and count the step traces that each source gives.

    Raises:
        ValueError: a file is wrong, or holds nothing usable.
    """
    given: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    steps = BestOf()
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
    return ImportReport(given, dropped, steps)


def import_traces(
    buffer: StepTraceBuffer,
    plan: ImportPlan,
    report: ImportReport,
    on_progress: Callable[[BuildProgress], None] | None = None,
) -> Written:
    """Store the step traces that :func:`survey` counted.

    A step trace that is stored already is not embedded again, but gets the reward, question id and step index from the files.

    Raises:
        ValueError: the buffer was made with another embedder.
        RetrievalError: Milvus does not answer.
    """
    total = report.given.total()

    def tell(seen: int, embedded: int) -> None:
        if on_progress:
            on_progress(BuildProgress(seen, embedded, total))

    with build_lock(buffer):
        buffer.create()
        steps = report.steps.once(usable_traces(plan, Counter()))
        written = buffer.insert(islice(steps, plan.max_traces), tell)
        buffer.fit_index()
        buffer.set_note(BUILT, buffer.note(BUILT) or {"traces": BUILT_FROM, "max_traces": None})
        return written


def usable_traces(plan: ImportPlan, dropped: Counter[str]) -> Iterator[StepTrace]:
    """Yield the step traces of the plan's files, in their order; ids come from the content, not from the files."""
    for path in plan.files:
        for item in read(path, plan.format, dropped):
            if item.reward < plan.min_reward if plan.min_reward is not None else item.reward <= 0:
                dropped["reward below --min-reward" if plan.min_reward is not None else "reward not positive"] += 1
            elif plan.guard is not None and plan.guard.leaks(question_of(item)):
                dropped[REFUSED] += 1
            else:
                traces = _traces(item, plan)
                if too_long := sum(not fits(trace) for trace in traces):
                    dropped[TOO_LONG] += too_long
                yield from filter(fits, traces)


def _traces(item: ExpertTrajectory | StepTrace, plan: ImportPlan) -> list[StepTrace]:
    named = item if plan.source is None else replace(item, source=plan.source)
    return cut(named, plan.level) if isinstance(named, ExpertTrajectory) else [replace(named, id=id_of(named))]


def export_traces(buffer: StepTraceBuffer, path: Path, overwrite: bool = False) -> int:
    """Write every step trace to a ``.jsonl`` or ``.jsonl.gz`` file, and return their number.

    The file gets its name only when it is complete, so a stopped export leaves no incomplete file under that name.

    Args:
        buffer: what is exported.
        path: of the file.
        overwrite: write over an existing file.

    Raises:
        ValueError: the file is there already, its name or folder is wrong, or the buffer changed meanwhile.
        RetrievalError: Milvus does not answer.
    """
    path = path.expanduser()
    if not path.name.endswith((".jsonl", ".jsonl.gz")):
        raise ValueError(f"{path}: the file's name must end in .jsonl or .jsonl.gz")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} is there already; name another file, or allow it with --replace")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; make it, or correct the path")
    part = path.with_name(f".{path.name}.part")
    total, count = buffer.count(), 0
    try:
        with gzip.open(part, "wt", encoding="utf-8") if path.suffix == ".gz" else open(part, "w", encoding="utf-8") as file:
            print(json.dumps(header_row(total)), file=file)
            for trace in buffer.all_traces():
                count += 1
                print(json.dumps(asdict(trace), ensure_ascii=False), file=file)
        if count != total:
            raise ValueError(f"{buffer.uri}: the buffer changed while it was exported ({total:,}, then {count:,}); do it again")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return count
