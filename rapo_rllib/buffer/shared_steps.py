"""Steps that several trajectories of one source share: each is stored once, with the best of their rewards.

``importing.survey`` shows ``SharedSteps`` all step traces, and ``import_traces`` stores what it makes of them, so that the same
import done again changes nothing. ``build.ensure_built`` reads its source once, for an expert may be costly or never end, and
stores a step again when it earned more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from rapo_rllib.types import StepTrace


class SharedSteps:
    """Facts about every step after a source was read once: its best reward, under an 8-byte digest of its id.

    Example: the step of a trajectory with reward 0.2, met again in one with reward 1, is stored with reward 1, and with the
    question id of the second.
    """

    def __init__(self) -> None:
        self._best: dict[int, float] = {}
        self._better: dict[int, tuple[str, int]] = {}  # where the first is not the best: the best one's question id and index

    def is_new(self, trace: StepTrace) -> bool:
        """Take note of a step trace; whether it is the first of its id."""
        digest, before = _digest(trace.id), len(self._best)
        if trace.reward > self._best.setdefault(digest, trace.reward):
            self._best[digest], self._better[digest] = trace.reward, (trace.question_id, trace.step_index)
        return len(self._best) > before

    def once(self, traces: Iterable[StepTrace]) -> Iterator[StepTrace]:
        """Each step once, in the place of the first and with what belongs to the best."""
        seen: set[int] = set()
        for trace in traces:
            digest = _digest(trace.id)
            if digest in seen:
                continue
            seen.add(digest)
            if digest in self._better:
                question_id, step_index = self._better[digest]
                trace = replace(trace, reward=self._best[digest], question_id=question_id, step_index=step_index)
            yield trace

    def improving(self, traces: Iterable[StepTrace], most: int | None = None) -> Iterator[StepTrace]:
        """Each step when it comes first, and again whenever it earned more; ends with the ``most``-th different one."""
        for trace in traces:
            before = self._best.get(_digest(trace.id))
            if self.is_new(trace) or (before is not None and trace.reward > before):
                yield trace
            if len(self._best) == most:
                return


def _digest(trace_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(trace_id.encode(), digest_size=8).digest(), "little")
