"""Looks through a whole buffer for what should not be there. Flow: ``rllib buffer verify`` -> here.

Every row is read once, a page at a time; of the texts only 8-byte digests are kept. A sample is embedded again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rapo_rllib.buffer.build import NOTE as BUILT
from rapo_rllib.buffer.build import SHAPE
from rapo_rllib.buffer.keys import looks_made, trace_id
from rapo_rllib.buffer.leak_guard import LeakGuard
from rapo_rllib.buffer.neighbours import KeySample
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.buffer.unfinished import NOTE as IMPORT
from rapo_rllib.buffer.unfinished import unfinished_imports
from rapo_rllib.types import StepTrace

if TYPE_CHECKING:
    import numpy as np

NORM_TOLERANCE = 1e-3
MIN_COSINE = 0.99  # of a key and the same key embedded again; bfloat16 and float32 differ by less
SAMPLE = 64
EXAMPLES = 3


@dataclass
class Finding:
    """One kind of thing that is wrong."""

    kind: str
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, example: str) -> None:
        """One more."""
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)


@dataclass
class Verdict:
    """The result of a check: what was looked at, and what was found."""

    rows: int = 0
    embedded_again: int = 0
    worst_cosine: float | None = None
    duplicates: int = 0  # steps with the same question, history and text as another: no fault, but of no use either
    findings: list[Finding] = field(default_factory=list)


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
    verdict, findings = Verdict(), _Findings()
    total, dim = buffer.count(), buffer.embedder.dim
    seen_ids: set[int] = set()
    seen_steps: set[int] = set()
    sample: KeySample[StepTrace] = KeySample(SAMPLE)
    for traces, vectors in buffer.reader.with_keys():
        for trace in traces:
            _check_row(trace, guard, findings)
            if not _first(seen_ids, trace.id):
                findings.add("the same id twice", trace.id)
            verdict.duplicates += not _first(seen_steps, trace.question, trace.history, trace.text)
        for trace, reason in _bad_vectors(traces, vectors, dim):
            findings.add(reason, trace.id)
        sample.offer(traces, vectors)
        verdict.rows += len(traces)
        if on_progress:
            on_progress(verdict.rows, max(total, verdict.rows))
    _check_notes(buffer, verdict.rows, findings)
    _embed_again(buffer, sample, verdict, findings)
    verdict.findings = list(findings.by_kind.values())
    return verdict


class _Findings:
    def __init__(self) -> None:
        self.by_kind: dict[str, Finding] = {}

    def add(self, kind: str, example: str) -> None:
        self.by_kind.setdefault(kind, Finding(kind)).add(example)


def _check_row(trace: StepTrace, guard: LeakGuard | None, findings: _Findings) -> None:
    if not trace.text.strip():
        findings.add("empty text", trace.id)
    if not trace.question.strip():
        findings.add("empty question", trace.id)
    if looks_made(trace.id) and trace.id != trace_id(trace.question, trace.history, trace.text, trace.source):
        findings.add("an id that does not belong to the content", trace.id)
    if trace.reward != trace.reward or abs(trace.reward) == float("inf"):
        findings.add("a reward that is no number", trace.id)
    if guard is not None and guard.leaks(trace.question):
        findings.add("a question of the evaluation", trace.question[:120])


def _first(seen: set[int], *parts: str) -> bool:
    """Whether this was not seen yet."""
    digest = hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    before = len(seen)
    seen.add(number)
    return len(seen) > before


def _bad_vectors(traces: list[StepTrace], vectors: np.ndarray, dim: int) -> Iterator[tuple[StepTrace, str]]:
    import numpy as np

    if vectors.shape[1] != dim:
        yield from ((trace, f"a vector of {vectors.shape[1]} numbers in place of {dim}") for trace in traces)
        return
    finite = np.isfinite(vectors).all(axis=1)
    norms = np.linalg.norm(np.nan_to_num(vectors), axis=1)
    for trace, is_finite, norm in zip(traces, finite, norms, strict=True):
        if not is_finite:
            yield trace, "a vector that holds no numbers"
        elif abs(norm - 1) > NORM_TOLERANCE:
            yield trace, "a vector that is not of length 1"


def _check_notes(buffer: StepTraceBuffer, rows: int, findings: _Findings) -> None:
    """Compare what is noted about the buffer with what is there."""
    for files in unfinished_imports(buffer):
        findings.add("an import that was not finished; run it again", files)
    built = buffer.note(BUILT, SHAPE)
    if built is None and buffer.note(IMPORT) is None:
        findings.add("a build that was not finished; run it again", buffer.collection)
    if built is not None and rows < built["count"]:
        findings.add("fewer step traces than were noted when it was made", f"{rows:,} of {built['count']:,}")
    if (count := buffer.count()) != rows:
        findings.add("the number of rows differs from what the collection says", f"{rows:,} and {count:,}")


def _embed_again(buffer: StepTraceBuffer, sample: KeySample[StepTrace], verdict: Verdict, findings: _Findings) -> None:
    import numpy as np

    if not sample.items or any(vector.shape != (buffer.embedder.dim,) for vector in sample.vectors):
        return
    again = buffer.embedder.encode([(trace.question, trace.history) for trace in sample.items])
    cosines = (again * np.stack(sample.vectors)).sum(axis=1)
    for trace, cosine in zip(sample.items, cosines, strict=True):
        if not cosine >= MIN_COSINE:
            findings.add("a key that is not the embedding of its history", f"{trace.id}: cosine {cosine:.3f}")
    verdict.embedded_again, verdict.worst_cosine = len(cosines), float(cosines.min())
