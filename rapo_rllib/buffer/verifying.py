"""Look through a whole buffer for what should not be there. Flow: ``rllib buffer verify`` -> here.

Rows are checked when they are written, and on a Lite path when they are read (``row_sum``). Here every row's id is compared
with its content, a sample is embedded again, and what is noted is compared with what is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rapo_rllib.buffer.build import NOTE as BUILT
from rapo_rllib.buffer.build import SHAPE
from rapo_rllib.buffer.importing import IMPORT, unfinished_imports
from rapo_rllib.buffer.keys import id_of, looks_made
from rapo_rllib.buffer.leak_guard import LeakGuard
from rapo_rllib.buffer.rows import is_cut
from rapo_rllib.buffer.statistics import KeySample
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.types import StepTrace

MIN_COSINE = 0.99  # of a key and the same key embedded again; bfloat16 and float32 differ by less
SAMPLE = 64
EXAMPLES = 3


@dataclass
class Finding:
    """One kind of thing that is wrong."""

    kind: str
    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass
class Verdict:
    """The result of a check: what was looked at, and what was found."""

    rows: int = 0
    embedded_again: int = 0
    worst_cosine: float | None = None
    findings: list[Finding] = field(default_factory=list)

    def add(self, kind: str, example: str) -> None:
        """Note one more thing of a kind."""
        finding = next((each for each in self.findings if each.kind == kind), None)
        if finding is None:
            self.findings.append(finding := Finding(kind))
        finding.count += 1
        if finding.count <= EXAMPLES:
            finding.examples.append(example)


def verify(
    buffer: StepTraceBuffer, guard: LeakGuard | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Verdict:
    """Check every row of the buffer.

    Args:
        buffer: what is checked; the embedder's fingerprint first.
        guard: knows the evaluation questions.
        on_progress: told how many of how many rows are checked.

    Raises:
        ValueError: there is no such buffer, or it was made with another embedder.
        RetrievalError: Milvus does not answer.
    """
    buffer.check_embedder()
    verdict, total = Verdict(), buffer.count()
    sample: KeySample[StepTrace] = KeySample(SAMPLE)
    for traces, vectors in buffer.pages_with_keys():
        for trace in traces:
            if looks_made(trace.id) and not is_cut(trace.history) and trace.id != id_of(trace):
                verdict.add("an id that does not belong to the content", trace.id)
            if guard is not None and guard.leaks(trace.question):
                verdict.add("a question of the evaluation", trace.question[:120])
        sample.offer(traces, vectors)
        verdict.rows += len(traces)
        if on_progress:
            on_progress(verdict.rows, max(total, verdict.rows))
    _check_notes(buffer, verdict)
    _embed_again(buffer, sample, verdict)
    return verdict


def _check_notes(buffer: StepTraceBuffer, verdict: Verdict) -> None:
    """Compare what is noted about the buffer with what is there."""
    for files in unfinished_imports(buffer):
        verdict.add("an import that was not finished; run it again", files)
    if buffer.note(BUILT, SHAPE) is None and buffer.note(IMPORT) is None:
        verdict.add("a build that was not finished; run it again", buffer.collection)
    if missing := buffer.missing():
        verdict.add("step traces that were stored are gone", f"{missing:,} of {missing + verdict.rows:,}")


def _embed_again(buffer: StepTraceBuffer, sample: KeySample[StepTrace], verdict: Verdict) -> None:
    import numpy as np

    if not sample.items:
        return
    again = buffer.embedder.encode([(trace.question, trace.history) for trace in sample.items])
    cosines = (again * np.stack(sample.vectors)).sum(axis=1)
    for trace, cosine in zip(sample.items, cosines, strict=True):
        if not abs(cosine - 1) <= 1 - MIN_COSINE:  # nor is a vector that is too long
            verdict.add("a key that is not the embedding of its history", f"{trace.id}: cosine {cosine:.3f}")
    verdict.embedded_again, verdict.worst_cosine = len(cosines), float(cosines.min())
