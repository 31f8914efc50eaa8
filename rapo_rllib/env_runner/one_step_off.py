"""One step off-policy: the next rollout runs while the learner updates. Flow: algorithm -> here -> env runners.

    step k:    take batch k (rolled out during step k-1), begin batch k+1, update on k, wait for k+1, sync weights k+1

A batch is thus sampled with the weights of one update before those it is trained on: its staleness is 1, never more.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.envs.cursor import QuestionCursor


class OneStepOffSampler:
    """Holds at most one batch that was begun and is not trained on yet.

    Args:
        cursor: of the questions.
    """

    def __init__(self, cursor: QuestionCursor) -> None:
        self._cursor = cursor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sampling-ahead")
        self._pending: tuple[Future[SampleResult], dict[str, Any]] | None = None  # and where the cursor stood before

    def take(self, sample: Callable[[], SampleResult]) -> SampleResult:
        """The batch that was begun; the first time, what ``sample`` rolls out now."""
        if self._pending is None:
            return sample()
        future, _ = self._pending
        self._pending = None
        return future.result()

    def begin(self, sample: Callable[[], SampleResult]) -> None:
        """Start to roll out the next batch: ``sample`` takes questions from the cursor, in another thread.

        It must hold all that changes from step to step, as values of schedules: those go on beside it.
        """
        assert self._pending is None, "a batch is waiting to be trained on"
        before = self._cursor.get_state()
        self._pending = (self._thread.submit(sample), before)

    def wait(self) -> None:
        """Wait until the engines are idle; raises what the rollout raised."""
        if self._pending is not None:
            self._pending[0].result()

    def cursor_state(self) -> dict[str, Any]:
        """For a checkpoint: where the cursor stands without the batch that nobody has trained on, which is sampled again."""
        return self._cursor.get_state() if self._pending is None else self._pending[1]

    def forget(self) -> None:
        """Drop the batch that was begun, once it is over: weights or cursor were set to something else."""
        if self._pending is not None:
            wait([self._pending[0]])
            self._pending = None

    def close(self) -> None:
        """Wait for what runs, and end the thread."""
        self.forget()
        self._thread.shutdown()
