"""Growth of the Step-Trace Buffer between two rollouts: add the policy's own traces, and tell the env runners.

    groups of a rollout --BufferUpdater.take--> grown traces (memory; checkpoints) --sync--> grown traces in Milvus
                                           --view--> env runners, with the next rollout

This process holds the grown traces, and Milvus only a copy of them. If Milvus does not answer, training goes on, the failure
is counted, and the next iteration writes what is missing. So a resumed run has exactly the traces of its checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rapo_rllib.algorithm.trial_files import RunName
from rapo_rllib.buffer.growth import GrownTraces, grown_candidates
from rapo_rllib.buffer.layered import BufferView, grown_settings
from rapo_rllib.buffer.leak_guard import LeakGuard
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import StepTrace, TrajectoryGroup

logger = logging.getLogger(__name__)


class BufferUpdater:
    """Growth of one run's buffer.

    Args:
        buffer: the off-policy agents' buffer, already open.
        run: name of the run, from which its collection is named; the name of a checkpoint may replace it.
        protocol: how the policy's steps are rendered.
        guard: knows the evaluation questions; step traces of these do not enter.
    """

    def __init__(
        self,
        buffer: StepTraceBuffer,
        run: RunName,
        protocol: ProtocolSettings,
        guard: LeakGuard | None = None,
    ) -> None:
        self._buffer, self._protocol = buffer, protocol
        self._settings = buffer.settings
        self._run = run
        self._guard = LeakGuard(()) if guard is None else guard
        self._kept = GrownTraces(self._settings.max_grown)
        self._grown: StepTraceBuffer | None = None
        self._stored: dict[str, tuple[float, int]] | None = None  # what the grown collection holds; None: not known yet
        self._version = 0
        self.coverage: float | None = None  # share of training questions with step traces; None: unknown
        self._failures = 0  # iterations in which Milvus did not answer
        self._failed = False  # Milvus did not answer, which is not counted yet
        if self._settings.growth != "none":
            self._grown = self._own_buffer()

    def _own_buffer(self) -> StepTraceBuffer:
        return StepTraceBuffer(grown_settings(self._settings, f"{self._buffer.collection}_grown_{self._run.in_milvus}"))

    def view(self) -> BufferView:
        """Return the env runners' view of the buffer; before the first rollout, bring the grown collection up to date."""
        if self._stored is None:
            self.sync()
        collection = None if self._grown is None or self._stored is None else self._grown.collection
        return BufferView(collection, self._version)

    def take(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Add the good step traces of a rollout, and return metrics."""
        found, refused = self._candidates(groups)
        change = self._kept.add(found)
        self.sync()
        self._failures += self._failed
        self._failed = False
        values: dict[str, float] = {"failures": self._failures}
        if self.coverage is not None:
            values["coverage"] = self.coverage
        if self._grown is not None:
            values |= {"grown": len(self._kept), **change, "refused": refused}
        return {name: float(value) for name, value in values.items()}

    def _candidates(self, groups: Sequence[TrajectoryGroup]) -> tuple[list[StepTrace], int]:
        """Find the policy's step traces that may enter, and count traces that may not, as they are of evaluation questions."""
        allowed, count = [], 0
        for group in groups:
            found = grown_candidates([group], self._settings.growth, self._protocol, self._settings.level)
            count += len(found)
            if not self._guard.leaks(group.question.text):
                allowed += [trace for trace in found if not self._guard.leaks(trace.question)]  # the environment's text
        return allowed, count - len(allowed)

    def sync(self) -> None:
        """Bring Milvus up to date; if it does not answer, note and log the failure: the next call tries again."""
        try:
            if self._grown is not None:
                self._sync_grown(self._grown)
        except RetrievalError as error:
            self._failed = True
            logger.warning("the Step-Trace Buffer could not be brought up to date, which is tried again: %s", error)

    def _sync_grown(self, grown: StepTraceBuffer) -> None:
        if self._stored is None:
            grown.create()
            self._stored = {trace.id: _changing(trace) for trace in grown.all_traces()}
        stored, wanted = self._stored, self._kept.traces
        missing = [trace for key, trace in wanted.items() if key not in stored]
        again = [trace for key, trace in wanted.items() if key in stored and stored[key] != _changing(trace)]
        gone = sorted(set(stored) - set(wanted))
        if missing or again or gone:
            self._stored = None  # so that after a failure halfway the collection is read again
            grown.insert([*missing, *again])
            grown.delete(gone)
            self._stored = {key: _changing(trace) for key, trace in wanted.items()}
            self._version += 1

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the grown traces themselves, not only their ids, and the run's name."""
        return {"grown": self._kept.get_state(), "run": self._run.get_state()}

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Restore the state of a checkpoint, of this run or another one; None: its run had no buffer."""
        state = state or {"grown": [], "run": None}
        self._go_on_as(self._run.after(state["run"]))
        allowed = [trace for trace in state["grown"] if not self._guard.leaks(trace.question)]
        if refused := len(state["grown"]) - len(allowed):
            logger.warning("left out %d step traces of the checkpoint, of questions of the evaluation", refused)
        self._kept.set_state(allowed)
        self.sync()

    def _go_on_as(self, run: RunName) -> None:
        if run == self._run:
            return
        self._run = run
        if self._grown is not None:
            self._grown.close()
            self._grown, self._stored = self._own_buffer(), None

    def close(self) -> None:
        """Disconnect. The grown collection stays, for people to look into and to import."""
        if self._grown is not None:
            self._grown.close()


def _changing(trace: StepTrace) -> tuple[float, int]:
    """Return the fields of a stored trace that may change."""
    return trace.reward, trace.weight_version
